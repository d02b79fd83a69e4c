//! KV capacity of one worker: admission, sharing, saving and restoring of KV entries.
use std::ops::Range;

use crate::cache::PrefixCache;
use crate::engine::{Engine, EngineLimits, Reuse};
use crate::ids::SeqId;
use crate::ledger::Ledger;
use crate::placement::{Prefix, Running, Tail};
use crate::prefix::{KvState, NodeId, Piece};
use crate::reserve::GROWTH_TOKENS;
use crate::sequence::Sequence;

/// Shorter sequences are not saved at their end: computing them again is faster than finding them.
const MIN_SAVED_TOKENS: u32 = 16;
/// Shorter saved runs are not restored: computing them again is faster. The begin token, which all prompts share, is such a run.
const MIN_RESTORED_TOKENS: u32 = 4;

/// The KV cache of one worker.
#[derive(Debug)]
pub(super) struct Kv {
    pub(super) cache: PrefixCache,
    ledger: Ledger,
    free: Vec<SeqId>,
    reuse: Reuse,
    sequences: u32,
}

impl Kv {
    pub(super) fn new(limits: EngineLimits, cache: PrefixCache) -> Self {
        Self {
            cache,
            ledger: Ledger::new(limits.kv_tokens),
            free: (0..limits.sequences).rev().map(SeqId).collect(),
            reuse: Reuse::Ranges,
            sequences: limits.sequences,
        }
    }

    pub(super) fn free_tokens(&self) -> u32 {
        self.ledger.free()
    }

    pub(super) fn total_tokens(&self) -> u32 {
        self.ledger.total()
    }

    pub(super) fn free_sequences(&self) -> u32 {
        self.free.len() as u32
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

    /// Admits a sequence: a sequence id and KV capacity for its `need`. False if there is not enough now; a sequence alone
    /// is always admitted.
    pub(super) fn admit(&mut self, sequence: &mut Sequence, running: usize, reuse: Reuse) -> bool {
        self.reuse = reuse;
        let Some(seq) = self.free.last().copied() else { return false };
        let known = sequence.placement.prefix();
        let (len, shared) = self.shareable(sequence, known);
        let own = Self::own_reserve(sequence, len);
        // A preempted sequence comes back only once the others can grow, or it would soon be preempted again.
        let margin = if known.is_some() { GROWTH_TOKENS * running as u32 } else { 0 };
        if self.ledger.free() < shared + own + margin && running > 0 {
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

    /// Length of a sequence's shareable prefix, and how many of its tokens no running sequence holds yet.
    fn shareable(&self, sequence: &Sequence, known: Option<Prefix>) -> (u32, u32) {
        let tree = &self.cache.tree;
        match known {
            Some(Prefix { leaf, tokens }) => (tokens, tree.unheld(leaf)),
            None if self.reuse == Reuse::Whole => (0, 0),
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

    /// Shares or restores all KV entries of a sequence's prefix that others have computed or that were saved, then its tail.
    pub(super) fn reuse(&mut self, index: usize, sequences: &mut [Sequence], engine: &mut impl Engine) {
        let s = &sequences[index];
        let Some(&Running { seq, prefix, .. }) = s.placement.running() else { return };
        let restores = self.is_worth_restoring(s);
        while sequences[index].kv_tokens < prefix.tokens {
            let s = &sequences[index];
            let Some(piece) = self.cache.tree.at(prefix.leaf, s.kv_tokens) else { break };
            let range = s.kv_tokens..piece.end;
            let reused = match piece.kv {
                KvState::Live => self.share(&piece, index, sequences, engine),
                KvState::Absent => restores && self.restore(&piece, seq, range.clone(), engine),
                KvState::Pending(_) => false,
            };
            if !reused {
                return;
            }
            sequences[index].kv_tokens = range.end;
        }
        let s = &mut sequences[index];
        if s.kv_tokens == prefix.tokens
            && let Some(tail) = s.placement.take_tail()
            && engine.restore(seq, prefix.tokens..tail.end, &tail.state)
        {
            s.kv_tokens = tail.end;
        }
    }

    /// Whether the saved run ahead of a sequence is long enough to restore. A sequence with a saved tail needs all of its
    /// prefix before the tail can be restored.
    fn is_worth_restoring(&self, sequence: &Sequence) -> bool {
        let Some(Running { prefix, tail: None, .. }) = sequence.placement.running() else { return true };
        let mut position = sequence.kv_tokens;
        let enough = position + MIN_RESTORED_TOKENS;
        while position < prefix.tokens.min(enough) {
            match self.cache.tree.at(prefix.leaf, position) {
                Some(piece) if piece.segment.is_some() || piece.kv == KvState::Live => position = piece.end,
                _ => break,
            }
        }
        position >= enough
    }

    fn share(&mut self, piece: &Piece, index: usize, sequences: &[Sequence], engine: &mut impl Engine) -> bool {
        let (to, start) = (sequences[index].placement.seq(), sequences[index].kv_tokens);
        let tree = &self.cache.tree;
        let holder = |s: &Sequence| {
            let running =
                s.placement.running().filter(|running| Some(running.seq) != to && s.kv_tokens >= piece.end)?;
            tree.is_on_path(running.prefix.leaf, piece.node).then_some(running.seq)
        };
        let from = sequences.iter().find_map(holder);
        let shared = from.zip(to).is_some_and(|(from, to)| engine.share(from, to, start..piece.end));
        if !shared {
            // The next who wants it restores or computes it.
            self.cache.tree.set_kv(piece.node, KvState::Absent);
        }
        shared
    }

    fn restore(&mut self, piece: &Piece, seq: SeqId, range: Range<u32>, engine: &mut impl Engine) -> bool {
        let Some(segment) = piece.segment.filter(|_| range.start == piece.start) else { return false };
        // A segment that is gone or bad was taken out of the tree by `load`.
        let Some(state) = self.cache.load(segment) else { return false };
        let restored = engine.restore(seq, range, &state);
        if restored {
            self.cache.tree.set_kv(piece.node, KvState::Live);
        }
        restored
    }

    /// The position up to which a sequence may compute now: where another one computes, or where a restore begins. It takes
    /// on what nobody else computes.
    pub(super) fn limit(&mut self, sequence: &Sequence) -> u32 {
        let Some(prefix) = sequence.placement.prefix() else { return 0 };
        let too_short = !self.is_worth_restoring(sequence);
        let mut position = sequence.kv_tokens;
        while position < prefix.tokens {
            let Some(piece) = self.cache.tree.at(prefix.leaf, position) else { break };
            match piece.kv {
                KvState::Pending(who) if who == sequence.id() => {}
                // A segment at the sequence's own position is there only if it could not be restored.
                KvState::Absent if piece.segment.is_none() || position == sequence.kv_tokens || too_short => {
                    self.cache.tree.set_kv(piece.node, KvState::Pending(sequence.id()));
                }
                _ => return position,
            }
            position = piece.end;
        }
        sequence.tokens.len() as u32
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
        let Some(&Running { seq, prefix, .. }) = sequence.placement.running() else { return };
        self.save_prefix(prefix.leaf, seq, sequence, engine);
        let end = sequence.kv_tokens;
        let state = if end > prefix.tokens { engine.save(seq, prefix.tokens..end) } else { None };
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
        let Some(prefix) = sequence.placement.prefix() else { return };
        let Some(seq) = sequence.placement.seq() else { return self.cache.tree.abandon(prefix.leaf) };
        let saves = self.cache.is_enabled() && self.reuse == Reuse::Ranges && sequence.kv_tokens >= MIN_SAVED_TOKENS;
        if save && saves {
            let all = self.cache.tree.enter(sequence.namespace(), &sequence.tokens[..sequence.kv_tokens as usize]);
            self.save_prefix(all, seq, sequence, engine);
            match &sequence.start.session {
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
        let pieces: Vec<Piece> = self.cache.tree.path(leaf).filter(is_unsaved).collect();
        for piece in pieces {
            if let Some(state) = engine.save(seq, piece.start..piece.end) {
                self.cache.store(piece.node, sequence.namespace(), state);
            }
        }
    }
}
