//! Speculative decoding: the same texts in fewer steps.
use camshaft_tests::{Server, Setup, models_folder, repository};
use serde_json::{Value, json};

/// Log-probabilities closer than this may swap by rounding, see cache.rs.
const TIE: f64 = 0.8;

fn serve(model: &str) -> Server {
    Setup::new().config(&format!("[[model]]\nid = \"demo\"\nthreads = 1\n{model}")).start()
}

/// A repetitive list, which the demo model continues. How many tokens are drafted depends on the current cost of a row, so the
/// answer is long: a token is tried every 64 steps even while drafts do not pay.
fn ask(server: &Server) -> Value {
    let prompt = "one two three four one two three four one two three four one two";
    let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 400, "temperature": 0,
        "ignore_eos": true, "logprobs": 2});
    server.client.ask("/v1/completions", &body)
}

fn tokens(answer: &Value) -> Vec<String> {
    let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
    tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect()
}

/// Asserts that the texts are equal, or differ first where rounding may have decided.
fn same(drafted: &Value, plain: &Value) {
    let (a, b) = (tokens(drafted), tokens(plain));
    assert_eq!(a.len(), b.len());
    let Some(at) = (0..a.len()).find(|&at| a[at] != b[at]) else { return };
    let top = plain["choices"][0]["logprobs"]["top_logprobs"][at].as_object().unwrap();
    let values: Vec<f64> = top.values().map(|value| value.as_f64().unwrap()).collect();
    let gap = if values.len() < 2 { 0.0 } else { (values[0] - values[1]).abs() };
    assert!(gap < TIE, "token {at} of {a:?} and {b:?}, {gap} apart");
}

fn predictions(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let number = |name: &str| details[name].as_u64().unwrap();
    (number("accepted_prediction_tokens"), number("rejected_prediction_tokens"))
}

#[test]
fn prompt_lookup_gives_the_same_text_and_reports_its_acceptance() {
    let (plain, drafting) = (serve(""), serve("draft-tokens = 4\n"));
    let expected = ask(&plain);
    assert_eq!(predictions(&expected), (0, 0));
    let answer = ask(&drafting);
    same(&answer, &expected);
    let (accepted, rejected) = predictions(&answer);
    assert!(accepted > 0, "{answer}");
    // The client is told before the pool, which counts.
    drafting.wait_until_idle();
    let count = |result: &str| drafting.metrics().count("camshaft_draft_tokens_total", &[("result", result)]);
    assert_eq!((count("accepted"), count("rejected")), (accepted as f64, rejected as f64));
}

#[test]
fn a_draft_model_gives_the_same_text_too() {
    let demo = repository().join("config/models/demo.gguf");
    let (plain, drafting) = (serve(""), serve(&format!("draft-model = {:?}\n", demo.to_string_lossy())));
    let answer = ask(&drafting);
    same(&answer, &ask(&plain));
    // The model drafts for itself, so drafts are right except for rounding and the end tokens, which are banned here.
    assert!(predictions(&answer).0 > 0, "{answer}");
    drafting.wait_until_idle();
}

#[test]
fn given_models_a_draft_model_of_another_vocabulary_is_refused() {
    let folder = models_folder();
    let other = folder.join("stories260K-f32.gguf");
    let config = format!("[[model]]\nid = \"demo\"\ndraft-model = {:?}\n", other.to_string_lossy());
    let finished = Setup::new().config(&config).run(&["serve"]);
    assert_eq!(finished.code, Some(65), "{finished:?}");
    assert!(finished.stderr.contains("vocabulary of 512 tokens"), "{finished:?}");
}
