//! Chooses how many layers of a model lie on devices that have memory of their own, and how much KV they may hold there.
//!
//! All sizes are bytes unless their name says something else.

use serde::{Deserialize, Serialize};

/// What a model may use of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// Their numbers in the list of what is free on each.
    pub devices: Vec<usize>,
    /// Layers of the model, with the one that makes logits of the last one's results.
    pub layers: u32,
    /// Layers that were asked for; `None`: as many as fit.
    pub wished: Option<u32>,
    /// More did not work.
    pub most: Option<u32>,
    /// The KV entries of layers that are there lie there, too.
    pub holds_kv: bool,
}

/// What of a model lies on devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloaded {
    /// 0: nothing. The first is the one that makes logits, the others are counted from the last one on.
    pub layers: u32,
    /// Of the layers there.
    pub weights: u64,
    /// Of batches.
    pub batches: u64,
    /// Of the KV entries of all workers.
    pub kv: u64,
    /// Layers whose KV entries lie there, of all that have some.
    pub kv_layers: (u32, u32),
}

impl Offloaded {
    /// Divides the KV entries of one token: what lies in the host's memory, and what on devices.
    pub(crate) fn divide(&self, token: u64) -> (u64, u64) {
        let (there, all) = self.kv_layers;
        let there = token.saturating_mul(u64::from(there)).div_ceil(u64::from(all.max(1)));
        (token - there.min(token), there.min(token))
    }

    /// Altogether.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.batches).saturating_add(self.kv)
    }
}

/// What is free on each device, less what models were given.
#[derive(Debug, Clone)]
pub(crate) struct Free(Vec<u64>);

impl Free {
    pub(crate) fn new(free: impl Iterator<Item = u64>) -> Self {
        Self(free.collect())
    }

    pub(crate) fn of(&self, devices: &[usize]) -> u64 {
        devices.iter().filter_map(|&device| self.0.get(device)).fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Takes of each as much as it has of all.
    pub(crate) fn take(&mut self, devices: &[usize], bytes: u64) {
        let all = self.of(devices).max(1);
        let part = |free: u64| (u128::from(bytes) * u128::from(free)).div_ceil(u128::from(all));
        for &device in devices {
            if let Some(free) = self.0.get_mut(device) {
                *free = free.saturating_sub(u64::try_from(part(*free)).unwrap_or(u64::MAX));
            }
        }
    }
}

/// What a model takes, wherever its layers are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) weights: u64,
    /// Of the batches of all workers. On devices, if any layer is there.
    pub(crate) batches: u64,
    /// KV entries that there must be room for at least, in all layers. 0: it has none.
    pub(crate) least_kv: u64,
}

/// Chooses the layers of a model that go to devices on which so much is free.
pub(crate) fn place(needs: &DeviceNeeds, model: Taken, free: u64) -> Offloaded {
    let weights = model.weights.div_ceil(u64::from(needs.layers.max(1)));
    // The layer that makes logits has none.
    let with_kv = needs.layers.saturating_sub(1);
    let kv = if needs.holds_kv { model.least_kv.div_ceil(u64::from(with_kv.max(1))) } else { 0 };
    let room = free.saturating_sub(model.batches);
    let fit = u32::try_from(room / weights.saturating_add(kv).max(1)).unwrap_or(u32::MAX);
    let layers = needs.wished.unwrap_or(u32::MAX).min(needs.most.unwrap_or(u32::MAX)).min(needs.layers).min(fit);
    Offloaded {
        layers,
        weights: weights.saturating_mul(u64::from(layers)).min(model.weights),
        batches: if layers == 0 { 0 } else { model.batches },
        kv: 0,
        kv_layers: (if kv == 0 { 0 } else { layers.saturating_sub(1) }, with_kv),
    }
}
