//! What a model's metadata says of it, and of the memory that it takes.
use camshaft_core::engine::ModelInfo;
use serde::{Deserialize, Serialize};

use crate::error::EngineLoadError;
use crate::gguf::LayerLists;
use crate::kind::Traits;
use crate::model::Model;

/// Numbers of 32 bits that a layer's intermediate results take for each token, in widths of the model.
const WIDTHS: u64 = 10;
/// The same in widths of the feed-forward part.
const FEED_FORWARD_WIDTHS: u64 = 3;
/// Bytes of the attention mask for each token of context: in 32 bits and in 16.
const MASK_BYTES: u64 = 6;
/// Bytes of a number of a recurrent layer's state.
const STATE_NUMBER: u64 = 4;
/// Tokens of context that the mask is counted for: nearly all sequences are shorter.
const MASK_TOKENS: u64 = 8192;
/// Maximum number of inputs in a batch.
pub(crate) const MAX_INPUTS: u32 = 64;

/// Number format of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    Q8_0,
    Q4_0,
}

impl KvType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Bytes of a block, and the numbers in it.
    fn block(self) -> (u64, u64) {
        match self {
            Self::F16 => (2, 1),
            Self::Q8_0 => (34, 32),
            Self::Q4_0 => (18, 32),
        }
    }
}

/// What a model's file says of it: all that is known without its weights.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelOutline {
    pub info: ModelInfo,
    /// Layers that can be given to devices: all, and the one that makes logits of the last one's results.
    pub layers: u32,
    heads: u64,
    is_recurrent: bool,
    /// It attends in both directions.
    encodes: bool,
    takes_flash: bool,
    shape: Shape,
}

/// By which another process tells whether it has loaded the same model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMark {
    parameters: u64,
    weight_bytes: u64,
    trained_context_tokens: u32,
    layers: u32,
    vocabulary: [u8; 32],
}

impl ModelOutline {
    pub(crate) fn of(model: &Model, lists: &LayerLists, info: ModelInfo) -> Self {
        let traits = Traits::of(model);
        Self {
            layers: model.layers().saturating_add(1),
            heads: u64::from(model.heads()),
            is_recurrent: model.is_recurrent(),
            encodes: traits.encodes,
            takes_flash: traits.takes_flash(),
            shape: Shape::of(model, lists),
            info,
        }
    }

    pub fn mark(&self) -> ModelMark {
        ModelMark {
            parameters: self.info.parameters,
            weight_bytes: self.info.weight_bytes,
            trained_context_tokens: self.info.trained_context_tokens,
            layers: self.layers,
            vocabulary: self.info.vocabulary.digest(),
        }
    }

    /// Bytes of the KV entries of one token, in all layers. Rather too high than too low: layers with a sliding window are
    /// counted as if they kept everything.
    pub fn kv_token_bytes(&self, kv_type: KvType) -> u64 {
        let (bytes, numbers) = kv_type.block();
        kv_numbers(&self.shape).saturating_mul(bytes).div_ceil(numbers)
    }

    /// Checks that entries can be stored so: a block of numbers lies in one head.
    ///
    /// # Errors
    /// The width of a head that the block does not divide.
    pub fn takes_kv_type(&self, kv_type: KvType) -> Result<(), EngineLoadError> {
        let (_, block) = kv_type.block();
        let bad = |width| EngineLoadError::KvType { kv_type: kv_type.as_str(), block, width };
        [self.shape.key_width, self.shape.value_width]
            .into_iter()
            .find(|width| width % block != 0)
            .map_or(Ok(()), |width| Err(bad(width)))
    }

    /// Bytes of the embeddings of tokens, which stay in the host's memory, wherever the layers are. Estimated: as if all weights
    /// had as many bits.
    pub fn input_weight_bytes(&self) -> u64 {
        let numbers = u128::from(self.shape.vocabulary) * u128::from(self.shape.width);
        let bytes = numbers * u128::from(self.info.weight_bytes) / u128::from(self.info.parameters.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX).min(self.info.weight_bytes)
    }

    /// Bytes of the state that recurrent layers keep for a sequence, however long it is. Rather too high than too low: where the
    /// metadata does not say which layers are recurrent, all are counted.
    pub fn sequence_bytes(&self) -> u64 {
        if !self.is_recurrent {
            return 0;
        }
        state_numbers(&self.shape, self.heads).saturating_mul(STATE_NUMBER)
    }

    /// Bytes of the buffers that a batch needs for each of its tokens, estimated: logits, intermediate results, mask.
    pub fn batch_token_bytes(&self) -> u64 {
        let mask = MASK_BYTES * u64::from(self.info.trained_context_tokens).min(MASK_TOKENS);
        self.shape.results().saturating_add(self.shape.vocabulary).saturating_mul(4).saturating_add(mask)
    }

    /// The same for a batch that embeds, which has up to `batch` tokens, or as many as one input, which has up to `longest`. A
    /// decoder makes logits of every token, which are kept, too, and has KV entries. `flash`: with flash attention, where the
    /// model can have it.
    pub fn input_token_bytes(&self, longest: u32, batch: u32, flash: bool) -> u64 {
        // All inputs of a batch have one mask, and without flash attention a score for each head.
        let others = u64::from(self.info.trained_context_tokens.min(longest).max(batch));
        let scores = if flash && self.takes_flash { 0 } else { 4 * self.heads };
        let of_kind = match self.encodes {
            // Keys and values of a layer, in 32 bits.
            true => self.shape.kv_numbers().saturating_mul(4),
            false => self.shape.vocabulary.saturating_mul(8).saturating_add(self.kv_token_bytes(KvType::F16)),
        };
        let results = self.shape.results().saturating_mul(4);
        results.saturating_add(of_kind).saturating_add((MASK_BYTES + scores).saturating_mul(others))
    }

    /// Bytes of the states that recurrent layers keep for the inputs of a batch that embeds.
    pub fn input_state_bytes(&self) -> u64 {
        self.sequence_bytes().saturating_mul(u64::from(MAX_INPUTS))
    }
}

/// The numbers in the metadata that sizes follow from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Shape {
    /// KV heads of each layer; recurrent layers have none.
    kv_heads: Vec<u64>,
    key_width: u64,
    value_width: u64,
    /// Of compressed entries, which all heads share; 0: entries are not compressed.
    compressed_width: u64,
    width: u64,
    feed_forward: u64,
    vocabulary: u64,
    recurrent: Recurrent,
}

/// What the state of a recurrent layer follows from; 0: the model has no such layers, or the number does not matter to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Recurrent {
    /// RWKV (Peng et al. 2023).
    wkv_head: u64,
    token_shifts: u64,
    /// Convolutions alone, as in LFM2.
    convolution: u64,
    /// Linear attention with gates, as in Kimi Linear.
    gated_head: u64,
    /// State space models (Gu and Dao 2023).
    kernel: u64,
    inner: u64,
    states: u64,
    groups: u64,
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// For all layers.
    One(u64),
    /// For each layer.
    Each(Vec<u64>),
}

impl Value {
    fn largest(self) -> Option<u64> {
        match self {
            Self::One(number) => Some(number),
            Self::Each(numbers) => numbers.into_iter().max(),
        }
    }

    fn each(self, layers: u64) -> Vec<u64> {
        match self {
            Self::One(number) => vec![number; layers as usize],
            Self::Each(numbers) => numbers,
        }
    }
}

impl Shape {
    /// Numbers of a layer's intermediate results for each token.
    fn results(&self) -> u64 {
        let feed_forward = FEED_FORWARD_WIDTHS.saturating_mul(self.feed_forward);
        WIDTHS.saturating_mul(self.width).saturating_add(feed_forward)
    }

    /// Numbers of a layer's keys and values for each token.
    fn kv_numbers(&self) -> u64 {
        let heads = self.kv_heads.iter().max().copied().unwrap_or_default();
        heads.saturating_mul(self.key_width.saturating_add(self.value_width))
    }

    fn of(model: &Model, lists: &LayerLists) -> Self {
        let architecture = model.metadata("general.architecture").unwrap_or_default();
        let value = |key: &str| {
            let key = format!("{architecture}.{key}");
            match lists.get(&key) {
                Some(numbers) => Some(Value::Each(numbers.iter().copied().map(u64::from).collect())),
                None => model.metadata(&key)?.parse().ok().map(Value::One),
            }
        };
        let (width, heads) = (u64::from(model.width()), u64::from(model.heads()));
        Self::read(value, u64::from(model.layers()), (width, heads), u64::from(model.vocab().size()))
    }

    fn read(value: impl Fn(&str) -> Option<Value>, layers: u64, (width, heads): (u64, u64), vocabulary: u64) -> Self {
        let number = |key: &str| value(key).and_then(Value::largest);
        let head = width / heads.max(1);
        // Without grouped queries each head has its own entries.
        let kv_heads = value("attention.head_count_kv").or_else(|| value("attention.head_count"));
        let rope = number("rope.dimension_count").unwrap_or_default();
        Self {
            kv_heads: kv_heads.unwrap_or(Value::One(heads)).each(layers),
            key_width: number("attention.key_length").unwrap_or(head),
            value_width: number("attention.value_length").unwrap_or(head),
            compressed_width: number("attention.kv_lora_rank").map_or(0, |rank| rank.saturating_add(rope)),
            width,
            feed_forward: number("feed_forward_length").unwrap_or(4 * width),
            vocabulary,
            recurrent: Recurrent {
                wkv_head: number("wkv.head_size").unwrap_or_default(),
                token_shifts: number("token_shift_count").unwrap_or(2),
                convolution: number("shortconv.l_cache").unwrap_or_default(),
                gated_head: number("kda.head_dim").unwrap_or_default(),
                kernel: number("ssm.conv_kernel").unwrap_or_default(),
                inner: number("ssm.inner_size").unwrap_or_default(),
                states: number("ssm.state_size").unwrap_or_default(),
                groups: number("ssm.group_count").unwrap_or_default(),
            },
        }
    }
}

/// Numbers of the states of all recurrent layers, as `n_embd_r` and `n_embd_s` of llama.cpp's `llama-hparams.cpp` count them.
/// `heads`: those of the model.
fn state_numbers(shape: &Shape, heads: u64) -> u64 {
    let Recurrent { wkv_head, token_shifts, convolution, gated_head, kernel, inner, states, groups } = shape.recurrent;
    let times = |numbers: &[u64]| numbers.iter().copied().fold(1, u64::saturating_mul);
    let of_layer = if wkv_head > 0 {
        times(&[shape.width, token_shifts.saturating_add(wkv_head)])
    } else if convolution > 0 {
        times(&[shape.width, convolution - 1])
    } else if gated_head > 0 {
        let window = if kernel > 0 { kernel - 1 } else { 3 };
        times(&[3, window, heads, gated_head]).saturating_add(times(&[gated_head, gated_head, heads]))
    } else if inner == 0 {
        // Linear attention that the metadata says nothing of, as in MiniMax-Text-01.
        times(&[shape.key_width, shape.key_width, heads])
    } else {
        let convolved = inner.saturating_add(times(&[2, groups, states]));
        times(&[kernel.saturating_sub(1), convolved]).saturating_add(times(&[states, inner]))
    };
    // Lists say 0 heads for layers that do not attend. Without one, any layer may keep a state.
    let silent = shape.kv_heads.iter().filter(|&&heads| heads == 0).count();
    let layers = if silent == 0 { shape.kv_heads.len() } else { silent };
    of_layer.saturating_mul(layers as u64)
}

/// Numbers that one token adds to the KV cache.
fn kv_numbers(shape: &Shape) -> u64 {
    let entry = shape.key_width.saturating_add(shape.value_width);
    // Values are compressed with the keys, and may be kept beside them. Some models keep the entries of all heads although they
    // could compress them.
    let compressed = shape.compressed_width.saturating_mul(2);
    let of_layer = |heads: u64| heads.saturating_mul(entry).max(compressed);
    let layers = shape.kv_heads.iter().filter(|&&heads| heads > 0);
    layers.map(|&heads| of_layer(heads)).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::Value::{Each, One};
    use super::*;

    fn shape(keys: &[(&str, Value)]) -> Shape {
        let value = |key: &str| keys.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
        Shape::read(value, 4, (64, 8), 100)
    }

    #[test]
    fn kv_numbers_follow_heads_and_widths() {
        // Without a key each head has its own entries, 64 / 8 wide.
        assert_eq!(kv_numbers(&shape(&[])), 4 * 8 * (8 + 8));
        assert_eq!(kv_numbers(&shape(&[("attention.head_count_kv", One(2))])), 4 * 2 * (8 + 8));
        let wide = [
            ("attention.head_count_kv", One(2)),
            ("attention.key_length", One(16)),
            ("attention.value_length", One(12)),
        ];
        assert_eq!(kv_numbers(&shape(&wide)), 4 * 2 * (16 + 12));
        // Two of four layers are recurrent.
        let (some, heads) = (Each(vec![0, 2, 0, 2]), ("attention.head_count", Each(vec![8, 0, 4, 0])));
        assert_eq!(kv_numbers(&shape(&[("attention.head_count_kv", some), heads.clone()])), 2 * 2 * (8 + 8));
        assert_eq!(kv_numbers(&shape(&[heads])), (8 + 4) * (8 + 8));
        // Compressed, as one head says; and not, as many do (MiniCPM3, and DeepSeek V2 in older files).
        let compressed = |heads, key, value| {
            kv_numbers(&shape(&[
                ("attention.kv_lora_rank", One(10)),
                ("rope.dimension_count", One(6)),
                ("attention.head_count_kv", One(heads)),
                ("attention.key_length", One(key)),
                ("attention.value_length", One(value)),
            ]))
        };
        assert_eq!(compressed(1, 16, 10), 4 * 2 * 16);
        assert_eq!(compressed(8, 12, 8), 4 * 8 * (12 + 8));
    }

    #[test]
    fn states_of_recurrent_layers_follow_their_kind() {
        let state = |keys: &[(&str, u64)]| {
            let keys: Vec<(&str, Value)> = keys.iter().map(|&(key, number)| (key, One(number))).collect();
            state_numbers(&shape(&keys), 8)
        };
        assert_eq!(state(&[("wkv.head_size", 16)]), 4 * 64 * (2 + 16));
        assert_eq!(state(&[("wkv.head_size", 16), ("token_shift_count", 1)]), 4 * 64 * (1 + 16));
        assert_eq!(state(&[("shortconv.l_cache", 3)]), 4 * 64 * 2);
        assert_eq!(state(&[("kda.head_dim", 10), ("ssm.conv_kernel", 4)]), 4 * (3 * 3 * 8 * 10 + 10 * 10 * 8));
        assert_eq!(state(&[]), 4 * 8 * 8 * 8);
        let mamba = [("ssm.conv_kernel", 4), ("ssm.inner_size", 128), ("ssm.state_size", 16)];
        assert_eq!(state(&mamba), 4 * (3 * 128 + 16 * 128));
        let groups = [mamba[0], mamba[1], mamba[2], ("ssm.group_count", 2)];
        assert_eq!(state(&groups), 4 * (3 * (128 + 2 * 2 * 16) + 16 * 128));
        // Two of four layers attend.
        let some = shape(&[("shortconv.l_cache", One(3)), ("attention.head_count_kv", Each(vec![0, 2, 0, 2]))]);
        assert_eq!(state_numbers(&some, 8), 2 * 64 * 2);
        assert_eq!(state(&[("wkv.head_size", u64::MAX)]), u64::MAX);
    }

    #[test]
    fn regression_numbers_too_large_to_add_do_not_wrap() {
        let rope = ("rope.dimension_count", One(8));
        for key in ["attention.kv_lora_rank", "attention.key_length", "attention.head_count_kv"] {
            for huge in [u64::MAX, u64::MAX / 2 + 1] {
                assert_eq!(kv_numbers(&shape(&[(key, One(huge)), rope.clone()])), u64::MAX, "{key}");
            }
        }
    }
}
