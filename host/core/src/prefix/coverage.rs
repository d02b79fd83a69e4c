//! Maps each segment to the nodes that it covers, and tells who holds it.
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::nodes::{NodeId, Nodes, PrefixNode};
use crate::segments::SegmentId;

/// The strongest holder of any node that a segment covers. The order is the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBy {
    /// Evicted first.
    Nobody,
    /// A session pins the segment. It leaves RAM only if the cold tier also has it, or once the session is closed.
    Session,
    /// A preempted or running sequence needs the segment. It is never evicted.
    Sequence,
}

/// When a segment may be evicted, and before which others of its namespace: the smallest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub held_by: HeldBy,
    /// Value of the tree's clock.
    pub last_use: u64,
    /// On one path the deepest segment goes first, because segments below a gap cannot be used.
    pub start: Reverse<u32>,
}

/// Nodes by segment. A segment begins with one node; each split of a covered node adds one.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    nodes: HashMap<SegmentId, Vec<NodeId>>,
    /// Segments whose rank may have changed since it was last asked for.
    changed: HashSet<SegmentId>,
}

impl Coverage {
    pub(super) fn add(&mut self, segment: SegmentId, node: NodeId) {
        self.nodes.entry(segment).or_default().push(node);
        self.changed.insert(segment);
    }

    /// Removes a segment and returns the nodes that it covered.
    pub(super) fn remove(&mut self, segment: SegmentId) -> Vec<NodeId> {
        self.changed.remove(&segment);
        self.nodes.remove(&segment).unwrap_or_default()
    }

    pub(super) fn of(&self, segment: SegmentId) -> &[NodeId] {
        self.nodes.get(&segment).map_or(&[], Vec::as_slice)
    }

    /// The holders or the last use of a node have changed.
    pub(super) fn touch(&mut self, node: &PrefixNode) {
        self.changed.extend(node.segment);
    }

    pub(super) fn take_changed(&mut self) -> HashSet<SegmentId> {
        std::mem::take(&mut self.changed)
    }

    /// `None` if there is no such segment.
    pub(super) fn rank(&self, nodes: &Nodes, segment: SegmentId) -> Option<Rank> {
        let covered = self.nodes.get(&segment)?;
        let longest = longest(nodes, covered)?;
        let (last_use, start) = (longest.last_use, Reverse(longest.start));
        Some(Rank { held_by: held_by(nodes, covered, longest), last_use, start })
    }
}

/// The node whose last use counts as the segment's. All prompts of a model share their first token; if any node
/// counted, every new prompt would refresh a segment of which it uses that one token.
fn longest<'a>(nodes: &'a Nodes, covered: &[NodeId]) -> Option<&'a PrefixNode> {
    covered.iter().map(|&id| &nodes[id]).max_by_key(|node| (node.len(), Reverse(node.start)))
}

fn held_by(nodes: &Nodes, covered: &[NodeId], longest: &PrefixNode) -> HeldBy {
    let any = |held: fn(&PrefixNode) -> bool| covered.iter().any(|&id| held(&nodes[id]));
    // A preempted sequence has to restore every segment on its path, so any node counts. A running sequence has its KV
    // entries in the live cache: for it, only the longest node counts.
    if longest.holders.running > 0 || any(|node| node.holders.preempted > 0) {
        HeldBy::Sequence
    } else if any(|node| node.holders.sessions > 0) {
        HeldBy::Session
    } else {
        HeldBy::Nobody
    }
}
