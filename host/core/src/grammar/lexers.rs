//! Counts the memory of the lexers that a model's grammars use, those of running generations too.
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use crate::limits;

/// The bytes of all lexers together, and how many they may be.
#[derive(Debug)]
pub(super) struct Lexers {
    bytes: AtomicI64,
    most: usize,
}

impl Lexers {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicI64::new(0), most })
    }

    /// Whether they take too much.
    pub(super) fn are_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.most as i64
    }

    fn add(&self, bytes: i64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The size of one lexer, which counts as long as a parser uses it. To ask for it does not wait for who uses the lexer.
#[derive(Debug)]
pub(super) struct LexerSize {
    bytes: AtomicUsize,
    states: AtomicUsize,
    all: Arc<Lexers>,
}

impl LexerSize {
    pub(super) fn new(all: &Arc<Lexers>, (states, bytes): (usize, usize)) -> Arc<Self> {
        all.add(bytes as i64);
        Arc::new(Self { bytes: bytes.into(), states: states.into(), all: all.clone() })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn states(&self) -> usize {
        self.states.load(Ordering::Relaxed)
    }

    /// Records the lexer's size. Returns whether it is to be dropped: all are over their bound, and it is over its share.
    #[must_use]
    pub(super) fn record(&self, (states, bytes): (usize, usize)) -> bool {
        self.states.store(states, Ordering::Relaxed);
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.all.add(bytes as i64 - before as i64);
        self.all.are_full() && bytes > self.all.most / limits::LEXER_SHARE
    }
}

impl Drop for LexerSize {
    fn drop(&mut self) {
        self.all.add(-(*self.bytes.get_mut() as i64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_bound_of_all_those_are_dropped_that_are_over_their_share() {
        let (most, share) = (3200, 3200 / limits::LEXER_SHARE);
        let all = Lexers::new(most);
        let lexers: Vec<_> = (0..limits::LEXER_SHARE).map(|_| LexerSize::new(&all, (1, share))).collect();
        assert!(!all.are_full() && lexers.iter().all(|lexer| !lexer.record((2, share))), "all together at the bound");
        let small = LexerSize::new(&all, (0, 0));
        assert!(!small.record((1, 1)) && all.are_full(), "one past it, and little");
        assert!(!lexers[0].record((2, share)), "its share");
        assert!(lexers[0].record((3, share + 1)), "one more");
        assert_eq!((lexers[0].states(), lexers[0].bytes()), (3, share + 1));
        drop(small);
        assert!(lexers[0].record((3, share + 1)));
        assert!(!lexers[0].record((3, share)), "less again");
        drop(lexers);
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
    }
}
