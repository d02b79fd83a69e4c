//! Which entries a row attends to, as its mask says.
use std::ops::Range;

/// Minus infinity, as a number of 16 bits: an entry that the row does not attend to.
pub(super) const MASKED: u16 = 0xfc00;
/// Values of a mask that are looked at together.
const TOGETHER: usize = 64;

/// Entries of its own that a row of a block may have in any case.
const FEW: usize = 64;

/// The entries that a row attends to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Span {
    /// From the first to the last one; empty if there is none.
    pub(super) entries: Range<usize>,
    /// How many of them.
    pub(super) count: usize,
    /// It attends to all of them alike.
    pub(super) is_plain: bool,
}

impl Span {
    pub(super) fn all(entries: usize) -> Self {
        Self { entries: 0..entries, count: entries, is_plain: true }
    }

    pub(super) fn of(mask: &[u16]) -> Self {
        let is_masked = |part: &[u16]| part.iter().fold(true, |all, &value| all & (value == MASKED));
        let before = mask.chunks(TOGETHER).take_while(|part| is_masked(part)).count() * TOGETHER;
        let Some(first) = (before..mask.len()).find(|&entry| mask[entry] != MASKED) else { return Self::default() };
        let behind = mask.rchunks(TOGETHER).take_while(|part| is_masked(part)).count() * TOGETHER;
        let last = (first..mask.len() - behind).rev().find(|&entry| mask[entry] != MASKED).unwrap_or(first);
        let is_zero = |part: &[u16]| part.iter().fold(0, |any, &value| any | value) == 0;
        let of_span = &mask[first..=last];
        if of_span.chunks(TOGETHER).all(is_zero) {
            return Self { entries: first..last + 1, count: of_span.len(), is_plain: true };
        }
        let count = of_span.iter().map(|value| usize::from(*value != MASKED)).sum();
        Self { entries: first..last + 1, count, is_plain: false }
    }
}

/// The entries to which two rows attend.
pub(super) fn shared((a, of_a): (&Span, &[u16]), (b, of_b): (&Span, &[u16])) -> usize {
    let both = a.entries.start.max(b.entries.start)..a.entries.end.min(b.entries.end);
    if both.is_empty() || a.is_plain && b.is_plain {
        return both.len();
    }
    let pairs = of_a[both.clone()].iter().zip(&of_b[both]);
    pairs.map(|(a, b)| usize::from(u8::from(*a != MASKED) & u8::from(*b != MASKED))).sum()
}

/// How many of the first rows are computed side by side, at most `most`: each attends to what the first one does, and to little
/// else. `shares`: the entries that both rows of these numbers attend to.
pub(super) fn block(spans: &[Span], most: usize, shares: impl Fn(usize, usize) -> usize) -> usize {
    let joins = |&row: &usize| {
        let (shared, count) = (shares(0, row), spans[row].count);
        shared > 0 && count - shared <= (count / 4).max(FEW)
    };
    1 + (1..spans.len().min(most)).take_while(joins).count()
}

/// Adds the entries that any of these rows attends to, and returns how many there are. Rows without holes overlap.
pub(super) fn attended<'a>(
    rows: &(impl Iterator<Item = (&'a Span, &'a [u16])> + Clone),
    runs: &mut Vec<Range<u32>>,
) -> usize {
    let present = || rows.clone().filter(|(span, _)| !span.entries.is_empty());
    let begin = present().map(|(span, _)| span.entries.start).min().unwrap_or(0);
    let end = present().map(|(span, _)| span.entries.end).max().unwrap_or(0);
    if present().all(|(span, _)| span.is_plain) {
        runs.push(begin as u32..end as u32);
        return end - begin;
    }
    let (mut count, mut run) = (0, 0..0_u32);
    for first in (begin..end).step_by(TOGETHER) {
        let part = first..end.min(first + TOGETHER);
        let mut attended = [false; TOGETHER];
        for (_, mask) in present() {
            attended.iter_mut().zip(&mask[part.clone()]).for_each(|(any, value)| *any |= *value != MASKED);
        }
        for (entry, _) in (part.start as u32..).zip(attended).filter(|(_, any)| *any) {
            count += 1;
            if entry == run.end && !run.is_empty() {
                run.end += 1;
                continue;
            }
            let before = std::mem::replace(&mut run, entry..entry + 1);
            runs.extend((!before.is_empty()).then_some(before));
        }
    }
    runs.extend((!run.is_empty()).then_some(run));
    count
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
            let plain = Span { entries: entries.clone(), count: entries.len(), is_plain: begin < end };
            assert_eq!(Span::of(&mask), plain);
            if end - begin > 2 {
                for (other, less) in [(MASKED, 1), (0x3c00, 0)] {
                    mask[begin + 1] = other;
                    let count = entries.len() - less;
                    assert_eq!(Span::of(&mask), Span { entries: entries.clone(), count, is_plain: false });
                }
            }
        }
    }

    /// The first and the last one, if there is any.
    type Ends = Option<(usize, usize)>;

    /// The rows of each block, and the ends and the number of their entries.
    fn blocks(masks: &[Vec<u16>]) -> Vec<(usize, Ends, usize)> {
        let spans: Vec<Span> = masks.iter().map(|mask| Span::of(mask)).collect();
        let (mut row, mut found, mut entries) = (0, Vec::new(), Vec::new());
        while row < masks.len() {
            let of = |row: usize| (&spans[row], &masks[row][..]);
            let rows = block(&spans[row..], 32, |a, b| shared(of(row + a), of(row + b)));
            entries.clear();
            let count = attended(&(row..row + rows).map(of), &mut entries);
            assert_eq!(count, entries.iter().map(ExactSizeIterator::len).sum::<usize>());
            let ends = entries.first().zip(entries.last()).filter(|(first, _)| !first.is_empty());
            found.push((rows, ends.map(|(first, last)| (first.start as usize, last.end as usize - 1)), count));
            row += rows;
        }
        found
    }

    fn mask(attends: impl Fn(usize) -> bool) -> Vec<u16> {
        (0..1000).map(|entry| if attends(entry) { 0 } else { MASKED }).collect()
    }

    #[test]
    fn rows_that_share_little_are_not_computed_together() {
        let inputs = |begin: usize, end: usize| mask(|entry| (begin..end).contains(&entry));
        assert_eq!(
            blocks(&[inputs(0, 3), inputs(0, 3), inputs(3, 8), inputs(3, 5)]),
            [(2, Some((0, 2)), 3), (2, Some((3, 7)), 5)]
        );
        assert_eq!(blocks(&[inputs(0, 3), inputs(0, 4), inputs(0, 5)]), [(3, Some((0, 4)), 5)], "one text");
        assert_eq!(blocks(&[inputs(0, 0), inputs(0, 0)]), [(1, None, 0), (1, None, 0)]);
        // Two texts whose entries lie between each other, and rows of a third one.
        let between = |rest: usize| mask(|entry| entry % 3 == rest);
        assert_eq!(
            blocks(&[between(0), between(1), between(2), between(2)]),
            [(1, Some((0, 999)), 334), (1, Some((1, 997)), 333), (2, Some((2, 998)), 333)]
        );
        // What two texts share is not enough, if most is not shared.
        let shares = |begin: usize| mask(|entry| entry < 100 || (begin..begin + 300).contains(&entry));
        assert_eq!(blocks(&[shares(200), shares(600)]), [(1, Some((0, 499)), 400), (1, Some((0, 899)), 400)]);
    }
}
