//! Which nodes each segment covers, and which segments may be evicted.
use std::cmp::Reverse;
use std::collections::HashMap;

use super::nodes::{Node, NodeId, Nodes};
use crate::segments::SegmentId;

/// What keeps a segment: the strongest claim on any of the nodes that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// Nobody's: evicted first.
    None,
    /// A session's: evicted when the session is closed, or to a tier that still has it.
    Session,
    /// A sequence's that will need it: never evicted.
    Sequence,
}

/// Nodes by segment. A split leaves a segment with two nodes where it had one.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    nodes: HashMap<SegmentId, Vec<NodeId>>,
}

impl Coverage {
    pub(super) fn add(&mut self, segment: SegmentId, node: NodeId) {
        self.nodes.entry(segment).or_default().push(node);
    }

    /// The nodes that a segment covered until now.
    pub(super) fn remove(&mut self, segment: SegmentId) -> Vec<NodeId> {
        self.nodes.remove(&segment).unwrap_or_default()
    }

    pub(super) fn of(&self, segment: SegmentId) -> &[NodeId] {
        self.nodes.get(&segment).map_or(&[], Vec::as_slice)
    }

    /// Every segment with its claim: by claim, then least recently used first.
    pub(super) fn eviction_order(&self, nodes: &Nodes) -> Vec<(SegmentId, Claim)> {
        let mut order: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|(&segment, covered)| {
                let longest = longest(nodes, covered)?;
                // Of one path the deepest goes first: what lies below a gap cannot be used.
                Some((claim(nodes, covered, longest), longest.last_use, Reverse((longest.start, segment))))
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(claim, _, Reverse((_, segment)))| (segment, claim)).collect()
    }
}

/// The longest node stands for the segment where use is concerned: the first token, which all prompts of a model share,
/// must not keep warm what one of them went on with.
fn longest<'a>(nodes: &'a Nodes, covered: &[NodeId]) -> Option<&'a Node> {
    covered.iter().map(|&id| &nodes[id]).max_by_key(|node| (node.len(), Reverse(node.start)))
}

fn claim(nodes: &Nodes, covered: &[NodeId], longest: &Node) -> Claim {
    let any = |held: fn(&Node) -> bool| covered.iter().any(|&id| held(&nodes[id]));
    // A preempted sequence needs all that it had. One that runs has its KV entries in the live cache.
    if longest.holders.running > 0 || any(|node| node.holders.preempted > 0) {
        Claim::Sequence
    } else if any(|node| node.holders.sessions > 0) {
        Claim::Session
    } else {
        Claim::None
    }
}
