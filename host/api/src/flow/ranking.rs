//! Ranks documents for a query, and scores pairs of texts, by the cosines of their embeddings.
use std::sync::Arc;

use axum::response::Response;
use camshaft_core::embed::normalize;
use camshaft_core::ids::Token;

use crate::flow::budget;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::served::Served;
use crate::flow::vectors::{self, Computed, Texts};
use crate::wire::json::Body;
use crate::wire::ranking::{Compared, RankedText, Ranking, Ranks, Scores};
use crate::wire::types::known;

/// What a number of a vector takes.
const NUMBER_BYTES: usize = 4;
/// What a result takes in the answer besides its document.
const RESULT_BYTES: usize = 128;

/// # Errors
/// Any failure before the texts are compared.
pub(crate) async fn rank(mut incoming: Incoming) -> Result<Response, FlowError> {
    let ready = vectors::accept(&mut incoming, ranks).await?;
    let told = ready.more().documents.iter().flatten().map(String::len).sum();
    let held = held_bytes(ready.count(), ready.embedder()?.dimensions) + budget::text_bytes(told);
    let Computed { model, vectors, tokens, more } = ready.compute(&mut incoming, held).await?;
    let render = move |share| {
        // The query comes first, and is compared with all documents.
        let scores = cosines(vectors, 1);
        kept::json(&Ranks::new(model, more, &scores, tokens), share)
    };
    kept::rendered(incoming.share, render).await
}

/// # Errors
/// Any failure before the texts are compared.
pub(crate) async fn score(mut incoming: Incoming) -> Result<Response, FlowError> {
    let ready = vectors::accept(&mut incoming, scores).await?;
    let held = held_bytes(ready.count(), ready.embedder()?.dimensions);
    let Computed { model, vectors, tokens, more: queries } = ready.compute(&mut incoming, held).await?;
    let render = move |share| kept::json(&Scores::new(model, &cosines(vectors, queries), tokens), share);
    kept::rendered(incoming.share, render).await
}

/// What the vectors of so many texts take, and their results.
fn held_bytes(texts: usize, dimensions: u32) -> usize {
    texts * (dimensions as usize * NUMBER_BYTES + RESULT_BYTES)
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

fn ranks(context: ParseContext<'_>, body: &Body) -> Result<(Texts, Ranking), FlowError> {
    let fields = body.fields();
    context.known(&fields, &known::RERANK);
    Texts::read(context, &fields, |served| {
        let compared = Compared::ranks(&fields)?;
        Ok((tokens(context, &compared, served)?, compared.ranking()))
    })
}

/// With the number of queries.
fn scores(context: ParseContext<'_>, body: &Body) -> Result<(Texts, usize), FlowError> {
    let fields = body.fields();
    context.known(&fields, &known::SCORE);
    Texts::read(context, &fields, |served| {
        let compared = Compared::scores(&fields)?;
        Ok((tokens(context, &compared, served)?, compared.queries.len()))
    })
}

/// Of the queries, then of the documents.
fn tokens(context: ParseContext<'_>, compared: &Compared, served: &Served) -> Result<Vec<Arc<[Token]>>, FlowError> {
    let tokens = |RankedText { path, text }: &RankedText| vectors::tokens_of(context, path, text, served);
    compared.queries.iter().chain(&compared.documents).map(tokens).collect()
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
