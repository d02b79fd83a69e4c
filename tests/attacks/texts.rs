//! Texts that tokenizers recurse or go quadratic on.
use std::fmt::Write;

use camshaft_tests::{Server, Setup, demo_model, patched};
use serde_json::json;

use crate::{CHAT, Row};

/// A pre-tokenizer of every kind that llama.cpp runs through `std::regex`, and some that it does not. An empty one means
/// that the file names none.
const KINDS: [&str; 31] = [
    "",
    "falcon",
    "jais-2",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "hunyuan-dense",
    "spark2_5",
    "youtu",
    "bloom",
    "viking",
    "tekken",
    "chameleon",
    "gpt-4o",
    "llama4",
    "granite-embed-multi-97m",
    "tiny_aya",
    "superbpe",
    "bailingmoe",
    "seed-coder",
    "ufakzeka",
    "afmoe",
    "exaone-moe",
    "minicpm5",
    "whitespace",
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "starcoder",
    "kimi-k2",
    "gemma4",
];

/// A server with a model of each kind, named by its position.
fn serve(kinds: &[&str]) -> Server {
    let demo = std::fs::read(demo_model()).unwrap();
    let setup = Setup::new();
    let mut config = String::from("[cache]\nram = \"16MiB\"\n");
    for (i, kind) in kinds.iter().enumerate() {
        let path = setup.scratch.path().join(format!("{i}.gguf"));
        let pre = Some(*kind).filter(|kind| !kind.is_empty());
        std::fs::write(&path, patched::with_text(&demo, "tokenizer.ggml.pre", pre)).unwrap();
        let path = path.display();
        write!(
            config,
            "[[model]]\nid = \"{i}\"\npath = \"{path}\"\nthreads = 1\nsequences = 1\ncontext-tokens = 512\n"
        )
        .unwrap();
    }
    setup.config(&config).start()
}

/// Sends each text to each model, as a chat and to be tokenized, and asks for a short answer in between.
fn attack(kinds: &[&str], units: &[&str], bytes: usize) {
    let mut server = serve(kinds);
    for (i, kind) in kinds.iter().enumerate() {
        let model = i.to_string();
        for unit in units {
            let text = unit.repeat(bytes / unit.len());
            let chat = json!({"model": model, "messages": [{"role": "user", "content": text}]});
            let answer = server.client.post(CHAT, &chat);
            // Vocabularies without bytes have no token for some characters, so nothing is left of such a text.
            assert!([200, 400].contains(&answer.status), "{kind:?} {unit:?}: {}", answer.text());
            if unit.is_ascii() {
                assert!(answer.text().contains("context_length_exceeded"), "{kind:?} {unit:?}: {}", answer.text());
            }
            let tokenized = server.client.post("/v1/tokenize", &json!({"model": model, "text": text}));
            assert_eq!(tokenized.status, 200, "{kind:?} {unit:?}: {}", tokenized.text());
            server.assert_runs();
        }
        let hello = json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
        server.client.ask(CHAT, &hello);
    }
}

const UNITS: [&str; 6] = ["a", "!", "1", "é", "一", "a!1 "];

#[test]
fn regression_text_without_spaces_ends_no_process() {
    let row = Row::begin("20 kB without a space, for pre-tokenizers that recurse");
    attack(&["", "tekken", "gpt-4o", "deepseek-v3", "deepseek-llm", "falcon", "bailingmoe"], &UNITS, 20_000);
    row.end("the process lives");
}

#[test]
// Takes minutes.
fn long_attack_two_megabytes_of_one_letter_end_no_process_with_any_tokenizer() {
    let row = Row::begin("2 MB of one letter, for every pre-tokenizer");
    // JSON around the text must fit into the body, too.
    attack(&KINDS, &UNITS, (2 << 20) - 4096);
    row.end(&format!("the process lives with {} kinds", KINDS.len()));
}

#[test]
fn special_tokens_without_end_are_found_in_linear_time() {
    let row = Row::begin("100 000 spelled control tokens");
    let server = Setup::new().start();
    let text = "<|end|>".repeat(100_000);
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": text}]});
    assert_eq!(server.client.post(CHAT, &chat).status, 400);
    let tokenize = json!({"model": "demo", "text": text, "parse_special": true});
    let tokens = server.client.ask("/v1/tokenize", &tokenize);
    assert_eq!(tokens["tokens"].as_array().unwrap().len(), 100_000);
    row.end("tokenized");
}
