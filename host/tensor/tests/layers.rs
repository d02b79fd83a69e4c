//! Networks of many kinds of layers against what numpy computed, the bundled classifier, and files that nobody should serve.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use camshaft_core::tensor::{Computing, Datatype, Number, Tensor};
use camshaft_tensor::{BackendChoice, GatherError, TensorLoadError, TensorModel, gather, load};
use serde_json::Value;

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
