//! Which LoRA adapters a generation is computed under.
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::AdapterDigest;

/// An adapter with its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AdapterUse {
    pub adapter: AdapterDigest,
    /// As bits, so that equal sets have equal hashes. Finite, and not 0.
    scale_bits: u32,
}

impl AdapterUse {
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_bits)
    }

    /// As what tells it apart from other uses.
    pub fn scale_bits(&self) -> u32 {
        self.scale_bits
    }
}

/// The adapters of a generation, with their weights. Empty: the model as it is.
///
/// Equal sets compute the same, and only those do: KV entries that were computed under one set are of no use under another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Vec<AdapterUse>")]
pub struct AdapterSet(Arc<[AdapterUse]>);

impl AdapterSet {
    /// The set of these adapters. The scales of one that is given twice add up. One whose scale is 0, or not finite, is left
    /// out, because it changes nothing.
    pub fn new(uses: impl IntoIterator<Item = (AdapterDigest, f32)>) -> Self {
        let mut sums: Vec<(AdapterDigest, f32)> = uses.into_iter().collect();
        sums.sort_by_key(|(adapter, _)| *adapter);
        sums.dedup_by(|(later, scale), (adapter, sum)| {
            let same = later == adapter;
            *sum += if same { *scale } else { 0.0 };
            same
        });
        let counts = sums.into_iter().filter(|(_, scale)| scale.is_finite() && *scale != 0.0);
        counts.map(|(adapter, scale)| AdapterUse { adapter, scale_bits: scale.to_bits() }).collect::<Vec<_>>().into()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of their digests.
    pub fn uses(&self) -> &[AdapterUse] {
        &self.0
    }

    pub fn contains(&self, adapter: AdapterDigest) -> bool {
        self.0.iter().any(|one| one.adapter == adapter)
    }
}

/// Of uses that were a set before.
impl From<Vec<AdapterUse>> for AdapterSet {
    fn from(uses: Vec<AdapterUse>) -> Self {
        let is_set = uses.iter().all(|one| one.scale().is_finite() && one.scale() != 0.0)
            && uses.is_sorted_by(|one, next| one.adapter < next.adapter);
        match is_set {
            true if uses.is_empty() => Self::default(),
            true => Self(uses.into()),
            false => Self::new(uses.iter().map(|one| (one.adapter, one.scale()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: AdapterDigest = AdapterDigest::new([1; 32]);
    const B: AdapterDigest = AdapterDigest::new([2; 32]);

    #[test]
    fn a_set_does_not_depend_on_the_order_in_which_adapters_are_named() {
        assert_eq!(AdapterSet::new([(A, 1.0), (B, 0.5)]), AdapterSet::new([(B, 0.5), (A, 1.0)]));
        assert_ne!(AdapterSet::new([(A, 1.0)]), AdapterSet::new([(A, 1.5)]));
        assert_ne!(AdapterSet::new([(A, 1.0)]), AdapterSet::new([(B, 1.0)]));
        let set = AdapterSet::new([(B, 0.5)]);
        assert!(set.contains(B) && !set.contains(A) && set.uses()[0].scale() == 0.5);
    }

    #[test]
    fn adapters_that_change_nothing_are_left_out_and_equal_ones_add_up() {
        for scale in [0.0, -0.0, f32::NAN, f32::INFINITY] {
            assert!(AdapterSet::new([(A, scale)]).is_empty(), "{scale}");
        }
        assert_eq!(AdapterSet::new([(A, 0.5), (B, 1.0), (A, 0.25)]), AdapterSet::new([(A, 0.75), (B, 1.0)]));
        assert!(AdapterSet::new([(A, 0.5), (A, -0.5)]).is_empty());
        assert_eq!(AdapterSet::new([]), AdapterSet::default());
    }

    #[test]
    fn a_set_is_read_as_it_was_written_and_nothing_else_is_a_set() {
        for set in [AdapterSet::default(), AdapterSet::new([(A, 0.1), (B, -3.5)])] {
            let text = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<AdapterSet>(&text).unwrap(), set);
        }
        let of = |adapter, scale: f32| AdapterUse { adapter, scale_bits: scale.to_bits() };
        let made = AdapterSet::from(vec![of(B, 1.0), of(A, f32::NAN), of(B, 1.0)]);
        assert_eq!(made, AdapterSet::new([(B, 2.0)]));
    }
}
