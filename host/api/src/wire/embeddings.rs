//! `/v1/embeddings`: how the vectors are encoded, and the answer.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::embed::normalize;
use serde::Serialize;

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::Fields;

/// `encoding_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Float,
    Base64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    /// Little-endian 32-bit floats.
    Base64(String),
}

#[derive(Debug, Serialize)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl Encoding {
    /// # Errors
    /// 400: `encoding_format` is another.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self, RequestError> {
        match fields.text("encoding_format")? {
            None | Some("float") => Ok(Self::Float),
            Some("base64") => Ok(Self::Base64),
            Some(other) => {
                let message = format!("encoding_format must be float or base64, got {:?}", Shown(other));
                Err(RequestError::field("encoding_format", message))
            }
        }
    }

    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Float => Vector::Numbers(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

impl Embeddings {
    /// Shortens each vector to `dimensions`, and gives it the length 1.
    pub(crate) fn new(
        model: String,
        vectors: Vec<Vec<f32>>,
        dimensions: u32,
        encoding: Encoding,
        prompt_tokens: u64,
    ) -> Self {
        let one = |(index, mut vector): (usize, Vec<f32>)| {
            vector.truncate(dimensions as usize);
            normalize(&mut vector);
            Embedding { object: "embedding", index, embedding: encoding.write(vector) }
        };
        let data = vectors.into_iter().enumerate().map(one).collect();
        let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
        Self { object: "list", data, model, usage }
    }
}
