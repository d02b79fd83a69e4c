//! Fills a sequence's KV cache with what others have computed, or what was saved.
use std::ops::Range;

use super::Kv;
use crate::engine::{Engine, Reuse, SavedPart};
use crate::ids::SeqId;
use crate::placement::{Running, Tail};
use crate::prefix::{KvState, NodeId, Piece};
use crate::segments::State;
use crate::sequence::Sequence;
use crate::worker::restoring::RestoreBudget;

/// Shorter saved runs are not restored: computing them again is faster. The begin token, which all prompts share, is such a run.
const MIN_RESTORED_TOKENS: u32 = 4;

/// Segments that are restored together.
#[derive(Debug, Default)]
struct Found {
    parts: Vec<(Range<u32>, State)>,
    /// With the position at which each ends.
    nodes: Vec<(NodeId, u32)>,
    /// There is more, which the budget does not allow.
    more: bool,
}

impl Kv {
    /// Shares or restores all KV entries of a sequence's prefix that others have computed or that were saved, then its tail.
    /// False: the budget ended first, and the sequence must not compute what it may restore in the next step.
    pub(in crate::worker) fn reuse(
        &mut self,
        index: usize,
        sequences: &mut [Sequence],
        budget: &mut RestoreBudget,
        engine: &mut impl Engine,
    ) -> bool {
        let s = &sequences[index];
        let Some(&Running { seq, prefix, .. }) = s.placement.running() else { return true };
        let begun_at = s.kv_tokens;
        if begun_at < prefix.tokens {
            let restores = self.is_worth_restoring(s);
            let ahead = self.cache.tree.ahead(prefix.leaf, begun_at);
            let mut ahead = &ahead[..];
            while let Some(&next) = ahead.first() {
                let (piece, at) = (self.cache.tree.piece(next), sequences[index].kv_tokens);
                let reached = match piece.kv {
                    KvState::Live => self.share(ahead, index, sequences, engine),
                    KvState::Absent if restores && piece.start == at => {
                        let found = self.find_saved(ahead, &sequences[index], budget, at > begun_at);
                        if found.parts.is_empty() && found.more {
                            return false;
                        }
                        self.restore(&found, seq, engine)
                    }
                    KvState::Absent | KvState::Pending(_) => None,
                };
                let Some(end) = reached else { return true };
                sequences[index].kv_tokens = end;
                while ahead.first().is_some_and(|&node| self.cache.tree.piece(node).end <= end) {
                    ahead = &ahead[1..];
                }
            }
        }
        self.restore_tail(&mut sequences[index], budget, begun_at, engine)
    }

    /// Restores a tail once the prefix is complete. False if the budget does not allow all of it.
    fn restore_tail(
        &self,
        s: &mut Sequence,
        budget: &mut RestoreBudget,
        begun_at: u32,
        engine: &mut impl Engine,
    ) -> bool {
        let Some(&Running { seq, prefix, .. }) = s.placement.running() else { return true };
        if s.kv_tokens < prefix.tokens {
            return true;
        }
        let Some(Tail { end, state }) = s.placement.take_tail() else { return true };
        // What was computed meanwhile needs no copy. A state that is not a list of entries is restored whole or not at all.
        let useful = if self.reuse == Reuse::Whole { s.kv_tokens == 0 } else { s.kv_tokens < end };
        if !useful {
            return true;
        }
        if !budget.allows_more(s.kv_tokens > begun_at) {
            s.placement.keep_tail(Tail { end, state });
            return false;
        }
        let token_bytes = state.len() as u64 / u64::from(end - prefix.tokens).max(1);
        let upto = match self.reuse {
            Reuse::Whole => end,
            Reuse::Ranges => end.min(s.kv_tokens.saturating_add(budget.tokens(token_bytes))),
        };
        budget.take(token_bytes * u64::from(upto - s.kv_tokens));
        if !engine.restore(seq, &[SavedPart { range: s.kv_tokens..upto, state: &state }]) {
            return true;
        }
        s.kv_tokens = upto;
        if upto < end {
            s.placement.keep_tail(Tail { end, state });
        }
        upto == end
    }

    /// Whether the saved run ahead of a sequence is long enough to restore. A sequence with a saved tail needs all of its
    /// prefix before the tail can be restored.
    fn is_worth_restoring(&self, sequence: &Sequence) -> bool {
        let Some(Running { prefix, tail: None, .. }) = sequence.placement.running() else { return true };
        let mut position = sequence.kv_tokens;
        let enough = position + MIN_RESTORED_TOKENS;
        for node in self.cache.tree.ahead(prefix.leaf, position) {
            let piece = self.cache.tree.piece(node);
            if position >= enough || (piece.segment.is_none() && piece.kv != KvState::Live) {
                break;
            }
            position = piece.end;
        }
        position >= enough
    }

    /// Shares as much as one other sequence has of the live nodes ahead. Returns the position that was reached.
    fn share(
        &mut self,
        ahead: &[NodeId],
        index: usize,
        sequences: &[Sequence],
        engine: &mut impl Engine,
    ) -> Option<u32> {
        let (to, start) = (sequences[index].placement.seq()?, sequences[index].kv_tokens);
        let tree = &self.cache.tree;
        let pieces = ahead.iter().map(|&node| tree.piece(node));
        let live: Vec<Piece> = pieces.take_while(|piece| piece.kv == KvState::Live).collect();
        // The position up to which a sequence has them: its path and this one part once and for all.
        let has = |s: &Sequence| {
            let running = s.placement.running().filter(|running| running.seq != to)?;
            let held = tree.ahead(running.prefix.leaf, start);
            let common = live.iter().zip(held).take_while(|(piece, node)| piece.node == *node);
            let end = common.map(|(piece, _)| piece.end).take_while(|&end| end <= s.kv_tokens).last()?;
            Some((end, running.seq))
        };
        let best = sequences.iter().filter_map(has).max_by_key(|&(end, _)| end);
        let shared = best.filter(|&(end, from)| engine.share(from, to, start..end));
        if shared.is_none() {
            // The next who wants them restores or computes them.
            let nodes: Vec<NodeId> = live.iter().map(|piece| piece.node).collect();
            nodes.into_iter().for_each(|node| self.cache.tree.set_kv(node, KvState::Absent));
        }
        shared.map(|(end, _)| end)
    }

    /// Loads what was saved of the nodes ahead, up to the budget. Neighbouring nodes of one segment are one part, so that
    /// it makes no difference how often a segment was split. `begun`: the sequence has reused some in this step.
    fn find_saved(&mut self, ahead: &[NodeId], s: &Sequence, budget: &mut RestoreBudget, begun: bool) -> Found {
        let (mut found, mut last) = (Found::default(), None);
        for &node in ahead {
            let piece = self.cache.tree.piece(node);
            let Some(segment) = piece.segment.filter(|_| piece.kv == KvState::Absent) else { break };
            if let Some((range, _)) = found.parts.last_mut().filter(|_| last == Some(segment)) {
                range.end = piece.end;
            } else if budget.allows_more(begun || !found.parts.is_empty()) {
                // A segment that is gone or bad is taken out of the tree by `load`.
                let Some(state) = self.cache.load(segment, s.namespace()) else { break };
                budget.take(state.len() as u64);
                found.parts.push((piece.start..piece.end, state));
                last = Some(segment);
            } else {
                found.more = true;
                break;
            }
            found.nodes.push((node, piece.end));
        }
        found
    }

    /// Restores what was found, all at once if the engine can. Returns the position that was reached.
    fn restore(&mut self, found: &Found, seq: SeqId, engine: &mut impl Engine) -> Option<u32> {
        let parts: Vec<SavedPart<'_>> =
            found.parts.iter().map(|(range, state)| SavedPart { range: range.clone(), state }).collect();
        let end = if parts.is_empty() {
            None
        } else if engine.restore(seq, &parts) {
            parts.last().map(|part| part.range.end)
        } else if parts.len() > 1 {
            // One of them may be bad.
            let good = parts.iter().take_while(|part| engine.restore(seq, std::slice::from_ref(part)));
            good.last().map(|part| part.range.end)
        } else {
            None
        }?;
        for &(node, _) in found.nodes.iter().take_while(|&&(_, at)| at <= end) {
            self.cache.tree.set_kv(node, KvState::Live);
        }
        Some(end)
    }

    /// The position up to which a sequence may compute now: where another one computes, or where a restore begins. It takes
    /// on what nobody else computes.
    pub(in crate::worker) fn limit(&mut self, sequence: &Sequence) -> u32 {
        let Some(prefix) = sequence.placement.prefix() else { return 0 };
        if sequence.kv_tokens < prefix.tokens {
            let too_short = !self.is_worth_restoring(sequence);
            for node in self.cache.tree.ahead(prefix.leaf, sequence.kv_tokens) {
                let piece = self.cache.tree.piece(node);
                let position = piece.start.max(sequence.kv_tokens);
                match piece.kv {
                    KvState::Pending(who) if who == sequence.id() => {}
                    // A segment at the sequence's own position is there only if it could not be restored.
                    KvState::Absent if piece.segment.is_none() || position == sequence.kv_tokens || too_short => {
                        self.cache.tree.set_kv(piece.node, KvState::Pending(sequence.id()));
                    }
                    _ => return position,
                }
            }
        }
        sequence.tokens.len() as u32
    }
}
