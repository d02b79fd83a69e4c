//! Embeddings: real vectors, every form of input, refused requests.
use camshaft_tests::{Server, Setup, demo_model, models_folder};
use serde_json::{Value, json};

use crate::errors::error_of;
use crate::openai::run_client;

const EMBEDDINGS: &str = "/v1/embeddings";

fn setup(path: &str) -> Setup {
    Setup::new().config(&format!(
        "[[model]]\nid = \"embedder\"\npath = {path:?}\nembeddings = true\nthreads = 1\nembed-token-ids = true\n"
    ))
}

/// The demo model returns the state of its last token: vectors of the right form and little meaning.
fn demo() -> Server {
    setup(&demo_model().to_string_lossy()).start()
}

fn vectors(server: &Server, body: Value) -> Vec<Vec<f64>> {
    let answer = server.client.ask(EMBEDDINGS, &body);
    let numbers = |item: &Value| -> Vec<f64> {
        item["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    answer["data"].as_array().unwrap().iter().map(numbers).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_batch_gives_the_vectors_of_its_single_inputs() {
    let server = demo();
    let texts: Vec<String> = (0..100).map(|i| format!("text number {i} {}", "and more ".repeat(i % 7))).collect();
    let together = vectors(&server, json!({"model": "embedder", "input": texts}));
    assert_eq!(together.len(), 100);
    for (text, among) in texts.iter().zip(&together).step_by(9) {
        let alone = vectors(&server, json!({"input": text})).remove(0);
        assert_eq!(alone.len(), 192);
        assert!((alone.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-4, "normalised");
        assert!(cosine(&alone, among) > 0.999, "{text:?}: {}", cosine(&alone, among));
    }
    assert!(cosine(&together[0], &together[1]) < 0.99, "different texts differ");
    let tokens = server.client.ask("/v1/tokenize", &json!({"model": "embedder", "text": "ab", "add_special": true}));
    let by_ids = vectors(&server, json!({"model": "embedder", "input": tokens["tokens"]})).remove(0);
    assert!(cosine(&by_ids, &vectors(&server, json!({"input": "ab"})).remove(0)) > 0.99999);
    let short = server.client.ask("/embeddings", &json!({"input": "ab", "encoding_format": "base64"}));
    assert_eq!(short["data"][0]["embedding"].as_str().unwrap().len(), 192 * 4 / 3 * 4);
    assert_eq!(short["usage"]["prompt_tokens"], short["usage"]["total_tokens"]);
}

#[test]
fn many_clients_at_once_get_their_own_vectors() {
    let server = demo();
    let expected: Vec<Vec<f64>> =
        (0..12).map(|i| vectors(&server, json!({"input": format!("client {i}")})).remove(0)).collect();
    std::thread::scope(|scope| {
        for (i, expected) in expected.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..5 {
                    let got = vectors(server, json!({"input": format!("client {i}")})).remove(0);
                    assert!(cosine(&got, expected) > 0.999);
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_embedded_is_refused_by_field_and_bound() {
    let server = demo();
    let check = |body: Value, param: &str, says: &[&str]| {
        let response = server.client.post(EMBEDDINGS, &body);
        assert_eq!(response.status, 400, "{}", response.text());
        let error = error_of(&response);
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(says.iter().all(|word| message.contains(word)), "{message:?} says {says:?}");
    };
    check(json!({}), "input", &[]);
    check(json!({"input": ""}), "input", &["empty"]);
    check(json!({"input": []}), "input", &["1", "0"]);
    check(json!({"input": ["a", ""]}), "input[1]", &["empty"]);
    check(json!({"input": ["a", 1]}), "input[1]", &["string"]);
    check(json!({"input": [1, 5000]}), "input[1]", &["1023"]);
    check(json!({"input": {"a": 1}}), "input", &["string"]);
    check(json!({"input": "a", "encoding_format": "hex"}), "encoding_format", &["float", "base64"]);
    check(json!({"input": "a", "dimensions": 0}), "dimensions", &["1"]);
    check(json!({"input": "a", "dimensions": 193}), "dimensions", &["192"]);
    check(json!({"input": "a", "dimensions": 64}), "dimensions", &["64", "192"]);
    check(json!({"input": vec!["a"; 2049]}), "input", &["2048", "2049"]);
    let ids = |count: usize| json!({"input": [vec![5; count]]});
    check(ids(1025), "input[0]", &["1025", "1024"]);
    assert_eq!(vectors(&server, ids(1024)).len(), 1);
    assert_eq!(vectors(&server, json!({"input": vec!["a"; 2048], "dimensions": 192})).len(), 2048);
    let response = server.client.post("/v1/completions", &json!({"model": "embedder", "prompt": "a"}));
    assert_eq!((response.status, error_of(&response)["param"].as_str()), (400, Some("model")));
}

#[test]
fn a_model_that_generates_embeds_nothing_and_shorter_vectors_are_those_it_names() {
    let path = demo_model();
    let path = path.to_string_lossy();
    let config = format!(
        "[[model]]\nid = \"demo\"\nthreads = 1\n[[model]]\nid = \"embedder\"\npath = {path:?}\nembeddings = true\nembed-token-ids = true\ndimensions = [64]\n"
    );
    let server = Setup::new().config(&config).start();
    let response = server.client.post(EMBEDDINGS, &json!({"model": "demo", "input": "a"}));
    assert_eq!((response.status, error_of(&response)["param"].as_str()), (400, Some("model")));
    let body = |more: Value| {
        let mut body = json!({"model": "embedder", "input": "a"});
        body.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
        vectors(&server, body).remove(0)
    };
    let (whole, short) = (body(json!({})), body(json!({"dimensions": 64})));
    assert_eq!(short.len(), 64);
    assert!(cosine(&whole[..64], &short) > 0.99999, "cut off");
    assert!((short.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-4, "and normalised again");
}

#[test]
fn given_models_the_reference_sentences_match_through_the_openai_client() {
    let folder = models_folder();
    let reference = folder.join("all-MiniLM-L6-v2.reference.json");
    for (file, least) in [("all-MiniLM-L6-v2-f16.gguf", "0.999999"), ("all-MiniLM-L6-v2-q8_0.gguf", "0.9988")] {
        // Only the file says that the model embeds.
        let path = folder.join(file);
        let server = Setup::new()
            .config(&format!("[[model]]\nid = \"embedder\"\npath = {path:?}\nthreads = 1\nembed-token-ids = true\n"))
            .start();
        let base = format!("http://{}/v1", server.client.address);
        run_client("openai_embeddings.py", &[&base, &reference.to_string_lossy(), least]);
    }
}

#[test]
fn given_models_a_batch_of_an_encoder_gives_the_vectors_of_its_single_inputs_around_the_size_of_a_tile() {
    let path = models_folder().join("all-MiniLM-L6-v2-f16.gguf");
    let server = Setup::new()
        .config(&format!("[[model]]\nid = \"embedder\"\npath = {path:?}\nthreads = 1\nembed-token-ids = true\n"))
        .start();
    let tokens =
        |seed: usize, count: usize| (0..count).map(|at| 1000 + (seed * 7919 + at * 104_729) % 20_000).collect();
    for total in [63, 64, 65, 200] {
        // Three inputs of about the same length, with many tokens in all.
        let inputs: Vec<Vec<usize>> = [total / 3, total / 3, total - 2 * (total / 3)]
            .iter()
            .zip(0..)
            .map(|(&count, seed)| tokens(seed, count))
            .collect();
        let together = vectors(&server, json!({ "input": inputs }));
        for (input, vector) in inputs.iter().zip(&together) {
            let alone = vectors(&server, json!({ "input": input })).remove(0);
            assert!(cosine(vector, &alone) > 0.999_999, "{total}: {}", cosine(vector, &alone));
        }
    }
}

#[test]
fn token_ids_are_no_inputs_unless_the_operator_says_so() {
    let path = demo_model().to_string_lossy().into_owned();
    let config = format!("[[model]]\nid = \"embedder\"\npath = {path:?}\nembeddings = true\nthreads = 1\n");
    let server = Setup::new().config(&config).start();
    let answer = server.client.post(EMBEDDINGS, &json!({"model": "embedder", "input": [[1, 2]]}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("input[0]")));
    assert_eq!(server.client.post(EMBEDDINGS, &json!({"model": "embedder", "input": "text"})).status, 200);
}
