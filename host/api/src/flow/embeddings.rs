//! Serves embeddings, rankings and scores.
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::embed::normalize;

use crate::flow::api::ModelWish;
use crate::flow::backend::EmbedBackend;
use crate::flow::budget;
use crate::flow::error::FlowError;
use crate::flow::incoming::{Incoming, kept_tokens};
use crate::flow::read::{OneInput, inputs, texts_of};
use crate::flow::request::ReadContext;
use crate::flow::vectors::{self, Computed, OverTexts, Tokens};
use crate::wire::types::embeddings::{
    Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage, EncodingFormat, Vector,
};
use crate::wire::types::ranking::{
    RankedDocument, RankedTexts, RankingFields, RerankRequest, Reranked, ReturnedDocument, ScoreList, ScoreRequest,
    ScoredPair,
};
use crate::wire::types::values::Whole;
use crate::wire::{settings, stamp};

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
    budget::rendered(incoming.share, move |share| budget::json(&answer(model, vectors, &more, tokens), share)).await
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

    async fn read(&self, context: ReadContext<'_>) -> Result<(Vec<Tokens>, VectorFormat), FlowError> {
        let (embedder, vocabulary) = (context.served().embedder()?, &context.served().text()?.info.vocabulary);
        let kept = kept_tokens(self.truncate_prompt_tokens, embedder.input_tokens);
        let inputs: Vec<_> = self.input.iter().flat_map(|input| inputs(input, INPUT)).collect();
        let mut read = vectors::tokens_of(context, texts_of(&inputs)).await?.into_iter();
        let one = |(path, input): (String, OneInput<'_>)| match input {
            OneInput::Text(_) => vectors::check(context, &path, read.next().unwrap_or_default(), kept),
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
        let tokens = inputs.into_iter().map(one).collect::<Result<_, _>>()?;
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

/// What a number of a vector takes.
const SCORE_BYTES: usize = 4;
/// What a result takes in the answer besides its document.
const RESULT_BYTES: usize = 128;

/// What the answer to a request to rank needs of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ranking {
    /// Their texts, if the answer has them.
    documents: Option<Vec<String>>,
    /// Results returned, best first.
    top_n: usize,
}

/// # Errors
/// Any failure before the texts are compared.
pub(crate) async fn rank(mut incoming: Incoming) -> Result<Response, FlowError> {
    let ready = vectors::accept::<RerankRequest>(&mut incoming).await?;
    let told = ready.more().documents.iter().flatten().map(String::len).sum();
    let held = held_bytes(ready.count(), ready.embedder()?.dimensions) + budget::text_bytes(told);
    let Computed { model, vectors, tokens, more } = ready.compute(&mut incoming, held).await?;
    let render = move |share| {
        // The query comes first, and is compared with all documents.
        let scores = cosines(vectors, 1);
        budget::json(&ranked(model, more, &scores, tokens), share)
    };
    budget::rendered(incoming.share, render).await
}

/// # Errors
/// Any failure before the texts are compared.
pub(crate) async fn score(mut incoming: Incoming) -> Result<Response, FlowError> {
    let ready = vectors::accept::<ScoreRequest>(&mut incoming).await?;
    let held = held_bytes(ready.count(), ready.embedder()?.dimensions);
    let Computed { model, vectors, tokens, more: queries } = ready.compute(&mut incoming, held).await?;
    let render = move |share| budget::json(&scored(model, &cosines(vectors, queries), tokens), share);
    budget::rendered(incoming.share, render).await
}

/// What the vectors of so many texts take, and their results.
fn held_bytes(texts: usize, dimensions: u32) -> usize {
    texts * (dimensions as usize * SCORE_BYTES + RESULT_BYTES)
}

/// Of each document's vector with its query's. The first `queries` vectors are of queries; a single one is of all documents.
fn cosines(mut vectors: Vec<Vec<f32>>, queries: usize) -> Vec<f32> {
    vectors.iter_mut().for_each(|vector| normalize(vector));
    let (queries, documents) = vectors.split_at(queries.min(vectors.len()));
    let cosine = |a: &[f32], b: &[f32]| {
        let sum: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        // Rounded numbers may give a little more.
        sum.clamp(-1.0, 1.0) as f32
    };
    let pairs = documents.iter().zip(queries.iter().cycle());
    pairs.map(|(document, query)| cosine(document, query)).collect()
}

impl RankingFields {
    fn wish(&self) -> ModelWish<'_> {
        ModelWish { name: self.model.as_deref(), session: None, falls_back: true }
    }

    /// The tokens of texts; of a longer document than the request allows, the first ones.
    async fn tokens(
        &self,
        context: ReadContext<'_>,
        (queries, documents): (&Texts<'_>, &Texts<'_>),
    ) -> Result<Vec<Tokens>, FlowError> {
        let kept = kept_tokens(self.truncate_prompt_tokens, context.served().embedder()?.input_tokens);
        let of_document = self.max_tokens_per_doc.map(Whole::get).into_iter().chain(kept).min();
        let all = || queries.iter().map(|text| (text, kept)).chain(documents.iter().map(|text| (text, of_document)));
        let texts = all().map(|((_, text), _)| (*text).to_owned()).collect();
        let read = vectors::tokens_of(context, texts).await?;
        let check =
            |(((path, _), kept), tokens): ((&(String, &str), _), _)| vectors::check(context, path, tokens, kept);
        all().zip(read).map(check).collect()
    }
}

impl OverTexts for RerankRequest {
    type More = Ranking;

    fn wish(&self) -> ModelWish<'_> {
        self.common.wish()
    }

    fn timeout(&self) -> Option<f64> {
        self.common.timeout
    }

    async fn read(&self, context: ReadContext<'_>) -> Result<(Vec<Tokens>, Ranking), FlowError> {
        let queries: Vec<_> = self.query.iter().map(|query| ("query".to_owned(), query.as_str())).collect();
        let documents = texts(&self.documents, "documents");
        let tokens = self.common.tokens(context, (&queries, &documents)).await?;
        let top_n = self.top_n.map_or(documents.len(), |top| top.get() as usize).min(documents.len());
        let told = || documents.iter().map(|(_, text)| (*text).to_owned()).collect();
        Ok((tokens, Ranking { documents: self.return_documents.unwrap_or(false).then(told), top_n }))
    }
}

impl OverTexts for ScoreRequest {
    /// The number of queries.
    type More = usize;

    fn wish(&self) -> ModelWish<'_> {
        self.common.wish()
    }

    fn timeout(&self) -> Option<f64> {
        self.common.timeout
    }

    async fn read(&self, context: ReadContext<'_>) -> Result<(Vec<Tokens>, usize), FlowError> {
        let (queries, documents) = self.pairs()?;
        let tokens = self.common.tokens(context, (&queries, &documents)).await?;
        Ok((tokens, queries.len()))
    }
}

fn texts<'a>(texts: &'a Option<RankedTexts>, name: &str) -> Texts<'a> {
    texts.as_ref().map(|texts| texts.with_paths(name)).unwrap_or_default()
}

/// Texts, each with its path in the body.
type Texts<'a> = Vec<(String, &'a str)>;

impl ScoreRequest {
    /// Pairs of texts, as vLLM has them: one with each of the others, or as many with as many.
    fn pairs(&self) -> Result<(Texts<'_>, Texts<'_>), FlowError> {
        let all = [
            (("text_1", &self.text_1), ("text_2", &self.text_2)),
            (("queries", &self.queries), ("documents", &self.documents)),
            (("data_1", &self.data_1), ("data_2", &self.data_2)),
        ];
        let (first, second) = all.iter().find(|((_, texts), _)| texts.is_some()).unwrap_or(&all[0]);
        for (name, required) in [first, second] {
            if required.is_none() {
                return Err(FlowError::field(*name, format!("{name} is required")));
            }
        }
        let mut others = all.iter().flat_map(|(one, other)| [one, other]).filter(|(_, texts)| texts.is_some());
        if let Some((other, _)) = others.find(|(name, _)| *name != first.0 && *name != second.0) {
            return Err(FlowError::field(*other, format!("{} and {other} may not come together", first.0)));
        }
        let (queries, documents) = (texts(first.1, first.0), texts(second.1, second.0));
        if queries.len() != 1 && queries.len() != documents.len() {
            let (ones, others) = (queries.len(), documents.len());
            let (first, second) = (first.0, second.0);
            let message = format!("{first} must be one text, or as many as {second}, got {ones} and {others}");
            return Err(FlowError::field(first, message));
        }
        Ok((queries, documents))
    }
}

/// The best first; of equal ones, the first in the request. `tokens`: of all texts.
fn ranked(model: String, Ranking { documents, top_n }: Ranking, scores: &[f32], tokens: u64) -> Reranked {
    let mut documents = documents.map(Vec::into_iter);
    let rank = |(index, &relevance_score): (u64, &f32)| {
        let document = documents.as_mut().and_then(Iterator::next).map(|text| ReturnedDocument { text });
        RankedDocument { index, relevance_score, document }
    };
    let mut results: Vec<RankedDocument> = (0..).zip(scores).map(rank).collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(top_n);
    Reranked { id: stamp::id("rerank-"), object: "list".to_owned(), model, results, usage: usage(tokens) }
}

/// `tokens`: of all texts.
fn scored(model: String, scores: &[f32], tokens: u64) -> ScoreList {
    let pair = |(index, &score): (u64, &f32)| ScoredPair { index, object: "score".to_owned(), score };
    ScoreList {
        id: stamp::id("score-"),
        object: "list".to_owned(),
        created: stamp::now(),
        model,
        data: (0..).zip(scores).map(pair).collect(),
        usage: usage(tokens),
    }
}

fn usage(tokens: u64) -> EmbeddingUsage {
    EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_is_compared_with_its_query() {
        let vectors = vec![vec![2.0, 0.0], vec![0.0, 1.0], vec![3.0, 4.0], vec![-1.0, 0.0]];
        assert_eq!(cosines(vectors.clone(), 1), [0.0, 0.6, -1.0]);
        assert_eq!(cosines(vectors.clone(), 2), [0.6, 0.0]);
        assert_eq!(cosines(vec![vec![0.0], vec![1.0]], 1), [0.0], "a vector without a direction is like none");
        assert!(cosines(Vec::new(), 1).is_empty());
    }
}
