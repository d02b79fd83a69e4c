//! Selects the largest logits.
use std::cmp::Ordering;

/// A token that may still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    pub(super) logit: f32,
}

/// Logits that are compared with the threshold at once: enough to fill vector registers, and few enough that looking at
/// each of them costs little.
const CHUNK: usize = 32;

/// Orders larger logits first. Equal logits are ordered by token id, so that ties are broken the same way everywhere.
pub(super) fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The maximum; minus infinity for an empty slice. The compiler vectorises it, unlike a fold over `f32::max`.
pub(super) fn maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; CHUNK];
    let chunks = values.chunks_exact(CHUNK);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &value| if value > best { value } else { best })
}

/// The largest logit; minus infinity without candidates.
pub(super) fn max_logit(candidates: &[Candidate]) -> f32 {
    candidates.iter().fold(f32::NEG_INFINITY, |best, c| if c.logit > best { c.logit } else { best })
}

/// Fills `out` with the `k` largest of `logits` (fewer if fewer are finite), best first.
pub(super) fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 {
        return;
    }
    // Collect logits above the threshold. When the buffer is full, keep its best k and raise the threshold to the worst
    // of them. After that, the maximum of most chunks is below the threshold, and the chunk is skipped.
    let capacity = k.saturating_mul(4).max(256);
    let mut threshold = f32::NEG_INFINITY;
    for (base, chunk) in (0u32..).step_by(CHUNK).zip(logits.chunks(CHUNK)) {
        if maximum(chunk) <= threshold {
            continue;
        }
        for (token, &logit) in (base..).zip(chunk) {
            if logit > threshold {
                out.push(Candidate { token, logit });
            }
        }
        if out.len() >= capacity {
            shrink(out, k);
            threshold = out.iter().fold(f32::INFINITY, |low, c| if c.logit < low { c.logit } else { low });
        }
    }
    shrink(out, k);
    out.sort_unstable_by(best_first);
}

/// Keeps the best `k`, in no particular order.
pub(super) fn shrink(candidates: &mut Vec<Candidate>, k: usize) {
    if candidates.len() > k {
        candidates.select_nth_unstable_by(k - 1, best_first);
        candidates.truncate(k);
    }
}

/// Fewer candidates than these are sorted rather than divided.
const FEW: usize = 64;

/// Keeps the first candidates in an order, as few as it takes for their weights to reach `wanted`, but at least `min` of
/// them and at least one. They are in no particular order then. Like quickselect, it takes linear time on average.
pub(super) fn keep_mass(
    candidates: &mut Vec<Candidate>,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
    weight: impl Fn(&Candidate) -> f64,
    wanted: f64,
    min: usize,
) {
    // What is before `start` is kept and weighs `sum`. What is kept ends before `end`.
    let (mut start, mut end, mut sum) = (0, candidates.len(), 0.0);
    while end - start > FEW {
        // Usually few of many are enough.
        let middle = start + (end - start) / 8;
        candidates[start..end].select_nth_unstable_by(middle - start, &order);
        let more: f64 = candidates[start..middle].iter().map(&weight).sum();
        if sum + more >= wanted {
            end = middle;
        } else {
            (start, sum) = (middle, sum + more);
        }
    }
    candidates[start..end].sort_unstable_by(&order);
    let reached = candidates[start..end].iter().position(|c| {
        sum += weight(c);
        sum >= wanted
    });
    let keep = reached.map_or(end, |at| start + at + 1);
    let min = min.max(1);
    if keep < min && min < candidates.len() {
        candidates.select_nth_unstable_by(min - 1, &order);
    }
    candidates.truncate(keep.max(min));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn top_k_equals_a_full_sort(logits in prop::collection::vec(-8i8..8, 1..700), k in 1usize..400) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let mut expected: Vec<Candidate> =
                (0u32..).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
            expected.sort_by(best_first);
            expected.truncate(k);
            let mut out = Vec::new();
            top_k(&logits, k, &mut out);
            // Compare logits only: of several equal logits at the threshold, `top_k` may keep other tokens than the
            // sort.
            prop_assert_eq!(
                out.iter().map(|c| c.logit).collect::<Vec<_>>(),
                expected.iter().map(|c| c.logit).collect::<Vec<_>>()
            );
        }
    }
}
