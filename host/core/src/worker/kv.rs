//! Room in the KV cache: who is admitted with how much, what is shared, kept and parked.
use std::ops::Range;

use crate::cache::PrefixCache;
use crate::engine::{Engine, EngineLimits, Reuse};
use crate::ids::SeqId;
use crate::ledger::Ledger;
use crate::prefix::{KvState, NodeId, Piece};
use crate::reserve::GROWTH_TOKENS;
use crate::sequence::{Parked, Sequence};

/// Shorter runs are not kept: they are computed sooner than looked up.
const KEEP_TOKENS: u32 = 16;
/// Of what is kept, fewer tokens than these are computed again sooner than fetched: say the one that every prompt begins with.
const FETCH_TOKENS: u32 = 4;

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
            && running.iter().all(|s| s.seq.is_some())
    }

    /// Gives a sequence its place and its room; false if there is none now. With nothing else running there always is.
    pub(super) fn admit(&mut self, sequence: &mut Sequence, running: usize, reuse: Reuse) -> bool {
        self.reuse = reuse;
        let Some(seq) = self.free.last().copied() else { return false };
        let tree = &self.cache.tree;
        let (len, shared) = match sequence.prefix {
            Some((leaf, len)) => (len, tree.unheld(leaf)),
            None if reuse == Reuse::Whole => (0, 0),
            None => {
                let run = &sequence.tokens[..sequence.tokens.len() - 1];
                (run.len() as u32, run.len() as u32 - tree.probe(sequence.namespace(), run).held)
            }
        };
        let own = Self::own_reserve(sequence, len);
        // One that was parked comes back when the others have room to grow, or it would soon be parked again.
        let margin = if sequence.prefix.is_some() { GROWTH_TOKENS * running as u32 } else { 0 };
        if self.ledger.free() < shared + own + margin && running > 0 {
            return false;
        }
        let leaf = match sequence.prefix {
            Some((leaf, _)) => {
                self.cache.tree.resume(leaf);
                leaf
            }
            None => self.cache.tree.enter(sequence.namespace(), &sequence.tokens[..len as usize]),
        };
        sequence.prefix = Some((leaf, len));
        let room = self.settle_shared() && self.ledger.reserve(sequence.id(), own).is_ok();
        debug_assert!(room, "a sequence alone fits, and others were measured");
        self.free.pop();
        sequence.seq = Some(seq);
        true
    }

    /// What is reserved for the sequence alone: what the pool promised, or, when it comes back, its tokens and some growth.
    fn own_reserve(sequence: &Sequence, prefix: u32) -> u32 {
        let (now, most) = (sequence.tokens.len() as u32 - prefix, sequence.most_tokens() - prefix);
        sequence.need.saturating_sub(prefix).max(now + GROWTH_TOKENS).clamp(now, most.max(now))
    }

    fn settle_shared(&mut self) -> bool {
        self.ledger.set_shared(self.cache.tree.held()).is_ok()
    }

    /// Room for the sequence's tokens as they are now; false if there is none.
    pub(super) fn grow(&mut self, sequence: &Sequence) -> bool {
        let (held, need) = (self.ledger.held(sequence.id()), sequence.own_tokens());
        if need <= held {
            return true;
        }
        let most = sequence.most_tokens() - sequence.prefix.map_or(0, |(_, len)| len);
        let wanted = (most.max(need) - held).min(GROWTH_TOKENS).min(self.ledger.free()).max(need - held);
        self.ledger.grow(sequence.id(), wanted).is_ok()
    }

    /// Room for guessed tokens beside the sequence's own, at most `wanted`, without taking what `running` sequences will
    /// soon grow into.
    pub(super) fn room_for_draft(&mut self, sequence: &Sequence, wanted: u32, running: usize) -> u32 {
        let spare = self.ledger.held(sequence.id()).saturating_sub(sequence.own_tokens());
        let more = wanted.saturating_sub(spare).min(self.ledger.free().saturating_sub(GROWTH_TOKENS * running as u32));
        let grown = more > 0 && self.ledger.grow(sequence.id(), more).is_ok();
        wanted.min(if grown { spare + more } else { spare })
    }

    /// Brings a sequence past everything that others have computed or that was kept.
    pub(super) fn follow(&mut self, index: usize, sequences: &mut [Sequence], engine: &mut impl Engine) {
        let s = &sequences[index];
        let (Some(seq), Some((leaf, len))) = (s.seq, s.prefix) else { return };
        let worthwhile = self.is_worth_restoring(s);
        while sequences[index].done < len {
            let s = &sequences[index];
            let Some(piece) = self.cache.tree.at(leaf, s.done) else { break };
            let range = s.done..piece.end;
            let brought = match piece.kv {
                KvState::Live => self.share(&piece, index, sequences, engine),
                KvState::Absent => worthwhile && self.restore(&piece, seq, range.clone(), engine),
                KvState::Pending(_) => false,
            };
            if !brought {
                return;
            }
            let s = &mut sequences[index];
            (s.done, s.cached) = (range.end, if s.started { s.cached } else { s.cached + range.len() as u32 });
        }
        let s = &mut sequences[index];
        if s.done == len
            && let Some(parked) = s.parked.take()
            && engine.restore(seq, len..parked.end, &parked.state)
        {
            s.done = parked.end;
        }
    }

    /// Whether what lies ahead of a sequence in the cache is long enough to be fetched. What a parked sequence has behind its
    /// prefix must be fetched.
    fn is_worth_restoring(&self, sequence: &Sequence) -> bool {
        let Some((leaf, len)) = sequence.prefix.filter(|_| sequence.parked.is_none()) else { return true };
        let mut position = sequence.done;
        while position < len.min(sequence.done + FETCH_TOKENS) {
            match self.cache.tree.at(leaf, position) {
                Some(piece) if piece.segment.is_some() || piece.kv == KvState::Live => position = piece.end,
                _ => break,
            }
        }
        position >= sequence.done + FETCH_TOKENS
    }

    fn share(&mut self, piece: &Piece, index: usize, sequences: &[Sequence], engine: &mut impl Engine) -> bool {
        let (to, start) = (sequences[index].seq, sequences[index].done);
        let tree = &self.cache.tree;
        let holds = |s: &&Sequence| {
            s.seq != to && s.done >= piece.end && s.prefix.is_some_and(|(leaf, _)| tree.is_on_path(leaf, piece.node))
        };
        let from = sequences.iter().find(holds).and_then(|s| s.seq);
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

    /// How far a sequence may compute now: up to what another one computes or what can be restored. What nobody
    /// computes it takes on itself.
    pub(super) fn limit(&mut self, sequence: &Sequence) -> u32 {
        let Some((leaf, len)) = sequence.prefix else { return 0 };
        let too_short = !self.is_worth_restoring(sequence);
        let mut position = sequence.done;
        while position < len {
            let Some(piece) = self.cache.tree.at(leaf, position) else { break };
            match piece.kv {
                KvState::Pending(who) if who == sequence.id() => {}
                // At its own position it could not be restored.
                KvState::Absent if piece.segment.is_none() || position == sequence.done || too_short => {
                    self.cache.tree.set_kv(piece.node, KvState::Pending(sequence.id()));
                }
                _ => return position,
            }
            position = piece.end;
        }
        sequence.tokens.len() as u32
    }

    /// A sequence computed everything up to `done`.
    pub(super) fn mark_computed(&mut self, sequence: &Sequence) {
        if let Some((leaf, _)) = sequence.prefix {
            self.cache.tree.mark_computed(leaf, sequence.id(), sequence.done);
        }
    }

    /// Takes the KV entries away from a sequence that will run again, and keeps a copy of them. The others have followed.
    pub(super) fn park(&mut self, sequence: &mut Sequence, engine: &mut impl Engine) {
        let (Some(seq), Some((leaf, len))) = (sequence.seq.take(), sequence.prefix) else { return };
        self.keep(leaf, seq, sequence, engine);
        if sequence.done > len {
            let end = sequence.done;
            sequence.parked = engine.save(seq, len..end).map(|state| Parked { end, state });
        }
        sequence.done = 0;
        engine.truncate(seq, 0);
        self.free.push(seq);
        self.cache.tree.preempt(leaf, sequence.id());
        self.ledger.release(sequence.id());
        self.settle_shared();
        self.cache.enforce_limits();
    }

    /// Takes everything from a sequence that has ended, running or parked. `keep`: its KV entries are good, others may use
    /// them. The others have followed.
    pub(super) fn end(&mut self, sequence: &mut Sequence, keep: bool, engine: &mut impl Engine) {
        let prefix = sequence.prefix.take();
        let Some(seq) = sequence.seq.take() else {
            if let Some((leaf, _)) = prefix {
                self.cache.tree.abandon(leaf);
            }
            return;
        };
        let worth_keeping =
            keep && self.cache.is_enabled() && self.reuse == Reuse::Ranges && sequence.done >= KEEP_TOKENS;
        if worth_keeping {
            let all = self.cache.tree.enter(sequence.namespace(), &sequence.tokens[..sequence.done as usize]);
            self.keep(all, seq, sequence, engine);
            match &sequence.start.session {
                Some(session) => self.cache.pin(sequence.namespace(), session, all, sequence.id()),
                None => self.cache.tree.leave(all, sequence.id()),
            }
        }
        engine.truncate(seq, 0);
        self.free.push(seq);
        if let Some((leaf, _)) = prefix {
            self.cache.tree.leave(leaf, sequence.id());
        }
        self.ledger.release(sequence.id());
        self.settle_shared();
        self.cache.enforce_limits();
    }

    /// Copies the KV entries on the way to `leaf` that the sequence has and no segment keeps.
    fn keep(&mut self, leaf: NodeId, seq: SeqId, sequence: &Sequence, engine: &mut impl Engine) {
        if self.reuse == Reuse::Whole {
            return;
        }
        let bare = |piece: &Piece| piece.segment.is_none() && piece.end <= sequence.done;
        let pieces: Vec<Piece> = self.cache.tree.path(leaf).filter(bare).collect();
        for piece in pieces {
            if let Some(state) = engine.save(seq, piece.start..piece.end) {
                self.cache.store(piece.node, sequence.namespace(), state);
            }
        }
    }
}
