//! The engine with real models: always the demo model, and others if `CAMSHAFT_MODELS` names their folder.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::embed::Embedder;
use camshaft_core::engine::{Batch, Engine, EngineError, SavedPart};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::jobs::BatchModel;
use camshaft_engine::{
    AdapterOptions, EngineLoadError, EngineOptions, FlashAttention, KvLayout, KvType, LlamaEmbedder, LlamaEngine,
    LoadOptions, LoadedModel,
};

fn demo_path() -> &'static Path {
    Path::new("../../config/models/demo.gguf")
}

fn demo() -> Arc<LoadedModel> {
    LoadedModel::from_file(demo_path(), &LoadOptions::default()).unwrap()
}

/// A model outside the repository, for tests whose names begin with `given_models`.
fn outside(file: &str) -> PathBuf {
    let folder =
        std::env::var_os("CAMSHAFT_MODELS").unwrap_or_else(|| panic!("CAMSHAFT_MODELS names the folder of the models"));
    Path::new(&folder).join(file)
}

const LAYOUTS: [KvLayout; 2] = [KvLayout::Pooled, KvLayout::PerSequence];

fn engine(model: &Arc<LoadedModel>, kv_tokens: u32) -> LlamaEngine {
    engine_with(model, kv_tokens, KvLayout::Pooled)
}

fn engine_with(model: &Arc<LoadedModel>, kv_tokens: u32, kv_layout: KvLayout) -> LlamaEngine {
    let options =
        EngineOptions { sequences: 8, kv_tokens, kv_layout, batch_tokens: 256, threads: 2, ..EngineOptions::default() };
    LlamaEngine::new(model, &options).unwrap()
}

fn best(logits: &[f32]) -> Token {
    let best = (0u32..).zip(logits).fold((0, f32::NEG_INFINITY), |b, (i, &x)| if x > b.1 { (i, x) } else { b });
    Token(best.0)
}

fn prompt(model: &Arc<LoadedModel>, text: &str) -> Vec<Token> {
    model.tokenizer().tokenize(text, true, true)
}

/// Prefills `tokens` from position `from` on. Returns the most probable next token.
fn prefill(engine: &mut LlamaEngine, seq: SeqId, tokens: &[Token], from: u32) -> Token {
    let mut batch = Batch::default();
    for (position, &token) in (from..).zip(tokens) {
        batch.push(token, position, seq, position as usize + 1 == from as usize + tokens.len());
    }
    engine.decode(&batch).unwrap();
    best(engine.logits(batch.len() - 1))
}

/// Greedy continuations of all prompts. Prompts are prefilled one after the other, and the output is decoded in one
/// batch per step.
fn greedy(engine: &mut LlamaEngine, prompts: &[Vec<Token>], tokens: u32) -> Vec<Vec<Token>> {
    let mut out: Vec<Vec<Token>> = Vec::new();
    for (seq, prompt) in (0..).map(SeqId).zip(prompts) {
        out.push(vec![prefill(engine, seq, prompt, 0)]);
    }
    for step in 1..tokens {
        let mut batch = Batch::default();
        for (seq, (prompt, drawn)) in prompts.iter().zip(&out).enumerate() {
            batch.push(drawn[drawn.len() - 1], prompt.len() as u32 + step - 1, SeqId(seq as u32), true);
        }
        engine.decode(&batch).unwrap();
        for (row, drawn) in out.iter_mut().enumerate() {
            drawn.push(best(engine.logits(row)));
        }
    }
    (0..prompts.len()).for_each(|seq| engine.truncate(SeqId(seq as u32), 0));
    out
}

const PROMPTS: [&str; 8] = [
    "<|user|>Hello!<|end|><|assistant|>",
    "<|user|>What is the capital of France?<|end|><|assistant|>",
    "<|user|>Tell me a story.<|end|><|assistant|>",
    "<|user|>Count from 1 to 30.<|end|><|assistant|>",
    "a",
    "<|user|>What is 3 plus 4?<|end|><|assistant|>",
    "<|user|>Repeat after me: one two three four five six<|end|><|assistant|>",
    "The sky is blue and the grass is green and there is nothing else to say of it",
];

#[test]
fn decodes_the_same_alone_and_in_a_batch_of_mixed_lengths() {
    let model = demo();
    let prompts: Vec<Vec<Token>> = PROMPTS.iter().map(|text| prompt(&model, text)).collect();
    let mut engine = engine(&model, 2048);
    let together = greedy(&mut engine, &prompts, 24);
    for (text, (one, expected)) in PROMPTS.iter().zip(prompts.iter().zip(together)) {
        assert_eq!(greedy(&mut engine, std::slice::from_ref(one), 24), [expected], "{text}");
    }
}

#[test]
fn loads_from_memory_and_describes_itself() {
    let bytes = std::fs::read(demo_path()).unwrap();
    let model = LoadedModel::from_bytes("demo", &bytes, &LoadOptions::default()).unwrap();
    let info = model.info();
    assert!(info.parameters > 1_000_000 && info.trained_context_tokens >= 1024);
    assert!(info.chat_template.is_some() && !info.vocabulary.end_tokens().is_empty());
    let text = "naïve 漢字 😀 \u{1}";
    let tokens = model.tokenizer().tokenize(text, false, false);
    let back: Vec<u8> = tokens.iter().flat_map(|&t| info.vocabulary.token_bytes(t).unwrap().to_vec()).collect();
    assert_eq!(String::from_utf8(back).unwrap(), text);
}

#[test]
fn a_shared_prefix_gives_the_same_tokens_as_a_prefilled_one() {
    let model = demo();
    for layout in LAYOUTS {
        let mut engine = engine_with(&model, 2048, layout);
        let tokens = prompt(&model, PROMPTS[6]);
        let (head, tail) = tokens.split_at(tokens.len() / 2);
        let whole = prefill(&mut engine, SeqId(0), &tokens, 0);
        // Share the prefix in two pieces, and with two sequences.
        for to in [SeqId(1), SeqId(2)] {
            assert!(engine.share(SeqId(0), to, 0..5) && engine.share(SeqId(0), to, 5..head.len() as u32), "{layout:?}");
            assert_eq!(prefill(&mut engine, to, tail, head.len() as u32), whole, "{layout:?}");
        }
        engine.truncate(SeqId(0), head.len() as u32);
        assert_eq!(prefill(&mut engine, SeqId(0), tail, head.len() as u32), whole, "{layout:?}");
        // A copy from before a truncation must not be used after it.
        assert!(engine.save(SeqId(0), 0..tokens.len() as u32).is_some());
        engine.truncate(SeqId(0), 3);
        assert!(engine.share(SeqId(0), SeqId(3), 0..3), "{layout:?}");
        assert_eq!(prefill(&mut engine, SeqId(3), &tokens[3..], 3), whole, "{layout:?}");
    }
}

#[test]
fn sequences_continue_unchanged_when_others_between_them_end() {
    let model = demo();
    let mut engine = engine_with(&model, 8 * 256, KvLayout::PerSequence);
    let prompts: Vec<Vec<Token>> = PROMPTS.iter().take(4).map(|text| prompt(&model, text)).collect();
    let step = |engine: &mut LlamaEngine, live: &[(u32, Token, u32)]| -> Vec<Token> {
        let mut batch = Batch::default();
        // In reverse, because the engine reorders rows.
        for &(seq, token, position) in live.iter().rev() {
            batch.push(token, position, SeqId(seq), true);
        }
        engine.decode(&batch).unwrap();
        (0..live.len()).rev().map(|row| best(engine.logits(row))).collect()
    };
    let alone: Vec<Vec<Token>> = (0u32..)
        .zip(&prompts)
        .map(|(seq, tokens)| {
            let mut out = vec![prefill(&mut engine, SeqId(seq), tokens, 0)];
            for i in 0..6 {
                out.extend(step(&mut engine, &[(seq, out[i as usize], tokens.len() as u32 + i)]));
            }
            engine.truncate(SeqId(seq), 0);
            out
        })
        .collect();
    for (seq, tokens) in (0u32..).zip(&prompts) {
        assert_eq!(prefill(&mut engine, SeqId(seq), tokens, 0), alone[seq as usize][0]);
    }
    let mut live = vec![0u32, 1, 2, 3];
    for i in 0..6usize {
        if i == 2 || i == 4 {
            engine.truncate(SeqId(live.remove(1)), 0);
        }
        let at = |&seq: &u32| (seq, alone[seq as usize][i], (prompts[seq as usize].len() + i) as u32);
        let rows: Vec<(u32, Token, u32)> = live.iter().map(at).collect();
        let expected: Vec<Token> = live.iter().map(|&seq| alone[seq as usize][i + 1]).collect();
        assert_eq!(step(&mut engine, &rows), expected, "step {i}");
    }
}

/// Prefills `tokens` and returns the logits of the last one.
fn logits(engine: &mut LlamaEngine, seq: SeqId, tokens: &[Token], at: u32) -> Vec<f32> {
    prefill(engine, seq, tokens, at);
    engine.logits(tokens.len() - 1).to_vec()
}

#[test]
fn a_saved_range_decodes_to_the_same_logits_wherever_it_is_restored() {
    let model = demo();
    let tokens = prompt(&model, PROMPTS[6]);
    let (a, b, len) = (tokens.len() as u32 / 3, tokens.len() as u32 / 2, tokens.len() as u32);
    for (kv_layout, kv_type) in LAYOUTS.iter().flat_map(|&layout| [(layout, KvType::F16), (layout, KvType::Q8_0)]) {
        let options = EngineOptions {
            sequences: 4,
            kv_tokens: 1024,
            kv_layout,
            batch_tokens: 256,
            kv_type,
            ..EngineOptions::default()
        };
        let mut first = LlamaEngine::new(&model, &options).unwrap();
        let whole = logits(&mut first, SeqId(0), &tokens, 0);
        let head = first.save(SeqId(0), 0..a).unwrap();
        let rest = first.save(SeqId(0), a..len).unwrap();
        // Restore into another context of the same layout, into another sequence, and only a part of the second state.
        let mut second = LlamaEngine::new(&model, &options).unwrap();
        prefill(&mut second, SeqId(0), &tokens[..7], 0);
        assert!(
            second.restore(SeqId(3), &[SavedPart { range: 0..a, state: &head }])
                && second.restore(SeqId(3), &[SavedPart { range: a..b, state: &rest }])
        );
        let again = logits(&mut second, SeqId(3), &tokens[b as usize..], b);
        let apart = again.iter().zip(&whole).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        // The logits are equal only if the same positions are decoded in the same batches. Here the batches differ.
        assert!(apart < 0.05, "{kv_layout:?} {kv_type:?}: {apart}");
        second.truncate(SeqId(3), 0);
        let parts = [SavedPart { range: 0..a, state: &head }, SavedPart { range: a..len - 1, state: &rest }];
        assert!(second.restore(SeqId(3), &parts), "both at once");
        let last = logits(&mut second, SeqId(3), &tokens[len as usize - 1..], len - 1);
        first.truncate(SeqId(0), len - 1);
        assert_eq!(
            logits(&mut first, SeqId(0), &tokens[len as usize - 1..], len - 1),
            last,
            "{kv_layout:?} {kv_type:?}"
        );
    }
}

#[test]
fn what_is_copied_is_the_sequence_as_it_is_now() {
    let model = demo();
    let tokens = prompt(&model, PROMPTS[6]);
    let len = tokens.len() as u32;
    for layout in LAYOUTS {
        let mut engine = engine_with(&model, 2048, layout);
        prefill(&mut engine, SeqId(0), &tokens, 0);
        let whole = engine.save(SeqId(0), 0..len).unwrap();
        let next = prefill(&mut engine, SeqId(0), &tokens[..1], len);
        assert!(engine.save(SeqId(0), len..len + 1).is_some(), "{layout:?}, after a decode");
        prefill(&mut engine, SeqId(1), &tokens[..3], 0);
        let less = engine.save(SeqId(1), 0..3).unwrap();
        assert!(less.len() < whole.len() / 2, "{layout:?}, into the memory of a longer one");
        assert!(engine.restore(SeqId(1), &[SavedPart { range: 3..len, state: &whole }]), "{layout:?}");
        assert!(engine.share(SeqId(1), SeqId(2), 0..len), "{layout:?}, after a restore");
        assert_eq!(prefill(&mut engine, SeqId(2), &tokens[..1], len), next, "{layout:?}");
    }
}

#[test]
fn regression_restoring_a_part_of_a_saved_range_takes_no_more_kv_than_the_part() {
    let model = demo();
    let tokens: Vec<Token> = prompt(&model, PROMPTS[6]).into_iter().cycle().take(200).collect();
    let mut engine = engine(&model, 256);
    prefill(&mut engine, SeqId(0), &tokens, 0);
    let state = engine.save(SeqId(0), 0..200).unwrap();
    engine.truncate(SeqId(0), 100);
    assert!(engine.share(SeqId(0), SeqId(1), 0..100));
    // 100 entries are live, 156 free: the other 100 fit, all 200 do not.
    assert!(engine.restore(SeqId(1), &[SavedPart { range: 100..200, state: &state }]));
    assert!(!engine.restore(SeqId(2), &[SavedPart { range: 0..200, state: &state }]));
}

#[test]
fn refuses_a_state_that_does_not_fit_and_leaves_the_sequence_unchanged() {
    let model = demo();
    let tokens = prompt(&model, PROMPTS[6]);
    let len = tokens.len() as u32;
    let mut streams = engine_with(&model, 2048, KvLayout::PerSequence);
    prefill(&mut streams, SeqId(0), &tokens, 0);
    let state = streams.save(SeqId(0), 0..len).unwrap();
    prefill(&mut streams, SeqId(1), &tokens[..4], 0);
    assert!(!streams.restore(SeqId(1), &[SavedPart { range: 4..len + 5, state: &state }]), "more than was saved");
    assert!(!streams.restore(SeqId(1), &[SavedPart { range: 4..len, state: &state[..state.len() - 1] }]), "cut off");
    assert!(
        streams.restore(SeqId(1), &[SavedPart { range: 4..len - 1, state: &state }]),
        "it still has the first four entries"
    );
    let mut engine = engine(&model, 512);
    prefill(&mut engine, SeqId(0), &tokens, 0);
    let state = engine.save(SeqId(0), 0..len).unwrap();
    let options = EngineOptions {
        sequences: 2,
        kv_tokens: 256,
        kv_layout: KvLayout::Pooled,
        batch_tokens: 64,
        ..EngineOptions::default()
    };
    let mut small = LlamaEngine::new(&model, &options).unwrap();
    let filler: Vec<Token> = tokens.iter().copied().cycle().take(256 - len as usize / 2).collect();
    for (at, chunk) in filler.chunks(64).enumerate() {
        prefill(&mut small, SeqId(0), chunk, at as u32 * 64);
    }
    assert!(!small.restore(SeqId(1), &[SavedPart { range: 0..len, state: &state }]));
    assert!(!engine.restore(SeqId(1), &[SavedPart { range: 0..len + 5, state: &state }]), "more than was saved");
    engine.truncate(SeqId(0), len - 1);
    prefill(&mut engine, SeqId(0), &tokens[len as usize - 1..], len - 1);
}

#[test]
fn refuses_bad_batches_and_still_decodes_good_ones() {
    let model = demo();
    let mut engine = engine(&model, 512);
    let limits = engine.limits();
    let size = model.info().vocabulary.size() as u32;
    let row = |token: u32, position: u32, seq: u32| {
        let mut batch = Batch::default();
        batch.push(Token(token), position, SeqId(seq), true);
        batch
    };
    let mut uneven = row(1, 0, 0);
    uneven.seqs.push(SeqId(0));
    let mut long = Batch::default();
    for position in 0..=limits.batch_tokens {
        long.push(Token(1), position, SeqId(0), false);
    }
    for batch in
        [Batch::default(), row(size, 0, 0), row(1, limits.context_tokens, 0), row(1, 0, limits.sequences), uneven, long]
    {
        assert!(matches!(engine.decode(&batch), Err(EngineError::BadBatch(_))), "{batch:?}");
    }
    engine.decode(&row(size - 1, 0, limits.sequences - 1)).unwrap();
}

#[test]
fn reports_a_full_cache_and_still_decodes_the_other_sequences() {
    let model = demo();
    let mut engine = engine(&model, 512);
    let limits = engine.limits();
    let mut next = prefill(&mut engine, SeqId(0), &prompt(&model, PROMPTS[0]), 0);
    let mut held = prompt(&model, PROMPTS[0]).len() as u32;
    let mut full = false;
    for seq in 1..limits.sequences {
        let mut batch = Batch::default();
        for position in 0..200 {
            batch.push(Token(5), position, SeqId(seq), false);
        }
        match engine.decode(&batch) {
            Ok(()) => {}
            Err(EngineError::KvFull { tokens: 200 }) => {
                full = true;
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(full);
    for _ in 0..3 {
        next = prefill(&mut engine, SeqId(0), &[next], held);
        held += 1;
    }
}

#[test]
fn names_the_fault_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let load = |name: &str, bytes: &[u8], options: &LoadOptions| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        LoadedModel::from_file(&path, options).unwrap_err()
    };
    let good = std::fs::read(demo_path()).unwrap();
    let none = LoadOptions::default();
    let missing = LoadedModel::from_file(&dir.path().join("none.gguf"), &none).unwrap_err();
    assert!(missing.is_missing_input() && missing.to_string().contains("none.gguf"));
    assert!(LoadedModel::from_file(dir.path(), &none).unwrap_err().is_missing_input());
    for (name, bytes, word) in [
        ("empty.gguf", &[][..], "truncated"),
        ("text.gguf", b"hello, world", "not a GGUF file"),
        ("cut.gguf", &good[..good.len() / 2], "truncated"),
    ] {
        let error = load(name, bytes, &none);
        assert!(!error.is_missing_input() && error.to_string().contains(word), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let wrong =
        load("good.gguf", &good, &LoadOptions { verify_sha256: Some("0".repeat(64)), ..LoadOptions::default() });
    assert!(matches!(&wrong, EngineLoadError::WrongDigest { found, .. } if found.len() == 64), "{wrong}");
}

#[test]
fn regression_a_batch_of_one_token_for_each_sequence_is_enough() {
    let model = demo();
    let mut out = Vec::new();
    for (sequences, kv_tokens, batch_tokens) in
        [(1, 1024, 1), (8, 1024, 8), (8, 1024, 9), (32, 16, 32), (255, 512, 255)]
    {
        for kv_layout in LAYOUTS {
            // Validation gives each separate sequence 16 tokens.
            let kv_tokens = if kv_layout == KvLayout::Pooled { kv_tokens } else { kv_tokens.max(16 * sequences) };
            let options = EngineOptions { sequences, kv_tokens, kv_layout, batch_tokens, ..EngineOptions::default() };
            let mut engine = LlamaEngine::new(&model, &options).unwrap();
            assert_eq!(engine.limits().batch_tokens, batch_tokens);
            let mut batch = Batch::default();
            for seq in 0..batch_tokens.min(sequences) {
                batch.push(Token(7), 0, SeqId(seq), true);
            }
            engine.decode(&batch).unwrap();
            out.push(best(engine.logits(batch.len() - 1)));
        }
    }
    assert!(out.iter().all(|&token| token == out[0]), "{out:?}");
}

#[test]
fn regression_an_embedder_needs_no_batch_of_its_most_inputs() {
    let mut embedder = LlamaEmbedder::new(&demo(), 4, 4, 1, FlashAttention::Auto).unwrap();
    assert_eq!(embedder.limits().batch_tokens, 4);
    let inputs: Vec<Arc<[Token]>> = (1..=4).map(|token| [Token(token)].into()).collect();
    assert_eq!(embedder.compute(&inputs).unwrap().len(), 4);
}

#[test]
fn regression_a_pipe_is_no_model_and_no_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let adapter = AdapterOptions { path: pipe.clone(), scale: 1.0 };
    let with_pipe = LoadOptions { adapter: Some(adapter), ..LoadOptions::default() };
    for (path, options) in [(pipe.clone(), LoadOptions::default()), (demo_path().to_owned(), with_pipe)] {
        let (say, said) = crossbeam_channel::bounded(1);
        std::thread::spawn(move || say.send(LoadedModel::from_file(&path, &options).unwrap_err()));
        let error = said.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for nobody");
        assert!(error.is_missing_input() && error.to_string().contains("pipe.gguf: not a regular file"), "{error}");
    }
}

#[test]
fn given_models_refuses_a_vocabulary_without_byte_tokens() {
    let path = outside("hostile/TinyStories-656K-nobytes-f32.gguf");
    let error = LoadedModel::from_file(&path, &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no token for the byte"), "{error}");
}

/// The greedy continuation of a prompt, as text.
fn continuation(model: &Arc<LoadedModel>, text: &str, tokens: u32) -> String {
    let drawn = greedy(&mut engine(model, 1024), &[prompt(model, text)], tokens).remove(0);
    let vocabulary = &model.info().vocabulary;
    let bytes: Vec<u8> = drawn.iter().flat_map(|&t| vocabulary.token_bytes(t).unwrap().to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn given_models_continues_the_story_of_stories260k() {
    let path = outside("stories260K-f32.gguf");
    let model = LoadedModel::from_file(&path, &LoadOptions::default()).unwrap();
    assert_eq!(prompt(&model, "").len(), 1, "the beginning-of-sequence token alone");
    let text = continuation(&model, "", 60);
    let expected = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball.";
    assert!(text.trim_start().starts_with(expected), "{text}");
}

#[test]
fn continues_the_story_of_the_demo_model() {
    let text = continuation(&demo(), "<|user|>Tell me a short story.<|end|><|assistant|>", 80);
    // Who it is depends on how numbers are rounded.
    let expected = "Once upon a time there was a lazy ";
    let rest = " named Mary who lived on a tiny island. One evening a whale came by with a broken clock. They set out together, but the wind blew the gate shut.";
    assert!(text.starts_with(expected) && text.contains(rest), "{text}");
}
