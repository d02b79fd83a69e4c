//! What sizes are chosen from and what comes of it: the memory and the cores, what models need, what was asked for, and
//! what was chosen or cut.
//!
//! All sizes are bytes unless their name says tokens.

use serde::{Deserialize, Serialize};

use crate::offload::{DeviceNeeds, Offloaded};

/// llama.cpp rounds a part of a KV cache, or a pool, up to this many tokens.
pub const PART_STEP: u32 = 256;
/// Part of the memory that is left to the system, to allocators and to the page cache.
const SPARE_SHARE: u64 = 10;
/// What the process takes beside models and the bodies of requests: code, threads, policies and their compiled code. It was
/// 42 MiB with the policies that come with the server.
const PROCESS_BYTES: u64 = 128 << 20;
/// Requests in flight take this part of the memory unless told otherwise, and never more than [`MOST_BODIES_BYTES`].
const BODIES_SHARE: u64 = 32;
/// And no more than this part for the sake of the largest ones.
const LEAST_BODIES_SHARE: u64 = 4;
const MOST_BODIES_BYTES: u64 = 256 << 20;
/// Tokens that a part has at least, unless the model was trained for fewer: a chat with its documents.
pub(super) const PART_TOKENS: u32 = 8192;

/// How the sequences divide the KV cache.
///
/// In a pool, a sequence can use whatever the others leave, and shares prefixes without a copy, but attention walks the masks
/// of all sequences' entries, and where it is llama.cpp's own the entries. With a part per sequence it walks only the sequence's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum KvLayout {
    /// Any sequence may use the whole cache.
    #[default]
    Pooled,
    /// Each sequence has `kv_tokens / sequences` entries of its own, rounded up to 256.
    PerSequence,
}

impl KvLayout {
    /// As configurations say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pooled => "pooled",
            Self::PerSequence => "per-sequence",
        }
    }
}

/// What the process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Memory that is free for this process now.
    pub memory: u64,
    /// Cores that compute: one for each physical core.
    pub cores: u32,
}

/// A model that generates or embeds, as far as memory is concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelNeeds {
    /// Embedding models have no KV cache.
    pub generates: bool,
    /// Contexts that share the weights.
    pub workers: u32,
    pub weights: u64,
    /// Of them, what stays in the host's memory wherever the layers are: embeddings of tokens.
    pub input_weights: u64,
    pub trained_tokens: u32,
    /// KV entries of one token, as numbers of 16 bits and of 8.
    pub kv_token: u64,
    pub kv_token_q8: u64,
    /// What each sequence needs however long it is: the state of recurrent layers.
    pub sequence: u64,
    /// Buffers that a batch needs for each of its tokens.
    pub batch_token: u64,
    /// `None`: it uses no device.
    pub devices: Option<DeviceNeeds>,
    /// Beside that.
    pub draft: DraftNeeds,
    pub wishes: Wishes,
}

impl ModelNeeds {
    /// Tokens that a chat with its documents has.
    pub(super) fn chat_tokens(&self) -> u32 {
        self.trained_tokens.min(PART_TOKENS)
    }

    /// The numbers of the devices that it may use.
    pub(super) fn on_devices(&self) -> &[usize] {
        self.devices.as_ref().map_or(&[][..], |needs| &needs.devices)
    }
}

/// What a draft model takes, by the names of [`ModelNeeds`]: in the host's memory, wherever the model is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftNeeds {
    pub weights: u64,
    pub kv_token: u64,
    pub kv_token_q8: u64,
    pub sequence: u64,
    pub batch_token: u64,
}

/// What the configuration asks of a model; `None`: choose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    pub sequences: Option<u32>,
    pub kv_tokens: Option<u32>,
    pub layout: Option<KvLayout>,
    pub batch_tokens: Option<u32>,
    pub threads: Option<u32>,
    /// Whether KV entries may be stored in 8 bits if memory is short.
    pub may_quantize: bool,
}

/// What was chosen for one model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    pub sequences: u32,
    /// Of one worker; 0: an embedding model, which has no KV cache.
    pub kv_tokens: u32,
    /// The longest input of an embedding model; 0: it generates.
    pub input_tokens: u32,
    pub layout: KvLayout,
    pub batch_tokens: u32,
    pub threads: u32,
    /// Whether KV entries are stored in 8 bits, which nobody asked for.
    pub quantized: bool,
    /// In the host's memory, with those of its draft model and its adapter, and states of recurrent embedding models.
    pub weights: u64,
    /// Of all workers, in the host's memory.
    pub kv: u64,
    pub batches: u64,
    /// What lies on devices.
    pub offloaded: Offloaded,
    pub cuts: Vec<Cut>,
}

impl Sizes {
    /// What it takes of the host's memory.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.batches).saturating_add(self.kv)
    }

    /// The most tokens that one sequence can have.
    pub fn sequence_tokens(&self) -> u32 {
        match self.layout {
            KvLayout::Pooled => self.kv_tokens,
            // llama.cpp rounds it up.
            KvLayout::PerSequence => (self.kv_tokens / self.sequences).max(1).next_multiple_of(PART_STEP),
        }
    }
}

/// A wish that was not granted, or a choice that memory made worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// The KV cache that was asked for does not fit.
    KvTokens { wished: u32, granted: u32 },
    /// The states of as many sequences as were asked for do not fit, or their parts of the KV cache.
    Sequences { wished: u32, granted: u32 },
    /// A sequence holds fewer tokens than the model was trained for, in a KV cache of so many parts.
    Context { trained: u32, granted: u32, parts: u32 },
    /// The same, since the tokens that were asked for are divided among the sequences.
    Parts { wished: u32, trained: u32, granted: u32, sequences: u32 },
    /// An input of an embedding model holds fewer tokens than the model was trained for. `devices`: because of their memory.
    Input { trained: u32, granted: u32, devices: bool },
    /// More was asked for than all sequences can use: none has more tokens than the model was trained for.
    Unused { wished: u32, sequences: u32, trained: u32 },
    /// One sequence was to have more than any can use: what was asked for is for all of them.
    Shared { wished: u32, sequences: u32, trained: u32 },
    /// Fewer sequences than usual, because a batch that was asked for has no row for each.
    Rows { batch_tokens: u32, granted: u32 },
    /// A batch of an embedding model holds more than was asked for, the longest input, or there is no memory for as many.
    Batch { wished: u32, granted: u32 },
    /// The prefix cache that was asked for does not fit.
    Cache { wished: u64, granted: u64 },
    /// KV entries are stored in 8 bits, so that more of them fit.
    Quantized,
    /// Fewer layers than asked for, or than the model has, lie on devices.
    Layers { wished: Option<u32>, layers: u32, granted: u32 },
    /// More threads of a model than cores.
    Threads { threads: u32, workers: u32, cores: u32 },
    /// The models take more than is left for them, although they get little else and the prefix cache nothing.
    Memory { wanted: u64, available: u64 },
}

/// Where the memory goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    pub machine: Machine,
    /// What the process takes beside models.
    pub process: u64,
    /// What may be planned with: the memory less what is spared and what the process takes.
    pub planned: u64,
    pub models: Vec<Sizes>,
    /// Of the prefix cache.
    pub cache: u64,
    /// The most that the prefix cache may be set to.
    pub most_cache: u64,
    pub cuts: Vec<Cut>,
}

impl Budget {
    /// Left to the system, to allocators and to the page cache.
    pub fn spared(&self) -> u64 {
        spared(self.machine.memory)
    }
}

/// What the process takes beside models.
pub fn process(bodies: u64) -> u64 {
    PROCESS_BYTES.saturating_add(bodies)
}

/// What all requests in flight may take together, where nobody asks for a number. `least`: what the largest ones need.
pub fn bodies(memory: u64, least: u64) -> u64 {
    let usual = (memory / BODIES_SHARE).min(MOST_BODIES_BYTES);
    // What does not fit is refused: better than a process that ends.
    usual.max(least.min(memory / LEAST_BODIES_SHARE))
}

pub(super) fn spared(memory: u64) -> u64 {
    memory / SPARE_SHARE
}
