//! Which entries a row attends to, as its mask says.
use std::ops::Range;

/// Minus infinity, as a number of 16 bits: an entry that the row does not attend to.
pub(super) const MASKED: u16 = 0xfc00;
/// Values of a mask that are looked at together.
const TOGETHER: usize = 64;

/// The entries that a row attends to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Span {
    /// From the first to the last one; empty if there is none.
    pub(super) entries: Range<usize>,
    /// It attends to all of them alike.
    pub(super) is_plain: bool,
}

impl Span {
    pub(super) fn all(entries: usize) -> Self {
        Self { entries: 0..entries, is_plain: true }
    }

    pub(super) fn of(mask: &[u16]) -> Self {
        let is_masked = |part: &[u16]| part.iter().fold(true, |all, &value| all & (value == MASKED));
        let before = mask.chunks(TOGETHER).take_while(|part| is_masked(part)).count() * TOGETHER;
        let Some(first) = (before..mask.len()).find(|&entry| mask[entry] != MASKED) else { return Self::default() };
        let behind = mask.rchunks(TOGETHER).take_while(|part| is_masked(part)).count() * TOGETHER;
        let last = (first..mask.len() - behind).rev().find(|&entry| mask[entry] != MASKED).unwrap_or(first);
        let is_zero = |part: &[u16]| part.iter().fold(0, |any, &value| any | value) == 0;
        Self { entries: first..last + 1, is_plain: mask[first..=last].chunks(TOGETHER).all(is_zero) }
    }
}

/// The first rows that are computed side by side, at most so many: whose entries overlap.
pub(super) fn block(spans: &[Span], most: usize) -> (usize, Range<usize>) {
    let mut union = spans.first().map_or(0..0, |span| span.entries.clone());
    let mut rows = 1;
    for Span { entries, .. } in spans.iter().take(most).skip(1) {
        if entries.start >= union.end || entries.end <= union.start {
            break;
        }
        union = union.start.min(entries.start)..union.end.max(entries.end);
        rows += 1;
    }
    (rows, union)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_found_wherever_they_begin_and_end() {
        for (length, begin, end) in
            [(200, 0, 200), (200, 63, 65), (200, 64, 128), (130, 129, 130), (1, 0, 1), (64, 3, 3)]
        {
            let mut mask = vec![MASKED; length];
            mask[begin..end].fill(0);
            let entries = if begin == end { 0..0 } else { begin..end };
            assert_eq!(Span::of(&mask), Span { is_plain: begin < end, entries: entries.clone() });
            if end - begin > 2 {
                for other in [MASKED, 0x3c00] {
                    mask[begin + 1] = other;
                    assert_eq!(Span::of(&mask), Span { is_plain: false, entries: entries.clone() });
                }
            }
        }
    }

    #[test]
    fn rows_of_different_inputs_are_not_computed_together() {
        let span = |entries| Span { entries, is_plain: true };
        let spans = [span(0..3), span(0..3), span(3..8), span(3..5)];
        assert_eq!((block(&spans, 32), block(&spans[2..], 32), block(&spans, 1)), ((2, 0..3), (2, 3..8), (1, 0..3)));
        // Rows of one text attend to more and more.
        let spans = [span(0..3), span(0..4), span(0..5)];
        assert_eq!(block(&spans, 32), (3, 0..5));
        assert_eq!(block(&[span(0..0), span(0..0)], 32), (1, 0..0));
    }
}
