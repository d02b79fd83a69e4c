//! Networks of many kinds of layers against what numpy computed, the bundled classifier, and files that nobody should serve.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::jobs::BatchModel;
use camshaft_core::limits::BATCH_ROWS;
use camshaft_core::tensor::{Datatype, Number, Rows, Tensor};
use camshaft_tensor::{BackendChoice, GatherError, Joining, Predictor, TensorLoadError, TensorModel, gather, load};
use serde_json::Value;

/// Of an image.
const PIXELS: usize = 28 * 28;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(path: &str) -> TensorModel {
    let files = gather(&repository().join(path), |wanted| std::fs::read(wanted.path).map(Some)).unwrap();
    load(files, BackendChoice::Auto).unwrap()
}

fn json(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(repository().join(path)).unwrap()).unwrap()
}

fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(flat).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn ids(rows: usize, ids: &[i64]) -> Tensor {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Tensor::new(Datatype::Int64, vec![rows, ids.len() / rows], bytes).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.numbers().map(Number::to_f64).collect()
}

#[test]
fn layers_with_parameters_of_pytorch_and_of_burn_give_what_numpy_computed() {
    let expected = json("tests/fixtures/models/burn/layers.json");
    let given: Vec<i64> = flat(&expected["ids"]).into_iter().map(|id| id as i64).collect();
    for layout in ["torch", "burn"] {
        let model = model(&format!("tests/fixtures/models/burn/layers-{layout}.toml"));
        assert_eq!(model.facts.notes, [""; 0], "{layout}");
        let outputs = model.run(&[ids(2, &given)]).unwrap();
        assert_eq!(outputs[0].shape(), [2, 5]);
        for (got, expected) in numbers(&outputs[0]).iter().zip(flat(&expected["given"])) {
            assert!((got - expected).abs() < 1e-5, "{layout}: {:?} {expected:?}", numbers(&outputs[0]));
        }
        // Rows leave each other alone.
        let alone = model.run(&[ids(1, &given[5..])]).unwrap();
        assert_eq!(numbers(&alone[0]), numbers(&outputs[0])[5..]);
        for wrong in [11, -1] {
            let error = model.run(&[ids(1, &[0, 0, wrong, 0, 0])]).unwrap_err();
            assert!(error.contains(&format!("index {wrong} is out of range for layer embed")), "{error}");
        }
        assert!(model.run_bytes(&[&[1000, 5]]).unwrap() > 4 * 1000 * 5 * (6 + 6 + 8));
    }
}

#[test]
fn both_forms_of_the_bundled_classifier_name_digits_that_training_never_saw() {
    let sample = json("tests/fixtures/digits.json");
    let truth: Vec<u32> = flat(&sample["labels"]).into_iter().map(|label| label as u32).collect();
    let pixels = base64(sample["pixels"].as_str().unwrap());
    let images = Tensor::new(Datatype::Uint8, vec![100, 28, 28], pixels).unwrap();
    let labels = ["digits.toml", "digits-onnx.toml"].map(|name| {
        let model = model(&format!("config/digits/{name}"));
        let classes = model.classes(&model.run(std::slice::from_ref(&images)).unwrap()).unwrap();
        assert!(classes.iter().all(|row| row.len() == 3 && row[0].score >= row[1].score));
        classes.into_iter().map(|row| row[0].index).collect::<Vec<u32>>()
    });
    assert_eq!(labels[0], labels[1]);
    let right = labels[0].iter().zip(&truth).filter(|(got, expected)| got == expected).count();
    assert!(right >= 98, "{right} of 100");
}

/// Images of one byte each per pixel, of these of the sample.
fn images(pixels: &[u8], which: &[usize]) -> Rows {
    let bytes = which.iter().flat_map(|at| pixels[at * PIXELS..(at + 1) * PIXELS].to_vec()).collect();
    let tensor = Tensor::new(Datatype::Uint8, vec![which.len(), 28, 28], bytes).unwrap();
    Rows { tensors: [tensor].into(), rows: which.len() as u32 }
}

#[test]
fn each_request_of_a_batch_gets_the_classes_of_its_own_images() {
    let pixels = base64(json("tests/fixtures/digits.json")["pixels"].as_str().unwrap());
    for name in ["digits.toml", "digits-onnx.toml"] {
        let model = Arc::new(model(&format!("config/digits/{name}")));
        assert_eq!(model.facts.joining, Joining::Proven, "{name}");
        let mut predictor = Predictor::new(model);
        let requests = [images(&pixels, &[0, 1, 2]), images(&pixels, &[3]), images(&pixels, &[4, 5])];
        let together = predictor.compute(&requests).unwrap();
        for (request, together) in requests.iter().zip(together) {
            let (together, alone) = (together.unwrap(), predictor.compute(std::slice::from_ref(request)).unwrap());
            let alone = alone.into_iter().next().unwrap().unwrap();
            let (got, expected) = (together.classes.unwrap(), alone.classes.unwrap());
            assert_eq!(got.len() as u32, request.rows);
            for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                assert_eq!((&got.label, got.index), (&expected.label, expected.index), "{name}");
                assert!((got.score - expected.score).abs() < 1e-5, "{name}");
            }
        }
    }
}

#[test]
fn regression_a_layout_that_moves_the_first_axis_makes_no_batches() {
    let manifest = "weights = \"m.safetensors\"\n[[input]]\nname = \"x\"\nshape = [\"n\", 2, 2]\n\
                    [[layer]]\ntype = \"relu\"\n";
    let model = |more: &str| {
        let text = format!("{manifest}{more}");
        let files = gather(Path::new("m.toml"), |wanted| {
            let is_manifest = wanted.path == Path::new("m.toml");
            Ok::<_, ()>(Some(if is_manifest { text.clone().into_bytes() } else { safetensors("{}", 0) }))
        });
        load(files.unwrap(), BackendChoice::Auto).unwrap()
    };
    assert!(model("").signature.rows && model("").facts.joining == Joining::Proven);
    let moved = model("[preprocess.x]\nlayout = \"hwc\"\n");
    assert!(!moved.signature.rows);
    assert_eq!(moved.facts.joining.to_string(), "one at a time: its preprocessing moves the first axis");
}

/// An LSTM over times of any number, with random weights.
fn recurrent(bidirectional: bool) -> Result<TensorModel, TensorLoadError> {
    let text = format!(
        "weights = \"m.safetensors\"\n[ragged]\naxis = \"time\"\n[[input]]\nname = \"x\"\nshape = [\"n\", \"time\", 3]\n\
         [[layer]]\nname = \"rnn\"\ntype = \"lstm\"\nhidden = 2\nbidirectional = {bidirectional}\n"
    );
    let directions: &[&str] = if bidirectional { &["", "_reverse"] } else { &[""] };
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for direction in directions {
        for (name, shape) in
            [("weight_ih", vec![8, 3]), ("weight_hh", vec![8, 2]), ("bias_ih", vec![8]), ("bias_hh", vec![8])]
        {
            let begin = data.len();
            let count: usize = shape.iter().product();
            data.extend((0..count).flat_map(|at| (((at * 37 + begin) % 29) as f32 / 20.0 - 0.7).to_le_bytes()));
            let tensor = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
            header.insert(format!("rnn.{name}_l0{direction}"), tensor);
        }
    }
    let header = Value::Object(header).to_string();
    let weights = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    let files = gather(Path::new("m.toml"), |wanted| {
        let is_manifest = wanted.path == Path::new("m.toml");
        Ok::<_, ()>(Some(if is_manifest { text.clone().into_bytes() } else { weights.clone() }))
    });
    load(files.unwrap(), BackendChoice::Auto)
}

#[test]
fn times_of_different_lengths_are_padded_where_no_layer_looks_ahead() {
    let model = Arc::new(recurrent(false).unwrap());
    assert_eq!(model.outline().requests, "in batches, padded along time");
    let times = |length: usize| {
        let bytes = (0..length * 3).flat_map(|at| ((at * 7 % 11) as f32 / 5.0 - 1.0).to_le_bytes()).collect();
        Rows { tensors: [Tensor::new(Datatype::Fp32, vec![1, length, 3], bytes).unwrap()].into(), rows: 1 }
    };
    let requests = [times(5), times(9), times(6), times(2)];
    let together = Predictor::new(model.clone()).compute(&requests).unwrap();
    for (request, together) in requests.iter().zip(together) {
        let (alone, together) = (model.run(&request.tensors).unwrap(), together.unwrap().tensors);
        assert_eq!(alone[0].shape(), together[0].shape());
        for (alone, together) in numbers(&alone[0]).iter().zip(numbers(&together[0])) {
            assert!((alone - together).abs() < 1e-5, "{alone} {together}");
        }
    }
    let error = recurrent(true).unwrap_err().to_string();
    assert!(error.contains("ragged.axis: padding shows in output"), "{error}");
}

#[test]
fn a_batch_gives_all_kinds_of_layers_what_each_request_alone_gets() {
    let given: Vec<i64> =
        flat(&json("tests/fixtures/models/burn/layers.json")["ids"]).into_iter().map(|id| id as i64).collect();
    let rows = |tensor: Tensor| Rows { rows: tensor.shape()[0] as u32, tensors: [tensor].into() };
    for layout in ["torch", "burn"] {
        let model = Arc::new(model(&format!("tests/fixtures/models/burn/layers-{layout}.toml")));
        assert_eq!(model.facts.joining, Joining::Proven);
        let mut predictor = Predictor::new(model.clone());
        assert_eq!(predictor.batch().size, BATCH_ROWS);
        let requests = [ids(2, &given), ids(1, &given[5..]), ids(1, &[0, 0, 11, 0, 0]), ids(1, &given[..5])].map(rows);
        // One is out of range: the others do not notice.
        let failed = predictor.compute(&requests).unwrap();
        assert_eq!(failed.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
        let good = [0, 1, 3].map(|at| requests[at].clone());
        for (request, together) in good.iter().zip(predictor.compute(&good).unwrap()) {
            let (together, alone) = (together.unwrap().tensors, model.run(&request.tensors).unwrap());
            assert_eq!(together[0].shape(), alone[0].shape());
            let pairs = numbers(&together[0]).into_iter().zip(numbers(&alone[0]));
            pairs.for_each(|(together, alone)| assert!((together - alone).abs() < 1e-6, "{together} {alone}"));
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = text.trim_end_matches('=').as_bytes();
    let bytes = text.chunks(4).flat_map(|four| {
        let bits = four.iter().fold(0, |bits, &byte| bits << 6 | value(byte)) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    });
    bytes.collect()
}

/// Why a linear layer of four numbers to two cannot have these weights.
fn refused(name: &str, bytes: &[u8], more: &str) -> String {
    let manifest = format!(
        "weights = \"{name}\"\n{more}\n[[input]]\nname = \"x\"\nshape = [\"n\", 4]\n[[layer]]\nname = \"fc\"\ntype = \"linear\"\nout-features = 2\n"
    );
    let there: HashMap<&str, &[u8]> = HashMap::from([("m.toml", manifest.as_bytes()), (name, bytes)]);
    let files = gather(Path::new("m.toml"), |wanted| {
        Ok::<_, ()>(there.get(wanted.path.to_str().unwrap()).map(|bytes| bytes.to_vec()))
    });
    let loaded = files.map_err(|error| match error {
        GatherError::Model(error) => error,
        GatherError::File(()) => TensorLoadError::Nothing("file"),
    });
    loaded.and_then(|files| load(files, BackendChoice::Auto)).unwrap_err().to_string()
}

fn safetensors(head: &str, data: usize) -> Vec<u8> {
    [&(head.len() as u64).to_le_bytes(), head.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn weights_that_are_not_what_the_layers_have_are_told_by_layer_and_parameter() {
    let check = |head: &str, data: usize, words: &[&str]| {
        let error = refused("w.safetensors", &safetensors(head, data), "");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    check(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        &["layer fc", "weight", "no fc.weight", "they have a"],
    );
    let swapped = r#"{"fc.weight":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]}}"#;
    check(swapped, 32, &["layer fc", "parameter weight", "must have the shape [2, 4], got [4, 2]"]);
    let error = refused("w.safetensors", &safetensors(swapped, 32), "layout = \"burn\"");
    assert!(error.contains("parameter bias") && error.contains("[2]"), "{error}");
    let integers = r#"{"fc.weight":{"dtype":"I32","shape":[2,4],"data_offsets":[0,32]}}"#;
    check(integers, 32, &["must hold floating-point numbers, got I32"]);
}

#[test]
fn regression_weights_that_two_layers_share_count_twice_in_the_memory_of_a_model() {
    let head = r#"{"fc.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]},"fc.bias":{"dtype":"F32","shape":[4],"data_offsets":[64,80]}}"#;
    let weights = safetensors(head, 80);
    let model = |layers: usize| {
        let layer = "[[layer]]\nprefix = \"fc\"\ntype = \"linear\"\nout-features = 4\n";
        let manifest = format!(
            "weights = \"w.safetensors\"\n[[input]]\nname = \"x\"\nshape = [\"n\", 4]\n{}",
            layer.repeat(layers)
        );
        let there: HashMap<&str, &[u8]> =
            HashMap::from([("m.toml", manifest.as_bytes()), ("w.safetensors", weights.as_slice())]);
        let files = gather(Path::new("m.toml"), |wanted| {
            Ok::<_, ()>(there.get(wanted.path.to_str().unwrap()).map(|bytes| bytes.to_vec()))
        });
        load(files.unwrap(), BackendChoice::Cpu).unwrap()
    };
    let (one, two) = (model(1), model(2));
    assert_eq!((one.facts.parameters, one.facts.bytes), (20, 80));
    assert_eq!((two.facts.parameters, two.facts.bytes), (20, 160));
    assert!(two.memory_bytes(1, 1) >= one.memory_bytes(1, 1) + 2 * 80);
}

#[test]
fn hostile_files_are_refused_before_anything_is_allocated_for_them() {
    let check = |name: &str, bytes: &[u8], words: &str| {
        let error = refused(name, bytes, "");
        assert!(error.contains(words) && error.len() < 2000, "{name}: {error}");
    };
    let past = r#"{"fc.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[0,99999999999]}}"#;
    check("w.safetensors", &safetensors(past, 0), "no safetensors file");
    check("w.safetensors", &[&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "no safetensors file");
    check("w.safetensors", b"", "no safetensors file");
    for name in ["w.bpk", "w.mpk", "w.pt"] {
        check(name, &vec![b'a'; 2_000_000], "cannot be read");
        check(name, b"", "cannot be read");
    }
    // A head of four gigabytes, and a tensor of as many.
    check("w.bpk", &[b"NRUB\x01\x00".as_slice(), &[0xff; 4]].concat(), "exceeds maximum");
    let long = [b"\x81\xa4item\x81\xa2fc\x81\xa6weight\x81\xa5param\x83\xa5bytes\xc6".as_slice(), &[0xff; 4]].concat();
    check("w.mpk", &long, "no record of Burn");
    let deep = |depth: usize| [b"\x81\xa4item".to_vec(), b"\x81\xa1a".repeat(depth), vec![0xc0]].concat();
    check("w.mpk", &deep(100_000), "nested deeper than 64");
    check("w.mpk", &deep(65), "nested deeper than 64");
    check("w.mpk", &deep(64), "no fc.weight");
}

#[test]
fn regression_layers_whose_numbers_cannot_be_counted_never_fit() {
    let loads = |shape: &str, layer: &str| {
        let text = format!(
            "weights = \"w.safetensors\"\n[[input]]\nname = \"x\"\nshape = {shape}\n[[layer]]\ntype = {layer}\n"
        );
        let weights = safetensors("{}", 0);
        let there: HashMap<&str, &[u8]> =
            HashMap::from([("m.toml", text.as_bytes()), ("w.safetensors", weights.as_slice())]);
        let files = gather(Path::new("m.toml"), |wanted| {
            Ok::<_, ()>(there.get(wanted.path.to_str().unwrap()).map(|bytes| bytes.to_vec()))
        });
        load(files.unwrap(), BackendChoice::Auto).map(drop)
    };
    let never = |shape: &str, layer: &str| {
        let error = loads(shape, layer).unwrap_err();
        assert!(matches!(error, TensorLoadError::NeverFits { .. }), "{error}");
    };
    never("[\"n\", 1000, 1000, 1000]", "\"relu\"");
    never("[\"n\", 2147483648, 2147483648, 2147483648]", "\"relu\"");
    never("[\"n\", \"t\", 2147483648, 2147483648, 2147483648]", "\"relu\"");
    never("[\"n\", 1, 28, 28]", "\"adaptive-avg-pool2d\"\nsize = 2147483647");
    assert_eq!(loads("[\"n\", \"t\", 4]", "\"relu\""), Ok(()));
}
