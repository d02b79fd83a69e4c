use camshaft_core::tensor::{Datatype, Mismatch};
use proptest::prelude::*;
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
    assert_eq!((model.facts.parameters, model.facts.bytes, &*model.facts.format), (8, 32, "onnx"));
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
fn requests_are_computed_one_at_a_time_where_rows_may_depend_on_each_other() {
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

/// Usual numbers, and what is none. `huge`: and very large ones beside very small ones.
fn odd_number(huge: bool) -> impl Strategy<Value = f32> {
    let none = prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let extreme = prop::sample::select(vec![0.0, -0.0, 1e-40, 1e30, -1e30, 3e38, 1e-20]);
    prop_oneof![8 => -3.0f32..3.0, 1 => none, u32::from(huge) => extreme]
}

/// Requests for a model of one FP32 input with rows of this shape, each with some rows.
fn requests(row: &'static [usize], huge: bool) -> impl Strategy<Value = Vec<Rows>> {
    let numbers = row.iter().product::<usize>();
    let one = (1usize..5).prop_flat_map(move |count| prop::collection::vec(odd_number(huge), count * numbers));
    let request = move |data: Vec<f32>| rows(vec![tensor(&[&[data.len() / numbers], row].concat(), &data)]);
    prop::collection::vec(one.prop_map(request), 2..9)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.numbers().map(|number| number.to_f64() as f32).collect()
}

/// Bound of what a batch may round in another way: the sum of a softmax is taken in pieces by where a row lies in memory, also of
/// the rows of one request. Everything else here is the same to the last bit.
const ROUNDING: f32 = 1e-5;

/// Whether two numbers are the same, but for rounding of this size. What is no number is none in both.
fn are_close(a: f32, b: f32, rounding: f32) -> bool {
    let bound = rounding * a.abs().max(b.abs()).max(1.0);
    a.to_bits() == b.to_bits() || a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= bound && bound.is_finite()
}

fn check_batch(graph: &Graph, requests: &[Rows], rounding: f32) {
    let model = loaded(graph);
    let mut predictor = Predictor::new(model.clone());
    assert_eq!(predictor.batch().size, BATCH_ROWS, "{}", model.facts.joining);
    let together = predictor.compute(requests).unwrap();
    for (request, output) in requests.iter().zip(together) {
        let (alone, output) = (model.run(&request.tensors).unwrap(), output.unwrap().tensors);
        for (alone, together) in alone.iter().zip(&output) {
            assert_eq!(alone.shape(), together.shape());
            let pairs = floats(alone).into_iter().zip(floats(together));
            let differ: Vec<_> = pairs.filter(|&(alone, together)| !are_close(alone, together, rounding)).collect();
            assert!(differ.is_empty(), "of {} rows: {differ:?}", request.rows);
        }
    }
}

fn loaded(graph: &Graph) -> Arc<TensorModel> {
    Arc::new(graph.load().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_batch_gives_a_dense_layer_what_each_request_alone_gets(requests in requests(&[3], true)) {
        check_batch(&made::linear(), &requests, 0.0);
    }

    #[test]
    fn a_batch_gives_a_classifier_what_each_request_alone_gets(requests in requests(&[3, 12, 12], true)) {
        check_batch(&made::classifier(), &requests, ROUNDING);
    }

    #[test]
    fn a_batch_gives_attention_what_each_request_alone_gets(
        long in requests(&[5, 8], false), short in requests(&[2, 8], false)
    ) {
        // Of two lengths: each goes with its like.
        let mixed: Vec<Rows> = long.into_iter().zip(short).flat_map(|(long, short)| [long, short]).collect();
        check_batch(&made::attention(), &mixed, ROUNDING);
    }

    #[test]
    fn a_batch_gives_a_softmax_what_each_request_alone_gets(requests in requests(&[7], true)) {
        check_batch(&made::softmax(1), &requests, ROUNDING);
    }

    #[test]
    fn a_batch_gives_a_convolution_what_each_request_alone_gets(requests in requests(&[1, 7, 9], true)) {
        check_batch(&made::convolution(), &requests, 0.0);
    }
}

/// What one row of NaN, or one that is out of range, does to the others: nothing.
#[test]
fn a_rows_numbers_never_show_in_another_ones() {
    for value in [f32::NAN, f32::INFINITY, 3e38] {
        let bad = rows(vec![tensor(&[1, 3], &[value; 3])]);
        let good = rows(vec![tensor(&[1, 3], &[1.0, 2.0, 3.0])]);
        let outputs = predictor(&made::linear()).compute(&[bad.clone(), good.clone(), bad, good]).unwrap();
        for place in [1, 3] {
            assert_eq!(outputs[place].as_ref().unwrap().tensors, [tensor(&[1, 2], &[14.5, 31.5])], "{value}");
        }
    }
}

#[test]
fn a_batch_that_would_take_too_much_memory_is_computed_in_parts() {
    let model = loaded(&made::slow());
    // 300 tensors of 4 bytes for each number: two of these requests fit a run of 1 GiB, three do not.
    let request = |value: f32| rows(vec![tensor(&[1, 400_000], &vec![value; 400_000])]);
    let inputs: Vec<Rows> = (0..3).map(|value| request(value as f32)).collect();
    assert!(model.run_bytes(&[&[2, 400_000]]).unwrap() <= RUN_BYTES);
    assert!(model.run_bytes(&[&[3, 400_000]]).unwrap() > RUN_BYTES);
    let outputs = Predictor::new(model).compute(&inputs).unwrap();
    assert!(outputs.iter().all(|output| output.as_ref().unwrap().tensors[0].shape() == [1, 400_000]));
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
