//! Counts the memory of the lexers that a model's grammars use, those of running generations too.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits;

/// Why a generation ends that learned too much.
pub(super) const LEXERS_FULL: &str =
    "the grammars of all generations take too much memory, and this one more than its part";

/// Bytes of all lexers together.
#[derive(Debug, Default)]
pub(super) struct Lexers(AtomicUsize);

/// One lexer's bytes, which count as long as a parser uses it.
#[derive(Debug)]
pub(super) struct LexerBytes {
    bytes: AtomicUsize,
    all: Arc<Lexers>,
}

impl LexerBytes {
    pub(super) fn new(all: &Arc<Lexers>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), all: all.clone() })
    }

    /// The lexer takes so many bytes now. Returns whether it must not be used any more: all take too much, and it takes more than its
    /// part, so that those go that learned most.
    #[must_use]
    pub(super) fn take(&self, bytes: usize) -> bool {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        // Wraps around where it becomes less, and back again.
        let more = bytes.wrapping_sub(before);
        let all = self.all.0.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        all > limits::LEXERS_BYTES && bytes > limits::LEXERS_BYTES / limits::LEXER_PART
    }
}

impl Drop for LexerBytes {
    fn drop(&mut self) {
        self.all.0.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_bound_of_all_those_must_go_that_take_more_than_their_part() {
        let all = Arc::<Lexers>::default();
        let part = limits::LEXERS_BYTES / limits::LEXER_PART;
        let lexers: Vec<_> = (0..limits::LEXER_PART).map(|_| LexerBytes::new(&all)).collect();
        assert!(lexers.iter().all(|lexer| !lexer.take(part)), "all together at the bound");
        let small = LexerBytes::new(&all);
        assert!(!small.take(1), "one past it, and little");
        assert!(!lexers[0].take(part), "its part");
        assert!(lexers[0].take(part + 1), "one more");
        drop(small);
        assert!(lexers[0].take(part + 1));
        assert!(!lexers[0].take(part), "less again");
        drop(lexers);
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
