use serde_json::{Value, json};

use super::*;
use crate::wire::json::parse_with;
use crate::wire::tensors::{TENSORS, Tensors};
use crate::wire::written::{Written, attach};

const MAX: Duration = Duration::from_secs(600);

/// The tensors of a body with bytes behind its JSON.
fn tensors(body: &Value, tail: &[u8]) -> Result<Vec<Tensor>, String> {
    let mut tensors = Tensors::open();
    parse_with(&body.to_string(), &mut tensors).map_err(|error| error.to_string())?;
    attach(&mut tensors.tensors, &axum::body::Bytes::copy_from_slice(tail)).map_err(|error| error.to_string())?;
    let read = |written: Written| written.read(Datatype::Fp32).map_err(|error| error.to_string());
    tensors.tensors.into_iter().map(read).collect()
}

fn input(shape: &Value, datatype: &str, more: &Value) -> Value {
    let mut input = json!({"name": "x", "shape": shape, "datatype": datatype});
    for (name, value) in more.as_object().unwrap() {
        input[name] = value.clone();
    }
    json!({"inputs": [input]})
}

fn behind(bytes: &Value) -> Value {
    json!({"parameters": {"binary_data_size": bytes}})
}

fn asked(body: &Value) -> Result<Asked, String> {
    let map = parse_with(&body.to_string(), &mut Tensors::open()).map_err(|error| error.to_string())?;
    Asked::read(&Body::from(map), MAX).map_err(|error| error.to_string())
}

#[test]
fn tensors_come_as_numbers_or_as_bytes_behind_the_json() {
    let expected = Tensor::new(Datatype::Fp32, vec![1, 2], [1.0f32, 2.0].map(f32::to_le_bytes).concat()).unwrap();
    let shape = json!([1, 2]);
    for data in [json!([1, 2]), json!([[1.0, 2.0]])] {
        assert_eq!(
            tensors(&input(&shape, "FP32", &json!({"data": data})), &[]).unwrap(),
            std::slice::from_ref(&expected)
        );
    }
    assert_eq!(tensors(&input(&shape, "FP32", &behind(&json!(8))), expected.bytes()).unwrap(), [expected]);
    let half = tensors(&input(&json!([1]), "FP16", &behind(&json!(2))), &[0x00, 0x3c]).unwrap();
    assert_eq!((half[0].datatype(), half[0].bytes()), (Datatype::Fp16, &[0x00, 0x3c][..]));
    let two = json!({"inputs": [
        {"name": "a", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}},
        {"name": "b", "shape": [1], "datatype": "INT8", "data": [7]},
        {"name": "c", "shape": [2], "datatype": "BOOL", "parameters": {"binary_data_size": 2, "other": 1}},
    ]});
    let bytes: Vec<Vec<u8>> = tensors(&two, &[5, 1, 0]).unwrap().into_iter().map(Tensor::into_bytes).collect();
    assert_eq!(bytes, [vec![5], vec![7], vec![1, 0]], "in the order of the inputs");
}

#[test]
fn sizes_of_bytes_must_be_exactly_those_that_are_there() {
    let check = |size: Value, tail: usize, why: &str| {
        let error = tensors(&input(&json!([1, 2]), "FP32", &behind(&size)), &vec![0; tail]).unwrap_err();
        assert!(error.contains(why), "{size} {tail}: {error}");
    };
    check(json!(8), 7, "inputs[0].parameters.binary_data_size must be at most 7");
    check(json!(8), 9, "1 bytes behind the JSON belong to no input: binary_data_size of all is 8");
    check(json!(4), 4, "takes 8 bytes of FP32, got 4");
    check(json!(0), 0, "takes 8 bytes of FP32, got 0");
    check(json!(-1), 8, "binary_data_size must be a number of bytes, got -1");
    check(json!(8.5), 8, "must be a number of bytes, got 8.5");
    check(json!("8"), 8, "must be a number of bytes, got a string");
    check(json!(u64::MAX), 8, "must be at most 8");
    check(json!(1u64 << 63), 8, "must be at most 8");
    let sum = json!({"inputs": [
        {"name": "a", "shape": [8], "datatype": "INT8", "parameters": {"binary_data_size": 8}},
        {"name": "b", "shape": [8], "datatype": "INT8", "parameters": {"binary_data_size": u64::MAX - 7}},
    ]});
    assert!(tensors(&sum, &[0; 8]).unwrap_err().contains("inputs[1].parameters.binary_data_size must be at most 0"));
    let data = json!({"inputs": [{"name": "a", "shape": [1], "datatype": "INT8", "data": [1]}]});
    assert!(tensors(&data, &[0]).unwrap_err().contains("1 bytes behind the JSON belong to no input"));
}

#[test]
fn what_an_input_lacks_or_has_twice_is_refused_by_its_path() {
    let check = |body: Value, why: &str| {
        let error = tensors(&body, &[]).unwrap_err();
        assert!(error.contains(why), "{body}: {error}");
    };
    let one = |input: Value| json!({"inputs": [input]});
    check(one(json!({"shape": [1], "datatype": "INT8", "data": [1]})), "inputs[0].name is required");
    check(one(json!({"name": "x", "datatype": "INT8", "data": [1]})), "inputs[0].shape is required");
    check(one(json!({"name": "x", "shape": [1], "data": [1]})), "inputs[0].datatype is required");
    check(
        one(json!({"name": "x", "shape": [1], "datatype": "INT8"})),
        "inputs[0].data is required, or its parameter binary_data_size",
    );
    check(
        one(json!({"name": "x", "shape": [1], "datatype": "INT8", "data": [1], "parameters": {"binary_data_size": 0}})),
        "inputs[0].data and inputs[0].parameters.binary_data_size are there",
    );
    check(input(&json!([1]), "BYTES", &behind(&json!(0))), "inputs[0].datatype must be one of BOOL, UINT8");
    check(input(&json!([1]), "BF16", &behind(&json!(2))), "got \"BF16\"");
    check(input(&json!([1]), "INT8", &json!({"data": "AA=="})), "inputs[0].data must be a list of numbers");
    check(input(&json!([1]), "INT8", &json!({"data": 1})), "inputs[0].data must be a list of numbers");
    check(input(&json!([1]), "INT8", &json!({"data": [1], "parameters": 3})), "inputs[0].parameters must be an object");
    check(
        input(&json!([1]), "INT8", &json!({"parameters": {"shared_memory_region": "r"}})),
        "inputs[0].parameters.shared_memory_region is not supported",
    );
    check(input(&json!([u64::MAX, u64::MAX]), "INT8", &json!({"data": [1]})), "as many numbers as its shape");
    check(input(&json!([u64::MAX, u64::MAX]), "INT8", &behind(&json!(0))), "can be counted");
    check(input(&json!([-1]), "INT8", &json!({"data": [1]})), "inputs[0].shape must be a list of at most 16 lengths");
    check(json!({"inputs": {"x": [1]}}), "inputs must be a list of objects with name, shape, datatype and data");
    check(json!({"inputs": 1}), "inputs must be a list of objects");
    check(one(json!([1])), "inputs[0] must be an object with name");
    let many = |count: usize| {
        let input = |at| json!({"name": format!("x{at}"), "shape": [1], "datatype": "INT8", "data": [1]});
        json!({"inputs": (0..count).map(input).collect::<Vec<_>>()})
    };
    assert_eq!(tensors(&many(TENSORS), &[]).unwrap().len(), TENSORS);
    check(many(TENSORS + 1), "at most 64 inputs");
}

#[test]
fn what_is_asked_beside_the_inputs_is_read_and_bounded() {
    assert_eq!(asked(&json!({})).unwrap(), Asked::default());
    let body = json!({"id": "a", "outputs": [{"name": "y", "parameters": {"binary_data": false}}, {"name": "z"}],
        "parameters": {"binary_data_output": true, "timeout": 1_500_000, "sequence_id": 0, "own": "x"}});
    let read = asked(&body).unwrap();
    assert_eq!((read.id.as_deref(), read.binary, read.timeout), (Some("a"), true, Some(Duration::from_millis(1500))));
    let outputs: Vec<_> = read.outputs.iter().map(|output| (output.name.as_str(), output.binary)).collect();
    assert_eq!(outputs, [("y", false), ("z", true)]);
    assert_eq!(asked(&json!({"parameters": {"timeout": 0}})).unwrap().timeout, None);
    assert_eq!(asked(&json!({"parameters": {"timeout": 600_000_000}})).unwrap().timeout, Some(MAX), "at the bound");
    let check = |body: Value, why: &str| {
        let error = asked(&body).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    check(json!({"parameters": {"timeout": 600_000_001}}), "parameters.timeout must be at most 600000000 microseconds");
    check(json!({"parameters": {"timeout": -1}}), "parameters.timeout must be a number of microseconds, got -1");
    check(json!({"parameters": []}), "parameters must be an object");
    check(json!({"parameters": {"binary_data_output": 1}}), "parameters.binary_data_output must be a boolean");
    check(json!({"parameters": {"sequence_id": 7}}), "parameters.sequence_id is not supported");
    check(json!({"outputs": {}}), "outputs must be a list");
    check(json!({"outputs": ["y"]}), "outputs[0] must be an object");
    check(json!({"outputs": [{}]}), "outputs[0].name is required");
    check(json!({"outputs": [{"name": 1}]}), "outputs[0].name must be a string");
    check(json!({"outputs": [{"name": "y"}, {"name": "y"}]}), "outputs[1] asks for the output y twice");
    let classes = json!({"outputs": [{"name": "y", "parameters": {"classification": 3}}]});
    check(classes, "outputs[0].parameters.classification is not supported");
    let shared = json!({"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]});
    check(shared, "outputs[0].parameters.shared_memory_region is not supported");
    assert!(asked(&json!({"id": "a".repeat(ID_BYTES)})).is_ok());
    check(json!({"id": "a".repeat(ID_BYTES + 1)}), "id must have at most 1024 bytes, got 1025");
}

#[test]
fn an_answer_has_its_bytes_behind_its_json_and_says_where() {
    let tensor = |numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::new(Datatype::Fp32, vec![numbers.len()], bytes).unwrap()
    };
    let (a, b) = (tensor(&[1.5]), tensor(&[f32::NAN, 2.0]));
    let outputs = |binary| [Output { name: "a", tensor: &a, binary: false }, Output { name: "b", tensor: &b, binary }];
    let (body, length) = answer("m", Some("7"), &outputs(false)).unwrap();
    let json: Value = serde_json::from_slice(&body).unwrap();
    let expected = json!({"model_name": "m", "model_version": "1", "id": "7", "outputs": [
        {"name": "a", "shape": [1], "datatype": "FP32", "data": [1.5]},
        {"name": "b", "shape": [2], "datatype": "FP32", "data": ["NaN", 2.0]},
    ]});
    assert_eq!((json, length), (expected, None));
    let (body, length) = answer("m", None, &outputs(true)).unwrap();
    let (head, tail) = body.split_at(length.unwrap());
    let json: Value = serde_json::from_slice(head).unwrap();
    assert_eq!((&json["outputs"][1]["parameters"], json.get("id")), (&json!({"binary_data_size": 8}), None));
    assert_eq!((json["outputs"][1].get("data"), tail), (None, b.bytes()));
}
