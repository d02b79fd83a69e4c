//! The nodes of prefix trees and their storage.
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use crate::ids::{RequestId, Token};
use crate::segments::{Namespace, SegmentId};

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
    /// Of the running ones, those that are paused: they give their KV entries to whoever needs the capacity.
    pub(super) paused: u32,
    pub(super) preempted: u32,
    pub(super) sessions: u32,
}

impl Holders {
    pub(super) fn total(&self) -> u32 {
        self.running + self.preempted + self.sessions
    }

    /// Whether only paused sequences keep its KV entries.
    pub(super) fn is_reclaimable(&self) -> bool {
        self.running > 0 && self.running == self.paused
    }
}

#[derive(Debug)]
pub(super) struct PrefixNode {
    /// `None` in a root.
    pub(super) parent: Option<NodeId>,
    /// In a root only.
    pub(super) namespace: Option<Namespace>,
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
    pub(super) fn root(namespace: Namespace) -> Self {
        Self { kv: KvState::Live, namespace: Some(namespace), ..Self::bare() }
    }

    fn bare() -> Self {
        Self {
            parent: None,
            namespace: None,
            run: Vec::new(),
            start: 0,
            children: BTreeMap::new(),
            holders: Holders::default(),
            kv: KvState::Absent,
            segment: None,
            last_use: 0,
        }
    }

    pub(super) fn child(parent: NodeId, start: u32, run: Vec<Token>) -> Self {
        Self { parent: Some(parent), run, start, ..Self::bare() }
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
        self.holders.total() == 0 && self.segment.is_none() && self.children.is_empty()
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

    /// The path from `leaf` up to the root, with the root.
    pub(super) fn lineage(&self, leaf: NodeId) -> Vec<NodeId> {
        std::iter::successors(Some(leaf), |&id| self[id].parent).collect()
    }

    /// Removes `id` if it is unused, then its parent if that is unused now, and so on upwards. Returns the namespace whose
    /// root was removed, if it came to that.
    pub(super) fn prune(&mut self, id: NodeId) -> Option<Namespace> {
        let mut next = id;
        loop {
            let node = self.slots[next.0].take_if(|node| node.is_unused())?;
            self.vacant.push(next.0);
            let Some(parent) = node.parent else { return node.namespace };
            if let Some(first) = node.run.first() {
                self[parent].children.remove(first);
            }
            next = parent;
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
