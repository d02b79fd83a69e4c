//! What a model takes of memory, by its metadata.
use llama_cpp_2::model::LlamaModel;

use crate::context::KvType;
use crate::load::LoadedModel;

/// Numbers of 32 bits that a layer's intermediate results take for each token, in widths of the model.
const WIDTHS: u64 = 10;
/// The same in widths of the feed-forward part.
const FEED_FORWARD_WIDTHS: u64 = 3;
/// Bytes of the attention mask for each token of context: in 32 bits and in 16.
const MASK_BYTES: u64 = 6;
/// Tokens of context that the mask is counted for: nearly all sequences are shorter.
const MASK_TOKENS: u64 = 8192;

impl KvType {
    /// Bytes of a block, and the numbers in it.
    fn block(self) -> (u64, u64) {
        match self {
            Self::F16 => (2, 1),
            Self::Q8_0 => (34, 32),
            Self::Q4_0 => (18, 32),
        }
    }
}

impl LoadedModel {
    /// Bytes of the KV entries of one token, in all layers. Rather too high than too low: layers with a sliding window are
    /// counted as if they kept everything.
    pub fn kv_token_bytes(&self, kv_type: KvType) -> u64 {
        let (bytes, numbers) = kv_type.block();
        (kv_numbers(&Shape::of(&self.model)) * bytes).div_ceil(numbers)
    }

    /// Bytes of the buffers that a batch needs for each of its tokens, estimated: logits, intermediate results, mask.
    pub fn batch_token_bytes(&self) -> u64 {
        let shape = Shape::of(&self.model);
        let results = shape.vocabulary + WIDTHS * shape.width + FEED_FORWARD_WIDTHS * shape.feed_forward;
        4 * results + MASK_BYTES * u64::from(self.info().trained_context_tokens).min(MASK_TOKENS)
    }
}

/// The numbers in the metadata that sizes follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl Shape {
    fn of(model: &LlamaModel) -> Self {
        let architecture = model.meta_val_str("general.architecture").unwrap_or_default();
        let text = |key: &str| model.meta_val_str(&format!("{architecture}.{key}")).ok();
        let vocabulary = u64::try_from(model.n_vocab()).unwrap_or_default();
        let (width, heads) = (u64::try_from(model.n_embd()).unwrap_or_default(), u64::from(model.n_head()));
        Self::read(text, u64::from(model.n_layer()), (width, heads), vocabulary)
    }

    fn read(text: impl Fn(&str) -> Option<String>, layers: u64, (width, heads): (u64, u64), vocabulary: u64) -> Self {
        let number = |key: &str| text(key).and_then(|text| largest(&text));
        let head = width / heads.max(1);
        let kv_heads = text("attention.head_count_kv").unwrap_or_default();
        let each: Vec<u64> = numbers(&kv_heads).collect();
        let kv_heads = match each[..] {
            [] => vec![heads; layers as usize],
            [all] => vec![all; layers as usize],
            _ => each,
        };
        let rope = number("rope.dimension_count").unwrap_or_default();
        Self {
            kv_heads,
            key_width: number("attention.key_length").unwrap_or(head),
            value_width: number("attention.value_length").unwrap_or(head),
            compressed_width: number("attention.kv_lora_rank").map_or(0, |rank| rank + rope),
            width,
            feed_forward: number("feed_forward_length").unwrap_or(4 * width),
            vocabulary,
        }
    }
}

/// Numbers that one token adds to the KV cache.
fn kv_numbers(shape: &Shape) -> u64 {
    let layers = shape.kv_heads.iter().filter(|&&heads| heads > 0);
    match shape.compressed_width {
        0 => layers.map(|heads| heads * (shape.key_width + shape.value_width)).sum(),
        // Values are compressed with the keys, and may be kept beside them.
        compressed => layers.map(|_| 2 * compressed).sum(),
    }
}

/// The numbers of a metadata value: one, or a list.
fn numbers(text: &str) -> impl Iterator<Item = u64> + '_ {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok())
}

fn largest(text: &str) -> Option<u64> {
    numbers(text).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(keys: &[(&str, &str)]) -> Shape {
        let text = |key: &str| keys.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned());
        Shape::read(text, 4, (64, 8), 100)
    }

    #[test]
    fn kv_numbers_follow_heads_and_widths() {
        // Without a key each head has its own entries, 64 / 8 wide.
        assert_eq!(kv_numbers(&shape(&[])), 4 * 8 * (8 + 8));
        assert_eq!(kv_numbers(&shape(&[("attention.head_count_kv", "2")])), 4 * 2 * (8 + 8));
        let wide = [("attention.head_count_kv", "2"), ("attention.key_length", "16"), ("attention.value_length", "12")];
        assert_eq!(kv_numbers(&shape(&wide)), 4 * 2 * (16 + 12));
        // Two of four layers are recurrent.
        assert_eq!(kv_numbers(&shape(&[("attention.head_count_kv", "[0, 2, 0, 2]")])), 2 * 2 * (8 + 8));
        let compressed = [("attention.kv_lora_rank", "10"), ("rope.dimension_count", "6")];
        assert_eq!(kv_numbers(&shape(&compressed)), 4 * 2 * 16);
    }
}
