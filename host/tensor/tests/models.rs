//! Trained models against what an independent implementation computed. Needs `CAMSHAFT_MODELS`.
#![allow(clippy::expect_used, reason = "helpers of tests")]
use std::fs::File;
use std::path::PathBuf;

use camshaft_core::tensor::{Datatype, Number, Tensor};
use camshaft_tensor::load;
use serde_json::Value;

/// Bound of the difference of a logit.
const TOLERANCE: f64 = 1e-2;

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

/// What the models say of each case of the file, next to what they should say.
fn check(file: &str, expected: impl Fn(&Value) -> &Value, scale: impl Fn(f64) -> f64) {
    let Some(models) = models() else { return };
    let model = load(&mut File::open(models.join(file)).expect("the model")).expect("it loads");
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
    let normalized = |pixel: f64| (pixel / 255.0 - 0.1307) / 0.3081;
    check("burn/mnist.onnx", |case| &case["burn_mnist_onnx_log_softmax"], normalized);
}
