//! Where a sequence stands between steps, and the only moves between those states.
use crate::ids::SeqId;
use crate::prefix::NodeId;

/// Order of sequences of one priority class: by arrival. One that a scheduler preempted goes after all that it did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Arrival(u64),
    Demoted(u64),
}

/// Where the shareable part of a prompt ends in the prefix tree: all tokens but the last one, or none on an engine that
/// cannot share prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) leaf: NodeId,
    pub(crate) tokens: u32,
}

/// Saved KV entries from the end of the prefix up to position `end`. The prefix tree does not keep them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) end: u32,
    pub(crate) state: Vec<u8>,
}

/// A sequence with an engine's sequence id and reserved KV capacity.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) seq: SeqId,
    pub(crate) prefix: Prefix,
    /// Restored as soon as the prefix is complete.
    pub(crate) tail: Option<Tail>,
    /// Its client reads too slowly: it computes nothing, and keeps its KV entries until others need the capacity.
    pub(crate) paused: bool,
}

/// A sequence that ran and gave its KV capacity back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Preempted {
    pub(crate) prefix: Prefix,
    pub(crate) tail: Option<Tail>,
}

/// Where a sequence stands. A sequence that ended is gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Arrived and was never admitted: it holds nothing.
    Waiting,
    Running(Running),
    /// Waits to be admitted again.
    Preempted(Preempted),
    /// Its client reads too slowly: it is not admitted until the client has caught up. `None`: it never ran, or what it
    /// had computed may be evicted.
    Paused(Option<Preempted>),
}

impl Placement {
    pub(crate) fn running(&self) -> Option<&Running> {
        if let Self::Running(running) = self { Some(running) } else { None }
    }

    pub(crate) fn seq(&self) -> Option<SeqId> {
        self.running().map(|running| running.seq)
    }

    /// `None`: it was never admitted, so it is in no prefix tree.
    pub(crate) fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::Running(running) => Some(running.prefix),
            Self::Preempted(preempted) | Self::Paused(Some(preempted)) => Some(preempted.prefix),
            Self::Waiting | Self::Paused(None) => None,
        }
    }

    /// Whether its client reads too slowly.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self, Self::Running(Running { paused: true, .. }) | Self::Paused(_))
    }

    /// Whether it may be admitted.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Waiting | Self::Preempted(_))
    }

    /// Waiting or preempted -> running: there is KV capacity for it.
    pub(crate) fn admit(&mut self, seq: SeqId, prefix: Prefix) {
        *self = match std::mem::replace(self, Self::Waiting) {
            Self::Waiting => Self::Running(Running { seq, prefix, tail: None, paused: false }),
            Self::Preempted(Preempted { tail, .. }) => Self::Running(Running { seq, prefix, tail, paused: false }),
            other => other.unchanged("admit"),
        };
    }

    /// Running -> preempted: others need its KV capacity, or its client is behind. `computed`: what it has computed past
    /// its prefix; `None` leaves a tail of which not all was restored yet.
    pub(crate) fn preempt(&mut self, computed: Option<Tail>) {
        *self = match std::mem::replace(self, Self::Waiting) {
            Self::Running(Running { prefix, tail, paused, .. }) => {
                let preempted = Preempted { prefix, tail: computed.or(tail) };
                if paused { Self::Paused(Some(preempted)) } else { Self::Preempted(preempted) }
            }
            other => other.unchanged("preempt"),
        };
    }

    /// Running and paused -> paused without KV entries: it is in no prefix tree any more, and what it had computed may be
    /// evicted like what an ended sequence leaves.
    pub(crate) fn release(&mut self) {
        *self = match std::mem::replace(self, Self::Waiting) {
            Self::Running(Running { paused: true, .. }) => Self::Paused(None),
            other => other.unchanged("release"),
        };
    }

    /// Any state -> paused: its client is behind, so more text would only fill memory. False if it was before.
    pub(crate) fn pause(&mut self) -> bool {
        if self.is_paused() {
            return false;
        }
        *self = match std::mem::replace(self, Self::Waiting) {
            Self::Waiting => Self::Paused(None),
            Self::Preempted(preempted) => Self::Paused(Some(preempted)),
            Self::Running(running) => Self::Running(Running { paused: true, ..running }),
            paused @ Self::Paused(_) => paused,
        };
        true
    }

    /// Paused -> what it was before: its client has caught up. False if it was not paused.
    pub(crate) fn resume(&mut self) -> bool {
        let was_paused = self.is_paused();
        *self = match std::mem::replace(self, Self::Waiting) {
            Self::Paused(None) => Self::Waiting,
            Self::Paused(Some(preempted)) => Self::Preempted(preempted),
            Self::Running(running) => Self::Running(Running { paused: false, ..running }),
            other => other,
        };
        was_paused
    }

    /// The prefix of a running sequence is complete: the tail that is to be restored, once.
    pub(crate) fn take_tail(&mut self) -> Option<Tail> {
        if let Self::Running(running) = self { running.tail.take() } else { None }
    }

    /// Only a part of the tail was restored: the rest follows.
    pub(crate) fn keep_tail(&mut self, tail: Tail) {
        if let Self::Running(running) = self {
            running.tail = Some(tail);
        }
    }

    /// A move that this state does not have. It is a mistake in the worker; nothing is lost by leaving the sequence alone.
    fn unchanged(self, attempted: &str) -> Self {
        debug_assert!(false, "{attempted} in {self:?}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Token;
    use crate::prefix::PrefixTree;
    use crate::segments::Namespace;

    const SEQ: SeqId = SeqId(1);

    fn prefix() -> Prefix {
        Prefix { leaf: PrefixTree::default().enter(&Namespace::Tenant("t".into()), &[Token(1); 7]), tokens: 7 }
    }

    fn tail(end: u32) -> Option<Tail> {
        Some(Tail { end, state: vec![1] })
    }

    #[test]
    fn a_preempted_sequence_comes_back_with_its_tail() {
        let mut placement = Placement::Waiting;
        assert!(placement.is_ready() && placement.prefix().is_none() && placement.seq().is_none());
        placement.admit(SEQ, prefix());
        assert_eq!((placement.seq(), placement.prefix(), placement.is_ready()), (Some(SEQ), Some(prefix()), false));
        placement.preempt(tail(9));
        assert_eq!((placement.seq(), placement.prefix(), placement.is_ready()), (None, Some(prefix()), true));
        assert_eq!(placement.take_tail(), None, "only a running sequence restores it");
        placement.admit(SeqId(2), prefix());
        // Preempted again before the tail was restored: it has computed nothing new.
        placement.preempt(None);
        placement.admit(SEQ, prefix());
        assert_eq!(placement.take_tail(), tail(9));
        assert_eq!(placement.take_tail(), None);
    }

    #[test]
    fn a_paused_sequence_is_not_ready_and_resumes_as_what_it_was() {
        let mut placement = Placement::Waiting;
        placement.pause();
        assert!(!placement.is_ready());
        placement.resume();
        assert_eq!(placement, Placement::Waiting);
        placement.admit(SEQ, prefix());
        placement.preempt(tail(8));
        placement.pause();
        assert!(!placement.is_ready() && placement.prefix() == Some(prefix()));
        // Said twice by a client that goes on reading slowly.
        placement.pause();
        placement.resume();
        assert_eq!(placement, Placement::Preempted(Preempted { prefix: prefix(), tail: tail(8) }));
        placement.resume();
        assert!(placement.is_ready());
    }

    #[test]
    fn a_sequence_paused_while_it_runs_keeps_its_place_until_it_is_needed() {
        let mut placement = Placement::Waiting;
        placement.admit(SEQ, prefix());
        assert!(placement.pause() && !placement.pause() && placement.is_paused());
        assert_eq!(placement.seq(), Some(SEQ));
        assert!(placement.resume() && !placement.resume() && placement.seq() == Some(SEQ));
        placement.pause();
        placement.preempt(tail(8));
        assert!(placement.is_paused() && !placement.is_ready() && placement.seq().is_none());
        placement.resume();
        placement.admit(SEQ, prefix());
        placement.pause();
        placement.release();
        assert_eq!((&placement, placement.prefix()), (&Placement::Paused(None), None));
    }

    #[test]
    fn whoever_was_demoted_goes_after_all_who_were_not() {
        assert!(Rank::Arrival(u64::MAX) < Rank::Demoted(0) && Rank::Arrival(1) < Rank::Arrival(2));
    }
}
