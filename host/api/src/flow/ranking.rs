//! Ranks documents for a query, and scores pairs of texts, by the cosines of their embeddings.
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use camshaft_core::embed::normalize;
use camshaft_core::ids::Token;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};

use crate::flow::budget::{self, TOKEN_BYTES};
use crate::flow::compute::{self, Asked};
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::served::Served;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::flow::vectors;
use crate::wire::adapters::wanted;
use crate::wire::json::{self, Body};
use crate::wire::params;
use crate::wire::ranking::{Compared, RankedText, Ranks, Scores};

/// What a number of a vector takes.
const NUMBER_BYTES: usize = 4;
/// What a result takes in the answer besides its document.
const RESULT_BYTES: usize = 128;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Ranks,
    Scores,
}

/// A checked request.
#[derive(Debug)]
struct RankRequest {
    wanted: Wanted,
    served: Arc<Served>,
    compared: Compared,
    /// Of the queries, then of the documents.
    inputs: Vec<Arc<[Token]>>,
    timeout: Option<Duration>,
}

/// # Errors
/// Any failure before the texts are compared.
pub(crate) async fn respond(wanted: Wanted, mut incoming: Incoming) -> Result<Response, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let span = trace::validate(incoming.exchange.span());
    // Tokenizing many long texts takes a while.
    let read = move |context: ParseContext<'_>, text: &str| read(wanted, context, text);
    let Accepted { request, priority, .. } = incoming.read(from_header, read).await?;
    drop(span);
    let RankRequest { served, compared, inputs, timeout, .. } = request;
    let (tokens, embedder) = (compute::cost(&inputs), served.embedder()?);
    let (queries, numbers) = (compared.queries.len(), inputs.len() * embedder.dimensions as usize);
    let texts: usize = compared.documents.iter().map(|document| document.text.len()).sum();
    let told = if compared.return_documents { budget::text_bytes(texts) } else { texts };
    let results = inputs.len() * RESULT_BYTES;
    incoming.share.resize(tokens as usize * TOKEN_BYTES + numbers * NUMBER_BYTES + told + results)?;
    let timeout = timeout.or(from_header);
    let model = served.model.id.clone();
    let (health, jobs) = (&served.model.health, &embedder.jobs);
    let asked = Asked { model: &model, health, jobs, inputs, priority, unit: None, timeout };
    let vectors = compute::compute(&mut incoming, asked).await?;
    let render = move |share| {
        let scores = cosines(vectors, queries);
        match wanted {
            Wanted::Ranks => kept::json(&Ranks::new(model, compared, &scores, tokens), share),
            Wanted::Scores => kept::json(&Scores::new(model, &scores, tokens), share),
        }
    };
    kept::rendered(incoming.share, render).await
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

fn read(wanted: Wanted, context: ParseContext<'_>, text: &str) -> Result<Accepted<RankRequest>, FlowError> {
    let body = json::parse(text)?;
    let request = parse(wanted, context, &body)?;
    validate::run(context, body, request)
}

fn parse(kind: Wanted, context: ParseContext<'_>, body: &Body) -> Result<RankRequest, FlowError> {
    let fields = body.fields();
    let served = context.model(&fields)?;
    served.embedder()?;
    if !wanted(&fields)?.is_empty() {
        return Err(FlowError::field("lora", "lora is only for models that generate"));
    }
    let compared = match kind {
        Wanted::Ranks => Compared::ranks(&fields)?,
        Wanted::Scores => Compared::scores(&fields)?,
    };
    let tokens = |RankedText { path, text }: &RankedText| vectors::tokens_of(context, path, text, &served);
    let inputs = compared.queries.iter().chain(&compared.documents).map(tokens).collect::<Result<_, _>>()?;
    let timeout = params::timeout(&fields, context.api.limits().max_timeout)?;
    Ok(RankRequest { wanted: kind, served, compared, inputs, timeout })
}

impl Validated for RankRequest {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        parse(self.wanted, context, body)
    }

    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a> {
        let tenant = &context.caller.principal.tenant;
        Target { tenant, model: &self.served.model.id, endpoint: Endpoint::Embedding }
    }

    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest {
        let longest = self.inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        validate::question(context, self.target(context), draft, compute::cost(&self.inputs), longest)
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        self.served.model.id == before.served.model.id
    }
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
