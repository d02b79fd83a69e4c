//! The bytes of segments: in RAM, and in the cold tier. The cache that owns the store bounds its RAM.
use std::collections::{HashMap, VecDeque};

use crate::segments::{ColdTier, SegmentId, SegmentInfo, State};

#[derive(Debug)]
struct Stored {
    /// `None` if only the cold tier has the segment.
    state: Option<State>,
    bytes: u64,
    /// Whether the cold tier has the segment.
    cold: bool,
}

/// Segments by id.
#[derive(Default)]
pub(super) struct SegmentStore {
    segments: HashMap<SegmentId, Stored>,
    ram_bytes: u64,
    next: u64,
    cold: Option<Box<dyn ColdTier>>,
    /// Segments that the cold tier dropped, and that nobody has been told of yet.
    lost: VecDeque<SegmentId>,
    pub(super) evicted_from_ram: u64,
    pub(super) evicted_from_cold: u64,
}

impl SegmentStore {
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        self.ram_bytes
    }

    pub(super) fn has_cold(&self) -> bool {
        self.cold.is_some()
    }

    /// Sets the cold tier. `adopted` are its segments that are in the prefix tree.
    pub(super) fn set_cold(&mut self, cold: Box<dyn ColdTier>, adopted: impl Iterator<Item = SegmentId>) {
        for id in adopted {
            self.next = self.next.max(id.0 + 1);
            self.segments.insert(id, Stored { state: None, bytes: 0, cold: true });
        }
        self.cold = Some(cold);
    }

    /// The id of a new segment.
    pub(super) fn next_id(&mut self) -> SegmentId {
        let id = SegmentId(self.next);
        self.next += 1;
        id
    }

    /// Stores a segment in RAM, and a copy in the cold tier. Calls `info` only if there is a cold tier.
    pub(super) fn put(&mut self, id: SegmentId, info: impl FnOnce() -> SegmentInfo, state: Vec<u8>) {
        let state = State::new(state);
        let bytes = state.len() as u64;
        if let Some(cold) = &mut self.cold {
            cold.put(id, &info(), &state);
        }
        self.ram_bytes += bytes;
        self.segments.insert(id, Stored { state: Some(state), bytes, cold: self.cold.is_some() });
    }

    /// A segment's bytes, as they were stored; `None` if neither tier has them any more. They are in RAM afterwards.
    pub(super) fn get(&mut self, id: SegmentId) -> Option<State> {
        let stored = self.segments.get_mut(&id)?;
        if stored.state.is_none() {
            let Some(state) = self.cold.as_mut().and_then(|cold| cold.get(id)) else {
                self.evicted_from_cold += 1;
                return None;
            };
            // Keep it in RAM: a segment that was just used is likely to be used again soon.
            stored.bytes = state.len() as u64;
            self.ram_bytes += stored.bytes;
            stored.state = Some(state);
        }
        stored.state.clone()
    }

    /// Bytes of a segment in RAM; 0 if it is not there.
    pub(super) fn ram_bytes_of(&self, id: SegmentId) -> u64 {
        self.segments.get(&id).filter(|stored| stored.state.is_some()).map_or(0, |stored| stored.bytes)
    }

    /// Whether the cold tier has the segment.
    pub(super) fn is_cold(&self, id: SegmentId) -> bool {
        self.segments.get(&id).is_some_and(|stored| stored.cold)
    }

    /// Evicts a segment from RAM. Returns false if the cold tier does not have it either: the segment is gone.
    pub(super) fn evict(&mut self, id: SegmentId) -> bool {
        self.evicted_from_ram += 1;
        match self.segments.get_mut(&id) {
            Some(stored) if stored.cold => {
                self.ram_bytes -= stored.state.take().map_or(0, |_| stored.bytes);
                true
            }
            _ => {
                self.remove(id);
                false
            }
        }
    }

    /// Removes a segment from both tiers.
    pub(super) fn remove(&mut self, id: SegmentId) {
        let Some(stored) = self.segments.remove(&id) else { return };
        self.ram_bytes -= stored.state.map_or(0, |_| stored.bytes);
        if let Some(cold) = self.cold.as_mut().filter(|_| stored.cold) {
            cold.remove(id);
        }
    }

    /// Records at most `max` segments that the cold tier dropped, and returns them.
    pub(super) fn take_lost(&mut self, max: usize) -> Vec<SegmentId> {
        if let Some(cold) = &mut self.cold {
            let mut lost = Vec::new();
            cold.lost(&mut lost);
            self.evicted_from_cold += lost.len() as u64;
            self.lost.extend(lost);
        }
        let lost: Vec<SegmentId> = self.lost.drain(..max.min(self.lost.len())).collect();
        for id in &lost {
            if let Some(stored) = self.segments.get_mut(id) {
                stored.cold = false;
            }
        }
        lost
    }

    /// Whether `take_lost` has more to return.
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Whether `ram_bytes` is the sum over the segments in RAM.
    pub(super) fn check(&self) -> bool {
        let in_ram = self.segments.values().filter(|stored| stored.state.is_some());
        in_ram.map(|stored| stored.bytes).sum::<u64>() == self.ram_bytes
    }
}
