//! LoRA adapters beside the demo model: what they change, side by side and alone, and files that are refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::needless_pass_by_value, reason = "values are written where they are passed")]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::adapters::AdapterSet;
use camshaft_core::engine::{Batch, Engine, EngineError};
use camshaft_core::ids::{AdapterDigest, SeqId, Token};
use camshaft_engine::{
    AdapterOptions, EngineLoadError, EngineOptions, KvLayout, LlamaEngine, LoadOptions, LoadedAdapter, LoadedModel,
};

const LAYOUTS: [KvLayout; 2] = [KvLayout::Pooled, KvLayout::PerSequence];
const PROMPTS: [&str; 3] = [
    "<|user|>What is the capital of France?<|end|><|assistant|>",
    "<|user|>Tell me a story.<|end|><|assistant|>",
    "<|user|>Count from 1 to 30.<|end|><|assistant|>",
];

fn demo_with(adapter: Option<AdapterOptions>) -> Arc<LoadedModel> {
    let options = LoadOptions { adapter, digest: true, ..LoadOptions::default() };
    LoadedModel::from_file(Path::new("../../config/models/demo.gguf"), &options).unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new("../../tests/fixtures/adapters").join(format!("{name}.gguf"))
}

struct Bench {
    model: Arc<LoadedModel>,
    engine: LlamaEngine,
    gale: Arc<LoadedAdapter>,
    ember: Arc<LoadedAdapter>,
}

impl Bench {
    fn new(kv_layout: KvLayout) -> Self {
        let model = demo_with(None);
        let options = EngineOptions {
            sequences: 8,
            kv_tokens: 2048,
            kv_layout,
            batch_tokens: 256,
            threads: 2,
            ..EngineOptions::default()
        };
        let engine = LlamaEngine::new(&model, &options).unwrap();
        let (gale, ember) =
            (model.load_adapter(&fixture("gale")).unwrap(), model.load_adapter(&fixture("ember")).unwrap());
        Self { model, engine, gale, ember }
    }

    /// None, each alone, and both.
    fn sets(&self) -> [AdapterSet; 4] {
        let (gale, ember) = (self.gale.digest(), self.ember.digest());
        [vec![], vec![(gale, 1.0)], vec![(ember, 1.0)], vec![(gale, 0.5), (ember, 0.5)]].map(AdapterSet::new)
    }

    fn decode(&mut self, set: &AdapterSet, rows: &[(SeqId, &[Token], u32)]) -> Vec<Token> {
        let mut batch = Batch { adapters: set.clone(), ..Batch::default() };
        let mut last = Vec::new();
        for &(seq, tokens, from) in rows {
            for (position, &token) in (from..).zip(tokens) {
                batch.push(token, position, seq, position as usize + 1 == from as usize + tokens.len());
            }
            last.push(batch.len() - 1);
        }
        self.engine.decode(&batch).unwrap();
        last.into_iter().map(|row| best(self.engine.logits(row))).collect()
    }

    /// Greedy texts of all prompts under each of these sets, whose steps alternate, with all prompts of a set in one batch.
    fn side_by_side(&mut self, sets: &[AdapterSet], tokens: u32) -> Vec<Vec<Vec<Token>>> {
        let prompts = PROMPTS.map(|text| self.model.tokenizer().tokenize(text, true, true));
        let prompts = &prompts[..if sets.len() > 1 { 2 } else { 3 }];
        let seq = |set: usize, prompt: usize| SeqId((set * prompts.len() + prompt) as u32);
        let mut drawn: Vec<Vec<Vec<Token>>> = vec![vec![Vec::new(); prompts.len()]; sets.len()];
        for step in 0..tokens {
            for (at, set) in sets.iter().enumerate() {
                let before = drawn[at].clone();
                let rows: Vec<(SeqId, &[Token], u32)> = prompts
                    .iter()
                    .zip(&before)
                    .enumerate()
                    .map(|(p, (prompt, so_far))| match so_far.last() {
                        None => (seq(at, p), &prompt[..], 0),
                        Some(last) => (seq(at, p), std::slice::from_ref(last), prompt.len() as u32 + step - 1),
                    })
                    .collect();
                let next = self.decode(set, &rows);
                drawn[at].iter_mut().zip(next).for_each(|(so_far, token)| so_far.push(token));
            }
        }
        (0..8).for_each(|seq| self.engine.truncate(SeqId(seq), 0));
        drawn
    }
}

fn best(logits: &[f32]) -> Token {
    let best = (0u32..).zip(logits).fold((0, f32::NEG_INFINITY), |b, (i, &x)| if x > b.1 { (i, x) } else { b });
    Token(best.0)
}

#[test]
fn two_adapters_answer_differently_side_by_side_and_as_each_alone() {
    for layout in LAYOUTS {
        let mut bench = Bench::new(layout);
        let sets = bench.sets();
        let together = bench.side_by_side(&sets, 24);
        for (at, set) in sets.iter().enumerate() {
            let alone = bench.side_by_side(std::slice::from_ref(set), 24).remove(0);
            assert_eq!(together[at][..], alone[..2], "{layout:?}, set {at}");
            for other in 0..at {
                assert_ne!(together[at], together[other], "{layout:?}, sets {at} and {other}");
            }
        }
    }
}

#[test]
fn an_adapter_computes_the_same_for_requests_as_for_the_whole_model() {
    let mut bench = Bench::new(KvLayout::Pooled);
    let set = AdapterSet::new([(bench.gale.digest(), 0.7)]);
    let asked = bench.side_by_side(&[set], 24);
    let whole = demo_with(Some(AdapterOptions { path: fixture("gale"), scale: 0.7 }));
    let options =
        EngineOptions { sequences: 8, kv_tokens: 2048, batch_tokens: 256, threads: 2, ..EngineOptions::default() };
    bench.engine = LlamaEngine::new(&whole, &options).unwrap();
    assert_eq!(bench.side_by_side(&[AdapterSet::default()], 24), asked);
    let identity = |model: &LoadedModel| model.identity().unwrap().to_owned();
    assert!(identity(&whole).starts_with(&format!("{}+", identity(&bench.model))));
}

#[test]
fn a_scale_of_zero_is_the_model_as_it_is() {
    let mut bench = Bench::new(KvLayout::Pooled);
    let without = bench.side_by_side(&[AdapterSet::default()], 24);
    let zero = AdapterSet::new([(bench.gale.digest(), 0.0)]);
    assert_eq!(bench.side_by_side(&[zero], 24), without);
}

/// Numbers that overflow stay with the request that asked for them.
#[test]
fn the_largest_scales_change_nothing_for_neighbours() {
    for layout in LAYOUTS {
        let mut bench = Bench::new(layout);
        let base = AdapterSet::default();
        let alone = bench.side_by_side(std::slice::from_ref(&base), 24).remove(0);
        let (gale, ember) = (bench.gale.digest(), bench.ember.digest());
        for scale in [100.0, -100.0, 800.0, 1e30] {
            let largest = AdapterSet::new([(gale, scale), (ember, scale)]);
            let together = bench.side_by_side(&[base.clone(), largest], 24);
            assert_eq!(together[0][..], alone[..2], "{layout:?}, {scale}");
        }
    }
}

#[test]
fn an_adapter_is_in_memory_for_as_long_as_somebody_holds_it() {
    let mut bench = Bench::new(KvLayout::Pooled);
    let digest = bench.gale.digest();
    let set = AdapterSet::new([(digest, 1.0)]);
    let first = bench.side_by_side(std::slice::from_ref(&set), 8);
    assert!(Arc::ptr_eq(&bench.gale, &bench.model.load_adapter(&fixture("gale")).unwrap()), "it is loaded once");
    bench.gale = bench.ember.clone();
    assert!(bench.model.find_adapter(digest).is_some(), "the context applies it");
    bench.engine.forget_adapter(AdapterDigest::new([9; 32]));
    assert!(bench.model.find_adapter(digest).is_some(), "another one was meant");
    bench.engine.forget_adapter(digest);
    assert!(bench.model.find_adapter(digest).is_none());
    let mut batch = Batch { adapters: set.clone(), ..Batch::default() };
    batch.push(Token(1), 0, SeqId(0), true);
    let error = bench.engine.decode(&batch).unwrap_err();
    assert!(matches!(&error, EngineError::Failed(why) if why.contains(&digest.to_string())), "{error}");
    // The engine goes on, and computes the same once it is loaded again.
    let base = bench.side_by_side(&[AdapterSet::default()], 8);
    assert_ne!(base, first);
    bench.gale = bench.model.load_adapter(&fixture("gale")).unwrap();
    assert_eq!(bench.side_by_side(&[set], 8), first);
}

#[test]
fn adapters_come_and_go_while_others_are_used() {
    let mut bench = Bench::new(KvLayout::Pooled);
    let set = AdapterSet::new([(bench.ember.digest(), 1.0)]);
    let alone = bench.side_by_side(&[set.clone(), AdapterSet::default()], 40);
    bench.gale = bench.ember.clone();
    let model = bench.model.clone();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let loads = {
        let done = done.clone();
        std::thread::spawn(move || {
            let mut loads = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) || loads == 0 {
                drop(model.load_adapter(&fixture("gale")).unwrap());
                loads += 1;
            }
            loads
        })
    };
    let together = bench.side_by_side(&[set, AdapterSet::default()], 40);
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(loads.join().unwrap() > 0);
    assert_eq!(together, alone);
}

/// Writes a GGUF file.
#[derive(Clone)]
struct File {
    keys: Vec<(&'static str, u32, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

impl File {
    /// A good one, of rank 4, for one matrix.
    fn good() -> Self {
        let keys = vec![
            ("general.type", 8, text("adapter")),
            ("general.architecture", 8, text("llama")),
            ("adapter.type", 8, text("lora")),
            ("adapter.lora.alpha", 6, 4f32.to_le_bytes().to_vec()),
        ];
        Self { keys, tensors: Vec::new() }.pair("blk.0.attn_q.weight", [&[192, 4], &[4, 192]])
    }

    fn pair(mut self, of: &str, [a, b]: [&[u64]; 2]) -> Self {
        for (shape, end) in [(a, "lora_a"), (b, "lora_b")] {
            let data = vec![0; 4 * shape.iter().product::<u64>() as usize];
            self.tensors.push((format!("{of}.{end}"), shape.to_vec(), 0, data));
        }
        self
    }

    fn with(mut self, key: &str, kind: u32, value: Vec<u8>) -> Self {
        self.keys.iter_mut().filter(|(of, ..)| *of == key).for_each(|of| (of.1, of.2) = (kind, value.clone()));
        self
    }

    fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(of, ..)| *of != key);
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.keys {
            out.extend([text(key), kind.to_le_bytes().to_vec(), value.clone()].concat());
        }
        let mut data = Vec::new();
        for (name, shape, kind, bytes) in &self.tensors {
            out.extend(text(name));
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|extent| out.extend(extent.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
}

#[test]
fn files_that_are_no_adapters_of_the_model_are_refused_by_what_is_wrong() {
    let model = demo_with(None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        model.load_adapter(&path).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(load(&File::good().bytes()), Ok(()));
    assert_eq!(load(&File::good().without("adapter.lora.alpha").bytes()), Ok(()));
    let named = |of: &'static str, shapes| File::good().pair(of, shapes);
    let f32s = |value: f32| value.to_le_bytes();
    let cases = [
        (File::good().with("general.type", 8, text("model")), "general.type must be \"adapter\", got \"model\""),
        (File::good().without("general.type"), "general.type must be \"adapter\", got nothing"),
        // llama.cpp would abort on these.
        (File::good().with("general.type", 4, vec![1, 0, 0, 0]), "has another type"),
        (File::good().with("adapter.lora.alpha", 4, vec![4, 0, 0, 0]), "has another type"),
        (File::good().with("adapter.type", 8, text("dora")), "adapter.type must be \"lora\", got \"dora\""),
        (File::good().with("general.architecture", 8, text("qwen2")), "must be the model's, \"llama\", got \"qwen2\""),
        (File::good().with("adapter.lora.alpha", 6, f32s(f32::NAN).to_vec()), "alpha must be finite, got NaN"),
        (File::good().change(|file| file.tensors.clear()), "it changes no tensor"),
        (File::good().change(|file| drop(file.tensors.pop())), "has no blk.0.attn_q.weight.lora_b beside it"),
        (File::good().change(|file| drop(file.tensors.remove(0))), "has no blk.0.attn_q.weight.lora_a beside it"),
        (File::good().change(|file| file.tensors[0].0 = "x.weight".to_owned()), "has no blk.0.attn_q.weight.lora_a"),
        (named("blk.9.attn_q.weight", [&[192, 4], &[4, 192]]), "the model has no tensor blk.9.attn_q.weight"),
        (named("blk.1.ffn_down.weight", [&[192, 4], &[4, 192]]), "do not fit [512, 192, 1, 1]"),
        (named("blk.1.attn_q.weight", [&[192, 4], &[8, 192]]), "do not fit [192, 192, 1, 1]"),
        (named("blk.1.attn_q.weight", [&[192, 4, 2], &[4, 192, 3]]), "do not fit [192, 192, 1, 1]"),
        (named("token_embd.weight", [&[4, 1024], &[8, 192]]), "do not fit [192, 1024, 1, 1]"),
        (File::good().change(|file| file.tensors[1].2 = 26), "have the type 26"),
        (File::good().change(|file| file.tensors[1].3[..4].copy_from_slice(&f32s(f32::INFINITY))), "not finite"),
        (File::good().change(|file| file.tensors[0].3[3068..].copy_from_slice(&f32s(f32::NAN))), "not finite"),
        (File::good().change(|file| file.tensors[0].1[1] = u64::MAX / 8), "impossible shape"),
    ];
    for (file, expected) in cases {
        let error = load(&file.bytes()).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let whole = File::good().bytes();
    for end in [0, 3, 100, whole.len() / 2, whole.len() - 40] {
        assert!(load(&whole[..end]).is_err(), "{end} bytes");
    }
    // None of that is left in the model.
    let mut bench = Bench::new(KvLayout::Pooled);
    assert_eq!(bench.side_by_side(&[AdapterSet::default()], 4).len(), 1);
}

#[test]
fn an_adapter_of_the_embeddings_is_computed() {
    let model = demo_with(None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    std::fs::write(&path, File::good().pair("token_embd.weight", [&[4, 1024], &[4, 192]]).bytes()).unwrap();
    let adapter = model.load_adapter(&path).unwrap();
    let mut engine = LlamaEngine::new(&model, &EngineOptions::default()).unwrap();
    let mut batch = Batch { adapters: AdapterSet::new([(adapter.digest(), 1.0)]), ..Batch::default() };
    batch.push(Token(1), 0, SeqId(0), true);
    engine.decode(&batch).unwrap();
    assert!(engine.logits(0).iter().all(|logit| logit.is_finite()));
}

#[test]
fn what_is_no_file_is_no_adapter() {
    let model = demo_with(None);
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for path in [pipe, dir.path().to_owned(), dir.path().join("none")] {
        let error = model.load_adapter(&path).unwrap_err();
        assert!(matches!(error, EngineLoadError::Unreadable { .. }), "{error}");
    }
}
