//! The Open Inference Protocol, version 2, over HTTP: its answers.
//! (KServe, "Open Inference Protocol (V2)", with the binary tensor data extension of Triton.)
use axum::http::HeaderName;
use camshaft_core::tensor::{Datatype, Tensor};
use schemars::JsonSchema;
use serde::Serialize;

use crate::wire::tensor_objects::{Flat, SpecObject};

/// The bytes of the JSON of a body, behind which those of tensors come.
pub(crate) const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// The version that every model has.
pub(crate) const VERSION: &str = "1";
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
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InferenceError<'a> {
    pub(crate) error: &'a str,
    pub(crate) request_id: &'a str,
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
