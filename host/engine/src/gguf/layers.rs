//! Values that a model's file gives for each layer. llama.cpp shows no lists of its metadata.
use std::collections::HashMap;

/// Numbers in a list. llama.cpp refuses models with more layers.
pub(super) const MAX_LAYERS: u64 = 512;
/// Ends of the keys that are kept: the sizes follow from them. Each comes after the name of the architecture.
const KEPT: [&[u8]; 3] = [b".attention.head_count", b".attention.head_count_kv", b".feed_forward_length"];

/// The lists with a number for each layer, by their keys.
#[derive(Debug, Default)]
pub(crate) struct LayerLists(HashMap<Vec<u8>, Vec<u32>>);

impl LayerLists {
    pub(super) fn keeps(key: &[u8]) -> bool {
        KEPT.iter().any(|end| key.ends_with(end))
    }

    pub(super) fn add(&mut self, key: &[u8], values: Vec<u32>) {
        self.0.insert(key.to_owned(), values);
    }

    /// The list with this key; `None` if the file has one number there, or none.
    pub(crate) fn get(&self, key: &str) -> Option<&[u32]> {
        self.0.get(key.as_bytes()).map(Vec::as_slice)
    }
}
