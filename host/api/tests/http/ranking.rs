//! Ranks and scores over HTTP, by an embedding model whose vectors count letters.
use std::sync::Arc;
use std::time::Duration;

use camshaft_api::backend::{Backend, EmbedBackend, Model, Naming};
use camshaft_api::{EmbedJobs, ModelHealth, QueueBounds, Work, jobs};
use camshaft_core::engine::ModelKind;
use camshaft_core::ids::Token;
use camshaft_core::jobs::BatchLimits;
use camshaft_core::policy::{AuthOutcome, Principal, Quotas, ValidateOutcome};
use camshaft_core::pool::Watermarks;
use serde_json::{Value, json};

use crate::fixture::{Server, text};
use crate::policies::{Rules, refusal};

const INPUT_TOKENS: u32 = 32;

/// A thread that counts the letters a, b and c of each text.
fn counting() -> EmbedJobs {
    let batch = BatchLimits { size: 64, inputs: 8, window: Duration::ZERO };
    let watermarks = Watermarks { high: 8, low: 4 };
    let (jobs, work): (EmbedJobs, Work<Arc<[Token]>, Vec<f32>>) = jobs(move || QueueBounds { watermarks, batch });
    std::thread::spawn(move || {
        while work.woken().recv().is_ok() {
            loop {
                let batch = work.take(work.now());
                if batch.is_empty() {
                    break;
                }
                for input in batch {
                    let count =
                        |letter: u8| input.input.iter().filter(|token| token.0 == u32::from(letter)).count() as f32;
                    input.owner.put(input.index, b"abc".map(count).to_vec());
                }
            }
        }
    });
    jobs
}

fn server(rules: Rules) -> Server {
    let health = ModelHealth::default();
    health.worker().ready();
    let text = text(ModelKind::Embed);
    let backend = Backend::Embed(EmbedBackend {
        text,
        jobs: counting(),
        input_tokens: INPUT_TOKENS,
        dimensions: 3,
        shorter_dimensions: Vec::new(),
        takes_ids: false,
    });
    let (id, naming) = ("letters".to_owned(), Naming::of("letters"));
    Server::serving(rules, vec![Model { id, naming, health, created: 0, backend }])
}

fn rank(documents: &Value) -> Value {
    json!({"model": "letters", "query": "aab", "documents": documents})
}

#[tokio::test]
async fn documents_are_ranked_by_their_cosine_with_the_query() {
    let server = server(Rules::default());
    let mut body = rank(&json!(["c", "ab", {"text": "aab"}, "b"]));
    body.as_object_mut()
        .unwrap()
        .extend([("top_n".to_owned(), json!(3)), ("return_documents".to_owned(), json!(true))]);
    let got = server.post("/v1/rerank", body).await.json();
    assert!(got["id"].as_str().unwrap().starts_with("rerank-"));
    let results = got["results"].as_array().unwrap();
    let order: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [2, 1, 3]);
    assert_eq!((&results[0]["relevance_score"], &results[0]["document"]), (&json!(1.0), &json!({"text": "aab"})));
    let second = results[1]["relevance_score"].as_f64().unwrap();
    assert!((second - 3.0 / 10.0_f64.sqrt()).abs() < 1e-6, "{second}");
    // Each text has a token before it.
    assert_eq!(got["usage"], json!({"prompt_tokens": 15, "total_tokens": 15}));
    let plain = server.post("/v1/rerank", rank(&json!(["a"]))).await.json();
    assert_eq!(plain["results"][0].as_object().unwrap().len(), 2, "documents only for those who ask");
}

#[tokio::test]
async fn pairs_are_scored_in_their_order() {
    let server = server(Rules::default());
    let score = |one: Value, other: Value| {
        server.post("/v1/score", json!({"model": "letters", "text_1": one, "text_2": other}))
    };
    let got = score(json!("a"), json!(["b", "a"])).await.json();
    let expected =
        json!([{"index": 0, "object": "score", "score": 0.0}, {"index": 1, "object": "score", "score": 1.0}]);
    assert_eq!((&got["data"], &got["object"], &got["model"]), (&expected, &json!("list"), &json!("letters")));
    let got = score(json!(["a", "b"]), json!(["b", "b"])).await.json();
    assert_eq!((&got["data"][0]["score"], &got["data"][1]["score"]), (&json!(0.0), &json!(1.0)));
    let (shape, _) = score(json!(["a", "b"]), json!(["a"])).await.error(400);
    assert_eq!(shape, "invalid_request_error - text_1");
}

#[tokio::test]
async fn a_text_that_is_too_long_or_empty_is_named() {
    let server = server(Rules::default());
    let most = "a".repeat(INPUT_TOKENS as usize - 1);
    assert_eq!(server.post("/v1/rerank", rank(&json!(["a", most.clone()]))).await.status, 200);
    let (shape, message) = server.post("/v1/rerank", rank(&json!(["a", most + "a"]))).await.error(400);
    assert_eq!(shape, "invalid_request_error context_length_exceeded documents[1]");
    assert_eq!(message, "documents[1] has 33 tokens, this model takes at most 32");
    let (shape, message) = server.post("/v1/rerank", rank(&json!(["a", ""]))).await.error(400);
    assert_eq!((shape.as_str(), message.as_str()), ("invalid_request_error - documents[1]", "documents[1] is empty"));
}

#[tokio::test]
async fn only_models_that_embed_rank() {
    let (shape, message) =
        Server::new().post("/v1/rerank", json!({"model": "demo", "query": "q", "documents": ["a"]})).await.error(400);
    assert_eq!(
        (shape.as_str(), message.as_str()),
        (
            "invalid_request_error - model",
            "the model demo is not served for embeddings: it generates texts (`task` in /v1/models/{id} is generate, not embed)"
        )
    );
}

#[tokio::test]
async fn regression_a_timeout_that_a_validator_writes_is_read() {
    let amend = |patch: &'static str| Rules::default().validator(move |_| ValidateOutcome::Amend(patch.to_owned()));
    assert_eq!(server(amend(r#"{"timeout": 5}"#)).post("/v1/rerank", rank(&json!(["a"]))).await.status, 200);
    let too_long = server(amend(r#"{"timeout": 1e9}"#)).post("/v1/rerank", rank(&json!(["a"]))).await;
    assert_eq!(too_long.status, 500, "{}", too_long.text);
}

#[tokio::test]
async fn validators_and_quotas_hold_as_for_embeddings() {
    let refused = Rules::default().validator(|request| {
        assert_eq!((request.endpoint.as_str(), request.prompt_tokens), ("embedding", 4));
        ValidateOutcome::Refuse(refusal(400, "policy_refused"))
    });
    let (shape, _) = server(refused).post("/v1/rerank", rank(&json!(["a"]))).await.error(400);
    assert!(shape.starts_with("invalid_request_error policy_refused"), "{shape}");
    let quotas = Quotas { tokens_per_minute: Some(10), ..Quotas::default() };
    let principal = Principal { quotas, ..Principal::anonymous() };
    let metered = server(Rules::default().auth(move |_| AuthOutcome::Allow(principal.clone())));
    // Four and two tokens.
    assert_eq!(metered.post("/v1/rerank", rank(&json!(["a"]))).await.status, 200);
    let (shape, _) = metered.post("/v1/rerank", rank(&json!(["a"]))).await.error(429);
    assert_eq!(shape, "rate_limit_error rate_limit_exceeded -");
}
