//! What a scheduler may ask of the book while it answers.
use super::{BookEntry, PoolBook};
use crate::ids::RequestId;
use crate::policy::{PoolBooks, RequestFacts};

impl PoolBook {
    /// A request that lives, or ended since the scheduler last answered.
    fn known(&self, id: RequestId) -> Option<&BookEntry> {
        self.requests.get(&id).or_else(|| self.gone.get(&id))
    }
}

impl PoolBooks for PoolBook {
    fn requests(&self) -> usize {
        self.requests.len() + self.gone.len()
    }

    fn request(&self, id: RequestId) -> Option<RequestFacts<'_>> {
        let BookEntry { arrival, membership, blocks, hints, .. } = self.known(id)?;
        Some(RequestFacts {
            need: arrival.need,
            group: membership.group(),
            turns: membership.turns(),
            prefix_blocks: blocks.hashes(),
            hints,
            attributes: &arrival.attributes,
        })
    }

    fn cached(&self, id: RequestId, cached: &mut Vec<u32>) {
        let Some(request) = self.known(id) else { return };
        cached.extend(self.workers.keys().map(|&worker| self.affinity.estimate_on(worker, &request.blocks)));
    }
}
