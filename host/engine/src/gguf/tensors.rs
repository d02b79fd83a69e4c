//! Where a file's tensors are, and which shapes they have.
use std::collections::HashMap;

/// llama.cpp refuses longer names.
const NAME_BYTES: usize = 64;

/// What the header says of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorEntry {
    /// Missing dimensions are 1.
    pub(crate) shape: [u64; 4],
    /// As a number of ggml.
    pub(crate) kind: u32,
    /// Of its data, from the beginning of all data.
    pub(crate) offset: u64,
}

/// The tensors of a model by name.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    of: HashMap<Box<str>, TensorEntry>,
    /// Where the data of the file begin that was read last.
    data: u64,
}

impl Tensors {
    pub(super) fn add(&mut self, name: &str, entry: TensorEntry) {
        if name.len() <= NAME_BYTES {
            self.of.insert(name.into(), entry);
        }
    }

    pub(super) fn begin_at(&mut self, data: u64) {
        self.data = data;
    }

    /// Adds those of another file.
    pub(crate) fn extend(&mut self, other: Self) {
        self.of.extend(other.of);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.of.get(name)
    }

    /// By name, so that errors do not depend on chance.
    pub(crate) fn sorted(&self) -> Vec<(&str, &TensorEntry)> {
        let mut all: Vec<_> = self.of.iter().map(|(name, entry)| (&**name, entry)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }

    pub(crate) fn data(&self) -> u64 {
        self.data
    }
}
