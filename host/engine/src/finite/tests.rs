//! Sequences that compute what is not finite, and what others compute beside them and after their end.
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use camshaft_core::adapters::AdapterSet;
use camshaft_core::engine::{Batch, Engine, Reuse};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::sizes::KvLayout;
use tempfile::NamedTempFile;

use crate::{EngineOptions, FlashAttention, KvType, LlamaEngine, LoadOptions, LoadedModel, gguf};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../tests/shapes/synthetic.rs"]
mod synthetic;

const DEMO: &str = "../../config/models/demo.gguf";
/// The token whose embedding is not finite.
const BAD: u32 = 250;
const OTHER: SeqId = SeqId(0);
const NEIGHBOUR: SeqId = SeqId(1);
const NEWCOMER: SeqId = SeqId(2);

/// The model of a file in which the embedding of one token is not finite.
fn spoiled(path: &Path) -> Arc<LoadedModel> {
    let mut bytes = std::fs::read(path).unwrap();
    let Ok(header) = gguf::preflight(&mut Cursor::new(&bytes)) else { panic!("it is a model") };
    let entry = header.tensors.get("token_embd.weight").unwrap();
    // Numbers of 32 bits, or blocks of 32 numbers, whose scale stands first.
    let (nan, numbers, unit) =
        if entry.kind == 0 { (&f32::NAN.to_le_bytes()[..], 1, 4) } else { (&[0, 0x7e][..], 32, 34) };
    let row = (entry.shape[0] / numbers) as usize * unit;
    let start = (header.tensors.data() + entry.offset) as usize + BAD as usize * row;
    for at in (start..start + row).step_by(unit) {
        bytes[at..at + nan.len()].copy_from_slice(nan);
    }
    LoadedModel::from_bytes("spoiled", &bytes, &LoadOptions::default()).unwrap()
}

/// All that decides how attention reads entries.
fn engines(model: &Arc<LoadedModel>) -> impl Iterator<Item = (String, LlamaEngine)> {
    let (on, off) = (FlashAttention::On, FlashAttention::Off);
    let kinds = [(KvType::F16, off), (KvType::F16, on), (KvType::Q8_0, on)];
    let kinds = kinds.into_iter().filter(|(kv_type, _)| model.outline().takes_kv_type(*kv_type).is_ok());
    let all = kinds.flat_map(|kind| [KvLayout::Pooled, KvLayout::PerSequence].map(|layout| (layout, kind)));
    all.map(|(kv_layout, (kv_type, flash_attention))| {
        let (sequences, kv_tokens, batch_tokens, threads) = (4, 1024, 64, 2);
        let options = EngineOptions {
            sequences,
            kv_tokens,
            kv_layout,
            batch_tokens,
            threads,
            kv_type,
            flash_attention,
            ..EngineOptions::default()
        };
        let named = format!("{kv_layout:?}, {kv_type:?}, flash attention {flash_attention:?}");
        (named, LlamaEngine::new(model, &options).unwrap())
    })
}

/// A sequence's next tokens, and whether the logits of the last one are wanted.
struct Part {
    seq: SeqId,
    tokens: Vec<u32>,
    from: u32,
    wanted: bool,
}

impl Part {
    /// Some tokens that are not [`BAD`].
    fn new(seq: SeqId, from: u32, count: u32) -> Self {
        let tokens = (from..from + count).map(|at| 6 + (at * 7 + seq.0 * 31) % 200).collect();
        Self { seq, tokens, from, wanted: seq != OTHER }
    }
}

/// Decodes a batch. Returns the wanted logits, but for the bad token's, bit by bit.
fn decode(engine: &mut LlamaEngine, under: &AdapterSet, parts: &[&Part]) -> Vec<Vec<u32>> {
    let (mut batch, mut wanted) = (Batch { adapters: under.clone(), ..Batch::default() }, Vec::new());
    for part in parts {
        let last = part.from + part.tokens.len() as u32 - 1;
        for (position, &token) in (part.from..).zip(&part.tokens) {
            batch.push(Token(token), position, part.seq, part.wanted && position == last);
        }
        wanted.extend(part.wanted.then(|| batch.len() - 1));
    }
    engine.decode(&batch).unwrap();
    assert!(![NEIGHBOUR, NEWCOMER].iter().any(|seq| engine.is_spoiled(*seq)), "others are blamed");
    let bits = |row| {
        let mut bits: Vec<u32> = engine.logits(row).iter().map(|logit| logit.to_bits()).collect();
        bits[BAD as usize] = 0;
        bits
    };
    wanted.into_iter().map(bits).collect()
}

/// What others compute beside the sequence [`OTHER`] and after it, which computes some tokens without logits under `under`, one of
/// which is `token`; and whether it was spoiled.
fn beside(engine: &mut LlamaEngine, under: &AdapterSet, token: u32) -> (Vec<Vec<u32>>, bool) {
    let base = AdapterSet::default();
    let mut seen = decode(engine, &base, &[&Part::new(NEIGHBOUR, 0, 20)]);
    // Rows that share entries are computed together.
    let shares = engine.reuse() == Reuse::Ranges && engine.share(NEIGHBOUR, OTHER, 0..20);
    let mut other = Part::new(OTHER, if shares { 20 } else { 0 }, 30);
    other.tokens[10] = token;
    let next = Part::new(NEIGHBOUR, 20, 10);
    let is_spoiled = if *under == base {
        seen.extend(decode(engine, &base, &[&next, &other]));
        engine.is_spoiled(OTHER)
    } else {
        decode(engine, under, &[&other]);
        let is_spoiled = engine.is_spoiled(OTHER);
        seen.extend(decode(engine, &base, &[&next]));
        is_spoiled
    };
    seen.extend(decode(engine, &base, &[&Part::new(NEIGHBOUR, 30, 1)]));
    engine.truncate(OTHER, 0);
    seen.extend(decode(engine, &base, &[&Part::new(NEIGHBOUR, 31, 1)]));
    // It takes the place of a part of the other one.
    seen.extend(decode(engine, &base, &[&Part::new(NEIGHBOUR, 32, 1), &Part::new(NEWCOMER, 0, 8)]));
    seen.extend(decode(engine, &base, &[&Part::new(NEIGHBOUR, 33, 1), &Part::new(NEWCOMER, 8, 1)]));
    (0..4).for_each(|seq| engine.truncate(SeqId(seq), 0));
    (seen, is_spoiled)
}

/// `blames`: whether the sequence is known before its logits are read; `None`: in some layouts.
fn check_weights(path: &Path, blames: Option<bool>) {
    for (named, mut engine) in engines(&spoiled(path)) {
        let base = AdapterSet::default();
        let (healthy, blamed) = beside(&mut engine, &base, 5);
        assert!(!blamed && healthy.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()), "{named}");
        let (seen, blamed) = beside(&mut engine, &base, BAD);
        assert!(seen == healthy, "{named}");
        assert!(blames.is_none_or(|blames| blames == blamed), "{named}");
        // Nothing is left.
        assert!(beside(&mut engine, &base, 5) == (healthy, false), "{named}");
    }
}

#[test]
fn regression_numbers_of_weights_that_are_not_finite_stay_with_their_sequence() {
    check_weights(Path::new(DEMO), Some(true));
}

#[test]
fn regression_numbers_that_are_not_finite_do_not_outlive_a_window() {
    check_weights(synthetic::sliding_window().path(), Some(true));
}

#[test]
fn regression_a_recurrent_state_that_is_not_finite_ends_with_its_sequence() {
    check_weights(synthetic::mamba().path(), Some(false));
    check_weights(synthetic::hybrid().path(), None);
}

/// An adapter of finite numbers, under which keys and values are finite as numbers of 32 bits at any scale in use.
fn adapter() -> NamedTempFile {
    let mut file = synthetic::Gguf::default();
    file.text("general.architecture", "llama").text("general.type", "adapter").text("adapter.type", "lora");
    for part in ["attn_k", "attn_v"] {
        file.random(&format!("blk.2.{part}.weight.lora_a"), &[192, 4], 30.0);
        file.random(&format!("blk.2.{part}.weight.lora_b"), &[4, 192], 30.0);
    }
    file.write()
}

#[test]
fn regression_numbers_of_adapters_that_are_not_finite_stay_with_their_sequence() {
    let options = LoadOptions { digest: true, ..LoadOptions::default() };
    let model = LoadedModel::from_file(Path::new(DEMO), &options).unwrap();
    let adapter = model.load_adapter(adapter().path()).unwrap();
    let under = |scale| AdapterSet::new([(adapter.digest(), scale)]);
    for (named, mut engine) in engines(&model) {
        let healthy = beside(&mut engine, &under(1.0), 5);
        assert!(!healthy.1, "{named}");
        for scale in [100.0, 1e30] {
            let (seen, blamed) = beside(&mut engine, &under(scale), 5);
            assert!(seen == healthy.0, "{named}, scale {scale}");
            assert!(blamed, "{named}, scale {scale}");
        }
    }
}
