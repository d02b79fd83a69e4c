//! The tensors of a request as the model takes them, in memory that its bounds allow.
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::tensor::{MaskInput, Rows, Signature, Tensor};

use crate::flow::backend::PredictBackend;
use crate::flow::error::FlowError;
use crate::wire::echo::Shown;
use crate::wire::tensors::{INPUT, INPUTS, RequestTensor};

/// The tensors in the order in which the model takes them.
///
/// # Errors
/// 400 that names the input: it is missing, unknown, there twice, not of the shape or the type that the model takes, or too large.
pub(crate) fn rows(model: &PredictBackend, written: Vec<RequestTensor<'_>>) -> Result<Rows, FlowError> {
    let specs = &model.signature.inputs;
    let names = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut tensors: Vec<Option<(String, Tensor)>> = specs.iter().map(|_| None).collect();
    for tensor in written {
        let path = tensor.path.clone();
        let at = match (tensor.name(), specs.len()) {
            (None, 1) => 0,
            (None, _) => {
                let message = format!("{path} is for models with one input; this one takes {}: use {INPUTS}", names());
                return Err(FlowError::field(path, message));
            }
            (Some(name), _) => match specs.iter().position(|spec| spec.name == name) {
                Some(at) => at,
                None => {
                    let is_output = model.signature.outputs.iter().any(|spec| spec.name == name);
                    let is = if is_output { "which is an output; " } else { "" };
                    let message = format!("{path}: the model has no input {}; {is}it takes {}", Shown(name), names());
                    return Err(FlowError::field(path, message));
                }
            },
        };
        if tensors[at].is_some() {
            return Err(FlowError::field(path.clone(), format!("{path} gives the input {} twice", specs[at].name)));
        }
        tensors[at] = Some((path, tensor.read(specs[at].datatype)?));
    }
    add_mask(model, &mut tensors)?;
    if let Some(missing) = tensors.iter().position(Option::is_none) {
        let path = match specs.len() {
            1 => INPUT.to_owned(),
            _ => format!("{INPUTS}.{}", specs[missing].name),
        };
        return Err(FlowError::field(path.clone(), format!("{path} is required: the model takes {}", names())));
    }
    let (paths, tensors): (Vec<String>, Vec<Tensor>) = tensors.into_iter().flatten().unzip();
    let rows = model.signature.check(&tensors).map_err(|mismatch| {
        let at = specs.iter().position(|spec| spec.name == mismatch.input()).unwrap_or(0);
        FlowError::field(paths.get(at).cloned().unwrap_or_default(), mismatch.to_string())
    })?;
    let shapes: Vec<&[usize]> = tensors.iter().map(Tensor::shape).collect();
    match model.computing.run_bytes(&shapes) {
        Some(bytes) if bytes <= RUN_BYTES => Ok(Rows { tensors: tensors.into(), rows }),
        bytes => {
            let bytes = bytes.map_or("more than can be counted".to_owned(), |bytes| format!("{bytes} bytes"));
            let message = format!("computing tensors of these shapes takes {bytes}, a request may take {RUN_BYTES}");
            Err(FlowError::field(paths.into_iter().next().unwrap_or_default(), message))
        }
    }
}

/// Adds the mask that clients may leave out, if this one did.
fn add_mask(model: &PredictBackend, tensors: &mut [Option<(String, Tensor)>]) -> Result<(), FlowError> {
    let signature = &model.signature;
    let Some(MaskInput { input, like: at }) = signature.mask else { return Ok(()) };
    let (Some(None), Some(Some((path, like)))) = (tensors.get(input), tensors.get(at)) else { return Ok(()) };
    match signature.mask_of(like) {
        Some(mask) => tensors[input] = Some((path.clone(), mask)),
        None => {
            let inputs = signature.inputs.get(at).cloned().into_iter().collect();
            let alone = Signature { inputs, outputs: Vec::new(), rows: false, mask: None };
            let checked = alone.check(std::slice::from_ref(like));
            checked.map_err(|mismatch| FlowError::field(path.clone(), mismatch.to_string()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camshaft_core::jobs::BatchLimits;
    use camshaft_core::pool::Watermarks;
    use camshaft_core::tensor::{Axis, Computing, Datatype, TensorSpec, volume};

    use std::sync::Arc;

    use super::*;
    use crate::flow::backend::PredictInfo;
    use crate::flow::jobs;
    use crate::wire::{read, tensors};

    /// Computing a number takes half of what a run may take.
    #[derive(Debug)]
    struct Halves;

    impl Computing for Halves {
        fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
            Some(RUN_BYTES / 2 * volume(shapes[0])? as u64)
        }

        fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
            Some(vec![shapes[0].to_vec()])
        }
    }

    #[test]
    fn a_request_that_takes_more_memory_than_a_run_may_is_refused() {
        let limits = BatchLimits { size: 1, inputs: 1, window: Duration::ZERO };
        let watermarks = Watermarks { high: 1, low: 1 };
        let (jobs, _work) = jobs::jobs(move || jobs::QueueBounds { watermarks, batch: limits });
        let spec =
            TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![Axis::Any("n".to_owned())] };
        let model = PredictBackend {
            jobs,
            info: PredictInfo {
                name: String::new(),
                format: "onnx",
                backend: "tract".into(),
                parameters: 0,
                weight_bytes: 0,
                sha256: None,
            },
            signature: Signature { inputs: vec![spec.clone()], outputs: vec![spec], rows: true, mask: None },
            computing: Arc::new(Halves),
        };
        let asked = |body: &str| {
            let request = read::read(body).unwrap().request;
            rows(&model, tensors::of_predict(&request).unwrap())
        };
        let fits = asked(r#"{"input": [1, 2]}"#).unwrap();
        assert_eq!(fits.rows, 2);
        let error = asked(r#"{"input": [1, 2, 3]}"#).unwrap_err().to_string();
        assert!(error.contains("takes 1610612736 bytes, a request may take 1073741824"), "{error}");
    }
}
