//! The engine interface: what core needs from the code that runs a model.
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::adapters::AdapterSet;
use crate::ids::{AdapterDigest, SeqId, Token};
use crate::sampling::SamplingDefaults;
use crate::vocabulary::{Offsets, Vocabulary};

/// What a model is served for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Continues texts.
    Generate,
    /// Turns texts into vectors.
    Embed,
    /// Turns tensors into tensors.
    Predict,
}

impl ModelKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
            Self::Predict => "predict",
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Facts about a loaded model that reads texts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelInfo {
    /// From the model's metadata (`general.name`), or the file's stem.
    pub name: String,
    /// Read from the model's file, unless the configuration asks for another kind that the model supports.
    pub kind: ModelKind,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of the weights.
    pub weight_bytes: u64,
    /// Context length that the model was trained for.
    pub trained_context_tokens: u32,
    /// Maximum length of one sequence, prompt and output together.
    pub context_tokens: u32,
    /// How KV entries of one sequence can serve another.
    pub reuse: Reuse,
    /// How its requests are sampled that name no parameters, as far as its file says.
    pub sampling: SamplingDefaults,
    /// How its weights are stored (`Q4_K - Medium`), if its file says so.
    pub quantization: Option<String>,
    /// The tokens that ask it to fill in what is missing of a text, if it has them.
    pub infill: Option<InfillTokens>,
    /// The chat template in Jinja, if the model has one.
    pub chat_template: Option<String>,
    /// Another one for chats with tools, if the model has one.
    pub tool_template: Option<String>,
    /// Text of the special tokens that chat templates refer to.
    pub bos_text: String,
    pub eos_text: String,
    /// Lower-case hexadecimal SHA-256 of the file, if the loader computed it.
    pub sha256: Option<String>,
    pub vocabulary: Arc<Vocabulary>,
}

impl ModelInfo {
    /// The text of all its chat templates.
    pub fn templates(&self) -> Option<String> {
        let all: Vec<&str> =
            [&self.chat_template, &self.tool_template].into_iter().flatten().map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("\n"))
    }
}

/// Tokens around the parts of a text in whose middle something is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfillTokens {
    /// Before what comes first.
    pub prefix: Token,
    /// Before what comes last.
    pub suffix: Token,
    /// Behind both: what is missing follows.
    pub middle: Token,
}

/// Limits of one worker's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineLimits {
    /// Maximum number of sequences at once. Sequence ids are below it.
    pub sequences: u32,
    /// Capacity of the KV cache, which all sequences share.
    pub kv_tokens: u32,
    /// Maximum length of a batch.
    pub batch_tokens: u32,
    /// Maximum length of one sequence. All positions are below it.
    pub context_tokens: u32,
}

/// A text to tokenize, and how.
#[derive(Debug, Clone, Copy)]
pub struct Encode<'a> {
    pub text: &'a str,
    /// Adds the tokens that the model expects around a text (BOS, for most models).
    pub add_special: bool,
    /// Turns the spelling of a special token into that token. Set for the text of chat templates, and for a client's
    /// text only where it asks for that.
    pub parse_special: bool,
    /// Says also which part of the text each token comes from, of a text that is read to its end.
    pub offsets: bool,
    /// The rest of a text that has more tokens than this need not be read: some more of them tell.
    pub most: usize,
}

impl<'a> Encode<'a> {
    /// All of a text, as plain text.
    pub fn of(text: &'a str) -> Self {
        Self { text, add_special: false, parse_special: false, offsets: false, most: usize::MAX }
    }
}

/// The tokens of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoded {
    pub tokens: Vec<Token>,
    /// What each token was made of. A token that the tokenizer added was made of nothing. `None` if nobody asked, or the
    /// tokens do not spell the text and the tokenizer does not know what they were made of.
    pub offsets: Option<Vec<Offsets>>,
}

/// Turns text into tokens. HTTP tasks call it in parallel.
pub trait Tokenizer: Send + Sync + fmt::Debug {
    /// The tokens of a text, in time near-linear in its length.
    fn encode(&self, text: Encode<'_>) -> Encoded;

    /// The tokens of `text`, as [`Encode`] says.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let encode = Encode { add_special, parse_special, ..Encode::of(text) };
        self.encode(encode).tokens
    }

    /// Whether `text` spells a control token. May find one where a longer token hides it, but misses none.
    fn has_control(&self, text: &str) -> bool {
        self.tokenize(text, false, true) != self.tokenize(text, false, false)
    }

    /// Where `text` can be cut, ascending, so that no part spells a control token. May be more places than are needed.
    fn cuts(&self, text: &str) -> Vec<usize> {
        if !self.has_control(text) {
            return Vec::new();
        }
        text.char_indices().skip(1).map(|(at, _)| at).collect()
    }
}

/// The tokens of one step, as parallel lists: index `i` of each list is row `i`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub tokens: Vec<Token>,
    /// Position of the token in its sequence.
    pub positions: Vec<u32>,
    pub seqs: Vec<SeqId>,
    /// Whether the worker will read the row's logits.
    pub wants_logits: Vec<bool>,
    /// What all rows are computed under.
    pub adapters: AdapterSet,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Removes all rows. The adapters stay.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EngineError {
    /// The batch exceeds a limit of the engine. The engine decoded nothing.
    #[error("batch refused: {0}")]
    BadBatch(String),
    /// The KV cache has no capacity for the batch. The engine decoded nothing.
    #[error("the KV cache has no capacity for a batch of {tokens} tokens")]
    KvFull { tokens: usize },
    /// The engine failed, or does not have an adapter of the batch. The KV entries of the batch's sequences are lost.
    #[error("decode failed: {0}")]
    Failed(String),
}

/// Runs the model for one worker, on the worker's thread.
///
/// `camshaft-engine` implements it on llama.cpp, and [`crate::fake`] without a model, for tests.
pub trait Engine {
    fn limits(&self) -> EngineLimits;
    /// Does what the first decode on the calling thread does once, so that what it lacks (threads) is missed before anybody
    /// is served. The KV cache is empty before and after.
    ///
    /// # Errors
    /// As [`Engine::decode`].
    fn warm_up(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
    /// Has later decodes compute with this many threads, at most with those that the engine was made with.
    fn set_threads(&mut self, threads: u32) {
        let _ = threads;
    }
    /// Decodes a batch. The rows of a sequence are in ascending order of position and begin where its KV entries end.
    ///
    /// # Errors
    /// See [`EngineError`]. `BadBatch` and `KvFull` leave the KV cache unchanged.
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError>;
    /// Whether the last batch computed keys or values of a sequence that no KV entry can hold: not finite, or too large. Those that
    /// were written in their place do no harm to others, and are of no use. It may miss a sequence whose logits show it.
    fn is_spoiled(&self, seq: SeqId) -> bool {
        let _ = seq;
        false
    }
    /// Lets go of an adapter that is being unloaded. No later batch needs it, unless it is loaded again before.
    fn forget_adapter(&mut self, adapter: AdapterDigest) {
        let _ = adapter;
    }
    /// Logits of row `row` of the last batch, one per token of the vocabulary. The batch must have wanted them.
    fn logits(&self, row: usize) -> &[f32];
    /// Drops the KV entries of a sequence from position `from` on (0: all).
    fn truncate(&mut self, seq: SeqId, from: u32);
    /// How KV entries of one sequence can serve another.
    fn reuse(&self) -> Reuse;
    /// Gives `to` the KV entries of `from` at the positions of `range`, without decoding. `to` already has all entries
    /// before `range`. Returns false, and leaves `to` unchanged, if that is not possible.
    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool;
    /// Copies the KV entries of a sequence at the positions of `range`. `None` if that is not possible.
    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>>;
    /// Gives a sequence the KV entries of `parts`, whose ranges follow each other. The sequence already has all entries
    /// before the first. Returns false, and leaves the sequence unchanged, if that is not possible.
    fn restore(&mut self, seq: SeqId, parts: &[SavedPart<'_>]) -> bool;
    /// Whether `restore` costs as much as its parts. Otherwise it also copies what the sequence holds already, so that
    /// one call costs less than several.
    fn restores_in_place(&self) -> bool {
        true
    }
}

/// KV entries to restore.
#[derive(Debug, Clone)]
pub struct SavedPart<'a> {
    /// The positions to restore.
    pub range: Range<u32>,
    /// A copy of them that [`Engine::save`] made. It may hold neighbouring positions, too.
    pub state: &'a [u8],
}

/// How KV entries of one sequence can serve another, or the same one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reuse {
    /// Any range of positions can be shared, saved and restored.
    Ranges,
    /// Only the whole sequence from position 0 on can be saved and restored: recurrent, hybrid and sliding-window
    /// models do not keep the state of earlier positions. Preemption works; prefixes are not shared.
    Whole,
}
