//! Greedy output equals llama.cpp's own on the same model and prompt, alone and in a batch of mixed lengths.
//!
//! The reference is a plain loop over llama.cpp with its greedy sampler and one sequence, without code of this project.
mod alone;

use std::path::Path;

use alone::{Generated, Model};
use camshaft_tests::{Setup, demo_model, models_folder};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
/// Prompts of very different lengths; the one with control tokens is what the model sees of a chat.
const PROMPTS: [&str; 8] = [
    "Once upon a time",
    "1, 2, 3,",
    "<|user|>What is 3 plus 4?<|end|><|assistant|>",
    "<|user|>Tell me a story about a fox.<|end|><|assistant|>",
    "<|system|>You are a pirate.<|end|><|user|>Count from 1 to 10.<|end|><|assistant|>",
    "5, 6,",
    "Long ago, near a blue lake, there lived a brave bear called Otto. One day the bear found a golden key and was very happy. \
     The bear wanted to show the key to the wolf, but the river was too wide to cross. So the bear built a small bridge",
    "<|user|>Spell \"zebra\" backwards.<|end|><|assistant|>",
];

/// Logits closer than this may swap by rounding: keys and values have 11 bits, activations 8, and one value rounded the
/// other way shifts all that follow (by up to 0.53 in cache.rs, which tries many more batches).
const TIE: f32 = 0.8;
/// With 24-bit weights and activations only the rounding of keys and values remains.
const TIE_F32: f32 = 0.02;

fn references(path: &Path, prompts: &[&str], most: usize) -> Vec<Generated> {
    let model = Model::load(path);
    prompts.iter().map(|prompt| model.generate(prompt, most)).collect()
}

fn body(prompts: &Value, most: usize) -> Value {
    json!({"model": "m", "prompt": prompts, "temperature": 0, "max_tokens": most, "logprobs": 0})
}

/// Asserts that a choice's text and tokens equal the reference's.
fn assert_equal(choice: &Value, expected: &Generated, what: &str) {
    assert_eq!(choice["text"], expected.text.as_str(), "{what}");
    let pieces = choice["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
    // The end token may be reported with the others.
    let ended = choice["finish_reason"] == "stop";
    assert!(pieces == expected.tokens.len() || ended && pieces == expected.tokens.len() + 1, "{what}: {choice}");
}

/// As [`assert_equal`], but for a tie: where texts part, llama.cpp's own best logits must have been equal but for the
/// rounding that another composition of a batch brings into sums. True if the texts are equal.
fn assert_equal_but_for_ties(choice: &Value, expected: &Generated, tie: f32, what: &str) -> bool {
    let text = choice["text"].as_str().expect("a text");
    if text == expected.text {
        assert_equal(choice, expected, what);
        return true;
    }
    let common = text.bytes().zip(expected.text.bytes()).take_while(|(a, b)| a == b).count();
    let parted = expected.ends.partition_point(|&end| end <= common);
    let margin = expected.margins[parted];
    eprintln!("{what}: parted after {parted} tokens, where llama.cpp's best two logits are {margin} apart");
    assert!(margin < tie, "{what}: {text:?} instead of {:?}", expected.text);
    false
}

fn compare(path: &Path, prompts: &[&str], most: usize, tie: f32) {
    let expected = references(path, prompts, most);
    assert!(expected.iter().any(|one| one.tokens.len() > 20), "{expected:?}");
    let path = path.to_string_lossy();
    let server = Setup::new().config(&format!("[[model]]\nid = \"m\"\npath = {path:?}\nthreads = 1\n")).start();

    // Prompts are batches, which are multiplied by kernels of our own: without AVX-512 they round otherwise than llama.cpp's.
    let mut equal = 0;
    for (prompt, expected) in prompts.iter().zip(&expected) {
        let answer = server.client.ask(COMPLETIONS, &body(&json!(expected.prompt), most));
        let alone = answer["choices"][0].clone();
        equal += usize::from(assert_equal_but_for_ties(&alone, expected, tie, &format!("{prompt:?} alone")));
        let mut by_text = body(&json!(prompt), most);
        by_text["parse_special"] = json!(true);
        let answer = server.client.ask(COMPLETIONS, &by_text);
        assert_eq!(answer["usage"]["prompt_tokens"], expected.prompt.len(), "{prompt:?} is tokenized alike");
        assert_eq!(answer["choices"][0]["text"], alone["text"], "{prompt:?} as text");
    }
    assert!(equal >= 5, "only {equal} of 8 texts had no tie");

    // First all in one request, which starts them together; then as requests that come and go at different times.
    let all: Vec<&Vec<i32>> = expected.iter().map(|one| &one.prompt).collect();
    let answer = server.client.ask(COMPLETIONS, &body(&json!(all), most));
    equal = 0;
    for ((index, expected), prompt) in expected.iter().enumerate().zip(prompts) {
        let what = format!("{prompt:?} in a batch");
        equal += usize::from(assert_equal_but_for_ties(&answer["choices"][index], expected, tie, &what));
    }
    assert!(equal >= 5, "only {equal} of 8 texts had no tie");
    std::thread::scope(|scope| {
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let client = &server.client;
            scope.spawn(move || {
                for _ in 0..3 {
                    let answer = client.ask(COMPLETIONS, &body(&json!(expected.prompt), most));
                    let what = format!("{prompt:?} among others");
                    assert_equal_but_for_ties(&answer["choices"][0], expected, tie, &what);
                }
            });
        }
    });
    server.wait_until_idle();
}

#[test]
fn the_demo_model_says_what_llama_cpp_says() {
    compare(&demo_model(), &PROMPTS, 120, TIE);
}

#[test]
fn given_models_a_model_from_elsewhere_says_what_llama_cpp_says() {
    let folder = models_folder();
    let prompts = [
        "",
        "Once",
        "Lily and Tom",
        "The dog was",
        "One day, a big red ball",
        "She",
        "There was a cat. The cat",
        "They",
    ];
    compare(&folder.join("stories260K-f32.gguf"), &prompts, 200, TIE_F32);
}
