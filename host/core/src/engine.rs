//! The engine seam: what core asks of whatever runs the model.
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{SeqId, Token};
use crate::vocabulary::Vocabulary;

/// What a model is served for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// It continues texts.
    Generate,
    /// It turns texts into vectors.
    Embed,
}

impl ModelKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is known of a loaded model.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// From the model's metadata (`general.name`), or the file's stem.
    pub name: String,
    /// What it is served for: what its file says it was made for, unless something else was asked for and is possible.
    pub kind: ModelKind,
    /// Parameters of the weights.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Positions the model was trained for.
    pub trained_context_tokens: u32,
    /// The most tokens (prompt and output) that one sequence may hold.
    pub context_tokens: u32,
    /// What its sequences' state can be used for beside going on.
    pub reuse: Reuse,
    /// The chat template in Jinja, if the model has one.
    pub chat_template: Option<String>,
    /// Text of the special tokens that chat templates name.
    pub bos_text: String,
    pub eos_text: String,
    /// Lower-case hexadecimal SHA-256 of the file, if it was computed.
    pub sha256: Option<String>,
    pub vocabulary: Arc<Vocabulary>,
}

/// Limits of one worker's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Sequences that may exist at once: ids are below it.
    pub sequences: u32,
    /// KV cache in tokens, shared by all sequences.
    pub kv_tokens: u32,
    /// Tokens in one batch.
    pub batch_tokens: u32,
    /// Positions of one sequence: all positions are below it.
    pub context_tokens: u32,
}

/// Text to tokens. Called on HTTP threads, in parallel.
pub trait Tokenizer: Send + Sync + fmt::Debug {
    /// Tokens of `text`. `add_special` adds what the model wants in front (BOS); `parse_special` reads special tokens
    /// written out in the text as such (never for text that a client may write freely, except in a rendered template).
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token>;
}

/// The tokens of one step, as parallel lists: index i of each is row i.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub tokens: Vec<Token>,
    /// Position in the sequence, the next one for each sequence.
    pub positions: Vec<u32>,
    pub seqs: Vec<SeqId>,
    /// Whether the row's logits will be read.
    pub wants_logits: Vec<bool>,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.wants_logits.clear();
    }

    /// Adds a row and returns its index.
    pub fn push(&mut self, token: Token, position: u32, seq: SeqId, wants_logits: bool) -> usize {
        self.tokens.push(token);
        self.positions.push(position);
        self.seqs.push(seq);
        self.wants_logits.push(wants_logits);
        self.tokens.len() - 1
    }
}

/// Why a step could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The batch breaks one of the engine's limits; nothing was decoded.
    #[error("batch refused: {0}")]
    BadBatch(String),
    /// There is no room in the KV cache for the batch; nothing was decoded.
    #[error("no room in the KV cache for a batch of {tokens} tokens")]
    KvFull { tokens: usize },
    /// The engine failed inside; the sequences of the batch are lost.
    #[error("decode failed: {0}")]
    Failed(String),
}

/// Runs the model for one worker. Lives on one thread.
///
/// Implemented by llama.cpp in `camshaft-engine` and by the deterministic fake in `fake`.
pub trait Engine {
    fn limits(&self) -> EngineLimits;
    /// Decodes a batch once. Rows of one sequence are in ascending position, following what the sequence holds.
    ///
    /// # Errors
    /// See [`EngineError`]; after `BadBatch` and `KvFull` the cache is as before.
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError>;
    /// Logits of row `row` of the last batch (which asked for them): one `f32` for each token of the vocabulary.
    fn logits(&self, row: usize) -> &[f32];
    /// Forgets what the sequence holds from position `from` on (0: everything).
    fn truncate(&mut self, seq: SeqId, from: u32);
    /// What the model's state allows beside decoding.
    fn reuse(&self) -> Reuse;
    /// Lets `to`, which holds everything before `range`, go on with what `from` holds there, without decoding it. False if
    /// it cannot be; the sequence is then as before.
    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool;
    /// A copy of what the sequence holds at the positions of `range`; `None` if it cannot be copied.
    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>>;
    /// Lets the sequence, which holds everything before `range`, go on with the positions of `range` from a copy that was
    /// saved of those and perhaps of others around them. False if it cannot be; the sequence is then as before.
    fn restore(&mut self, seq: SeqId, range: Range<u32>, state: &[u8]) -> bool;
}

/// What can be done with the state of a model's sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// Any range of positions can be shared, saved and restored.
    Ranges,
    /// Only everything from position 0 on (recurrent, hybrid and sliding-window models, which forget): parking works,
    /// prefixes are not shared.
    Whole,
}
