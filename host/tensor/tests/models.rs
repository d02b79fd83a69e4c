//! Trained models against what an independent implementation computed. Needs `CAMSHAFT_MODELS`.
#![allow(clippy::expect_used, reason = "helpers of tests")]
#[path = "models/formats.rs"]
mod formats;

use std::path::{Path, PathBuf};

use camshaft_core::tensor::{Datatype, Number, Tensor};
use camshaft_tensor::{BackendChoice, TensorModel, gather, load};
use serde_json::Value;

/// Bound of the difference of a logit, of ONNX files and of one network in several formats.
const TOLERANCE: f64 = 1e-2;
const SAME: f64 = 1e-4;

fn models() -> Option<PathBuf> {
    let models = std::env::var_os("CAMSHAFT_MODELS").map(PathBuf::from);
    if models.is_none() {
        eprintln!("CAMSHAFT_MODELS is not set: nothing is tested");
    }
    models
}

fn floats(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(list) => list.iter().flat_map(floats).collect(),
        number => vec![number.as_f64().expect("a number")],
    }
}

fn tensor(shape: &[usize], numbers: &[f64]) -> Tensor {
    let bytes = numbers.iter().flat_map(|&number| (number as f32).to_le_bytes()).collect();
    Tensor::new(Datatype::Fp32, shape.to_vec(), bytes).expect("a tensor")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/burn")
}

/// A model of a folder, whose manifest lies among the fixtures.
fn model(folder: &Path, name: &str) -> TensorModel {
    let fixtures = fixtures();
    let files = gather(Path::new(name), |wanted| {
        let is_manifest = wanted.path.extension().is_some_and(|ending| ending == "toml");
        let folder = if is_manifest { &fixtures } else { folder };
        match std::fs::read(folder.join(wanted.path)) {
            Err(error) if wanted.may_be_missing && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    });
    load(files.expect("the files"), BackendChoice::Auto).expect("it loads")
}

fn outputs(model: &TensorModel, shape: &[usize], numbers: &[f64]) -> Vec<f64> {
    let outputs = model.run(&[tensor(shape, numbers)]).expect("it is computed");
    outputs[0].numbers().map(Number::to_f64).collect()
}

fn assert_close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (one, other) in got.iter().zip(expected) {
        assert!((one - other).abs() <= tolerance, "{got:?} {expected:?}");
    }
}

fn normalized(pixel: f64) -> f64 {
    (pixel / 255.0 - 0.1307) / 0.3081
}

/// The pixels of three digits.
fn digits(models: &Path) -> Vec<Vec<f64>> {
    let cases = std::fs::read_to_string(models.join("onnx/mnist-8.cases.json")).expect("the cases");
    let cases: Value = serde_json::from_str(&cases).expect("JSON");
    cases["cases"].as_array().expect("a list").iter().map(|case| floats(&case["input"]["data"])).collect()
}

fn reference() -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixtures().join("reference.json")).expect("the reference"))
        .expect("JSON")
}

/// What the models say of each case of the file, next to what they should say.
fn check(file: &str, expected: impl Fn(&Value) -> &Value, scale: impl Fn(f64) -> f64) {
    let Some(models) = models() else { return };
    let model = model(&models, file);
    let cases = std::fs::read_to_string(models.join("onnx/mnist-8.cases.json")).expect("the cases");
    let cases: Value = serde_json::from_str(&cases).expect("JSON");
    let cases = cases["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let input: Vec<f64> = floats(&case["input"]["data"]).into_iter().map(&scale).collect();
        let outputs = model.run(&[tensor(&[1, 1, 28, 28], &input)]).expect("it is computed");
        let logits: Vec<f64> = outputs[0].numbers().map(Number::to_f64).collect();
        let expected = floats(expected(case));
        assert_eq!((outputs[0].shape(), expected.len()), ([1, 10].as_slice(), 10));
        for (got, expected) in logits.iter().zip(&expected) {
            assert!((got - expected).abs() <= TOLERANCE, "{logits:?} {expected:?}");
        }
        let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(label, _)| label as u64);
        assert_eq!(best, case["label"].as_u64());
    }
}

#[test]
fn given_models_an_onnx_model_gives_the_logits_of_its_reference() {
    check("onnx/mnist-8.onnx", |case| &case["expected"]["data"], |pixel| pixel);
    check("burn/mnist.onnx", |case| &case["burn_mnist_onnx_log_softmax"], normalized);
}

/// Each of these files was trained by itself: they are one network with other weights.
#[test]
fn given_models_weights_of_pytorch_and_safetensors_give_what_numpy_computed() {
    let Some(models) = models() else { return };
    for (name, kind) in [("mnist-safetensors.toml", "safetensors"), ("mnist-pt.toml", "pt")] {
        let model = model(&models.join("burn"), name);
        assert_eq!((model.facts.parameters, &*model.facts.backend, &*model.facts.format), (376_938, "ndarray", kind));
        assert!(model.facts.notes.is_empty(), "{:?}", model.facts.notes);
        let expected = &reference()["mnist"][kind];
        for (digit, expected) in digits(&models).iter().zip(expected.as_array().expect("a list")) {
            let digit: Vec<f64> = digit.iter().map(|&pixel| normalized(pixel)).collect();
            assert_close(&outputs(&model, &[1, 1, 28, 28], &digit), &floats(expected), SAME);
        }
    }
}

/// The weights of the ONNX file, written in all other formats.
#[test]
fn given_models_one_network_gives_the_same_logits_from_each_format() {
    let Some(models) = models() else { return };
    let onnx = model(&models, "burn/mnist.onnx");
    let weights = formats::of_onnx(&std::fs::read(models.join("burn/mnist.onnx")).expect("the file"));
    let dir = tempfile::tempdir().expect("a directory");
    let manifest = std::fs::read_to_string(fixtures().join("mnist-pt.toml")).expect("the manifest");
    let written = [
        ("w.safetensors", formats::safetensors(&weights)),
        ("w.pt", formats::pt(&weights)),
        ("w.bpk", formats::bpk(&weights)),
        ("w.mpk", formats::mpk(&weights, false)),
        ("half.mpk", formats::mpk(&weights, true)),
    ];
    let others = written.map(|(name, bytes)| {
        std::fs::write(dir.path().join(name), bytes).expect("it is written");
        let path = dir.path().join("model.toml");
        std::fs::write(&path, manifest.replace("mnist.pt", name)).expect("it is written");
        let files = gather(&dir.path().join(name), |wanted| {
            std::fs::read(wanted.path).map(Some).or_else(
                |error| {
                    if wanted.may_be_missing { Ok(None) } else { Err(error) }
                },
            )
        });
        // Numbers of half precision are other numbers.
        (
            load(files.expect("the files"), BackendChoice::Cpu).expect("it loads"),
            if name == "half.mpk" { 5e-2 } else { SAME },
        )
    });
    for digit in digits(&models) {
        let digit: Vec<f64> = digit.into_iter().map(normalized).collect();
        let expected = outputs(&onnx, &[1, 1, 28, 28], &digit);
        for (other, tolerance) in &others {
            assert_close(&outputs(other, &[1, 1, 28, 28], &digit), &expected, *tolerance);
        }
    }
}

/// The numbers are of `tests/fixtures/models/burn/reference.py`.
#[test]
fn given_models_a_record_of_half_precision_gives_what_numpy_computed() {
    let Some(models) = models() else { return };
    let (lstm, reference) = (model(&models.join("burn"), "modern-lstm.toml"), reference());
    assert_eq!((&*lstm.facts.format, lstm.facts.parameters), ("mpk", 27_457));
    let sequences = floats(&reference["modern-lstm"]["sequences"]);
    assert_close(&outputs(&lstm, &[2, 10, 1], &sequences), &floats(&reference["modern-lstm"]["next"]), SAME);
}

#[test]
fn given_models_a_burnpack_gives_what_numpy_computed_and_knows_digits() {
    let Some(models) = models() else { return };
    let (web, reference) = (model(&models.join("burn"), "mnist-web.toml"), reference());
    let place = 0..28 * 28;
    let stripes = place.clone().map(|place| f64::from(place * 7 % 61) / 61.0);
    let bar = place.map(|place| if (12..16).contains(&(place % 28)) { 1.0 } else { 0.0 });
    let images: Vec<f64> = stripes.chain(bar).map(|pixel| normalized(255.0 * pixel)).collect();
    let logits = floats(&reference["mnist-inference-web"]["logits"]);
    assert_close(&outputs(&web, &[2, 1, 28, 28], &images), &logits, 1e-3);
    let best =
        |logits: &[f64]| logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(label, _)| label);
    let labels: Vec<_> = digits(&models)
        .iter()
        .map(|digit| {
            best(&outputs(&web, &[1, 1, 28, 28], &digit.iter().map(|&pixel| normalized(pixel)).collect::<Vec<_>>()))
        })
        .collect();
    assert_eq!(labels, [Some(2), Some(0), Some(9)]);
}
