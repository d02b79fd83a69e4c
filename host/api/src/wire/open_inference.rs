//! The Open Inference Protocol, version 2, over HTTP: what requests ask beside their tensors, and answers.
//! (KServe, "Open Inference Protocol (V2)", with the binary tensor data extension of Triton.)
use std::collections::HashSet;
use std::time::Duration;

use axum::http::HeaderName;
use camshaft_core::tensor::{Datatype, Tensor};
use serde::Serialize;

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{Fields, wrong_type};
use crate::wire::json::Body;
use crate::wire::tensor_objects::{Flat, SpecObject};

/// The bytes of the JSON of a body, behind which those of tensors come.
pub(crate) const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// The version that every model has.
pub(crate) const VERSION: &str = "1";
/// Bytes of the name that a client gives a request.
pub(crate) const ID_BYTES: usize = 1024;

const OUTPUTS: &str = "outputs";
const PARAMETERS: &str = "parameters";

/// What a request asks beside its inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Comes back in the answer.
    pub(crate) id: Option<String>,
    /// In the order of the answer; empty: all.
    pub(crate) outputs: Vec<AskedOutput>,
    /// Whether outputs that do not say are bytes.
    pub(crate) binary: bool,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskedOutput {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) binary: bool,
}

impl Asked {
    /// `max_timeout`: the longest that a client may ask for.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn read(body: &Body, max_timeout: Duration) -> Result<Self, RequestError> {
        let fields = body.fields();
        let id = fields.text("id")?;
        if let Some(id) = id.filter(|id| id.len() > ID_BYTES) {
            return Err(RequestError::field("id", format!("id must have at most {ID_BYTES} bytes, got {}", id.len())));
        }
        let (mut binary, mut timeout) = (false, None);
        if let Some(parameters) = fields.get(PARAMETERS) {
            let parameters = Fields::of(parameters, PARAMETERS)?;
            binary = parameters.flag("binary_data_output")?.unwrap_or(false);
            timeout = read_timeout(&parameters, max_timeout)?;
            refuse(&parameters, "sequence_id", "no model keeps anything of a request for the next one")?;
        }
        let mut outputs = Vec::new();
        let mut names = HashSet::new();
        for (at, output) in fields.list(OUTPUTS)?.into_iter().flatten().enumerate() {
            let output = AskedOutput::read(output, format!("{OUTPUTS}[{at}]"), binary)?;
            if !names.insert(output.name.clone()) {
                let message = format!("{} asks for the output {} twice", output.path, Shown(&output.name));
                return Err(RequestError::field(output.path, message));
            }
            outputs.push(output);
        }
        Ok(Self { id: id.map(str::to_owned), outputs, binary, timeout })
    }
}

impl AskedOutput {
    fn read(value: &serde_json::Value, path: String, binary: bool) -> Result<Self, RequestError> {
        let fields = Fields::of(value, &path)?;
        fields.require("name")?;
        let name = fields.text("name")?.unwrap_or_default();
        let mut output = Self { name: name.to_owned(), path, binary };
        if let Some(parameters) = fields.get(PARAMETERS) {
            let parameters = Fields::of(parameters, &fields.path(PARAMETERS))?;
            output.binary = parameters.flag("binary_data")?.unwrap_or(binary);
            refuse(&parameters, "classification", "ask for the output itself")?;
            refuse(&parameters, "shared_memory_region", "no memory is shared with clients")?;
        }
        Ok(output)
    }
}

/// # Errors
/// 400: the parameter is there, and asks for something.
fn refuse(parameters: &Fields<'_>, name: &str, why: &str) -> Result<(), RequestError> {
    let asks = |value: &&serde_json::Value| value.as_u64() != Some(0) && value.as_str() != Some("");
    match parameters.get(name).filter(asks) {
        None => Ok(()),
        Some(_) => {
            let path = parameters.path(name);
            Err(RequestError::field(path.clone(), format!("{path} is not supported: {why}")))
        }
    }
}

/// The `timeout` of a request.
///
/// # Errors
/// As [`Asked::read`].
pub(crate) fn timeout(body: &Body, max: Duration) -> Result<Option<Duration>, RequestError> {
    let fields = body.fields();
    let Some(parameters) = fields.get(PARAMETERS) else { return Ok(None) };
    read_timeout(&Fields::of(parameters, PARAMETERS)?, max)
}

/// Triton's `timeout`, in microseconds; 0: none.
fn read_timeout(parameters: &Fields<'_>, max: Duration) -> Result<Option<Duration>, RequestError> {
    const NAME: &str = "timeout";
    let Some(value) = parameters.get(NAME) else { return Ok(None) };
    let path = parameters.path(NAME);
    let Some(micros) = value.as_u64() else { return Err(wrong_type(&path, "a number of microseconds", value)) };
    match Duration::from_micros(micros) {
        Duration::ZERO => Ok(None),
        timeout if timeout <= max => Ok(Some(timeout)),
        _ => {
            let max = max.as_micros();
            Err(RequestError::field(path.clone(), format!("{path} must be at most {max} microseconds, got {micros}")))
        }
    }
}

/// `GET /v2`.
#[derive(Debug, Serialize)]
pub(crate) struct ServerMetadata {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) extensions: [&'static str; 1],
}

impl ServerMetadata {
    pub(crate) const OWN: Self =
        Self { name: "camshaft", version: env!("CARGO_PKG_VERSION"), extensions: ["binary_tensor_data"] };
}

/// `GET /v2/models/{name}`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelMetadata<'a> {
    pub(crate) name: &'a str,
    pub(crate) versions: [&'static str; 1],
    /// Who computes it, and the format of its file.
    pub(crate) platform: String,
    pub(crate) inputs: Vec<SpecObject>,
    pub(crate) outputs: Vec<SpecObject>,
}

/// A model in the list of `/v2/repository/index`.
#[derive(Debug, Serialize)]
pub(crate) struct IndexedModel<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'static str,
    pub(crate) state: &'static str,
    pub(crate) reason: String,
}

/// The error of every failed request.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorText<'a> {
    pub(crate) error: &'a str,
}

/// An output of an answer.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    pub(crate) name: &'a str,
    pub(crate) tensor: &'a Tensor,
    pub(crate) binary: bool,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    model_name: &'a str,
    model_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<OutputObject<'a>>,
}

#[derive(Debug, Serialize)]
struct OutputObject<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: Datatype,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Flat<'a>>,
}

impl<'a> From<&Output<'a>> for OutputObject<'a> {
    fn from(&Output { name, tensor, binary }: &Output<'a>) -> Self {
        Self {
            name,
            shape: tensor.shape(),
            datatype: tensor.datatype(),
            parameters: binary.then(|| BinarySize { binary_data_size: tensor.bytes().len() }),
            data: (!binary).then_some(Flat(tensor)),
        }
    }
}

#[derive(Debug, Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// The body of an answer, and where its JSON ends if the bytes of tensors follow.
///
/// # Errors
/// It cannot be written.
pub(crate) fn answer(
    model: &str,
    id: Option<&str>,
    outputs: &[Output<'_>],
) -> Result<(Vec<u8>, Option<usize>), serde_json::Error> {
    let objects: Vec<OutputObject<'_>> = outputs.iter().map(OutputObject::from).collect();
    let answer = Answer { model_name: model, model_version: VERSION, id, outputs: objects };
    let mut body = serde_json::to_vec(&answer)?;
    let binary = || outputs.iter().filter(|output| output.binary);
    let length = binary().next().map(|_| body.len());
    body.reserve_exact(binary().map(|output| output.tensor.bytes().len()).sum());
    binary().for_each(|output| body.extend_from_slice(output.tensor.bytes()));
    Ok((body, length))
}

#[cfg(test)]
#[path = "open_inference_tests.rs"]
mod tests;
