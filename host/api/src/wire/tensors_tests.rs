use camshaft_core::tensor::{Number, Tensor};
use serde_json::{Map, Value, json};

use super::*;
use crate::wire::open_inference;
use crate::wire::read::{self, Body};
use crate::wire::tensor_objects::{NestedLists, TensorObject};
use crate::wire::types::tensors::TENSORS;

fn body(body: &Value) -> Result<Body<PredictRequest>, RequestError> {
    read::read(&body.to_string())
}

/// The field at fault and the message.
fn fault(error: &RequestError) -> (String, String) {
    let object = error.answer().note().object.clone();
    (object.param.unwrap_or_default(), object.message)
}

fn tensor(of: &Value, datatype: Datatype) -> Result<Tensor, RequestError> {
    let body = body(of)?;
    let tensors = of_predict(&body.request)?;
    assert_eq!(tensors.len(), 1, "{of}");
    tensors[0].read(datatype)
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
        json!({"inputs": {"x": [[1, 2], [3, 4]], "y": null}}),
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
fn what_policies_see_has_shapes_and_no_numbers_and_is_read_again() {
    let of =
        json!({"model": "m", "inputs": {"a": [[1, 2]], "b": {"shape": [3], "datatype": "INT8", "data": [1, 2, 3]}}});
    let body = body(&of).unwrap();
    let seen = json!({"model": "m", "inputs": {
        "a": {"shape": [1, 2], "datatype": null}, "b": {"shape": [3], "datatype": "INT8"}
    }});
    assert_eq!(serde_json::from_str::<Value>(&body.to_json()).unwrap(), seen);
    let paths: Vec<String> = of_predict(&body.request).unwrap().into_iter().map(|tensor| tensor.path).collect();
    assert_eq!(paths, ["inputs.a", "inputs.b"]);
    let again = body.patched(r#"{"timeout": 3}"#).unwrap();
    assert_eq!(again.member("inputs").unwrap(), seen["inputs"]);
    let list =
        self::body(&json!({"inputs": [{"name": "a", "shape": [1], "datatype": "BOOL", "data": [true]}]})).unwrap();
    assert_eq!(list.member("inputs").unwrap(), json!([{"name": "a", "shape": [1], "datatype": "BOOL"}]));
}

#[test]
fn what_is_no_tensor_is_refused_with_its_path() {
    let check = |body: Value, param: &str, why: &str| {
        let (found, message) = fault(&tensor(&body, Datatype::Uint8).unwrap_err());
        assert!(found.starts_with(param) && message.contains(why), "{body}: {found}: {message}");
    };
    check(json!({"input": [[1, 2], [3]]}), "input", "lists along its axis 1 have 2 and 1 entries");
    check(json!({"input": "text"}), "input", "it holds a string");
    check(json!({"input": [1, 256]}), "input", "must be UINT8, got 256");
    check(json!({"input": [1.5]}), "input", "must be UINT8, got 1.5");
    check(json!({"input": [1.0]}), "input", "must be UINT8, got 1.0");
    check(json!({"input": [1, 2.5]}), "input", "must be UINT8, got 2.5");
    check(json!({"input": [1e40]}), "input", "must be UINT8, got 1e40");
    check(json!({"input": {"shape": [3], "data": [1, 2]}}), "input", "as many numbers as its shape [3] says, got 2");
    check(json!({"input": {"shape": [-1], "data": [1]}}), "input.shape", "-1");
    check(json!({"input": {"shape": [u64::MAX, u64::MAX], "data": [1]}}), "input", "as its shape");
    assert!(body(&json!({"input": {"shape": vec![1; 16], "data": [1]}})).is_ok());
    check(json!({"input": {"shape": vec![1; 17], "data": [1]}}), "input", "at most 16");
    check(json!({"input": {"shape": [1]}}), "input.data", "required");
    check(json!({"input": {"data": "AA=="}}), "input.shape", "required beside data in base64");
    check(json!({"input": {"shape": [1], "data": "!"}}), "input.data", "not base64");
    check(json!({"input": {"shape": [2], "data": "AA=="}}), "input", "takes 2 bytes of UINT8, got 1");
    check(json!({"input": {"shape": [1], "datatype": "float", "data": [1]}}), "input.datatype", "float");
    check(json!({"input": {"shape": [1], "data": {}}}), "input.data", "list of numbers");
    check(json!({"input": {"shape": [1], "data": 1}}), "input.data", "list of numbers");
    check(json!({"inputs": 3}), "inputs", "an object of tensors");
    check(json!({"inputs": [[1]]}), "inputs[0].name", "required");
    check(json!({"inputs": {"x": {"data": [null]}}}), "inputs.x.data", "it holds null");
    let many =
        |count: usize| json!({"inputs": (0..count).map(|i| (format!("x{i}"), json!([1]))).collect::<Map<_, _>>()});
    assert_eq!(of_predict(&body(&many(TENSORS)).unwrap().request).unwrap().len(), TENSORS);
    assert_eq!(fault(&body(&many(TENSORS + 1)).unwrap_err()).0, "inputs");
}

/// The tensors of a body of the Open Inference Protocol, with bytes behind its JSON.
fn inferred(body: &Value, tail: &[u8]) -> Result<Vec<Tensor>, RequestError> {
    let body: Body<InferRequest> = read::read(&body.to_string())?;
    let tensors = of_infer(&body.request, &Bytes::copy_from_slice(tail))?;
    tensors.iter().map(|tensor| tensor.read(Datatype::Fp32)).collect()
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

#[test]
fn tensors_come_as_numbers_or_as_bytes_behind_the_json() {
    let expected = Tensor::new(Datatype::Fp32, vec![1, 2], [1.0f32, 2.0].map(f32::to_le_bytes).concat()).unwrap();
    let shape = json!([1, 2]);
    for data in [json!([1, 2]), json!([[1.0, 2.0]])] {
        let read = inferred(&input(&shape, "FP32", &json!({ "data": data })), &[]).unwrap();
        assert_eq!(read, std::slice::from_ref(&expected));
    }
    assert_eq!(inferred(&input(&shape, "FP32", &behind(&json!(8))), expected.bytes()).unwrap(), [expected]);
    let half = inferred(&input(&json!([1]), "FP16", &behind(&json!(2))), &[0x00, 0x3c]).unwrap();
    assert_eq!((half[0].datatype(), half[0].bytes()), (Datatype::Fp16, &[0x00, 0x3c][..]));
    let two = json!({"inputs": [
        {"name": "a", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}},
        {"name": "b", "shape": [1], "datatype": "INT8", "data": [7]},
        {"name": "c", "shape": [2], "datatype": "BOOL", "parameters": {"binary_data_size": 2, "other": 1}},
    ]});
    let bytes: Vec<Vec<u8>> = inferred(&two, &[5, 1, 0]).unwrap().into_iter().map(Tensor::into_bytes).collect();
    assert_eq!(bytes, [vec![5], vec![7], vec![1, 0]], "in the order of the inputs");
}

#[test]
fn sizes_of_bytes_must_be_exactly_those_that_are_there() {
    let check = |size: Value, tail: usize, param: &str| {
        let error = inferred(&input(&json!([1, 2]), "FP32", &behind(&size)), &vec![0; tail]).unwrap_err();
        assert_eq!(fault(&error).0, param, "{size} {tail}: {error}");
    };
    const SIZE: &str = "inputs[0].parameters.binary_data_size";
    check(json!(8), 7, SIZE);
    check(json!(8), 9, "binary_data_size");
    check(json!(4), 4, "inputs[0]");
    check(json!(0), 0, "inputs[0]");
    for size in [json!(-1), json!(8.5), json!("8"), json!(u64::MAX), json!(1u64 << 63)] {
        check(size, 8, SIZE);
    }
    let sum = json!({"inputs": [
        {"name": "a", "shape": [8], "datatype": "INT8", "parameters": {"binary_data_size": 8}},
        {"name": "b", "shape": [8], "datatype": "INT8", "parameters": {"binary_data_size": u64::MAX - 7}},
    ]});
    assert_eq!(fault(&inferred(&sum, &[0; 8]).unwrap_err()).0, "inputs[1].parameters.binary_data_size");
    let data = json!({"inputs": [{"name": "a", "shape": [1], "datatype": "INT8", "data": [1]}]});
    assert_eq!(fault(&inferred(&data, &[0]).unwrap_err()).0, "binary_data_size");
}

#[test]
fn what_an_input_lacks_or_has_twice_is_refused_by_its_path() {
    let check = |body: Value, param: &str| {
        let error = inferred(&body, &[]).unwrap_err();
        assert_eq!(fault(&error).0, param, "{body}: {error}");
    };
    let one = |input: Value| json!({"inputs": [input]});
    check(one(json!({"shape": [1], "datatype": "INT8", "data": [1]})), "inputs[0].name");
    check(one(json!({"name": "x", "datatype": "INT8", "data": [1]})), "inputs[0].shape");
    check(one(json!({"name": "x", "shape": [1], "data": [1]})), "inputs[0].datatype");
    check(one(json!({"name": "x", "shape": [1], "datatype": "INT8"})), "inputs[0].data");
    let both =
        json!({"name": "x", "shape": [1], "datatype": "INT8", "data": [1], "parameters": {"binary_data_size": 0}});
    check(one(both), "inputs[0].data");
    check(input(&json!([1]), "BYTES", &behind(&json!(0))), "inputs[0].datatype");
    check(input(&json!([1]), "BF16", &behind(&json!(2))), "inputs[0].datatype");
    check(input(&json!([1]), "INT8", &json!({"data": "AA=="})), "inputs[0].data");
    check(input(&json!([1]), "INT8", &json!({"data": 1})), "inputs[0].data");
    check(input(&json!([1]), "INT8", &json!({"data": [1], "parameters": 3})), "inputs[0].parameters");
    let shared = json!({"parameters": {"shared_memory_region": "r"}});
    check(input(&json!([1]), "INT8", &shared), "inputs[0].parameters.shared_memory_region");
    check(input(&json!([u64::MAX, u64::MAX]), "INT8", &json!({"data": [1]})), "inputs[0]");
    check(input(&json!([u64::MAX, u64::MAX]), "INT8", &behind(&json!(0))), "inputs[0]");
    check(input(&json!([-1]), "INT8", &json!({"data": [1]})), "inputs[0].shape[0]");
    check(json!({"inputs": {"x": [1]}}), "inputs");
    check(json!({"inputs": 1}), "inputs");
    check(json!({}), "inputs");
    check(one(json!([1])), "inputs[0].name");
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
    let back = self::tensor(&json!({ "input": nested }), Datatype::Fp32).unwrap();
    assert_eq!(back.bytes()[4..], tensor.bytes()[4..], "as they are read");
    let scalar = Tensor::zero(Datatype::Bool, vec![]).unwrap();
    assert_eq!(serde_json::to_value(NestedLists::of(&scalar)).unwrap(), json!(false));
    let empty = Tensor::zero(Datatype::Int64, vec![2, 0]).unwrap();
    assert_eq!(serde_json::to_value(NestedLists::of(&empty)).unwrap(), json!([[], []]));
}

#[test]
fn an_answer_has_its_bytes_behind_its_json_and_says_where() {
    let tensor = |numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::new(Datatype::Fp32, vec![numbers.len()], bytes).unwrap()
    };
    let (a, b) = (tensor(&[1.5]), tensor(&[f32::NAN, 2.0]));
    let outputs = |binary| {
        [
            open_inference::Output { name: "a", tensor: &a, binary: false },
            open_inference::Output { name: "b", tensor: &b, binary },
        ]
    };
    let (body, length) = open_inference::answer("m", Some("7"), &outputs(false)).unwrap();
    let json: Value = serde_json::from_slice(&body).unwrap();
    let expected = json!({"model_name": "m", "model_version": "1", "id": "7", "outputs": [
        {"name": "a", "shape": [1], "datatype": "FP32", "data": [1.5]},
        {"name": "b", "shape": [2], "datatype": "FP32", "data": ["NaN", 2.0]},
    ]});
    assert_eq!((json, length), (expected, None));
    let (body, length) = open_inference::answer("m", None, &outputs(true)).unwrap();
    let (head, tail) = body.split_at(length.unwrap());
    let json: Value = serde_json::from_slice(head).unwrap();
    assert_eq!((&json["outputs"][1]["parameters"], json.get("id")), (&json!({"binary_data_size": 8}), None));
    assert_eq!((json["outputs"][1].get("data"), tail), (None, b.bytes()));
}
