use camshaft_core::tensor::{Datatype, Mismatch};
use tract_onnx::pb::tensor_proto::DataType;

use super::*;
use crate::TensorLoadError;
use crate::made::{self, Graph};

fn tensor(shape: &[usize], numbers: &[f32]) -> Tensor {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(Datatype::Fp32, shape.to_vec(), bytes).unwrap()
}

fn rows(tensors: Vec<Tensor>) -> Rows {
    let rows = tensors[0].shape()[0] as u32;
    Rows { tensors: tensors.into(), rows }
}

fn predictor(graph: &Graph) -> Predictor {
    Predictor::new(Arc::new(graph.load().unwrap()))
}

#[test]
fn a_linear_model_gives_what_its_arithmetic_says() {
    let model = made::linear().load().unwrap();
    assert_eq!((model.facts.parameters, model.facts.bytes, model.facts.format), (8, 32, "onnx"));
    let dimensions = |specs: &[camshaft_core::tensor::TensorSpec]| -> Vec<_> {
        specs.iter().map(|spec| (spec.name.clone(), spec.dimensions())).collect()
    };
    assert_eq!(dimensions(&model.signature.inputs), [("x".to_owned(), vec![-1, 3])]);
    assert_eq!(dimensions(&model.signature.outputs), [("y".to_owned(), vec![-1, 2])]);
    assert!(model.signature.rows, "its axes say so");
    assert_eq!(model.output_shapes(&[&[7, 3]]), Some(vec![vec![7, 2]]));
    let outputs = model.run(&[tensor(&[2, 3], &[1.0, 2.0, 3.0, 0.0, 0.0, 1.0])]).unwrap();
    // The columns of the weights are 1, 2, 3 and 4, 5, 6; the bias is 0.5 and -0.5.
    assert_eq!(outputs, [tensor(&[2, 2], &[14.5, 31.5, 3.5, 5.5])]);
}

#[test]
fn requests_are_computed_one_at_a_time_because_rows_may_depend_on_each_other() {
    // Nobody sees it in the axes of this one.
    let mut predictor = predictor(&made::softmax(0));
    assert!(predictor.model.signature.rows);
    assert_eq!((predictor.batch().size, predictor.batch().inputs), (1, 1));
    let (one, two) = (rows(vec![tensor(&[1, 1], &[5.0])]), rows(vec![tensor(&[2, 1], &[0.0, 0.0])]));
    let outputs = predictor.compute(&[one, two]).unwrap();
    let outputs: Vec<_> = outputs.into_iter().map(|output| output.unwrap().tensors).collect();
    assert_eq!(outputs, [[tensor(&[1, 1], &[1.0])], [tensor(&[2, 1], &[0.5, 0.5])]]);
}

#[test]
fn regression_what_a_convolution_copies_counts() {
    let model = made::convolution().load().unwrap();
    let bytes = |images: usize| model.run_bytes(&[&[images, 1, 102, 102]]).unwrap();
    // Nine numbers for each of its 100 x 100 places, beside the input and two outputs.
    assert!(bytes(8) >= 8 * 4 * (9 * 100 * 100 + 102 * 102 + 2 * 100 * 100), "{}", bytes(8));
}

#[test]
fn numbers_that_a_model_cannot_compute_fail_their_own_request_alone() {
    let mut predictor = predictor(&made::lookup());
    let ids = |ids: &[i64]| {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        rows(vec![Tensor::new(Datatype::Int64, vec![ids.len()], bytes).unwrap()])
    };
    let outputs = predictor.compute(&[ids(&[1, 0]), ids(&[7]), ids(&[2])]).unwrap();
    let outputs: Vec<_> = outputs.into_iter().map(|output| output.map(|output| output.tensors)).collect();
    assert_eq!(outputs[0], Ok(vec![tensor(&[2, 2], &[2.0, 3.0, 0.0, 1.0])]));
    assert!(matches!(outputs[1], Err(InputError::Refused(_))), "{:?}", outputs[1]);
    assert_eq!(outputs[2], Ok(vec![tensor(&[1, 2], &[4.0, 5.0])]));
}

#[test]
fn a_file_that_is_no_model_is_refused_with_what_is_wrong() {
    let check = |bytes: &[u8], expected: &str| {
        let error = made::load(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(b"not a model", "is no ONNX model");
    check(b"", "has no graph");
    let whole = made::linear().bytes();
    for end in [10, whole.len() / 2, whole.len() - 1] {
        assert!(made::load(&whole[..end]).is_err(), "cut at {end}");
    }
    check(&made::branches().bytes(), "operators that are not supported: If");
    check(&made::foreign().bytes(), "operators that are not supported: acme.MatMul");
    let twice = made::linear().node("Add", &["product", "b"], &["y"]);
    check(&twice.bytes(), "two of its nodes give y");
    let unknown = made::linear().node("NoSuchOperator", &["y"], &["z"]).node("AnotherOne", &["z"], &["w"]);
    check(&unknown.bytes(), "operators that are not supported: AnotherOne, NoSuchOperator");
    check(&made::elsewhere("../secret").bytes(), "another file");
}

#[test]
fn regression_sizes_that_depend_on_an_inputs_values_are_refused_at_the_load() {
    let error = made::range().load().unwrap_err();
    assert!(matches!(error, TensorLoadError::Unbounded { .. }), "{error}");
}

#[test]
fn the_memory_of_a_run_is_known_before_it() {
    let model = made::softmax(1).load().unwrap();
    let bytes = |rows: usize, width: usize| model.run_bytes(&[&[rows, width]]);
    let (one, four) = (bytes(1, 1000).unwrap(), bytes(4, 1000).unwrap());
    assert!(one >= 2 * 4000 && four == 4 * one, "{one} {four}");
    assert_eq!(bytes(usize::MAX, 2), None, "more than can be counted");
    assert!(bytes(1 << 31, 1 << 31).is_none_or(|bytes| bytes > 1 << 60));
}

#[test]
fn what_the_model_does_not_take_is_told_by_name() {
    let signature = made::linear().load().unwrap().signature;
    let error = signature.check(&[tensor(&[1, 4], &[0.0; 4])]).unwrap_err();
    assert_eq!(error, Mismatch::Axis { input: "x".to_owned(), axis: 1, expected: 3, got: 4 });
}

#[test]
fn files_of_other_types_of_numbers_load() {
    for datatype in [DataType::Double, DataType::Int64, DataType::Uint8, DataType::Bool] {
        let model = made::identity(datatype).load().unwrap();
        let datatype = model.signature.inputs[0].datatype;
        let input = Tensor::new(datatype, vec![1, 2], vec![1; 2 * datatype.bytes()]).unwrap();
        assert_eq!(model.run(std::slice::from_ref(&input)).unwrap(), [input], "{datatype}");
    }
    assert!(made::identity(DataType::String).load().unwrap_err().to_string().contains("not supported"));
}

#[test]
fn regression_models_that_take_too_long_or_never_fit_are_refused_at_the_load() {
    let long = |nodes: usize| {
        let graph = made::linear();
        (2..nodes).fold(graph, |graph, node| graph.node("NoSuchOperator", &["y"], &[&format!("n{node}")]))
    };
    assert!(long(10_000).load().unwrap_err().to_string().contains("NoSuchOperator"));
    assert_eq!(long(10_001).load().unwrap_err().to_string(), "has 10001 nodes, at most 10000");
    let error = made::wide(1 << 28).load().unwrap_err();
    assert!(matches!(error, TensorLoadError::NeverFits { bytes, most: RUN_BYTES } if bytes > RUN_BYTES), "{error}");
    assert!(made::wide(1 << 26).load().is_ok());
}
