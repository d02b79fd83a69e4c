//! Serves an embedding request: answers with the vectors of its texts.
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::embed::normalize;

use crate::flow::api::ModelWish;
use crate::flow::backend::EmbedBackend;
use crate::flow::completions::{OneInput, inputs};
use crate::flow::context::ReadContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::{Incoming, kept_tokens};
use crate::flow::kept;
use crate::flow::vectors::{self, Computed, OverTexts, Tokens};
use crate::wire::settings;
use crate::wire::types::embeddings::{
    Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage, EncodingFormat, Vector,
};
use crate::wire::types::values::Whole;

const INPUT: &str = "input";
/// What a number of a vector takes: as it is, and as text.
const NUMBER_BYTES: usize = 24;

/// How the vectors are answered.
#[derive(Debug)]
pub(crate) struct VectorFormat {
    encoding: EncodingFormat,
    /// Length of a vector.
    dimensions: u32,
    /// The end user, for the log.
    user: Option<String>,
}

/// # Errors
/// Any failure before the vectors are computed.
pub(crate) async fn respond(mut incoming: Incoming) -> Result<Response, FlowError> {
    let ready = vectors::accept::<EmbeddingRequest>(&mut incoming).await?;
    ready.more().user.iter().for_each(|user| incoming.exchange.set_user(user));
    // A vector takes its numbers, and their text in the answer.
    let numbers = ready.count() * ready.embedder()?.dimensions as usize;
    let Computed { model, vectors, tokens, more } = ready.compute(&mut incoming, numbers * NUMBER_BYTES).await?;
    kept::rendered(incoming.share, move |share| kept::json(&answer(model, vectors, &more, tokens), share)).await
}

impl OverTexts for EmbeddingRequest {
    type More = VectorFormat;

    fn wish(&self) -> ModelWish<'_> {
        let falls_back = !self.input.as_ref().is_some_and(|input| input.has_ids());
        ModelWish { name: self.model.as_deref(), session: None, falls_back }
    }

    fn timeout(&self) -> Option<f64> {
        self.timeout
    }

    fn read(&self, context: ReadContext<'_>) -> Result<(Vec<Tokens>, VectorFormat), FlowError> {
        let (embedder, vocabulary) = (context.served().embedder()?, &context.served().text()?.info.vocabulary);
        let kept = kept_tokens(self.truncate_prompt_tokens, embedder.input_tokens);
        let one = |(path, input): (String, OneInput<'_>)| match input {
            OneInput::Text(text) => vectors::tokens_of(context, &path, text, kept),
            OneInput::Tokens(..) if !embedder.takes_ids => {
                let why = "token ids are not taken, because clients send those of other vocabularies, where they are other words: \
                           send texts (LangChain: check_embedding_ctx_length=False), or set embed-token-ids of the model";
                Err(FlowError::field(path.clone(), format!("{path}: {why}")))
            }
            OneInput::Tokens(ids, _) => {
                vectors::check(context, &path, settings::tokens(ids, &path, vocabulary.size())?, kept)
            }
        };
        let encoding = self.encoding_format.unwrap_or_default();
        let dimensions = dimensions(self.dimensions, embedder)?;
        let tokens = self.input.iter().flat_map(|input| inputs(input, INPUT)).map(one).collect::<Result<_, _>>()?;
        Ok((tokens, VectorFormat { encoding, dimensions, user: settings::end_user([&None, &self.user]) }))
    }
}

fn dimensions(wanted: Option<Whole>, embedder: &EmbedBackend) -> Result<u32, FlowError> {
    let full = embedder.dimensions;
    match wanted.map(Whole::get) {
        None => Ok(full),
        Some(wanted) if wanted == full || embedder.shorter_dimensions.contains(&wanted) => Ok(wanted),
        Some(wanted) => {
            let mut possible = embedder.shorter_dimensions.clone();
            possible.push(full);
            let message = format!("this model was not trained for {wanted} dimensions; possible are {possible:?}");
            Err(FlowError::field("dimensions", message))
        }
    }
}

/// Shortens each vector, and gives it the length 1.
fn answer(model: String, vectors: Vec<Vec<f32>>, format: &VectorFormat, prompt_tokens: u64) -> EmbeddingList {
    let one = |(index, mut vector): (u64, Vec<f32>)| {
        vector.truncate(format.dimensions as usize);
        normalize(&mut vector);
        let embedding = match format.encoding {
            EncodingFormat::Float => Vector::Numbers(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        };
        Embedding { object: "embedding".to_owned(), index, embedding }
    };
    let data = (0..).zip(vectors).map(one).collect();
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    EmbeddingList { object: "list".to_owned(), data, model, usage }
}
