use super::*;
use crate::manifest;

const HEAD: &str = "weights = \"w.pt\"\n[[input]]\nname = \"x\"\nshape = [\"n\", 4]\n";

fn graph(text: &str) -> Result<Graph, String> {
    let manifest = manifest::read("m.toml", format!("{HEAD}{text}").as_bytes()).map_err(|error| error.to_string())?;
    Graph::of(&manifest).map_err(|error| error.to_string())
}

fn layer(name: &str, rest: &str) -> String {
    format!("[[layer]]\nname = \"{name}\"\n{rest}\n")
}

#[test]
fn a_residual_branch_has_the_shapes_that_its_layers_give() {
    let text = [
        layer("a", "type = \"linear\"\nout-features = 4"),
        layer("b", "type = \"relu\""),
        layer("sum", "type = \"add\"\ninputs = [\"x\", \"b\"]"),
        layer("c", "type = \"concat\"\ninputs = [\"sum\", \"a\"]"),
        "[[output]]\nname = \"y\"\nlayer = \"c\"\n[[output]]\nname = \"z\"\nlayer = \"b\"\n".to_owned(),
    ];
    let graph = graph(&text.concat()).unwrap();
    let shapes: Vec<_> = graph.nodes.iter().map(|node| shapes::told(&node.shape)).collect();
    assert_eq!(shapes, ["[n, 4]", "[n, 4]", "[n, 4]", "[n, 8]"]);
    assert_eq!(graph.last_use, [2, 3, 4, 3, 4]);
    let signature = graph.signature();
    assert!(signature.rows);
    assert_eq!(graph.output_shapes(&[&[3, 4]]), Some(vec![vec![3, 8], vec![3, 4]]));
    let bytes = |rows: usize| graph.run_bytes(&[&[rows, 4]]);
    assert_eq!(bytes(10), bytes(1).map(|bytes| 10 * bytes));
    assert!(bytes(1).unwrap() >= 4 * (4 + 4 + 4 + 4 + 8));
    assert_eq!(bytes(usize::MAX), None);
}

#[test]
fn tensors_fit_a_device_up_to_the_bytes_of_its_buffers_and_not_with_one_byte_less() {
    // The layer gives eight numbers a row, its input has four.
    let graph = graph(&layer("wide", "type = \"linear\"\nout-features = 8")).unwrap();
    let fits = |rows: usize, most: u64| graph.tensors_fit(&[&[rows, 4]], most);
    assert!(fits(10, 10 * 8 * 4) && !fits(10, 10 * 8 * 4 - 1));
    assert!(fits(10, u64::MAX) && !fits(usize::MAX, u64::MAX), "what cannot be counted fits nowhere");
}

#[test]
fn circles_and_loose_ends_are_refused_by_name() {
    let check = |text: &str, words: &[&str]| {
        let error = graph(text).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    let circle = [layer("a", "type = \"add\"\ninputs = [\"x\", \"b\"]"), layer("b", "type = \"relu\"")].concat();
    check(&circle, &["layer a", "takes the layer b, which does not stand before it"]);
    check(&layer("a", "type = \"add\"\ninputs = [\"x\", \"a\"]"), &["layer a", "takes the layer a"]);
    check(&layer("a", "type = \"relu\"\ninputs = [\"q\"]"), &["layer a", "takes q, which is no input"]);
    check(&layer("x", "type = \"relu\""), &["layer x", "another layer or input"]);
    check(&[layer("a", "type = \"relu\""), layer("a", "type = \"relu\"")].concat(), &["layer a", "another layer"]);
    let loose = [layer("a", "type = \"relu\""), layer("b", "type = \"relu\"\ninputs = [\"x\"]")].concat();
    check(&loose, &["layer a", "no layer and no output takes what it gives"]);
    check(
        "[[input]]\nname = \"y\"\nshape = [\"n\", 4]\n[[layer]]\ntype = \"relu\"\ninputs = [\"x\"]",
        &["no layer takes the input y"],
    );
    check("[[input]]\nname = \"x\"\nshape = [1]\n[[layer]]\ntype = \"relu\"", &["two inputs named x"]);
    check("[[layer]]\ntype = \"relu\"\n[[output]]\nname = \"y\"\nlayer = \"q\"", &["output y is of layer q"]);
    check("[[layer]]\ntype = \"relu\"\n[[output]]\nname = \"y\"\nlayer = \"x\"", &["output y is of layer x"]);
    check("", &["m.toml", "[[layer]]"]);
    check(
        &layer("e", "type = \"embedding\"\nentries = 3\nfeatures = 2"),
        &["layer e", "takes integers, the input x has FP32"],
    );
    let ids = "[[input]]\nname = \"ids\"\nshape = [\"n\"]\ndatatype = \"INT64\"\n";
    check(
        &format!("{ids}{}", layer("r", "type = \"relu\"\ninputs = [\"ids\"]")),
        &["layer r", "floating-point", "INT64"],
    );
}

#[test]
fn models_of_any_size_are_counted_before_anything_is_computed() {
    let text = layer("a", "type = \"linear\"\nout-features = 1000000000");
    let graph = graph(&text).unwrap();
    assert!(graph.run_bytes(&[&[1, 4]]).unwrap() > 1 << 32);
}

#[test]
fn requests_are_computed_together_where_rows_are_the_first_axis_and_no_other() {
    let joining = |text: &str| {
        let manifest = manifest::read("m.toml", format!("weights = \"w.pt\"\n{text}").as_bytes()).unwrap();
        let graph = Graph::of(&manifest).unwrap();
        graph.joining(&graph.signature()).to_string()
    };
    let input = |name: &str, shape: &str| format!("[[input]]\nname = \"{name}\"\nshape = {shape}\n");
    let (relu, sum) = (layer("r", "type = \"relu\""), layer("s", "type = \"add\"\ninputs = [\"x\", \"y\"]"));
    assert_eq!(joining(&[input("x", "[\"n\", 4]"), relu.clone()].concat()), "in batches");
    assert_eq!(joining(&[input("x", "[\"n\", \"steps\"]"), relu.clone()].concat()), "in batches");
    let both = |shape: &str| [input("x", "[\"n\", 4]"), input("y", shape), sum.clone()].concat();
    assert_eq!(joining(&both("[\"n\", 4]")), "in batches");
    let alone = |text: &str, why: &str| assert_eq!(joining(text), format!("one at a time: {why}"));
    let first = "its inputs and outputs do not have the same first axis of any length";
    alone(&[input("x", "[2, 4]"), relu.clone()].concat(), first);
    // Each request has a row of its own that all of its rows are added to.
    alone(&both("[1, 4]"), first);
    let square = [input("x", "[\"n\", \"n\"]"), relu].concat();
    alone(&square, "rows are not the first axis alone of x [n, n]");
}
