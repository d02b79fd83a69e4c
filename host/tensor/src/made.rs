//! Small ONNX models for tests.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use prost::Message;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, attribute_proto, type_proto,
};

use crate::{BackendChoice, FileFormat, Files, TensorLoadError, TensorModel};

/// Loads an ONNX model with this manifest.
pub(crate) fn load_with(graph: &Graph, manifest: &str) -> Result<TensorModel, TensorLoadError> {
    let text = format!("weights = \"m.onnx\"\n{manifest}").into_bytes();
    let manifest = Some((crate::manifest::read("m.toml", &text)?, text));
    crate::load(Files { format: FileFormat::Onnx, weights: graph.bytes(), manifest, labels: None }, BackendChoice::Auto)
}

/// Loads an ONNX model without a manifest.
pub(crate) fn load(bytes: &[u8]) -> Result<TensorModel, TensorLoadError> {
    let files = Files { format: FileFormat::Onnx, weights: bytes.to_vec(), manifest: None, labels: None };
    crate::load(files, BackendChoice::Auto)
}

/// A graph, from its inputs on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph(GraphProto);

impl Graph {
    /// Axes are numbers, or names of any length.
    pub(crate) fn input(mut self, name: &str, datatype: DataType, axes: &[&str]) -> Self {
        self.0.input.push(value(name, datatype, axes));
        self
    }

    pub(crate) fn output(mut self, name: &str, datatype: DataType, axes: &[&str]) -> Self {
        self.0.output.push(value(name, datatype, axes));
        self
    }

    pub(crate) fn weights(mut self, name: &str, dims: &[i64], numbers: &[f32]) -> Self {
        let raw_data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let data_type = DataType::Float as i32;
        self.0.initializer.push(TensorProto {
            name: name.to_owned(),
            dims: dims.to_vec(),
            data_type,
            raw_data,
            ..TensorProto::default()
        });
        self
    }

    pub(crate) fn scalar(mut self, name: &str, number: i64) -> Self {
        let data_type = DataType::Int64 as i32;
        self.0.initializer.push(TensorProto {
            name: name.to_owned(),
            data_type,
            int64_data: vec![number],
            ..TensorProto::default()
        });
        self
    }

    pub(crate) fn ints(mut self, name: &str, numbers: &[i64]) -> Self {
        let data_type = DataType::Int64 as i32;
        self.0.initializer.push(TensorProto {
            name: name.to_owned(),
            dims: vec![numbers.len() as i64],
            data_type,
            int64_data: numbers.to_vec(),
            ..TensorProto::default()
        });
        self
    }

    pub(crate) fn node(mut self, operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        self.0.node.push(NodeProto {
            op_type: operator.to_owned(),
            input: names(inputs),
            output: names(outputs),
            ..NodeProto::default()
        });
        self
    }

    pub(crate) fn with_axis(self, axis: i64) -> Self {
        self.with_int("axis", axis)
    }

    pub(crate) fn with_int(mut self, name: &str, number: i64) -> Self {
        let attribute = AttributeProto {
            name: name.to_owned(),
            r#type: attribute_proto::AttributeType::Int as i32,
            i: number,
            ..AttributeProto::default()
        };
        self.0.node.last_mut().unwrap().attribute.push(attribute);
        self
    }

    pub(crate) fn with_ints(mut self, name: &str, numbers: &[i64]) -> Self {
        let attribute = AttributeProto {
            name: name.to_owned(),
            r#type: attribute_proto::AttributeType::Ints as i32,
            ints: numbers.to_vec(),
            ..AttributeProto::default()
        };
        self.0.node.last_mut().unwrap().attribute.push(attribute);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let opset = OperatorSetIdProto { domain: String::new(), version: 13 };
        let model = ModelProto {
            ir_version: 8,
            opset_import: vec![opset],
            graph: Some(self.0.clone()),
            ..ModelProto::default()
        };
        model.encode_to_vec()
    }

    pub(crate) fn load(&self) -> Result<TensorModel, TensorLoadError> {
        load(&self.bytes())
    }
}

fn value(name: &str, datatype: DataType, axes: &[&str]) -> ValueInfoProto {
    let dimension = |axis: &&str| {
        let value = match axis.parse() {
            Ok(length) => dimension::Value::DimValue(length),
            Err(_) => dimension::Value::DimParam((*axis).to_owned()),
        };
        Dimension { value: Some(value), ..Dimension::default() }
    };
    let shape = TensorShapeProto { dim: axes.iter().map(dimension).collect() };
    let tensor = type_proto::Tensor { elem_type: datatype as i32, shape: Some(shape) };
    let of = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(of), ..ValueInfoProto::default() }
}

pub(crate) const FLOAT: DataType = DataType::Float;

/// `y = x W + b`, of three numbers two.
pub(crate) fn linear() -> Graph {
    Graph::default()
        .input("x", FLOAT, &["batch", "3"])
        .weights("w", &[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])
        .weights("b", &[2], &[0.5, -0.5])
        .node("MatMul", &["x", "w"], &["product"])
        .node("Add", &["product", "b"], &["y"])
        .output("y", FLOAT, &["batch", "2"])
}

/// What an image classifier is made of: convolutions, pools, a batch norm, and dense layers.
pub(crate) fn classifier() -> Graph {
    let weights = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| (((i * 7919 + seed) % 211) as f32 - 105.0) / 97.0).collect()
    };
    Graph::default()
        .input("x", FLOAT, &["batch", "3", "12", "12"])
        .weights("w1", &[8, 3, 3, 3], &weights(216, 1))
        .weights("b1", &[8], &weights(8, 2))
        .weights("scale", &[8], &weights(8, 3))
        .weights("shift", &[8], &weights(8, 4))
        .weights("mean", &[8], &weights(8, 5))
        .weights("variance", &[8], &[0.5; 8])
        .weights("w2", &[4, 8, 1, 1], &weights(32, 6))
        .weights("w3", &[100, 10], &weights(1000, 7))
        .weights("b3", &[10], &weights(10, 8))
        .node("Conv", &["x", "w1", "b1"], &["c1"])
        .node("BatchNormalization", &["c1", "scale", "shift", "mean", "variance"], &["n1"])
        .node("Relu", &["n1"], &["r1"])
        .node("MaxPool", &["r1"], &["p1"])
        .with_ints("kernel_shape", &[2, 2])
        .with_ints("strides", &[2, 2])
        .node("Conv", &["p1", "w2"], &["c2"])
        .node("Sigmoid", &["c2"], &["s2"])
        .node("Flatten", &["s2"], &["flat"])
        .node("Gemm", &["flat", "w3", "b3"], &["logits"])
        .node("Softmax", &["logits"], &["y"])
        .with_axis(1)
        .output("y", FLOAT, &["batch", "10"])
}

/// Self-attention over words of any number, within each row.
pub(crate) fn attention() -> Graph {
    let weights: Vec<f32> = (0..64).map(|i| ((i * 37 % 29) as f32 - 14.0) / 11.0).collect();
    Graph::default()
        .input("x", FLOAT, &["batch", "words", "8"])
        .weights("q", &[8, 8], &weights)
        .weights("k", &[8, 8], &weights.iter().rev().copied().collect::<Vec<_>>())
        .weights("v", &[8, 8], &weights.iter().map(|weight| 0.5 - weight).collect::<Vec<_>>())
        .node("MatMul", &["x", "q"], &["xq"])
        .node("MatMul", &["x", "k"], &["xk"])
        .node("MatMul", &["x", "v"], &["xv"])
        .node("Transpose", &["xk"], &["xkt"])
        .with_ints("perm", &[0, 2, 1])
        .node("MatMul", &["xq", "xkt"], &["scores"])
        .node("Softmax", &["scores"], &["weights"])
        .with_axis(2)
        .node("MatMul", &["weights", "xv"], &["mixed"])
        .node("Add", &["mixed", "x"], &["sum"])
        .node("ReduceMean", &["sum"], &["y"])
        .with_ints("axes", &[1])
        .output("y", FLOAT, &["batch", "1", "8"])
}

/// What text encoders are made of: embeddings, attention that a mask keeps from padding, a state for each token and their mean.
pub(crate) fn encoder() -> Graph {
    masked("real", -1e5, |graph| {
        let table: Vec<f32> = (0..8 * ENTRIES).map(|i| ((i * 7919 % 211) as f32 - 105.0) / 70.0).collect();
        graph
            .input("input_ids", DataType::Int64, &["batch", "sequence"])
            .input("attention_mask", DataType::Int64, &["batch", "sequence"])
            .weights("table", &[ENTRIES as i64, 8], &table)
            .node("Gather", &["table", "input_ids"], &["x"])
            .node("Cast", &["attention_mask"], &["real"])
            .with_int("to", FLOAT as i64)
    })
}

/// Entries of the table of [`encoder`].
pub(crate) const ENTRIES: usize = 50;

/// The same of numbers, with a mask of numbers. `forgets`: padding gets attention in spite of its mask.
pub(crate) fn signals(forgets: bool) -> Graph {
    masked("attention_mask", if forgets { 0.0 } else { -1e5 }, |graph| {
        graph.input("x", FLOAT, &["batch", "sequence", "8"]).input("attention_mask", FLOAT, &["batch", "sequence"])
    })
}

/// Attention over what `begin` gives: `x`, and the tensor `real`, which is 1 for what is no padding. `far`: what padding has for its
/// score.
fn masked(real: &str, far: f32, begin: impl Fn(Graph) -> Graph) -> Graph {
    let weights: Vec<f32> = (0..64).map(|i| ((i * 37 % 29) as f32 - 14.0) / 40.0).collect();
    begin(Graph::default())
        .weights("q", &[8, 8], &weights)
        .weights("k", &[8, 8], &weights.iter().rev().copied().collect::<Vec<_>>())
        .weights("v", &[8, 8], &weights.iter().map(|weight| 0.2 - weight).collect::<Vec<_>>())
        .weights("one", &[1], &[1.0])
        .weights("far", &[1], &[far])
        .ints("first", &[1])
        .ints("second", &[2])
        .node("MatMul", &["x", "q"], &["xq"])
        .node("MatMul", &["x", "k"], &["xk"])
        .node("MatMul", &["x", "v"], &["xv"])
        .node("Transpose", &["xk"], &["xkt"])
        .with_ints("perm", &[0, 2, 1])
        .node("MatMul", &["xq", "xkt"], &["scores"])
        .node("Sub", &["one", real], &["padding"])
        .node("Mul", &["padding", "far"], &["hidden"])
        .node("Unsqueeze", &["hidden", "first"], &["bias"])
        .node("Add", &["scores", "bias"], &["biased"])
        .node("Softmax", &["biased"], &["weights"])
        .with_axis(2)
        .node("MatMul", &["weights", "xv"], &["mixed"])
        .node("Add", &["mixed", "x"], &["states"])
        .node("Unsqueeze", &[real, "second"], &["each"])
        .node("Mul", &["states", "each"], &["kept"])
        .node("ReduceSum", &["kept", "first"], &["sum"])
        .with_int("keepdims", 0)
        .node("ReduceSum", &[real, "first"], &["count"])
        .with_int("keepdims", 1)
        .node("Div", &["sum", "count"], &["pooled"])
        .output("states", FLOAT, &["batch", "sequence", "8"])
        .output("pooled", FLOAT, &["batch", "8"])
}

/// One operator over rows of any width.
pub(crate) fn single(operator: &str, inputs: &[&str], attributes: &[(&str, &[i64])]) -> Graph {
    let graph = Graph::default().input("x", FLOAT, &["batch", "4"]).node(operator, inputs, &["y"]);
    let graph = attributes.iter().fold(graph, |graph, (name, numbers)| graph.with_ints(name, numbers));
    graph.output("y", FLOAT, &["batch", "4"])
}

/// Along an axis: of 0, each row depends on all others.
pub(crate) fn softmax(axis: i64) -> Graph {
    Graph::default().input("x", FLOAT, &["batch", "width"]).node("Softmax", &["x"], &["y"]).with_axis(axis).output(
        "y",
        FLOAT,
        &["batch", "width"],
    )
}

/// Three rows of two numbers, by their index.
pub(crate) fn lookup() -> Graph {
    Graph::default()
        .input("ids", DataType::Int64, &["batch"])
        .weights("table", &[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
        .node("Gather", &["table", "ids"], &["y"])
        .output("y", FLOAT, &["batch", "2"])
}

/// The same for each of any number of places, of a table of this many rows.
pub(crate) fn lookup_of_rows(entries: usize) -> Graph {
    let table: Vec<f32> = (0..2 * entries).map(|number| number as f32 / 8.0).collect();
    Graph::default()
        .input("ids", DataType::Int64, &["batch", "n"])
        .weights("table", &[entries as i64, 2], &table)
        .node("Gather", &["table", "ids"], &["y"])
        .output("y", FLOAT, &["batch", "n", "2"])
}

/// Each place of [`lookup_of_rows`] with those that are twelve before and behind it. The first of the table is not zero, so that
/// padding with it shows where it is near enough.
pub(crate) fn far_sighted(entries: usize) -> Graph {
    let table: Vec<f32> = (0..2 * entries).map(|number| 1.0 + number as f32 / 8.0).collect();
    Graph::default()
        .input("ids", DataType::Int64, &["batch", "n"])
        .weights("table", &[entries as i64, 2], &table)
        .weights("w", &[2, 2, 3], &[1.0; 12])
        .node("Gather", &["table", "ids"], &["x"])
        .node("Transpose", &["x"], &["channels"])
        .with_ints("perm", &[0, 2, 1])
        .node("Conv", &["channels", "w"], &["c"])
        .with_ints("dilations", &[12])
        .with_ints("pads", &[12, 12])
        .node("Transpose", &["c"], &["y"])
        .with_ints("perm", &[0, 2, 1])
        .output("y", FLOAT, &["batch", "n", "2"])
}

/// Two inputs, their sum and their product.
pub(crate) fn two() -> Graph {
    Graph::default()
        .input("a", FLOAT, &["batch", "2"])
        .input("b", FLOAT, &["batch", "2"])
        .node("Add", &["a", "b"], &["sum"])
        .node("Mul", &["a", "b"], &["product"])
        .output("sum", FLOAT, &["batch", "2"])
        .output("product", FLOAT, &["batch", "2"])
}

/// A convolution with a kernel of 3 x 3 over pictures of any number and size.
pub(crate) fn convolution() -> Graph {
    Graph::default()
        .input("x", FLOAT, &["batch", "1", "height", "width"])
        .weights("w", &[2, 1, 3, 3], &[1.0; 18])
        .node("Conv", &["x", "w"], &["y"])
        .output("y", FLOAT, &["batch", "2", "h", "w"])
}

/// A tensor of this many numbers.
pub(crate) fn wide(numbers: usize) -> Graph {
    let numbers = numbers.to_string();
    Graph::default().input("x", FLOAT, &[&numbers]).node("Relu", &["x"], &["y"]).output("y", FLOAT, &[&numbers])
}

/// What an operator of a graph within it does, nobody sees before.
pub(crate) fn branches() -> Graph {
    let branch = || range().0;
    let mut graph = Graph::default().input("condition", DataType::Bool, &[]).node("If", &["condition"], &["y"]).output(
        "y",
        DataType::Int64,
        &["n"],
    );
    let attribute = |name: &str| AttributeProto {
        name: name.to_owned(),
        r#type: attribute_proto::AttributeType::Graph as i32,
        g: Some(branch()),
        ..AttributeProto::default()
    };
    graph.0.node[0].attribute = vec![attribute("then_branch"), attribute("else_branch")];
    graph
}

/// An operator of somebody's own, with the name of a known one.
pub(crate) fn foreign() -> Graph {
    let mut graph = linear();
    graph.0.node[0].domain = "acme".to_owned();
    graph
}

/// An operator that nobody has.
pub(crate) fn unknown() -> Graph {
    linear().node("NoSuchOperator", &["y"], &["z"])
}

/// Many steps, so that wide inputs take their time.
pub(crate) fn slow() -> Graph {
    let name = |step: usize| format!("s{step}");
    let graph = Graph::default().input("s0", FLOAT, &["batch", "width"]);
    let steps =
        (0..300).fold(graph, |graph, step| graph.node("Softmax", &[&name(step)], &[&name(step + 1)]).with_axis(1));
    steps.output("s300", FLOAT, &["batch", "width"])
}

/// The models in `tests/fixtures/models`, for those who have no way to make some.
#[test]
fn committed_models_are_these_graphs() {
    for (name, graph) in [
        ("linear", linear()),
        ("lookup", lookup()),
        ("two", two()),
        ("unknown", unknown()),
        ("slow", slow()),
        ("encoder", encoder()),
    ] {
        let path = format!("{}/../../tests/fixtures/models/{name}.onnx", env!("CARGO_MANIFEST_DIR"));
        // Written once; from then on what is committed counts.
        if std::env::var_os("CAMSHAFT_WRITE_MODELS").is_some() {
            std::fs::write(&path, graph.bytes()).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), graph.bytes(), "{path}");
    }
}

/// As many numbers as the input says.
pub(crate) fn range() -> Graph {
    Graph::default()
        .input("end", DataType::Int64, &[])
        .scalar("begin", 0)
        .scalar("step", 1)
        .node("Range", &["begin", "end", "step"], &["y"])
        .output("y", DataType::Int64, &["n"])
}

pub(crate) fn identity(datatype: DataType) -> Graph {
    Graph::default().input("x", datatype, &["batch", "2"]).node("Identity", &["x"], &["y"]).output(
        "y",
        datatype,
        &["batch", "2"],
    )
}

/// Its weights are said to be in another file.
pub(crate) fn elsewhere(path: &str) -> Graph {
    let mut graph = linear();
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.to_owned(), value: value.to_owned() };
    let weights = &mut graph.0.initializer[0];
    weights.raw_data.clear();
    weights.external_data = vec![entry("location", path)];
    weights.data_location = Some(DataLocation::External as i32);
    graph
}
