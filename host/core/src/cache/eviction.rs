//! Which segments leave RAM, and in which order: indexed, so that a choice does not depend on how many there are.
//!
//! Namespaces have equal shares. While RAM is full, the namespace that holds the most gives, so one that fills the cache
//! costs the others nothing that is within their shares. What has not been used for long goes first, whoever holds it.
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::prefix::{HeldBy, Rank};
use crate::segments::{Namespace, SegmentId};

/// What has to happen for RAM to be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Victim {
    Segment(SegmentId),
    /// The least recently used session of this namespace, among those that pin anything in RAM.
    SessionOf(Namespace),
}

/// A segment in RAM.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) namespace: Namespace,
    pub(super) bytes: u64,
    pub(super) rank: Rank,
    /// The cold tier has it, too.
    pub(super) cold: bool,
}

impl Entry {
    fn key(&self, segment: SegmentId) -> (Rank, Reverse<SegmentId>) {
        (self.rank, Reverse(segment))
    }

    fn pinned_bytes(&self) -> u64 {
        if self.rank.held_by == HeldBy::Session { self.bytes } else { 0 }
    }

    /// Whether it may be evicted as it is held now.
    fn is_free(&self) -> bool {
        match self.rank.held_by {
            HeldBy::Nobody => true,
            HeldBy::Session => self.cold,
            HeldBy::Sequence => false,
        }
    }
}

/// What a namespace holds in RAM, without what sequences need.
#[derive(Debug, Default)]
struct Holdings {
    bytes: u64,
    /// Of these, what sessions pin.
    pinned: u64,
    /// What may be evicted.
    order: BTreeSet<(Rank, Reverse<SegmentId>)>,
}

/// The segments in RAM.
#[derive(Debug, Default)]
pub(super) struct EvictionIndex {
    entries: HashMap<SegmentId, Entry>,
    holdings: BTreeMap<Namespace, Holdings>,
    /// Namespaces that hold anything, by bytes.
    by_bytes: BTreeSet<(u64, Namespace)>,
    /// Those of which anything may be evicted, by bytes.
    free_by_bytes: BTreeSet<(u64, Namespace)>,
    /// Segments that nobody holds, of all namespaces, by last use.
    unheld: BTreeSet<(Rank, Reverse<SegmentId>)>,
    /// How often a segment was indexed anew.
    #[cfg(test)]
    pub(super) updates: u64,
}

impl EvictionIndex {
    /// Indexes a segment by what is true of it now.
    pub(super) fn set(&mut self, segment: SegmentId, entry: Entry) {
        #[cfg(test)]
        {
            self.updates += 1;
        }
        self.remove(segment);
        self.change(&entry, segment, |holdings, key| {
            holdings.bytes += entry.bytes;
            holdings.pinned += entry.pinned_bytes();
            if entry.is_free() {
                holdings.order.insert(key);
            }
        });
        if entry.rank.held_by == HeldBy::Nobody {
            self.unheld.insert(entry.key(segment));
        }
        self.entries.insert(segment, entry);
    }

    /// A segment is not in RAM any more.
    pub(super) fn remove(&mut self, segment: SegmentId) {
        let Some(entry) = self.entries.remove(&segment) else { return };
        self.unheld.remove(&entry.key(segment));
        self.change(&entry, segment, |holdings, key| {
            holdings.bytes -= entry.bytes;
            holdings.pinned -= entry.pinned_bytes();
            holdings.order.remove(&key);
        });
    }

    /// Changes what a namespace holds, and the orders of namespaces with it.
    fn change(
        &mut self,
        entry: &Entry,
        segment: SegmentId,
        change: impl FnOnce(&mut Holdings, (Rank, Reverse<SegmentId>)),
    ) {
        if entry.rank.held_by == HeldBy::Sequence {
            return;
        }
        let namespace = &entry.namespace;
        let holdings = self.holdings.entry(namespace.clone()).or_default();
        let before = (holdings.bytes, namespace.clone());
        self.by_bytes.remove(&before);
        self.free_by_bytes.remove(&before);
        change(holdings, entry.key(segment));
        let after = (holdings.bytes, namespace.clone());
        if holdings.bytes == 0 && holdings.order.is_empty() {
            self.holdings.remove(namespace);
            return;
        }
        if !holdings.order.is_empty() {
            self.free_by_bytes.insert(after.clone());
        }
        self.by_bytes.insert(after);
    }

    pub(super) fn namespace_of(&self, segment: SegmentId) -> Option<&Namespace> {
        self.entries.get(&segment).map(|entry| &entry.namespace)
    }

    /// Whether a session pins the segment, and no sequence needs it.
    pub(super) fn is_pinned(&self, segment: SegmentId) -> bool {
        self.entries.get(&segment).is_some_and(|entry| entry.rank.held_by == HeldBy::Session)
    }

    /// What goes next. First what nobody holds and was last used before `stale`, then what the namespace with the most
    /// bytes holds: what may be evicted and, if that is nothing and it pins more than its share, one of its sessions.
    pub(super) fn victim(&self, capacity: u64, stale: u64) -> Option<Victim> {
        if let Some(&(_, Reverse(segment))) = self.unheld.first().filter(|(rank, _)| rank.last_use < stale) {
            return Some(Victim::Segment(segment));
        }
        let first_of = |namespace: &Namespace| {
            let &(_, Reverse(segment)) = self.holdings.get(namespace)?.order.first()?;
            Some(Victim::Segment(segment))
        };
        let (_, largest) = self.by_bytes.last()?;
        let share = capacity / self.by_bytes.len() as u64;
        let over = self.holdings.get(largest).is_some_and(|holdings| holdings.pinned > share);
        let session = || over.then(|| Victim::SessionOf(largest.clone()));
        // If the largest pins no more than its share, no other does.
        let other = || first_of(&self.free_by_bytes.last()?.1);
        first_of(largest).or_else(session).or_else(other)
    }

    /// Whether the sums are right.
    pub(super) fn check(&self) -> bool {
        let of = |namespace: &Namespace| {
            let of = self.entries.values().filter(move |entry| entry.namespace == *namespace);
            of.filter(|entry| entry.rank.held_by != HeldBy::Sequence).map(|entry| entry.bytes).sum::<u64>()
        };
        self.holdings.iter().all(|(namespace, holdings)| holdings.bytes == of(namespace))
            && self.by_bytes.len() == self.holdings.len()
    }

    #[cfg(test)]
    pub(super) fn segments(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.entries.keys().copied()
    }
}
