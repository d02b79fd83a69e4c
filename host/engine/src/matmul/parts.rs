//! Divides a product among threads, and a thread's part into tiles.
use std::ops::Range;

/// What one row of activations costs to quantize, and one row of weights to interleave, per number of theirs: how many products
/// take as long (measured on a Xeon with AVX-512).
const QUANTIZE: usize = 50;
const INTERLEAVE: usize = 8;
/// Rows of weights that are interleaved.
pub(super) const PANEL: usize = 16;

/// The part of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Rows of weights; all but the last part's are whole panels.
    pub(super) outputs: Range<usize>,
    /// Rows of the batch.
    pub(super) rows: Range<usize>,
}

/// The part of `thread`. Threads share nothing: each quantizes the rows and interleaves the weights of its part, so the parts are
/// such that this costs least.
pub(super) fn of(outputs: usize, rows: usize, thread: usize, threads: usize) -> Part {
    let twice = |columns: &usize| {
        let (of_rows, of_outputs) = (rows.div_ceil(*columns), outputs.div_ceil(threads / columns));
        of_rows * QUANTIZE + of_outputs * INTERLEAVE
    };
    let columns = (1..=threads).filter(|columns| threads.is_multiple_of(*columns)).min_by_key(twice).unwrap_or(1);
    let panels = divide(outputs.div_ceil(PANEL), thread / columns, threads / columns);
    let outputs = (panels.start * PANEL).min(outputs)..(panels.end * PANEL).min(outputs);
    Part { outputs, rows: divide(rows, thread % columns, columns) }
}

/// Part `index` of `parts` of so many.
fn divide(count: usize, index: usize, parts: usize) -> Range<usize> {
    count * index / parts..count * (index + 1) / parts
}

/// The tiles of so many rows: where each begins, and its rows, `most`, four, two or one.
#[cfg(target_arch = "x86_64")]
pub(super) fn tiles(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = rows - first;
        let width = [most, 4, 2, 1].into_iter().find(|width| *width <= left)?;
        first += width;
        Some((first - width, width))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_cover_everything_once(outputs in 1..400_usize, rows in 1..60_usize, threads in 1..20_usize) {
            let mut seen = vec![0; outputs * rows];
            for thread in 0..threads {
                let part = of(outputs, rows, thread, threads);
                prop_assert_eq!(part.outputs.start % PANEL, 0);
                for row in part.rows {
                    part.outputs.clone().for_each(|output| seen[row * outputs + output] += 1);
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }
    }

    #[test]
    fn few_rows_are_not_divided_and_many_are() {
        assert_eq!(of(32_000, 8, 1, 4), Part { outputs: 8_000..16_000, rows: 0..8 });
        assert_eq!(of(384, 4_096, 1, 2), Part { outputs: 0..384, rows: 2_048..4_096 });
    }
}
