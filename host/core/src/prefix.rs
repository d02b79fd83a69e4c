//! The prefix tree: runs of tokens whose KV entries are in the live cache, on their way there, or saved in segments.
//!
//! A radix tree over token runs with a root for each namespace (as RadixAttention, Zheng et al. 2024), pure: it knows who
//! holds which run and where its KV entries are, and moves no byte. A run that a running sequence holds stays in the tree.
mod coverage;
mod nodes;

use std::collections::{BTreeMap, HashMap};

use crate::ids::{RequestId, Token};
use crate::segments::{Namespace, SegmentId};

pub use coverage::Claim;
use coverage::Coverage;
use nodes::{Holders, Node, Nodes};
pub use nodes::{KvState, NodeId};

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

/// What a run of tokens meets in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Tokens that running sequences hold already.
    pub held: u32,
    /// Tokens from the beginning on that are live, being computed or in segments.
    pub cached: u32,
}

/// Token runs of one worker.
#[derive(Debug, Default)]
pub struct PrefixTree {
    nodes: Nodes,
    roots: HashMap<Namespace, NodeId>,
    /// Counts uses, to tell which is the latest.
    clock: u64,
    /// Tokens of nodes that running sequences hold: each counts once, however many hold it.
    held: u32,
    coverage: Coverage,
}

impl PrefixTree {
    /// Tokens that running sequences hold together.
    pub fn held(&self) -> u32 {
        self.held
    }

    fn root(&mut self, namespace: &Namespace) -> NodeId {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let root = self.nodes.insert(Node::root());
        self.roots.insert(namespace.clone(), root);
        root
    }

    /// How many of the first tokens need no further space in the live cache, and how many need no computing.
    pub fn probe(&self, namespace: &Namespace, tokens: &[Token]) -> Probe {
        let mut probe = Probe { held: 0, cached: 0 };
        let Some(&root) = self.roots.get(namespace) else { return probe };
        let (mut at, mut position, mut computed) = (root, 0, true);
        while let Some(&child) = tokens.get(position).and_then(|token| self.nodes[at].children.get(token)) {
            let node = &self.nodes[child];
            let common = common(&node.run, &tokens[position..]);
            if node.holders.running > 0 {
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
        let mut at = self.root(namespace);
        let mut position = 0;
        while position < tokens.len() {
            let rest = &tokens[position..];
            let child = match self.nodes[at].children.get(&rest[0]).copied() {
                Some(child) => {
                    let common = common(&self.nodes[child].run, rest);
                    if common < self.nodes[child].run.len() { self.split(child, common) } else { child }
                }
                None => self.grow(at, rest),
            };
            self.run_on(child);
            position += self.nodes[child].run.len();
            at = child;
        }
        at
    }

    fn grow(&mut self, parent: NodeId, run: &[Token]) -> NodeId {
        let start = self.nodes[parent].end();
        let child = self.nodes.insert(Node::child(parent, start, run.to_vec()));
        self.nodes[parent].children.insert(run[0], child);
        child
    }

    /// Cuts a node after `len` tokens; `id` stays the lower part, so that whoever holds it holds both.
    fn split(&mut self, id: NodeId, len: usize) -> NodeId {
        let node = &mut self.nodes[id];
        let lower = node.run.split_off(len);
        let upper = std::mem::replace(&mut node.run, lower);
        let (first, lower_first) = (upper[0], node.run[0]);
        let above = Node {
            parent: node.parent,
            run: upper,
            start: node.start,
            children: BTreeMap::from([(lower_first, id)]),
            holders: node.holders,
            kv: node.kv,
            segment: node.segment,
            last_use: node.last_use,
        };
        node.start += len as u32;
        let (parent, segment) = (above.parent, above.segment);
        let above = self.nodes.insert(above);
        if let Some(segment) = segment {
            self.coverage.add(segment, above);
        }
        self.nodes[id].parent = Some(above);
        if let Some(parent) = parent {
            self.nodes[parent].children.insert(first, above);
        }
        above
    }

    /// A running sequence becomes a holder of the node.
    fn run_on(&mut self, id: NodeId) {
        let node = &mut self.nodes[id];
        if node.holders.running == 0 {
            self.held += node.len();
        }
        (node.holders.running, node.last_use) = (node.holders.running + 1, self.clock);
    }

    /// A running sequence is no longer a holder of the nodes up to `leaf`; `then` says what it becomes. What nobody runs
    /// on any more has left the live cache: the caller has taken the KV entries away by then.
    fn stop(&mut self, leaf: NodeId, who: RequestId, then: fn(&mut Holders)) {
        let path: Vec<NodeId> = self.nodes.path(leaf).collect();
        for &id in &path {
            let node = &mut self.nodes[id];
            node.holders.running -= 1;
            then(&mut node.holders);
            if node.holders.running == 0 {
                self.held -= node.len();
                node.kv = KvState::Absent;
            } else if node.kv == KvState::Pending(who) {
                node.kv = KvState::Absent;
            }
        }
    }

    /// A holder that does not run is none any more.
    fn let_go(&mut self, leaf: NodeId, of: fn(&mut Holders)) {
        let path: Vec<NodeId> = self.nodes.path(leaf).collect();
        for &id in &path {
            of(&mut self.nodes[id].holders);
        }
        self.nodes.prune(leaf);
    }

    /// A running sequence leaves for good.
    pub fn leave(&mut self, leaf: NodeId, who: RequestId) {
        self.clock += 1;
        let (now, path) = (self.clock, self.nodes.path(leaf).collect::<Vec<_>>());
        path.into_iter().for_each(|id| self.nodes[id].last_use = now);
        self.stop(leaf, who, |_| {});
        self.nodes.prune(leaf);
    }

    /// A running sequence is preempted: it will need its runs again, but has no KV entries.
    pub fn preempt(&mut self, leaf: NodeId, who: RequestId) {
        self.stop(leaf, who, |holders| holders.preempted += 1);
    }

    /// A preempted sequence runs again.
    pub fn resume(&mut self, leaf: NodeId) {
        self.clock += 1;
        let path: Vec<NodeId> = self.nodes.path(leaf).collect();
        for id in path {
            self.nodes[id].holders.preempted -= 1;
            self.run_on(id);
        }
    }

    /// A preempted sequence ends without having run again.
    pub fn abandon(&mut self, leaf: NodeId) {
        self.let_go(leaf, |holders| holders.preempted -= 1);
    }

    /// A running sequence ends and leaves its runs to a session.
    pub fn pin(&mut self, leaf: NodeId, who: RequestId) {
        self.stop(leaf, who, |holders| holders.sessions += 1);
    }

    /// A session lets go.
    pub fn unpin(&mut self, leaf: NodeId) {
        self.let_go(leaf, |holders| holders.sessions -= 1);
    }

    fn piece(&self, id: NodeId) -> Piece {
        let node = &self.nodes[id];
        Piece { node: id, start: node.start, end: node.end(), kv: node.kv, segment: node.segment }
    }

    /// Tokens on the way to `leaf` that no running sequence holds.
    pub fn unheld(&self, leaf: NodeId) -> u32 {
        let path = self.nodes.path(leaf).map(|id| &self.nodes[id]);
        path.filter(|node| node.holders.running == 0).map(Node::len).sum()
    }

    /// The nodes from `leaf` up to the root, which is left out.
    pub fn path(&self, leaf: NodeId) -> impl Iterator<Item = Piece> + '_ {
        self.nodes.path(leaf).map(|id| self.piece(id))
    }

    /// The node on the way to `leaf` that holds `position`.
    pub fn at(&self, leaf: NodeId, position: u32) -> Option<Piece> {
        self.path(leaf).find(|piece| piece.start <= position && position < piece.end)
    }

    /// Whether everybody at `leaf` has come past `node`.
    pub fn is_on_path(&self, leaf: NodeId, node: NodeId) -> bool {
        self.nodes.path(leaf).any(|id| id == node)
    }

    /// All tokens from position 0 to the end of a node.
    pub fn tokens(&self, id: NodeId) -> Vec<Token> {
        let mut path: Vec<NodeId> = self.nodes.path(id).collect();
        path.reverse();
        path.iter().flat_map(|&id| self.nodes[id].run.iter().copied()).collect()
    }

    pub fn set_kv(&mut self, id: NodeId, kv: KvState) {
        self.nodes[id].kv = kv;
    }

    /// Everything that `who` was to compute below `position` is live.
    pub fn mark_computed(&mut self, leaf: NodeId, who: RequestId, position: u32) {
        let computed = |piece: &Piece| piece.end <= position && piece.kv == KvState::Pending(who);
        let done: Vec<NodeId> = self.path(leaf).filter(computed).map(|piece| piece.node).collect();
        done.into_iter().for_each(|id| self.set_kv(id, KvState::Live));
    }

    /// A segment holds a copy of the node's KV entries (and perhaps of nodes around it).
    pub fn set_segment(&mut self, id: NodeId, segment: SegmentId) {
        debug_assert!(self.nodes[id].segment.is_none());
        self.nodes[id].segment = Some(segment);
        self.coverage.add(segment, id);
    }

    /// A segment is gone, and with it the nodes that nothing else needs.
    pub fn drop_segment(&mut self, segment: SegmentId) {
        let covered = self.coverage.remove(segment);
        for &id in &covered {
            self.nodes[id].segment = None;
        }
        for id in covered {
            self.nodes.prune(id);
        }
    }

    /// All segments in the order in which they should be evicted, each with what speaks against it.
    pub fn eviction_order(&self) -> Vec<(SegmentId, Claim)> {
        self.coverage.eviction_order(&self.nodes)
    }

    /// Tokens that segments keep.
    pub fn saved_tokens(&self) -> u64 {
        let saved = self.nodes.iter().filter(|(_, node)| node.segment.is_some());
        saved.map(|(_, node)| u64::from(node.len())).sum()
    }

    /// Whether the tree's books add up; for tests and when idle.
    pub fn check(&self) -> bool {
        let running = self.nodes.iter().filter(|(_, node)| node.holders.running > 0);
        running.map(|(_, node)| node.len()).sum::<u32>() == self.held
            && self.nodes.iter().all(|(id, node)| self.check_node(id, node))
    }

    fn check_node(&self, id: NodeId, node: &Node) -> bool {
        let is_root = node.parent.is_none();
        let child = |(token, &child): (&Token, &NodeId)| {
            let below = &self.nodes[child];
            below.run.first() == Some(token)
                && below.parent == Some(id)
                && below.start == node.end()
                && (is_root
                    || (below.holders.running <= node.holders.running
                        && below.holders.preempted <= node.holders.preempted
                        && below.holders.sessions <= node.holders.sessions))
                && (below.kv != KvState::Live || node.kv == KvState::Live)
        };
        !node.is_unused()
            && (is_root || node.holders.running > 0 || node.kv == KvState::Absent)
            && node.children.iter().all(child)
            && node.segment.is_none_or(|segment| self.coverage.of(segment).contains(&id))
    }
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
