//! Texts that tokenizers recurse or go quadratic on.
use std::fmt::Write;
use std::time::Duration;

use camshaft_tests::{Open, Request, Server, Setup, api_keys, demo_model, patched};
use serde_json::json;

use crate::{CHAT, Row};

const TOKENIZE: &str = "/v1/tokenize";
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

/// Tokens of all bytes, and one that is as long as BERT's longest.
fn word_pieces() -> Vec<Vec<u8>> {
    let bytes = (1..=u8::MAX).map(|byte| vec![byte]);
    let longer = ["\u{2581}", "\u{2581}hello", "internationalizations"];
    bytes.chain(longer.map(|token| token.as_bytes().to_vec())).collect()
}

#[test]
fn regression_one_long_word_for_bert_holds_up_no_other_tenant() {
    let row = Row::begin("2 MB without a space for BERT's vocabulary, from clients that leave");
    let setup =
        Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("abusive", ""), ("polite", "")]));
    let path = setup.scratch.path().join("bert.gguf");
    std::fs::write(&path, patched::with_vocabulary(&std::fs::read(demo_model()).unwrap(), "bert", &word_pieces()))
        .unwrap();
    let path = path.display();
    let model =
        format!("[[model]]\nid = \"bert\"\npath = \"{path}\"\nthreads = 1\nsequences = 1\ncontext-tokens = 512\n");
    let server = setup.config(&format!("[cache]\nram = \"16MiB\"\n{model}")).start();
    let mut state = 7_u64;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + ((state >> 33) % 26) as u8)
    };
    let word: String = (0..(2 << 20) - 4096).map(|_| letter()).collect();
    let long = Request::post(TOKENIZE, &json!({"model": "bert", "text": word}));
    let text = "hello ".repeat(500);
    // The server answers 504 if the request gets no turn in this time.
    let short = Request::post(TOKENIZE, &json!({"model": "bert", "text": text})).header("x-request-timeout", "4");
    let (abusive, polite) = (server.client.with_key("abusive"), server.client.with_key("polite"));
    for _ in 0..4 {
        let clients: Vec<_> = (0..3).map(|_| abusive.begin(&long)).collect();
        // Until one of them has its turn.
        std::thread::sleep(Duration::from_millis(300));
        drop(clients);
        let answer = polite.send(&short);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["tokens"].as_array().unwrap().len(), 500);
    }
    row.end("12 of them, and 4 answers for another tenant");
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

/// A map of characters as T5's vocabularies have it (`precompiled_charsmap`): a trie in an array, and texts. `q` becomes `text`;
/// without one, what follows `q` leads outside the array.
fn characters(text: Option<&str>) -> Vec<u8> {
    const ROOT: u32 = 256;
    const VALUE: u32 = 16;
    const OUTSIDE: u32 = 0x1f_ffff;
    const LEAF: u32 = 1 << 8;
    let letter = u32::from(b'q');
    let mut nodes = vec![0_u32; 512];
    nodes[0] = ROOT << 10;
    // A leaf's value is where its base leads to.
    let (base, leaf) = if text.is_some() { (ROOT ^ letter ^ VALUE, LEAF) } else { (OUTSIDE, 0) };
    nodes[(ROOT ^ letter) as usize] = base << 10 | leaf | letter;
    let nodes: Vec<u8> = nodes.into_iter().flat_map(u32::to_le_bytes).collect();
    [&(nodes.len() as u32).to_le_bytes()[..], &nodes, text.unwrap_or("x").as_bytes(), b"\0"].concat()
}

/// Models whose vocabularies llama.cpp loops on, throws for, or takes gigabytes for, each with its name and a text that makes it do so.
pub(crate) fn astray(demo: &[u8]) -> [(&'static str, Vec<u8>, String); 3] {
    // "z" only begins a token. (Tokens of this kind are written with escapes.)
    let bytes = (1..=u8::MAX).filter(|byte| ![b'z', b'\\'].contains(byte)).map(|byte| vec![byte]);
    let tokens: Vec<Vec<u8>> = bytes.chain([b"zz".to_vec()]).collect();
    let t5 = |text: Option<&str>| {
        let gguf = patched::with_vocabulary(demo, "t5", &word_pieces());
        patched::with_new_bytes(&gguf, "tokenizer.ggml.precompiled_charsmap", &characters(text))
    };
    let long = "x".repeat(60_000);
    [
        ("loops", patched::with_vocabulary(demo, "rwkv", &tokens), "z!".to_owned()),
        ("throws", t5(None), "qa".to_owned()),
        ("grows", t5(Some(&long)), "q".repeat(2000)),
    ]
}

#[test]
fn vocabularies_that_lead_astray_cost_nobody_but_whoever_asks_for_them() {
    let row = Row::begin("vocabularies of kinds rwkv and t5 on which llama.cpp loops, throws, or takes gigabytes");
    let models = astray(&std::fs::read(demo_model()).unwrap());
    let setup = Setup::new();
    let mut config = String::from("[cache]\nram = \"16MiB\"\n[[model]]\nid = \"demo\"\nthreads = 1\nsequences = 2\n");
    for (id, gguf, ..) in &models {
        let path = setup.scratch.path().join(format!("{id}.gguf"));
        std::fs::write(&path, gguf).unwrap();
        let more = "threads = 1\nsequences = 1\ncontext-tokens = 512";
        writeln!(config, "[[model]]\nid = \"{id}\"\npath = {path:?}\n{more}").unwrap();
    }
    let mut server = setup.config(&config).start();
    for (id, _, text) in &models {
        let hostile = Request::post(TOKENIZE, &json!({"model": id, "text": text}));
        let asked = server.client.begin(&hostile);
        // Nobody waits for what this one began.
        drop(server.client.begin(&hostile));
        let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
        assert_eq!(server.client.post(CHAT, &hello).status, 200);
        let answer = Open::read(asked).expect("it is answered").response();
        assert!([400, 503].contains(&answer.status), "{id}: {} {}", answer.status, answer.text());
        let answer = server.client.post(TOKENIZE, &json!({"model": id, "text": "abc"}));
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        server.assert_runs();
    }
    row.end("each of them was answered, and others meanwhile");
}
