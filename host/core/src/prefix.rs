//! The prefix tree: runs of tokens whose KV entries are in the live cache, on their way there, or kept in segments.
//!
//! A radix tree over token runs with a root for each namespace (as RadixAttention, Zheng et al. 2024), pure: it knows who
//! holds which run and where its KV entries are, and moves no byte. A run that a running sequence holds is never taken away.
use std::collections::{BTreeMap, HashMap};

use crate::ids::{RequestId, Token};
use crate::segments::{Namespace, SegmentId};

/// A node of one tree. Valid while somebody holds the node or it has a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(usize);

/// Where a node's KV entries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvState {
    /// Not in the live cache.
    Absent,
    /// This request computes them.
    Pending(RequestId),
    /// In the live cache, in every sequence that has come past the node.
    Live,
}

#[derive(Debug)]
struct Node {
    /// `None`: a root.
    parent: Option<NodeId>,
    /// Never empty but for a root.
    run: Vec<Token>,
    /// Position of the run's first token.
    start: u32,
    children: BTreeMap<Token, NodeId>,
    /// Sequences whose tokens begin with everything up to here: running ones, and parked ones.
    holders: u32,
    parked: u32,
    kv: KvState,
    segment: Option<SegmentId>,
    last_use: u64,
}

impl Node {
    fn running(&self) -> u32 {
        self.holders - self.parked
    }
}

/// One node's facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub node: NodeId,
    /// Positions `start..end` of the run.
    pub start: u32,
    pub end: u32,
    pub kv: KvState,
    pub segment: Option<SegmentId>,
}

/// Token runs of one worker.
#[derive(Debug, Default)]
pub struct PrefixTree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<usize>,
    roots: HashMap<Namespace, NodeId>,
    clock: u64,
    /// Tokens of nodes that running sequences hold: each counts once, however many hold it.
    held: u32,
    /// Nodes that each segment serves: a split leaves two.
    served: HashMap<SegmentId, u32>,
}

impl PrefixTree {
    /// Tokens that running sequences hold together.
    pub fn held(&self) -> u32 {
        self.held
    }

    fn node(&self, id: NodeId) -> &Node {
        // An id is valid while its node is held or has a segment; see `NodeId`.
        self.nodes[id.0].as_ref().unwrap_or_else(|| unreachable!("node {} was freed", id.0))
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().unwrap_or_else(|| unreachable!("node {} was freed", id.0))
    }

    fn add(&mut self, node: Node) -> NodeId {
        if let Some(index) = self.vacant.pop() {
            self.nodes[index] = Some(node);
            return NodeId(index);
        }
        self.nodes.push(Some(node));
        NodeId(self.nodes.len() - 1)
    }

    fn root(&mut self, namespace: &Namespace) -> NodeId {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let root = self.add(Node {
            parent: None,
            run: Vec::new(),
            start: 0,
            children: BTreeMap::new(),
            holders: 0,
            parked: 0,
            kv: KvState::Live,
            segment: None,
            last_use: 0,
        });
        self.roots.insert(namespace.clone(), root);
        root
    }

    /// How many of the first tokens need no new room in the live cache, and how many need no computing.
    pub fn probe(&self, namespace: &Namespace, tokens: &[Token]) -> Probe {
        let mut probe = Probe { held: 0, cached: 0 };
        let Some(&root) = self.roots.get(namespace) else { return probe };
        let (mut at, mut position, mut computed) = (root, 0, true);
        while let Some(&child) = tokens.get(position).and_then(|token| self.node(at).children.get(token)) {
            let node = self.node(child);
            let common = common(&node.run, &tokens[position..]);
            if node.running() > 0 {
                probe.held += common as u32;
            }
            computed &= node.kv != KvState::Absent || node.segment.is_some();
            if computed {
                probe.cached += common as u32;
            }
            position += common;
            if common < node.run.len() {
                break;
            }
            at = child;
        }
        probe
    }

    /// Makes a running sequence a holder of everything up to the end of `tokens`. What is new begins as absent.
    pub fn enter(&mut self, namespace: &Namespace, tokens: &[Token]) -> NodeId {
        self.clock += 1;
        let now = self.clock;
        let mut at = self.root(namespace);
        let mut position = 0;
        while position < tokens.len() {
            let rest = &tokens[position..];
            let child = match self.node(at).children.get(&rest[0]).copied() {
                Some(child) => {
                    let common = common(&self.node(child).run, rest);
                    if common < self.node(child).run.len() { self.split(child, common) } else { child }
                }
                None => self.grow(at, rest),
            };
            let node = self.node_mut(child);
            let fresh = node.running() == 0;
            (node.holders, node.last_use) = (node.holders + 1, now);
            let len = node.run.len();
            position += len;
            if fresh {
                self.held += len as u32;
            }
            at = child;
        }
        at
    }

    fn grow(&mut self, parent: NodeId, run: &[Token]) -> NodeId {
        let start = self.node(parent).start + self.node(parent).run.len() as u32;
        let child = self.add(Node {
            parent: Some(parent),
            run: run.to_vec(),
            start,
            children: BTreeMap::new(),
            holders: 0,
            parked: 0,
            kv: KvState::Absent,
            segment: None,
            last_use: self.clock,
        });
        self.node_mut(parent).children.insert(run[0], child);
        child
    }

    /// Cuts a node after `len` tokens; `id` stays the lower part, so that whoever holds it holds both.
    fn split(&mut self, id: NodeId, len: usize) -> NodeId {
        let node = self.node_mut(id);
        let lower = node.run.split_off(len);
        let upper = std::mem::replace(&mut node.run, lower);
        let (first, lower_first) = (upper[0], node.run[0]);
        let above = Node {
            parent: node.parent,
            run: upper,
            start: node.start,
            children: BTreeMap::from([(lower_first, id)]),
            holders: node.holders,
            parked: node.parked,
            kv: node.kv,
            segment: node.segment,
            last_use: node.last_use,
        };
        node.start += len as u32;
        let (parent, segment) = (node.parent, node.segment);
        if let Some(served) = segment.and_then(|segment| self.served.get_mut(&segment)) {
            *served += 1;
        }
        let above = self.add(above);
        self.node_mut(id).parent = Some(above);
        if let Some(parent) = parent {
            self.node_mut(parent).children.insert(first, above);
        }
        above
    }

    /// A holder that ran lets go, deepest node first: what nobody runs on any more is no longer in the live cache. The
    /// caller has taken its KV entries away by then.
    pub fn leave(&mut self, leaf: NodeId, who: RequestId) {
        self.clock += 1;
        let now = self.clock;
        let mut next = Some(leaf);
        while let Some(id) = next {
            let node = self.node_mut(id);
            next = node.parent;
            if next.is_none() {
                break;
            }
            (node.holders, node.last_use) = (node.holders - 1, now);
            let len = node.run.len() as u32;
            if node.kv == KvState::Pending(who) {
                node.kv = KvState::Absent;
            }
            if node.running() == 0 {
                node.kv = KvState::Absent;
                self.held -= len;
            }
            self.prune(id);
        }
    }

    /// A running holder is parked: it keeps its runs from being forgotten, but has no KV entries.
    pub fn park(&mut self, leaf: NodeId, who: RequestId) {
        let mut next = Some(leaf);
        while let Some(id) = next {
            let node = self.node_mut(id);
            next = node.parent;
            if next.is_none() {
                break;
            }
            node.parked += 1;
            let len = node.run.len() as u32;
            if node.kv == KvState::Pending(who) {
                node.kv = KvState::Absent;
            }
            if node.running() == 0 {
                node.kv = KvState::Absent;
                self.held -= len;
            }
        }
    }

    /// A parked holder runs again.
    pub fn unpark(&mut self, leaf: NodeId) {
        self.clock += 1;
        let now = self.clock;
        let mut next = Some(leaf);
        while let Some(id) = next {
            let node = self.node_mut(id);
            next = node.parent;
            if next.is_none() {
                break;
            }
            let fresh = node.running() == 0;
            (node.parked, node.last_use) = (node.parked - 1, now);
            let len = node.run.len() as u32;
            if fresh {
                self.held += len;
            }
        }
    }

    /// A parked holder is given up.
    pub fn forget_parked(&mut self, leaf: NodeId) {
        let mut next = Some(leaf);
        while let Some(id) = next {
            let node = self.node_mut(id);
            next = node.parent;
            if next.is_none() {
                break;
            }
            (node.holders, node.parked) = (node.holders - 1, node.parked - 1);
            self.prune(id);
        }
    }

    /// Removes a node that nothing speaks for any more.
    fn prune(&mut self, id: NodeId) {
        let node = self.node(id);
        if node.holders > 0 || node.segment.is_some() || !node.children.is_empty() {
            return;
        }
        let (parent, first) = (node.parent, node.run.first().copied());
        if let (Some(parent), Some(first)) = (parent, first) {
            self.node_mut(parent).children.remove(&first);
            self.nodes[id.0] = None;
            self.vacant.push(id.0);
        }
    }

    fn piece(&self, id: NodeId) -> Piece {
        let node = self.node(id);
        let end = node.start + node.run.len() as u32;
        Piece { node: id, start: node.start, end, kv: node.kv, segment: node.segment }
    }

    /// Tokens on the way to `leaf` that no running sequence holds.
    pub fn unheld(&self, leaf: NodeId) -> u32 {
        let free = |piece: &Piece| self.node(piece.node).running() == 0;
        self.path(leaf).filter(free).map(|piece| piece.end - piece.start).sum()
    }

    /// The nodes from `leaf` up to the root, which is left out.
    pub fn path(&self, leaf: NodeId) -> impl Iterator<Item = Piece> + '_ {
        let mut next = Some(leaf);
        std::iter::from_fn(move || {
            let id = next?;
            next = self.node(id).parent;
            next.is_some().then(|| self.piece(id))
        })
    }

    /// The node on the way to `leaf` that holds `position`.
    pub fn at(&self, leaf: NodeId, position: u32) -> Option<Piece> {
        self.path(leaf).find(|piece| piece.start <= position && position < piece.end)
    }

    /// Whether everybody at `leaf` has come past `node`.
    pub fn is_on_path(&self, leaf: NodeId, node: NodeId) -> bool {
        self.path(leaf).any(|piece| piece.node == node)
    }

    /// All tokens from position 0 to the end of a node.
    pub fn tokens(&self, id: NodeId) -> Vec<Token> {
        let mut ids: Vec<NodeId> = self.path(id).map(|piece| piece.node).collect();
        ids.reverse();
        ids.iter().flat_map(|&id| self.node(id).run.iter().copied()).collect()
    }

    pub fn set_kv(&mut self, id: NodeId, kv: KvState) {
        self.node_mut(id).kv = kv;
    }

    /// Everything that `who` was to compute below `position` is live.
    pub fn mark_computed(&mut self, leaf: NodeId, who: RequestId, position: u32) {
        let done: Vec<NodeId> = self
            .path(leaf)
            .filter(|piece| piece.end <= position && piece.kv == KvState::Pending(who))
            .map(|piece| piece.node)
            .collect();
        done.into_iter().for_each(|id| self.set_kv(id, KvState::Live));
    }

    /// A segment keeps the node's KV entries (and perhaps those of nodes around it).
    pub fn set_segment(&mut self, id: NodeId, segment: SegmentId) {
        debug_assert!(self.node(id).segment.is_none());
        self.node_mut(id).segment = Some(segment);
        *self.served.entry(segment).or_default() += 1;
    }

    /// A segment is gone: nodes that only it spoke for go with it. `true` for the segments that serve nothing any more.
    pub fn drop_segment(&mut self, segment: SegmentId) {
        if self.served.remove(&segment).is_none() {
            return;
        }
        let ids: Vec<NodeId> = self.ids().filter(|&id| self.node(id).segment == Some(segment)).collect();
        for &id in &ids {
            self.node_mut(id).segment = None;
        }
        // Deepest first, so that a parent is without children when its turn comes.
        for &id in ids.iter().rev() {
            self.prune_up(id);
        }
    }

    fn prune_up(&mut self, mut id: NodeId) {
        while self.nodes[id.0].is_some() {
            let parent = self.node(id).parent;
            self.prune(id);
            match parent {
                Some(parent) if self.nodes[id.0].is_none() => id = parent,
                _ => return,
            }
        }
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_some()).map(|(index, _)| NodeId(index))
    }

    /// Segments that nobody holds, least recently used first. A segment that was split stands for the longest of its nodes: the
    /// first token, which all prompts of a model have in common, does not keep warm what one of them went on with.
    pub fn coldest(&self) -> Vec<SegmentId> {
        let mut longest: BTreeMap<SegmentId, &Node> = BTreeMap::new();
        for node in self.ids().map(|id| self.node(id)) {
            let Some(segment) = node.segment else { continue };
            let known = longest.entry(segment).or_insert(node);
            if node.run.len() > known.run.len() {
                *known = node;
            }
        }
        let mut segments: Vec<(u64, std::cmp::Reverse<SegmentId>)> = longest
            .iter()
            .filter(|(_, node)| node.holders == 0)
            .map(|(&segment, node)| (node.last_use, std::cmp::Reverse(segment)))
            .collect();
        segments.sort_unstable();
        segments.into_iter().map(|(_, segment)| segment.0).collect()
    }

    /// Tokens that segments keep.
    pub fn kept_tokens(&self) -> u64 {
        self.ids().filter(|&id| self.node(id).segment.is_some()).map(|id| self.node(id).run.len() as u64).sum()
    }

    /// Whether the tree's books add up; for tests and when idle.
    pub fn check(&self) -> bool {
        let held: usize = self.ids().map(|id| self.node(id)).filter(|n| n.running() > 0).map(|n| n.run.len()).sum();
        let linked = self.ids().all(|id| {
            let node = self.node(id);
            let end = node.start + node.run.len() as u32;
            node.parked <= node.holders
                && (node.running() > 0 || node.parent.is_none() || node.kv == KvState::Absent)
                && node.children.iter().all(|(token, &child)| {
                    let below = self.node(child);
                    below.run.first() == Some(token)
                        && below.parent == Some(id)
                        && below.start == end
                        && (node.parent.is_none() || below.holders <= node.holders)
                        && (below.kv != KvState::Live || node.kv == KvState::Live)
                })
                && (node.parent.is_none() || node.holders > 0 || node.segment.is_some() || !node.children.is_empty())
        });
        linked && held == self.held as usize
    }
}

/// What a run of tokens meets in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Tokens that running sequences hold already.
    pub held: u32,
    /// Tokens from the beginning on that are live, being computed or in segments.
    pub cached: u32,
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
