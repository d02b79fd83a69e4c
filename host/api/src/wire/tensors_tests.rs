use camshaft_core::tensor::{Number, Tensor};
use serde_json::json;

use super::*;
use crate::wire::json::parse_with;
use crate::wire::tensor_objects::{NestedLists, TensorObject};

fn read(body: &Value) -> Result<(Map<String, Value>, Vec<Written>), String> {
    let mut tensors = Tensors::default();
    let map = parse_with(&body.to_string(), &mut tensors).map_err(|error| error.to_string())?;
    Ok((map, tensors.tensors))
}

fn tensor(body: &Value, datatype: Datatype) -> Result<Tensor, String> {
    let (_, mut tensors) = read(body)?;
    assert_eq!(tensors.len(), 1, "{body}");
    tensors.remove(0).read(datatype).map_err(|error| error.to_string())
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.numbers().map(Number::to_f64).collect()
}

#[test]
fn a_tensor_may_be_lists_or_an_object_with_numbers_or_base64() {
    for body in [
        json!({"input": [[1, 2], [3, 4]]}),
        json!({"input": [[1.0, 2.0], [3.0, 4.0]]}),
        json!({"input": {"shape": [2, 2], "data": [1, 2, 3, 4]}}),
        json!({"input": {"shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}}),
        json!({"input": {"shape": [2, 2], "data": "AACAPwAAAEAAAEBAAACAQA=="}}),
        json!({"inputs": {"x": [[1, 2], [3, 4]]}}),
        json!({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}),
    ] {
        let tensor = tensor(&body, Datatype::Fp32).unwrap();
        assert_eq!((tensor.shape(), numbers(&tensor)), ([2, 2].as_slice(), vec![1.0, 2.0, 3.0, 4.0]), "{body}");
    }
    let single = tensor(&json!({"input": 7}), Datatype::Int64).unwrap();
    assert_eq!((single.shape(), numbers(&single)), ([].as_slice(), vec![7.0]));
    let named = tensor(&json!({"input": {"shape": [1], "datatype": "INT8", "data": [7]}}), Datatype::Fp32).unwrap();
    assert_eq!(named.datatype(), Datatype::Int8, "the client's own type");
}

#[test]
fn what_policies_see_has_shapes_and_no_numbers() {
    let body =
        json!({"model": "m", "inputs": {"a": [[1, 2]], "b": {"shape": [3], "datatype": "INT8", "data": [1, 2, 3]}}});
    let (map, tensors) = read(&body).unwrap();
    let seen = json!({"model": "m", "inputs": {
        "a": {"shape": [1, 2], "datatype": null}, "b": {"shape": [3], "datatype": "INT8"}
    }});
    assert_eq!(Value::Object(map), seen);
    let paths: Vec<&str> = tensors.iter().map(|tensor| tensor.path.as_str()).collect();
    assert_eq!(paths, ["inputs.a", "inputs.b"]);
    let (map, _) = read(&json!({"inputs": [{"name": "a", "shape": [1], "datatype": "BOOL", "data": [true]}]})).unwrap();
    assert_eq!(map["inputs"], json!([{"shape": [1], "datatype": "BOOL", "name": "a"}]));
}

#[test]
fn what_is_no_tensor_is_refused_with_its_path() {
    let check = |body: Value, why: &str| {
        let error = match read(&body) {
            Err(error) => error,
            Ok((_, mut tensors)) => tensors.remove(0).read(Datatype::Uint8).unwrap_err().to_string(),
        };
        assert!(error.contains(why), "{body}: {error}");
    };
    check(json!({"input": [[1, 2], [3]]}), "input is no tensor: lists along its axis 1 have 2 and 1 entries");
    check(json!({"input": "text"}), "input is no tensor: it holds a string");
    check(json!({"input": [1, 256]}), "number 1 of input must be UINT8, got 256");
    check(json!({"input": [1.5]}), "number 0 of input must be UINT8, got 1.5");
    check(json!({"input": [1.0]}), "number 0 of input must be UINT8, got 1.0");
    check(json!({"input": [1, 2.5]}), "number 1 of input must be UINT8, got 2.5");
    check(json!({"input": [1e40]}), "number 0 of input must be UINT8, got 1e40");
    check(json!({"input": {"shape": [3], "data": [1, 2]}}), "as many numbers as its shape [3] says, got 2");
    check(json!({"input": {"shape": [-1], "data": [1]}}), "input.shape must be a list of at most 16 lengths");
    check(json!({"input": {"shape": [u64::MAX, u64::MAX], "data": [1]}}), "as its shape");
    assert!(read(&json!({"input": {"shape": vec![1; 16], "data": [1]}})).is_ok());
    check(json!({"input": {"shape": vec![1; 17], "data": [1]}}), "input.shape must be a list of at most 16");
    check(json!({"input": {"shape": [1]}}), "input.data is required");
    check(json!({"input": {"data": "AA=="}}), "input.shape is required beside data in base64");
    check(json!({"input": {"shape": [1], "data": "!"}}), "input.data is not base64");
    check(json!({"input": {"shape": [2], "data": "AA=="}}), "takes 2 bytes of UINT8, got 1");
    check(
        json!({"input": {"shape": [1], "datatype": "float", "data": [1]}}),
        "input.datatype must be one of BOOL, UINT8",
    );
    check(json!({"input": {"shape": [1], "data": {}}}), "input.data must be a list of numbers");
    check(json!({"input": {"shape": [1], "data": 1}}), "input.data must be a list of numbers");
    check(json!({"inputs": 3}), "inputs must be an object of tensors");
    check(json!({"inputs": [[1]]}), "inputs[0] must be an object with name");
    check(json!({"inputs": {"x": {"data": [null]}}}), "inputs.x.data is no tensor: it holds null");
    let many =
        |count: usize| json!({"inputs": (0..count).map(|i| (format!("x{i}"), json!([1]))).collect::<Map<_, _>>()});
    assert_eq!(read(&many(TENSORS)).unwrap().1.len(), TENSORS);
    check(many(TENSORS + 1), "at most 64 inputs");
}

#[test]
fn regression_numbers_are_no_values_of_the_body_but_nulls_are() {
    let many = format!("{{\"input\": [{}0]}}", "0,".repeat(crate::wire::json::VALUES));
    let mut tensors = Tensors::default();
    parse_with(&many, &mut tensors).unwrap();
    assert_eq!(tensors.tensors.remove(0).read(Datatype::Uint8).unwrap().len(), crate::wire::json::VALUES + 1);
    let nulls = |count: usize| {
        let members: Vec<String> = (0..count).map(|i| format!("\"{i}\":null")).collect();
        let text = format!("{{\"inputs\": {{{}}}}}", members.join(","));
        parse_with(&text, &mut Tensors::default())
    };
    assert!(nulls(crate::wire::json::VALUES).is_ok());
    assert!(matches!(nulls(crate::wire::json::VALUES + 1), Err(RequestError::TooManyValues { .. })));
}

#[test]
fn a_name_that_comes_twice_counts_once_and_the_last_one_stands() {
    let body = r#"{"input": [1], "input": [2, 3], "inputs": {"x": [4], "x": [5]}}"#;
    let mut tensors = Tensors::default();
    parse_with(body, &mut tensors).unwrap();
    let read = |tensor: Written| numbers(&tensor.read(Datatype::Fp32).unwrap());
    assert_eq!(tensors.tensors.into_iter().map(read).collect::<Vec<_>>(), [vec![2.0, 3.0], vec![5.0]]);
}

#[test]
fn text_that_is_no_json_is_refused_as_such() {
    let mut tensors = Tensors::default();
    let error = parse_with("{\"input\": [1, 2", &mut tensors).unwrap_err();
    assert!(matches!(error, RequestError::Json(_)), "{error}");
}

#[test]
fn tensors_are_written_flat_and_nested_and_what_json_has_no_number_for_as_text() {
    let bytes = [1.5f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensor = Tensor::new(Datatype::Fp32, vec![2, 2], bytes).unwrap();
    let object = serde_json::to_value(TensorObject::from(&tensor)).unwrap();
    let data = json!([1.5, "NaN", "Infinity", "-Infinity"]);
    assert_eq!(object, json!({"shape": [2, 2], "datatype": "FP32", "data": data}));
    let nested = serde_json::to_value(NestedLists::of(&tensor)).unwrap();
    assert_eq!(nested, json!([[1.5, "NaN"], ["Infinity", "-Infinity"]]));
    let back = self::tensor(&json!({"input": nested}), Datatype::Fp32).unwrap();
    assert_eq!(back.bytes()[4..], tensor.bytes()[4..], "as they are read");
    let scalar = Tensor::zero(Datatype::Bool, vec![]).unwrap();
    assert_eq!(serde_json::to_value(NestedLists::of(&scalar)).unwrap(), json!(false));
    let empty = Tensor::zero(Datatype::Int64, vec![2, 0]).unwrap();
    assert_eq!(serde_json::to_value(NestedLists::of(&empty)).unwrap(), json!([[], []]));
}
