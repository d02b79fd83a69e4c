//! What a model takes of memory, by its metadata.
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
        kv_numbers(&Shape::of(self)).saturating_mul(bytes).div_ceil(numbers)
    }

    /// Bytes of the buffers that a batch needs for each of its tokens, estimated: logits, intermediate results, mask.
    pub fn batch_token_bytes(&self) -> u64 {
        let shape = Shape::of(self);
        let feed_forward = FEED_FORWARD_WIDTHS.saturating_mul(shape.feed_forward);
        let results = (shape.vocabulary + WIDTHS * shape.width).saturating_add(feed_forward);
        let mask = MASK_BYTES * u64::from(self.info().trained_context_tokens).min(MASK_TOKENS);
        results.saturating_mul(4).saturating_add(mask)
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
    fn of(LoadedModel { model, lists, .. }: &LoadedModel) -> Self {
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
        }
    }
}

/// Numbers that one token adds to the KV cache.
fn kv_numbers(shape: &Shape) -> u64 {
    let entry = shape.key_width.saturating_add(shape.value_width);
    let of_layer = |heads: u64| match shape.compressed_width {
        0 => heads.saturating_mul(entry),
        // Values are compressed with the keys, and may be kept beside them.
        compressed => compressed.saturating_mul(2),
    };
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
        let compressed = [("attention.kv_lora_rank", One(10)), ("rope.dimension_count", One(6))];
        assert_eq!(kv_numbers(&shape(&compressed)), 4 * 2 * 16);
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
