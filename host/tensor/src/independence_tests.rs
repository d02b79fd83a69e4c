use tract_onnx::pb::tensor_proto::DataType;

use crate::facts::Joining;
use crate::made::{self, FLOAT, Graph};

/// Why requests are computed one at a time; empty: they are not.
fn why(graph: &Graph) -> String {
    match graph.load().unwrap().facts.joining {
        Joining::Proven => String::new(),
        Joining::OneAtATime { why } => why,
    }
}

#[test]
fn rows_that_have_no_influence_on_each_other_are_proven_to_have_none() {
    for (name, graph) in [
        ("linear", made::linear()),
        ("lookup", made::lookup()),
        ("two", made::two()),
        ("slow", made::slow()),
        ("softmax", made::softmax(1)),
        ("convolution", made::convolution()),
        ("classifier", made::classifier()),
        ("attention", made::attention()),
        ("identity", made::identity(DataType::Int64)),
    ] {
        assert_eq!(why(&graph), "", "{name}");
    }
}

fn rows() -> Graph {
    Graph::default().input("x", FLOAT, &["batch", "4"])
}

#[test]
fn rows_that_depend_on_each_other_or_perhaps_do_are_told_with_the_operator() {
    let check = |graph: Graph, operator: &str| {
        let why = why(&graph);
        assert!(why.starts_with(&format!("rows may depend on each other at operator {operator}")), "{operator}: {why}");
    };
    check(made::softmax(0), "Softmax");
    let sum = |axis: &str| rows().node("ReduceSum", &["x"], &["s"]).node("Add", &["x", "s"], &[axis]);
    check(sum("y").output("y", FLOAT, &["batch", "4"]), "Reduce");
    check(made::single("CumSum", &["x", "axis"], &[]).scalar("axis", 0), "CumSum");
    // Each row with the one before it.
    let reversed = rows()
        .ints("starts", &[-1])
        .ints("ends", &[i64::MIN])
        .ints("axes", &[0])
        .ints("steps", &[-1])
        .node("Slice", &["x", "starts", "ends", "axes", "steps"], &["r"])
        .node("Sub", &["x", "r"], &["y"])
        .output("y", FLOAT, &["batch", "4"]);
    assert!(reversed.load().is_err() || !why(&reversed).is_empty());
    let transposed = rows()
        .node("Transpose", &["x"], &["t"])
        .node("MatMul", &["x", "t"], &["g"])
        .node("MatMul", &["g", "x"], &["y"])
        .output("y", FLOAT, &["batch", "4"]);
    check(transposed, "EinSum");
    let quantized = rows()
        .node("DynamicQuantizeLinear", &["x"], &["q", "scale", "zero"])
        .node("DequantizeLinear", &["q", "scale", "zero"], &["y"])
        .output("y", FLOAT, &["batch", "4"]);
    assert!(quantized.load().is_err() || !why(&quantized).is_empty(), "one scale for all rows");
    // How many rows there are is what others send, too.
    let counted = rows()
        .ints("zero", &[0])
        .node("Shape", &["x"], &["shape"])
        .node("Gather", &["shape", "zero"], &["rows"])
        .node("Cast", &["rows"], &["count"])
        .with_int("to", FLOAT as i64)
        .node("Div", &["x", "count"], &["y"])
        .output("y", FLOAT, &["batch", "4"]);
    assert!(counted.load().is_err() || !why(&counted).is_empty());
    let mixed = rows()
        .ints("flat", &[-1])
        .ints("back", &[4, -1])
        .node("Reshape", &["x", "back"], &["a"])
        .node("Softmax", &["a"], &["b"])
        .with_axis(0)
        .ints("shape", &[-1, 4])
        .node("Reshape", &["b", "shape"], &["y"])
        .output("y", FLOAT, &["batch", "4"]);
    assert!(mixed.load().is_err() || !why(&mixed).is_empty());
    let square = Graph::default().input("x", FLOAT, &["batch", "batch"]).node("Relu", &["x"], &["y"]);
    assert!(!why(&square.output("y", FLOAT, &["batch", "batch"])).is_empty(), "two axes of one length");
    let fixed = Graph::default().input("x", FLOAT, &["3"]).node("Relu", &["x"], &["y"]).output("y", FLOAT, &["3"]);
    assert_eq!(why(&fixed), "its inputs and outputs do not have the same first axis of any length");
    let noise = rows().node("RandomNormalLike", &["x"], &["n"]).node("Add", &["x", "n"], &["y"]);
    let noise = noise.output("y", FLOAT, &["batch", "4"]);
    assert!(noise.load().is_err() || !why(&noise).is_empty());
}
