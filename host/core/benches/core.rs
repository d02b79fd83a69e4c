//! Sampling kernels, the prefix tree, the ledger and masks of grammars: `cargo xtask bench kernels`.
#![allow(missing_docs, reason = "criterion's macros make public items")]
use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::grammar::{Grammar, GrammarSpec, GrammarStore};
use camshaft_core::ids::{RequestId, Token};
use camshaft_core::ledger::Ledger;
use camshaft_core::prefix::PrefixTree;
use camshaft_core::sampling::{LogSoftmax, LogitBias, Row, SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
use camshaft_core::vocabulary::Vocabulary;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};

/// Logits as they come from models: few stand out. Xorshift (Marsaglia 2003), so that every run has the same.
fn logits(size: u32) -> Vec<f32> {
    let mut state = 0x9e37_79b9u32;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32
    };
    (0..size).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 6.0 - 12.0).collect()
}

fn sampling(c: &mut Criterion) {
    let mut group = c.benchmark_group("sampling");
    for size in [32_000, 128_256] {
        let logits = logits(size);
        let mut row = Row::new(&[], 1);
        let chain = StandardChain::new(SamplingParams::llama_cpp());
        let all = StandardChain::new(SamplingParams { temperature: 0.8, ..SamplingParams::default() });
        group.bench_function(BenchmarkId::new("load", size), |b| b.iter(|| row.load(black_box(&logits))));
        for (name, chain) in [("standard chain and draw", &chain), ("temperature and draw", &all)] {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    row.load(black_box(&logits)).map_err(|error| error.to_string())?;
                    chain.shape(&mut row).map_err(|error| error.to_string())?;
                    Ok::<_, String>(row.draw())
                });
            });
        }
    }
    group.finish();
}

/// What a token takes with the defaults of the API, which cut nothing off, and with what clients often ask for beside them.
fn defaults(c: &mut Criterion) {
    let mut group = c.benchmark_group("defaults");
    let size = 128_256;
    let logits = logits(size);
    let off = SamplingParams::default;
    let cases = [
        ("nothing set", off(), None),
        ("temperature 0", SamplingParams::greedy(), None),
        ("penalties on 256 tokens", SamplingParams { frequency_penalty: 0.5, presence_penalty: 0.5, ..off() }, None),
        ("5 log-probabilities", off(), Some(5)),
    ];
    for (name, params, log_probabilities) in cases {
        let mut row = Row::new(&[], 1);
        (0..256).for_each(|i| row.accept(Token(i * 31), b"x"));
        let chain = StandardChain::new(params);
        group.bench_function(BenchmarkId::new(name, size), |b| {
            b.iter(|| {
                row.load(black_box(&logits)).map_err(|error| error.to_string())?;
                chain.shape(&mut row).map_err(|error| error.to_string())?;
                let token = row.draw();
                let told = log_probabilities.zip(token).map(|(n, token)| {
                    let log = LogSoftmax::new(&logits);
                    (log.of(token), log.top(n))
                });
                Ok::<_, String>((token, told))
            });
        });
    }
    group.finish();
}

/// Every parameter that a client may choose, by itself and with nothing cut off first: the dearest way to use it.
fn parameters(c: &mut Criterion) {
    let mut group = c.benchmark_group("parameters");
    let size = 128_256;
    let (peaked, flat) = (logits(size), vec![0.0; size as usize]);
    let off = SamplingParams::default;
    let bias = |i: u32| LogitBias { token: Token(i * 125), bias: 1.0 };
    let cases = [
        ("none", off()),
        ("top_k 100,000", SamplingParams { top_k: 100_000, ..off() }),
        ("top_p 0.99", SamplingParams { top_p: 0.99, ..off() }),
        ("min_p 1e-9", SamplingParams { min_p: 1e-9, ..off() }),
        ("typical_p 0.5", SamplingParams { typical_p: 0.5, ..off() }),
        ("typical_p 0.99", SamplingParams { typical_p: 0.99, ..off() }),
        ("repeat_penalty, 4,096 tokens", SamplingParams { repeat_penalty: 1.1, repeat_last_n: 4096, ..off() }),
        ("frequency and presence", SamplingParams { frequency_penalty: 0.5, presence_penalty: 0.5, ..off() }),
        ("logit_bias, 1,024 tokens", SamplingParams { logit_bias: (0..1024).map(bias).collect(), ..off() }),
        (
            "all of them",
            SamplingParams {
                top_k: 100_000,
                top_p: 0.99,
                min_p: 1e-9,
                typical_p: 0.99,
                repeat_penalty: 1.1,
                repeat_last_n: 4096,
                frequency_penalty: 0.5,
                presence_penalty: 0.5,
                logit_bias: (0..1024).map(bias).collect(),
                ..off()
            },
        ),
    ];
    for (kind, logits) in [("peaked", &peaked), ("flat", &flat)] {
        for (name, params) in &cases {
            let prompt: Vec<Token> = (0..4096).map(|i| Token(i * 31)).collect();
            let mut row = Row::new(&prompt[..2048], 1);
            prompt[2048..].iter().for_each(|&token| row.accept(token, b"x"));
            let chain = StandardChain::new(params.clone());
            group.bench_function(BenchmarkId::new(*name, kind), |b| {
                b.iter(|| {
                    row.load(black_box(logits)).map_err(|error| error.to_string())?;
                    chain.shape(&mut row).map_err(|error| error.to_string())?;
                    Ok::<_, String>(row.draw())
                });
            });
        }
    }
    group.finish();
}

fn prefix_tree(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefix tree");
    let tenant = Namespace::Tenant("t".into());
    // A common part of 1 000 tokens, then 200 of each request's own.
    let run = |own: u32| -> Vec<Token> { (0..1000).chain((0..200).map(|i| own * 1000 + i)).map(Token).collect() };
    let mut tree = PrefixTree::default();
    for own in 1..=1000 {
        tree.enter(&tenant, &run(own));
    }
    let (known, new) = (run(500), run(5000));
    group.bench_function("probe among 1 000 requests", |b| b.iter(|| tree.probe(&tenant, black_box(&known))));
    group.bench_function("enter and leave among 1 000 requests", |b| {
        b.iter(|| {
            let leaf = tree.enter(&tenant, black_box(&new));
            tree.leave(leaf, RequestId(5000));
        });
    });
    group.finish();
}

fn ledger(c: &mut Criterion) {
    let filled = || {
        let mut ledger = Ledger::new(1 << 20);
        for id in 0..256 {
            let _ = ledger.reserve(RequestId(id), 100);
        }
        ledger
    };
    c.bench_function("ledger: reserve, grow, release among 256", |b| {
        b.iter_batched_ref(
            filled,
            |ledger| {
                let _ = black_box(ledger.reserve(RequestId(999), 64));
                let _ = black_box(ledger.grow(RequestId(999), 64));
                ledger.release(RequestId(999));
            },
            BatchSize::SmallInput,
        );
    });
}

/// Tokens as tokenizers have them: all bytes, punctuation of JSON, numbers, and words with and without a space before them.
fn vocabulary(size: usize) -> Arc<Vocabulary> {
    let made = || made_up_pieces(size);
    let pieces =
        std::env::var_os("CAMSHAFT_BENCH_VOCABULARY").map_or_else(made, |path| pieces_of(Path::new(&path), size));
    let end = Token(pieces.len() as u32);
    Arc::new(Vocabulary::new(pieces.into_iter().chain([Vec::new()]), vec![end]))
}

/// The first tokens of a file that has the bytes of one in each line, in hexadecimal digits: `docs/benchmarks/vocabulary.py`.
fn pieces_of(path: &Path, size: usize) -> Vec<Vec<u8>> {
    let digits = |line: &str| {
        let pairs = line.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
        pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
    };
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().take(size - 1).map(digits).collect()
}

fn made_up_pieces(size: usize) -> Vec<Vec<u8>> {
    let syllables = [
        "a", "in", "er", "st", "on", "the", "ing", "com", "pre", "ver", "to", "al", "re", "us", "qu", "ment", "ö", "Ж",
    ];
    let punctuation = [
        "{\"", "\":", "\",", "\"}", "\",\"", "\":\"", "},", "],", "[\"", " {", " [", "  ", "    ", "\n", "\n  ", "://",
        "});",
    ];
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let numbers = (10..1000).map(|number| number.to_string().into_bytes());
    let mut pieces: Vec<Vec<u8>> =
        bytes.chain(punctuation.map(|text| text.as_bytes().to_vec())).chain(numbers).collect();
    let mut number = 0usize;
    while pieces.len() + 1 < size {
        let (mut left, mut word) = (number / 4, String::new());
        loop {
            word.push_str(syllables[left % syllables.len()]);
            left /= syllables.len();
            if left == 0 {
                break;
            }
        }
        let word = match number % 4 {
            0 => word,
            1 => format!(" {word}"),
            2 => word.to_uppercase(),
            _ => format!("{word}."),
        };
        pieces.push(word.into_bytes());
        number += 1;
    }
    pieces
}

/// The longest token at each place.
fn tokens(vocabulary: &Vocabulary, text: &str) -> Vec<Token> {
    let by_bytes: HashMap<&[u8], u32> =
        (0..vocabulary.size() as u32).rev().filter_map(|id| Some((vocabulary.token_bytes(Token(id))?, id))).collect();
    let (mut rest, mut out) = (text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let len = (1..=rest.len().min(32)).rev().find(|len| by_bytes.contains_key(&rest[..*len])).unwrap_or(1);
        out.extend(by_bytes.get(&rest[..len]).map(|id| Token(*id)));
        rest = &rest[len..];
    }
    out
}

const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"enum":["in","on","to"]}}},"required":["name","age"],"additionalProperties":false}"#;
const TREE: &str = r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"number"},"c":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["v"]}}}"##;
const BOUNDED: &str = r#"{"type":"object","properties":{"id":{"type":"string","pattern":"^[a-z]{3,12}-[0-9]{4}$"},"text":{"type":"string","minLength":10,"maxLength":400},"kind":{"anyOf":[{"const":"a"},{"type":"null"}]}},"required":["id","text","kind"]}"#;

/// Masks over 128k tokens while a text is written: of a grammar's first text, and when its lexer has learned.
fn grammars(c: &mut Criterion) {
    let (vocabulary, logits) = (vocabulary(128_256), logits(128_256));
    let store = GrammarStore::new(vocabulary.clone());
    let begun = Instant::now();
    let ready = store.prepare();
    eprintln!("grammars: 128,256 tokens made ready in {:?}: {}", begun.elapsed(), ready.is_ok());
    let schema = |schema: &str| GrammarSpec::JsonSchema { schema: schema.to_owned() };
    let cases = [
        ("person", schema(PERSON), r#"{"name":"Ingrid Storer","age": 47, "email":"in@restus.com","tags":["in","to"]}"#),
        ("tree", schema(TREE), r#"{ "v": 1.5, "c": [ { "v": 12 }, { "v": -3e2, "c": [] } ] }"#),
        (
            "bounded strings",
            schema(BOUNDED),
            r#"{"id":"inger-1234","text":"the standing comment, in all the versions to come","kind":null}"#,
        ),
        ("any object", GrammarSpec::JsonObject, r#"{"the":[1,2,{"restore":"ingcompre ver"}],"on":true}"#),
    ];
    let mut group = c.benchmark_group("grammars");
    for (name, spec, text) in cases {
        let grammar = Grammar::new(spec);
        let text = tokens(&vocabulary, text);
        let mut row = Row::new(&[], 1);
        let begun = Instant::now();
        let Ok(_used) = store.compile(&grammar) else { continue };
        eprintln!("grammars/{name}: compiled in {:?}", begun.elapsed());
        let mut write = |times: &mut Vec<Duration>, draws: &mut Vec<Duration>| {
            let Ok(mut matcher) = store.matcher(&grammar) else { return };
            for token in &text {
                let begun = Instant::now();
                let mask = matcher.mask();
                times.push(begun.elapsed());
                if let Ok(mask) = &mask {
                    let begun = Instant::now();
                    let drawn = row.load_masked(&logits, mask.bits()).ok().and_then(|()| row.draw());
                    draws.push(begun.elapsed());
                    assert!(drawn.is_some_and(|token| mask.allows(token)), "{name}");
                }
                assert!(mask.is_ok_and(|mask| mask.allows(*token)) && matcher.accept(*token).is_ok(), "{name}");
            }
        };
        for (when, texts) in [("first text", 1), ("later texts", 200)] {
            let (mut masks, mut draws) = (Vec::new(), Vec::new());
            (0..texts).for_each(|_| write(&mut masks, &mut draws));
            for (what, mut times) in [("masks", masks), ("masked draws", draws)] {
                times.sort_unstable();
                let mean = times.iter().sum::<Duration>() / times.len() as u32;
                let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
                let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
                eprintln!("grammars/{name}, {when}, {what}: mean {mean:?}, p50 {p50:?}, p99 {p99:?}, most {most:?}");
            }
        }
        group.bench_function(BenchmarkId::new("a text's masks and draws", name), |b| {
            b.iter(|| write(&mut Vec::new(), &mut Vec::new()));
        });
    }
    group.finish();
}

criterion_group!(benches, sampling, defaults, parameters, prefix_tree, ledger, grammars);
criterion_main!(benches);
