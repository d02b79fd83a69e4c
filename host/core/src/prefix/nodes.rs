//! The nodes of prefix trees and their storage.
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use crate::ids::{RequestId, Token};
use crate::segments::SegmentId;

/// Names a node of one tree. Valid while the node has a holder, a segment or a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(usize);

/// Where a node's KV entries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvState {
    /// Not in the live cache.
    Absent,
    /// This request computes them.
    Pending(RequestId),
    /// In the live cache, in every sequence that has computed or copied them.
    Live,
}

/// Counts the holders of a node: those whose tokens begin with the whole path to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holders {
    pub(super) running: u32,
    pub(super) preempted: u32,
    pub(super) sessions: u32,
}

impl Holders {
    pub(super) fn total(&self) -> u32 {
        self.running + self.preempted + self.sessions
    }
}

#[derive(Debug)]
pub(super) struct PrefixNode {
    /// `None` in a root.
    pub(super) parent: Option<NodeId>,
    /// The node's tokens. Empty only in a root.
    pub(super) run: Vec<Token>,
    /// Position of the run's first token.
    pub(super) start: u32,
    /// By the first token of the child's run.
    pub(super) children: BTreeMap<Token, NodeId>,
    pub(super) holders: Holders,
    pub(super) kv: KvState,
    /// The segment that holds a copy of the node's KV entries.
    pub(super) segment: Option<SegmentId>,
    /// Value of the tree's clock.
    pub(super) last_use: u64,
}

impl PrefixNode {
    pub(super) fn root() -> Self {
        Self {
            parent: None,
            run: Vec::new(),
            start: 0,
            children: BTreeMap::new(),
            holders: Holders::default(),
            kv: KvState::Live,
            segment: None,
            last_use: 0,
        }
    }

    pub(super) fn child(parent: NodeId, start: u32, run: Vec<Token>) -> Self {
        Self { parent: Some(parent), run, start, kv: KvState::Absent, ..Self::root() }
    }

    /// Length of the run, in tokens.
    pub(super) fn len(&self) -> u32 {
        self.run.len() as u32
    }

    /// The position after the run.
    pub(super) fn end(&self) -> u32 {
        self.start + self.len()
    }

    /// Whether the node may be removed.
    pub(super) fn is_unused(&self) -> bool {
        self.parent.is_some() && self.holders.total() == 0 && self.segment.is_none() && self.children.is_empty()
    }
}

/// All nodes, by id. Reuses the slots of removed nodes.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    slots: Vec<Option<PrefixNode>>,
    vacant: Vec<usize>,
}

impl Nodes {
    pub(super) fn insert(&mut self, node: PrefixNode) -> NodeId {
        if let Some(index) = self.vacant.pop() {
            self.slots[index] = Some(node);
            return NodeId(index);
        }
        self.slots.push(Some(node));
        NodeId(self.slots.len() - 1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &PrefixNode)> {
        self.slots.iter().enumerate().filter_map(|(index, node)| Some((NodeId(index), node.as_ref()?)))
    }

    /// The path from `leaf` up to the root, without the root.
    pub(super) fn path(&self, leaf: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let mut next = Some(leaf);
        std::iter::from_fn(move || {
            let id = next?;
            next = self[id].parent;
            next.is_some().then_some(id)
        })
    }

    /// Removes `id` if it is unused, then its parent if that is unused now, and so on upwards.
    pub(super) fn prune(&mut self, id: NodeId) {
        let mut next = Some(id);
        while let Some(id) = next {
            let Some(node) = self.slots[id.0].take_if(|node| node.is_unused()) else { return };
            self.vacant.push(id.0);
            next = node.parent;
            if let (Some(parent), Some(first)) = (node.parent, node.run.first()) {
                self[parent].children.remove(first);
            }
        }
    }
}

impl Index<NodeId> for Nodes {
    type Output = PrefixNode;

    fn index(&self, id: NodeId) -> &PrefixNode {
        self.slots[id.0].as_ref().unwrap_or_else(|| unreachable!("node {} was removed", id.0))
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, id: NodeId) -> &mut PrefixNode {
        self.slots[id.0].as_mut().unwrap_or_else(|| unreachable!("node {} was removed", id.0))
    }
}
