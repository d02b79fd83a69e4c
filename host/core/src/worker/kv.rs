//! KV capacity of one worker: admission, growth, saving and restoring of KV entries.
mod reuse;

use crate::cache::PrefixCache;
use crate::engine::{Engine, EngineLimits, Reuse};
use crate::ids::{SeqId, SessionId};
use crate::ledger::Ledger;
use crate::placement::{Prefix, Running, Tail};
use crate::prefix::{NodeId, Piece};
use crate::reserve::GROWTH_TOKENS;
use crate::sequence::Sequence;

/// Shorter sequences are not saved at their end: computing them again is faster than finding them.
const MIN_SAVED_TOKENS: u32 = 16;

/// How many tokens a segment holds at most. A step restores whole segments, so that they must not be large.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentSize {
    /// Of a segment, about.
    pub(super) bytes: u64,
    pub(super) min_tokens: u64,
    pub(super) max_tokens: u64,
    /// What that comes to in tokens, by what was saved last.
    pub(super) tokens: u32,
}

impl Default for SegmentSize {
    fn default() -> Self {
        Self { bytes: 16 << 20, min_tokens: 64, max_tokens: 2048, tokens: 512 }
    }
}

impl SegmentSize {
    /// A copy of the KV entries of `tokens` has these bytes.
    fn learn(&mut self, bytes: u64, tokens: u32) {
        let token_bytes = (bytes / u64::from(tokens).max(1)).max(1);
        self.tokens = (self.bytes / token_bytes).clamp(self.min_tokens, self.max_tokens) as u32;
    }
}

/// The KV cache of one worker.
#[derive(Debug)]
pub(super) struct Kv {
    pub(super) cache: PrefixCache,
    ledger: Ledger,
    free: Vec<SeqId>,
    reuse: Reuse,
    sequences: u32,
    pub(super) segment_size: SegmentSize,
}

impl Kv {
    pub(super) fn new(limits: EngineLimits, cache: PrefixCache) -> Self {
        Self {
            cache,
            ledger: Ledger::new(limits.kv_tokens),
            free: (0..limits.sequences).rev().map(SeqId).collect(),
            reuse: Reuse::Ranges,
            sequences: limits.sequences,
            segment_size: SegmentSize::default(),
        }
    }

    pub(super) fn free_tokens(&self) -> u32 {
        self.ledger.free()
    }

    /// What a running sequence holds, for itself or together with others.
    pub(super) fn held_tokens(&self, sequence: &Sequence) -> u32 {
        self.ledger.held(sequence.id()) + sequence.placement.prefix().map_or(0, |prefix| prefix.tokens)
    }

    pub(super) fn total_tokens(&self) -> u32 {
        self.ledger.total()
    }

    /// Sequences that can run at once.
    pub(super) fn sequences(&self) -> u32 {
        self.sequences
    }

    pub(super) fn free_sequences(&self) -> u32 {
        self.free.len() as u32
    }

    /// KV tokens that come free when paused sequences give theirs up.
    pub(super) fn reclaimable_tokens(&self, running: &[Sequence]) -> u32 {
        let paused = running.iter().filter(|s| s.placement.is_paused());
        self.cache.tree.reclaimable() + paused.map(|s| self.ledger.held(s.id())).sum::<u32>()
    }

    /// Whether the books add up for these running sequences.
    pub(super) fn check(&self, running: &[Sequence]) -> bool {
        let shared = self.cache.tree.held();
        let held: u32 = running.iter().map(|s| self.ledger.held(s.id())).sum();
        self.ledger.check()
            && self.cache.check()
            && self.ledger.free() + shared + held == self.ledger.total()
            && self.free.len() + running.len() == self.sequences as usize
            && running.iter().all(|s| s.placement.seq().is_some())
    }

    /// Whether a sequence could be admitted beside `active` others that are not paused, if the paused ones of `running`
    /// gave up what they hold.
    pub(super) fn could_admit(&self, sequence: &Sequence, running: &[Sequence], active: usize) -> bool {
        let (free, reclaimable) = (self.ledger.free(), self.reclaimable_tokens(running));
        // What only paused ones hold of its prefix is not both: once they give it up, the sequence has to hold it.
        active == 0 || self.demand(sequence, active).2 + self.given_up(sequence) <= free + reclaimable
    }

    /// Tokens of a sequence's shareable prefix that only paused ones hold.
    fn given_up(&self, sequence: &Sequence) -> u32 {
        let tree = &self.cache.tree;
        match sequence.placement.prefix() {
            Some(Prefix { leaf, .. }) => tree.reclaimable_to(leaf),
            None if !self.shares(sequence) => 0,
            None => tree.probe(sequence.namespace(), &sequence.tokens[..sequence.tokens.len() - 1]).reclaimable,
        }
    }

    /// What a sequence would hold: the length of its prefix, its own reserve, and KV tokens that must be free to admit it
    /// beside `active` others.
    fn demand(&self, sequence: &Sequence, active: usize) -> (u32, u32, u32) {
        let known = sequence.placement.prefix();
        let (len, shared) = self.shareable(sequence, known);
        let own = Self::own_reserve(sequence, len);
        // A preempted sequence comes back only once the others can grow, or it would soon be preempted again.
        let margin = if known.is_some() { GROWTH_TOKENS * active as u32 } else { 0 };
        (len, own, shared + own + margin)
    }

    /// Admits a sequence: a sequence id and KV capacity for its `need`. False if there is not enough now; a sequence alone
    /// is always admitted.
    pub(super) fn admit(&mut self, sequence: &mut Sequence, running: usize, active: usize, reuse: Reuse) -> bool {
        self.reuse = reuse;
        let Some(seq) = self.free.last().copied() else { return false };
        let known = sequence.placement.prefix();
        let (len, own, needed) = self.demand(sequence, active);
        if self.ledger.free() < needed && running > 0 {
            return false;
        }
        let leaf = match known {
            Some(Prefix { leaf, .. }) => {
                self.cache.tree.resume(leaf);
                leaf
            }
            None => self.cache.tree.enter(sequence.namespace(), &sequence.tokens[..len as usize]),
        };
        let reserved = self.settle_shared() && self.ledger.reserve(sequence.id(), own).is_ok();
        debug_assert!(reserved, "a sequence alone fits, and others were measured");
        self.free.pop();
        sequence.placement.admit(seq, Prefix { leaf, tokens: len });
        true
    }

    /// Whether a sequence may have its prefix from others: not where all of the prompt's logits are wanted.
    fn shares(&self, sequence: &Sequence) -> bool {
        self.reuse == Reuse::Ranges && !sequence.start.score_prompt
    }

    /// Length of a sequence's shareable prefix, and how many of its tokens no running sequence holds yet.
    fn shareable(&self, sequence: &Sequence, known: Option<Prefix>) -> (u32, u32) {
        let tree = &self.cache.tree;
        match known {
            Some(Prefix { leaf, tokens }) => (tokens, tree.unheld(leaf)),
            None if !self.shares(sequence) => (0, 0),
            None => {
                let run = &sequence.tokens[..sequence.tokens.len() - 1];
                (run.len() as u32, run.len() as u32 - tree.probe(sequence.namespace(), run).held)
            }
        }
    }

    /// What is reserved for the sequence alone: what the pool promised or, when it comes back, its tokens and some growth.
    fn own_reserve(sequence: &Sequence, prefix: u32) -> u32 {
        let (now, max) = (sequence.tokens.len() as u32 - prefix, sequence.max_total_tokens() - prefix);
        sequence.need.saturating_sub(prefix).max(now + GROWTH_TOKENS).clamp(now, max.max(now))
    }

    fn settle_shared(&mut self) -> bool {
        self.ledger.set_shared(self.cache.tree.held()).is_ok()
    }

    /// Reserves capacity for the sequence's tokens as they are now. False if there is not enough.
    pub(super) fn grow(&mut self, sequence: &Sequence) -> bool {
        let (held, need) = (self.ledger.held(sequence.id()), sequence.own_tokens());
        if need <= held {
            return true;
        }
        let max = sequence.max_total_tokens() - sequence.placement.prefix().map_or(0, |prefix| prefix.tokens);
        let wanted = (max.max(need) - held).min(GROWTH_TOKENS).min(self.ledger.free()).max(need - held);
        self.ledger.grow(sequence.id(), wanted).is_ok()
    }

    /// Reserves capacity for a draft of at most `wanted` tokens, without what the `running` sequences will soon grow into.
    /// Returns the length that fits.
    pub(super) fn draft_capacity(&mut self, sequence: &Sequence, wanted: u32, running: usize) -> u32 {
        let spare = self.ledger.held(sequence.id()).saturating_sub(sequence.own_tokens());
        let more = wanted.saturating_sub(spare).min(self.ledger.free().saturating_sub(GROWTH_TOKENS * running as u32));
        let grown = more > 0 && self.ledger.grow(sequence.id(), more).is_ok();
        wanted.min(if grown { spare + more } else { spare })
    }

    /// Others may share what the sequence has computed by now.
    pub(super) fn mark_computed(&mut self, sequence: &Sequence) {
        if let Some(Prefix { leaf, .. }) = sequence.placement.prefix() {
            self.cache.tree.mark_computed(leaf, sequence.id(), sequence.kv_tokens);
        }
    }

    /// Takes the KV entries away from a sequence that will run again, and saves them. Sequences that share its prefix must
    /// have reused them before.
    pub(super) fn preempt(&mut self, sequence: &mut Sequence, engine: &mut impl Engine) {
        let Some(Running { seq, prefix, tail, paused }) = sequence.placement.running() else { return };
        if *paused {
            self.cache.tree.unpause(prefix.leaf);
        }
        let (seq, prefix, end) = (*seq, *prefix, sequence.kv_tokens);
        let saved = tail.as_ref().map_or(prefix.tokens, |tail| tail.end);
        self.save_prefix(prefix.leaf, seq, sequence, engine);
        let state = if end > saved { engine.save(seq, prefix.tokens..end) } else { None };
        sequence.placement.preempt(state.map(|state| Tail { end, state }));
        sequence.kv_tokens = 0;
        engine.truncate(seq, 0);
        self.free.push(seq);
        self.cache.tree.preempt(prefix.leaf, sequence.id());
        self.ledger.release(sequence.id());
        self.settle_shared();
        self.cache.enforce_limits();
    }

    /// Gives back everything that a sequence holds; it has ended. `save`: its KV entries are good for others to use. Running
    /// sequences that share its prefix must have reused them before.
    pub(super) fn end(&mut self, sequence: &Sequence, save: bool, engine: &mut impl Engine) {
        self.give_back(sequence, save, sequence.start.session.as_ref(), engine);
    }

    /// Pauses a sequence: it keeps its KV entries until others need the capacity.
    pub(super) fn pause(&mut self, sequence: &mut Sequence) {
        if sequence.placement.pause()
            && let Some(running) = sequence.placement.running()
        {
            self.cache.tree.pause(running.prefix.leaf);
        }
    }

    /// A paused sequence goes on.
    pub(super) fn resume(&mut self, sequence: &mut Sequence) {
        if sequence.placement.resume()
            && let Some(running) = sequence.placement.running()
        {
            self.cache.tree.unpause(running.prefix.leaf);
        }
    }

    /// Takes the KV entries away from a paused sequence. What it has computed stays in the cache like what an ended one
    /// leaves, so that readers who are behind hold no memory.
    pub(super) fn release(&mut self, sequence: &mut Sequence, engine: &mut impl Engine) {
        if self.reuse == Reuse::Whole {
            return self.preempt(sequence, engine);
        }
        self.give_back(sequence, true, None, engine);
        sequence.placement.release();
        sequence.kv_tokens = 0;
    }

    /// Gives back everything that a sequence holds, and leaves a copy in the cache, which `session` pins.
    fn give_back(&mut self, sequence: &Sequence, save: bool, session: Option<&SessionId>, engine: &mut impl Engine) {
        let Some(prefix) = sequence.placement.prefix() else { return };
        let Some(seq) = sequence.placement.seq() else { return self.cache.tree.abandon(prefix.leaf) };
        if sequence.placement.is_paused() {
            self.cache.tree.unpause(prefix.leaf);
        }
        let saves = self.cache.is_enabled() && self.reuse == Reuse::Ranges && sequence.kv_tokens >= MIN_SAVED_TOKENS;
        if save && saves {
            let all = self.cache.tree.enter(sequence.namespace(), &sequence.tokens[..sequence.kv_tokens as usize]);
            self.save_prefix(all, seq, sequence, engine);
            match session {
                Some(session) => self.cache.pin(sequence.namespace(), session, all, sequence.id()),
                None => self.cache.tree.leave(all, sequence.id()),
            }
        }
        engine.truncate(seq, 0);
        self.free.push(seq);
        self.cache.tree.leave(prefix.leaf, sequence.id());
        self.ledger.release(sequence.id());
        self.settle_shared();
        self.cache.enforce_limits();
    }

    /// Saves the sequence's KV entries on the path to `leaf` that are in no segment.
    fn save_prefix(&mut self, leaf: NodeId, seq: SeqId, sequence: &Sequence, engine: &mut impl Engine) {
        if self.reuse == Reuse::Whole {
            return;
        }
        let is_unsaved = |piece: &Piece| piece.segment.is_none() && piece.end <= sequence.kv_tokens;
        let mut unsaved: Vec<Piece> = self.cache.tree.path(leaf).filter(is_unsaved).collect();
        unsaved.reverse();
        let size = self.segment_size.tokens;
        let divided = unsaved.iter().flat_map(|piece| self.cache.tree.divide(piece.node, size)).collect::<Vec<_>>();
        let pieces: Vec<Piece> = divided.into_iter().map(|node| self.cache.tree.piece(node)).collect();
        let mut left = &pieces[..];
        while let Some(first) = left.first() {
            // Neighbours share a segment.
            let joins = |pair: &[Piece]| pair[0].end == pair[1].start && pair[1].end - first.start <= size;
            let count = 1 + left.windows(2).take_while(|pair| joins(pair)).count();
            let (together, rest) = left.split_at(count);
            left = rest;
            let range = first.start..together.last().map_or(first.end, |last| last.end);
            let Some(state) = engine.save(seq, range.clone()) else { continue };
            self.segment_size.learn(state.len() as u64, range.end - range.start);
            let nodes: Vec<NodeId> = together.iter().map(|piece| piece.node).collect();
            self.cache.store(&nodes, sequence.namespace(), state);
        }
    }
}
