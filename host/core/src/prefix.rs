//! The prefix tree: runs of tokens whose KV entries are in the live cache, being computed, or saved in segments.
//!
//! A radix tree over token runs with one root per namespace (as in RadixAttention, Zheng et al. 2024). It records who
//! holds each run and where its KV entries are; it copies no KV entries itself. A node, and a root, stays in the tree for
//! as long as it has a holder, a segment or a child.
mod coverage;
mod nodes;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::ids::{RequestId, Token};
use crate::segments::{Namespace, SegmentId};

use coverage::Coverage;
pub use coverage::{HeldBy, Rank};
use nodes::{Holders, Nodes, PrefixNode};
pub use nodes::{KvState, NodeId};

/// A node of the tree, as the worker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub node: NodeId,
    /// The node's run has the positions `start..end`.
    pub start: u32,
    pub end: u32,
    pub kv: KvState,
    pub segment: Option<SegmentId>,
}

/// How much of a run of tokens is in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Tokens that running sequences already hold, so that the run needs no further KV entries for them.
    pub held: u32,
    /// Of these, tokens that only paused sequences hold.
    pub reclaimable: u32,
    /// Leading tokens that are live, being computed or in segments, so that the run need not compute them.
    pub cached: u32,
}

/// The prefix tree of one worker.
#[derive(Debug, Default)]
pub struct PrefixTree {
    nodes: Nodes,
    roots: HashMap<Namespace, NodeId>,
    /// Advances with every use; orders nodes by last use.
    clock: u64,
    /// Tokens of nodes that running sequences hold. A token that several sequences hold counts once.
    held: u32,
    /// Of these, the tokens that only paused sequences hold.
    reclaimable: u32,
    /// Tokens of nodes that have a segment.
    saved: u64,
    coverage: Coverage,
}

impl PrefixTree {
    /// Tokens that running sequences hold. A token that several sequences hold counts once.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Of the tokens that running sequences hold, those that only paused ones do.
    pub fn reclaimable(&self) -> u32 {
        self.reclaimable
    }

    fn root(&mut self, namespace: &Namespace) -> NodeId {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let root = self.nodes.insert(PrefixNode::root(namespace.clone()));
        self.roots.insert(namespace.clone(), root);
        root
    }

    /// Looks up a run of tokens without changing the tree.
    pub fn probe(&self, namespace: &Namespace, tokens: &[Token]) -> Probe {
        let mut probe = Probe { held: 0, reclaimable: 0, cached: 0 };
        let Some(&root) = self.roots.get(namespace) else { return probe };
        let (mut at, mut position, mut computed) = (root, 0, true);
        while let Some(&child) = tokens.get(position).and_then(|token| self.nodes[at].children.get(token)) {
            let node = &self.nodes[child];
            let common = common_len(&node.run, &tokens[position..]);
            if node.holders.running > 0 {
                probe.held += common as u32;
            }
            if node.holders.is_reclaimable() {
                probe.reclaimable += common as u32;
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

    /// Makes a running sequence a holder of all nodes of `tokens`, and returns the last of them. New nodes are absent.
    pub fn enter(&mut self, namespace: &Namespace, tokens: &[Token]) -> NodeId {
        self.clock += 1;
        let mut at = self.root(namespace);
        self.add_running(at);
        let mut position = 0;
        while position < tokens.len() {
            let rest = &tokens[position..];
            let child = match self.nodes[at].children.get(&rest[0]).copied() {
                Some(child) => {
                    let common = common_len(&self.nodes[child].run, rest);
                    if common < self.nodes[child].run.len() { self.split(child, common) } else { child }
                }
                None => self.grow(at, rest),
            };
            self.add_running(child);
            position += self.nodes[child].run.len();
            at = child;
        }
        at
    }

    fn grow(&mut self, parent: NodeId, run: &[Token]) -> NodeId {
        let start = self.nodes[parent].end();
        let child = self.nodes.insert(PrefixNode::child(parent, start, run.to_vec()));
        self.nodes[parent].children.insert(run[0], child);
        child
    }

    /// Splits a node after `len` tokens and returns the new upper part. The lower part keeps the id, so that a holder
    /// of `id` still holds both parts.
    fn split(&mut self, id: NodeId, len: usize) -> NodeId {
        let node = &mut self.nodes[id];
        let lower = node.run.split_off(len);
        let upper = std::mem::replace(&mut node.run, lower);
        let (first, lower_first) = (upper[0], node.run[0]);
        let above = PrefixNode {
            parent: node.parent,
            namespace: None,
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

    /// Splits a node into runs of at most `max` tokens, at least 1. Returns them in the order of their positions; the last
    /// one keeps the id.
    pub fn divide(&mut self, id: NodeId, max: u32) -> Vec<NodeId> {
        let mut parts = Vec::new();
        while self.nodes[id].len() > max.max(1) {
            parts.push(self.split(id, max.max(1) as usize));
        }
        parts.push(id);
        parts
    }

    /// Changes the holders of a node, and the sums with them.
    fn change_holders(&mut self, id: NodeId, change: impl FnOnce(&mut Holders)) {
        let node = &mut self.nodes[id];
        let (len, before) = (node.len(), node.holders);
        change(&mut node.holders);
        self.coverage.touch(node);
        let sum =
            |sum: &mut u32, was: bool, is: bool| *sum = *sum + if is { len } else { 0 } - if was { len } else { 0 };
        sum(&mut self.held, before.running > 0, node.holders.running > 0);
        sum(&mut self.reclaimable, before.is_reclaimable(), node.holders.is_reclaimable());
    }

    /// A running sequence becomes a holder of the node.
    fn add_running(&mut self, id: NodeId) {
        self.nodes[id].last_use = self.clock;
        self.change_holders(id, |holders| holders.running += 1);
    }

    /// Removes a running sequence from the holders of the nodes up to `leaf`; `then` adds what replaces it. The caller
    /// has freed the sequence's KV entries: nodes without another running holder become absent, and so do those that
    /// `who` was computing.
    fn remove_running(&mut self, leaf: NodeId, who: RequestId, then: fn(&mut Holders)) {
        for id in self.nodes.lineage(leaf) {
            self.change_holders(id, |holders| {
                holders.running -= 1;
                then(holders);
            });
            let node = &mut self.nodes[id];
            let is_root = node.parent.is_none();
            if !is_root && (node.holders.running == 0 || node.kv == KvState::Pending(who)) {
                node.kv = KvState::Absent;
            }
        }
    }

    /// A running sequence is paused: it gives its KV entries to whoever needs the capacity.
    pub fn pause(&mut self, leaf: NodeId) {
        self.nodes.lineage(leaf).into_iter().for_each(|id| self.change_holders(id, |holders| holders.paused += 1));
    }

    /// A paused sequence goes on, or is about to give up its KV entries.
    pub fn unpause(&mut self, leaf: NodeId) {
        self.nodes.lineage(leaf).into_iter().for_each(|id| self.change_holders(id, |holders| holders.paused -= 1));
    }

    /// Removes a session or a preempted sequence from the holders of the nodes up to `leaf`.
    fn remove_holder(&mut self, leaf: NodeId, remove: fn(&mut Holders)) {
        for id in self.nodes.lineage(leaf) {
            self.change_holders(id, remove);
        }
        self.prune(leaf);
    }

    /// Removes a node that nothing keeps, and what only it kept above it.
    fn prune(&mut self, id: NodeId) {
        if let Some(namespace) = self.nodes.prune(id) {
            self.roots.remove(&namespace);
        }
    }

    /// A running sequence ends.
    pub fn leave(&mut self, leaf: NodeId, who: RequestId) {
        self.clock += 1;
        let now = self.clock;
        self.nodes.lineage(leaf).into_iter().for_each(|id| self.nodes[id].last_use = now);
        self.remove_running(leaf, who, |_| {});
        self.prune(leaf);
    }

    /// A running sequence is preempted: it gives up its KV entries, but holds its nodes for when it resumes.
    pub fn preempt(&mut self, leaf: NodeId, who: RequestId) {
        self.remove_running(leaf, who, |holders| holders.preempted += 1);
    }

    /// A preempted sequence runs again.
    pub fn resume(&mut self, leaf: NodeId) {
        self.clock += 1;
        for id in self.nodes.lineage(leaf) {
            self.change_holders(id, |holders| holders.preempted -= 1);
            self.add_running(id);
        }
    }

    /// A preempted sequence ends before it resumes.
    pub fn abandon(&mut self, leaf: NodeId) {
        self.remove_holder(leaf, |holders| holders.preempted -= 1);
    }

    /// A running sequence ends and a session becomes the holder of its nodes.
    pub fn pin(&mut self, leaf: NodeId, who: RequestId) {
        self.remove_running(leaf, who, |holders| holders.sessions += 1);
    }

    /// A session is closed or pins other nodes.
    pub fn unpin(&mut self, leaf: NodeId) {
        self.remove_holder(leaf, |holders| holders.sessions -= 1);
    }

    /// The node as it is now.
    pub fn piece(&self, id: NodeId) -> Piece {
        let node = &self.nodes[id];
        Piece { node: id, start: node.start, end: node.end(), kv: node.kv, segment: node.segment }
    }

    /// Tokens on the path to `leaf` that no running sequence holds.
    pub fn unheld(&self, leaf: NodeId) -> u32 {
        let path = self.nodes.path(leaf).map(|id| &self.nodes[id]);
        path.filter(|node| node.holders.running == 0).map(PrefixNode::len).sum()
    }

    /// Tokens on the path to `leaf` that only paused sequences hold.
    pub fn reclaimable_to(&self, leaf: NodeId) -> u32 {
        let path = self.nodes.path(leaf).map(|id| &self.nodes[id]);
        path.filter(|node| node.holders.is_reclaimable()).map(PrefixNode::len).sum()
    }

    /// The path from `leaf` up to the root, without the root.
    pub fn path(&self, leaf: NodeId) -> impl Iterator<Item = Piece> + '_ {
        self.nodes.path(leaf).map(|id| self.piece(id))
    }

    /// The nodes on the path to `leaf` that end after `position`, in the order of their positions.
    pub fn ahead(&self, leaf: NodeId, position: u32) -> Vec<NodeId> {
        let mut ahead: Vec<NodeId> = self.nodes.path(leaf).take_while(|&id| self.nodes[id].end() > position).collect();
        ahead.reverse();
        ahead
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

    /// Marks the nodes that `who` has computed, which end at or before `position`, as live.
    pub fn mark_computed(&mut self, leaf: NodeId, who: RequestId, position: u32) {
        let computed = |piece: &Piece| piece.end <= position && piece.kv == KvState::Pending(who);
        let done: Vec<NodeId> = self.path(leaf).filter(computed).map(|piece| piece.node).collect();
        done.into_iter().for_each(|id| self.set_kv(id, KvState::Live));
    }

    /// Records that a segment holds a copy of the node's KV entries. It may cover neighbouring nodes, too.
    pub fn set_segment(&mut self, id: NodeId, segment: SegmentId) {
        debug_assert!(self.nodes[id].segment.is_none());
        self.nodes[id].segment = Some(segment);
        self.saved += u64::from(self.nodes[id].len());
        self.coverage.add(segment, id);
    }

    /// Removes a segment, and the nodes that only it kept.
    pub fn drop_segment(&mut self, segment: SegmentId) {
        let covered = self.coverage.remove(segment);
        for &id in &covered {
            self.nodes[id].segment = None;
            self.saved -= u64::from(self.nodes[id].len());
        }
        for id in covered {
            self.prune(id);
        }
    }

    /// Segments whose rank may have changed since the last call.
    pub fn take_changed(&mut self) -> HashSet<SegmentId> {
        self.coverage.take_changed()
    }

    /// When a segment may be evicted. `None` if no node has it.
    pub fn rank(&self, segment: SegmentId) -> Option<Rank> {
        self.coverage.rank(&self.nodes, segment)
    }

    /// Advances with every use.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Tokens whose KV entries are saved in segments.
    pub fn saved_tokens(&self) -> u64 {
        self.saved
    }

    /// Whether there is not even a root.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty() && self.nodes.iter().next().is_none()
    }

    /// Whether the tree is consistent. Visits every node: for tests and idle workers.
    pub fn check(&self) -> bool {
        let running = self.nodes.iter().filter(|(_, node)| node.holders.running > 0);
        let saved = self.nodes.iter().filter(|(_, node)| node.segment.is_some());
        let reclaimable = self.nodes.iter().filter(|(_, node)| node.holders.is_reclaimable());
        running.map(|(_, node)| node.len()).sum::<u32>() == self.held
            && reclaimable.map(|(_, node)| node.len()).sum::<u32>() == self.reclaimable
            && saved.map(|(_, node)| u64::from(node.len())).sum::<u64>() == self.saved
            && self.roots.values().all(|&root| self.nodes[root].parent.is_none())
            && self.nodes.iter().all(|(id, node)| self.check_node(id, node))
    }

    fn check_node(&self, id: NodeId, node: &PrefixNode) -> bool {
        let is_root = node.parent.is_none();
        let child = |(token, &child): (&Token, &NodeId)| {
            let below = &self.nodes[child];
            below.run.first() == Some(token)
                && below.parent == Some(id)
                && below.start == node.end()
                && below.holders.running <= node.holders.running
                && below.holders.paused <= node.holders.paused
                && below.holders.preempted <= node.holders.preempted
                && below.holders.sessions <= node.holders.sessions
                && (below.kv != KvState::Live || node.kv == KvState::Live)
        };
        !node.is_unused()
            && is_root == node.namespace.as_ref().is_some_and(|namespace| self.roots.get(namespace) == Some(&id))
            && (is_root || node.holders.running > 0 || node.kv == KvState::Absent)
            && node.children.iter().all(child)
            && node.segment.is_none_or(|segment| self.coverage.of(segment).contains(&id))
    }
}

fn common_len(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
