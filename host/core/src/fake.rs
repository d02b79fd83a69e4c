//! A deterministic engine without a model, for tests and simulation.
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::adapters::AdapterSet;
use crate::engine::{
    Batch, Encode, Encoded, Engine, EngineError, EngineLimits, ModelInfo, ModelKind, Reuse, SavedPart, Tokenizer,
};
use crate::filter::{FilterHook, FilterVerdict, FilteringRequest, Piece, TextFilter, TextWindow};
use crate::ids::{AdapterDigest, PolicyDigest, SeqId, Token};
use crate::policy::{Fault, FaultKind};
use crate::sampling::SamplingDefaults;
use crate::vocabulary::Vocabulary;

/// The end token. Tokens 0 to 255 are bytes.
pub const END: Token = Token(256);

/// Computes logits from a hash of the seed and the tokens that a sequence holds, each with the adapters that it was computed
/// under, so that a wrong position, a lost token or an entry of another sequence or under other adapters changes the output. Lower-case letters are likely, and the end token is possible.
#[derive(Debug)]
pub struct FakeEngine {
    limits: EngineLimits,
    seed: u64,
    sequences: Vec<Vec<KvEntry>>,
    next_entry: u64,
    /// Logits by row of the last batch; empty for rows that did not want them.
    rows: Vec<Vec<f32>>,
    /// `decode` succeeds this many times more, and then fails once.
    pub fail_in: Option<u32>,
    /// `decode` panics.
    pub panics: bool,
    /// Logit of the end token. Letters have logits between 0 and 10.
    pub end_logit: f32,
    /// Number of tokens decoded so far.
    pub decoded: usize,
    /// Number of calls of `save` so far. A test keeps a clone of it while a worker owns the engine.
    pub saved: Arc<AtomicUsize>,
    /// Bytes of saved states that each call of `restore` was given.
    pub restored: Vec<usize>,
    /// Number of calls of `share` so far.
    pub shared: usize,
    /// Logit of a token, given a hash of what the sequence holds and its number; `None`: as above.
    pub logit: Option<fn(u64, u32) -> f32>,
    /// The answer of [`Engine::restores_in_place`].
    pub restores_in_place: bool,
    /// Number of last tokens that the logits depend on. With a small one, texts soon repeat themselves.
    pub memory: usize,
    /// The answer of [`Engine::reuse`].
    pub reuse: Reuse,
    /// What each decoded batch was computed under, if that was not the same as for the one before.
    pub switches: Vec<AdapterSet>,
    /// Adapters that it was told to let go of.
    pub forgotten: Vec<AdapterDigest>,
    /// A token that spoils the sequence that computes it.
    pub spoils: Option<Token>,
    /// Those that the last batch spoiled.
    spoiled: BTreeSet<SeqId>,
}

/// A token in the KV cache. Sequences that share it hold entries with the same id.
#[derive(Debug, Clone, Copy)]
struct KvEntry {
    token: Token,
    /// Of the adapters that it was computed under; 0 without any.
    under: u16,
    id: u64,
}

/// A number for a set of adapters; 0 for none.
fn number(adapters: &AdapterSet) -> u16 {
    if adapters.is_empty() {
        return 0;
    }
    let mut hash = DefaultHasher::new();
    adapters.hash(&mut hash);
    hash.finish() as u16 | 1
}

impl FakeEngine {
    pub fn new(limits: EngineLimits, seed: u64) -> Self {
        let sequences = vec![Vec::new(); limits.sequences as usize];
        Self {
            limits,
            seed,
            sequences,
            next_entry: 0,
            rows: Vec::new(),
            fail_in: None,
            panics: false,
            end_logit: 5.0,
            decoded: 0,
            saved: Arc::default(),
            restored: Vec::new(),
            shared: 0,
            restores_in_place: true,
            logit: None,
            memory: usize::MAX,
            reuse: Reuse::Ranges,
            switches: Vec::new(),
            forgotten: Vec::new(),
            spoils: None,
            spoiled: BTreeSet::new(),
        }
    }

    /// Describes a model that this engine runs: its tokens are bytes and one end token.
    pub fn info(limits: EngineLimits) -> ModelInfo {
        let pieces = (0..=255u8).map(|byte| vec![byte]).chain([Vec::new()]);
        ModelInfo {
            name: "fake".to_owned(),
            kind: ModelKind::Generate,
            parameters: 0,
            weight_bytes: 0,
            trained_context_tokens: limits.context_tokens,
            reuse: Reuse::Ranges,
            context_tokens: limits.context_tokens,
            sampling: SamplingDefaults::default(),
            quantization: None,
            infill: None,
            chat_template: None,
            tool_template: None,
            bos_text: String::new(),
            eos_text: String::new(),
            sha256: None,
            vocabulary: Arc::new(Vocabulary::new(pieces, vec![END])),
        }
    }

    /// A worker gives nobody the entries of what spoils a sequence.
    fn are_sound(&self, entries: &[KvEntry]) -> bool {
        !entries.iter().any(|entry| Some(entry.token) == self.spoils)
    }

    /// KV entries in use. A shared entry counts once.
    pub fn used(&self) -> usize {
        self.sequences.iter().flatten().map(|entry| entry.id).collect::<BTreeSet<_>>().len()
    }

    fn push(&mut self, seq: SeqId, token: Token, under: u16) {
        self.sequences[seq.0 as usize].push(KvEntry { token, under, id: self.next_entry });
        self.next_entry += 1;
    }

    fn row(&self, seq: SeqId) -> Vec<f32> {
        // FNV-1a over the whole sequence.
        let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ self.seed;
        let held = &self.sequences[seq.0 as usize];
        for entry in &held[held.len().saturating_sub(self.memory)..] {
            hash = (hash ^ u64::from(entry.token.0) ^ u64::from(entry.under) << 32).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(logit) = self.logit {
            return (0..257).map(|token| logit(hash, token)).collect();
        }
        let mut logits = vec![-10.0; 257];
        for (i, letter) in (b'a'..=b'z').enumerate() {
            logits[letter as usize] = (hash.rotate_left(i as u32 * 7) % 1000) as f32 / 100.0;
        }
        logits[END.0 as usize] = self.end_logit;
        logits
    }
}

impl Engine for FakeEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        assert!(!self.panics, "as the test asked");
        if batch.is_empty() || batch.len() > self.limits.batch_tokens as usize {
            return Err(EngineError::BadBatch(format!("{} tokens", batch.len())));
        }
        // The sum of the lengths is an upper bound of `used`, which is slow to compute.
        let upper_bound: usize = self.sequences.iter().map(Vec::len).sum();
        let capacity = self.limits.kv_tokens as usize;
        if upper_bound + batch.len() > capacity && self.used() + batch.len() > capacity {
            return Err(EngineError::KvFull { tokens: batch.len() });
        }
        if let Some(left) = &mut self.fail_in {
            if *left == 0 {
                self.fail_in = None;
                return Err(EngineError::Failed("the test asked for it".to_owned()));
            }
            *left -= 1;
        }
        if *self.switches.last().unwrap_or(&AdapterSet::default()) != batch.adapters {
            self.switches.push(batch.adapters.clone());
        }
        let under = number(&batch.adapters);
        self.rows.clear();
        let spoils = |&row: &usize| Some(batch.tokens[row]) == self.spoils;
        self.spoiled = (0..batch.len()).filter(spoils).map(|row| batch.seqs[row]).collect();
        for row in 0..batch.len() {
            let held = self.sequences.get(batch.seqs[row].0 as usize);
            let held = held.ok_or_else(|| EngineError::BadBatch(format!("sequence {}", batch.seqs[row])))?;
            if held.len() != batch.positions[row] as usize {
                return Err(EngineError::BadBatch(format!("position {} after {}", batch.positions[row], held.len())));
            }
            self.push(batch.seqs[row], batch.tokens[row], under);
            self.decoded += 1;
            let logits = if batch.wants_logits[row] { self.row(batch.seqs[row]) } else { Vec::new() };
            self.rows.push(logits);
        }
        Ok(())
    }

    fn forget_adapter(&mut self, adapter: AdapterDigest) {
        self.forgotten.push(adapter);
    }

    fn is_spoiled(&self, seq: SeqId) -> bool {
        self.spoiled.contains(&seq)
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.rows[row]
    }

    fn truncate(&mut self, seq: SeqId, from: u32) {
        self.sequences[seq.0 as usize].truncate(from as usize);
    }

    fn reuse(&self) -> Reuse {
        self.reuse
    }

    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool {
        let range = range.start as usize..range.end as usize;
        assert_eq!(self.sequences[to.0 as usize].len(), range.start, "the range begins where the sequence ends");
        self.shared += 1;
        let entries = self.sequences[from.0 as usize][range].to_vec();
        assert!(self.are_sound(&entries), "spoiled entries are shared");
        self.sequences[to.0 as usize].extend(entries);
        true
    }

    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>> {
        assert!(self.reuse == Reuse::Ranges || range.start == 0, "only whole sequences can be saved");
        self.saved.fetch_add(1, Ordering::Relaxed);
        let mut state = range.start.to_le_bytes().to_vec();
        let entries = self.sequences[seq.0 as usize].get(range.start as usize..range.end as usize)?;
        assert!(self.are_sound(entries), "spoiled entries are saved");
        // Tokens are small numbers, which leave half of the word.
        let word = |entry: &KvEntry| entry.token.0 | u32::from(entry.under) << 16;
        state.extend(entries.iter().flat_map(|entry| word(entry).to_le_bytes()));
        Some(state)
    }

    fn restore(&mut self, seq: SeqId, parts: &[SavedPart<'_>]) -> bool {
        self.restored.push(parts.iter().map(|part| part.state.len()).sum());
        let (mut end, mut all) = (self.sequences[seq.0 as usize].len(), Vec::new());
        for SavedPart { range, state } in parts {
            let mut words = state.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let Some(start) = words.next().filter(|&start| start <= range.start) else { return false };
            let tokens: Vec<(Token, u16)> = words.map(|word| (Token(word & 0xffff), (word >> 16) as u16)).collect();
            let wanted = (range.start - start) as usize..(range.end - start) as usize;
            let Some(tokens) = tokens.get(wanted).filter(|_| end == range.start as usize) else { return false };
            all.extend_from_slice(tokens);
            end = range.end as usize;
        }
        let fits = all.len() <= self.limits.kv_tokens as usize - self.used();
        if fits {
            all.into_iter().for_each(|(token, under)| self.push(seq, token, under));
        }
        fits
    }

    fn restores_in_place(&self) -> bool {
        self.restores_in_place
    }
}

/// A host without filter policies.
#[derive(Debug, Clone, Copy)]
pub struct NoFilters;

impl FilterHook for NoFilters {
    fn open(&self, _: PolicyDigest, _: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
        Ok(Vec::new())
    }
}

/// A filter that answers as a test says, given the piece and its text.
#[derive(Debug)]
pub struct ScriptedFilter<F> {
    pub denies: bool,
    pub script: F,
}

impl<F: FnMut(Piece, &str) -> FilterVerdict + Send> TextFilter for ScriptedFilter<F> {
    fn check(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault> {
        Ok((self.script)(piece, text.since(piece.start)))
    }

    fn refused(&mut self, detail: String) -> Fault {
        Fault { plugin: "scripted".into(), kind: FaultKind::InvalidOutput, detail }
    }

    fn denies(&self) -> bool {
        self.denies
    }
}

/// Turns each byte into the token of the same number.
#[derive(Debug, Clone, Copy)]
pub struct ByteTokenizer;

impl Tokenizer for ByteTokenizer {
    fn encode(&self, text: Encode<'_>) -> Encoded {
        let tokens: Vec<Token> = text.text.bytes().map(|byte| Token(u32::from(byte))).collect();
        let offsets = text.offsets.then(|| (0..tokens.len() as u32).map(|at| (at, at + 1)).collect());
        Encoded { tokens, offsets }
    }
}
