//! Selects the largest logits.
use std::cmp::Ordering;

use crate::vectorized;

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

vectorized! {
    /// The maximum; minus infinity for an empty slice.
    pub(super) fn maximum(values: &[f32]) -> f32 {
        lane_maximum(values)
    }
}

/// The compiler vectorises it, unlike a fold over `f32::max`.
#[inline(always)]
pub(super) fn lane_maximum(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; CHUNK];
    let chunks = values.chunks_exact(CHUNK);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    rest.iter().fold(fold_lanes(lanes, larger), |best, &value| larger(best, value))
}

/// Combines the lanes, whose number is a power of two, in halves: that takes operations on registers instead of numbers.
#[inline(always)]
pub(super) fn fold_lanes<T: Copy, const LANES: usize>(mut lanes: [T; LANES], combine: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The largest logit; minus infinity without candidates.
pub(super) fn max_logit(candidates: &[Candidate]) -> f32 {
    candidates.iter().fold(f32::NEG_INFINITY, |best, c| if c.logit > best { c.logit } else { best })
}

vectorized! {
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
            let largest = match chunk.as_array::<CHUNK>() {
                // Of a known size, chunks are compared in one stretch of code.
                Some(chunk) => lane_maximum(chunk),
                None => lane_maximum(chunk),
            };
            if largest <= threshold {
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
/// Parts into which many candidates are divided at once.
const PARTS: usize = 512;

/// Keeps the candidates with the smallest keys, as few as it takes for their weights to reach `wanted`, but at least `min`
/// of them and at least one. Of equal keys the better candidates come first. They are in no particular order then.
///
/// Each pass takes linear time and leaves a 512th of the keys' range to divide; so even keys of all magnitudes need no more
/// than some 30 passes. Usually two are enough.
pub(super) fn keep_mass(
    candidates: &mut Vec<Candidate>,
    key: impl Fn(&Candidate) -> f32,
    weight: impl Fn(&Candidate) -> f64,
    wanted: f64,
    min: usize,
) {
    let order = |a: &Candidate, b: &Candidate| key(a).total_cmp(&key(b)).then_with(|| best_first(a, b));
    // What is before `start` is kept and weighs `sum`. What is kept ends before `end`.
    let (mut start, mut end, mut sum) = (0, candidates.len(), 0.0);
    let (mut inside, mut after) = (Vec::new(), Vec::new());
    while end - start > FEW {
        let open = &mut candidates[start..end];
        let Some(part) = PartOf::keys(open.iter().map(&key)) else { break };
        let mut masses = [0.0; PARTS];
        open.iter().for_each(|c| masses[part.of(key(c))] += weight(c));
        let (mut divided, mut before) = (0, sum);
        while divided + 1 < PARTS && before + masses[divided] < wanted {
            before += masses[divided];
            divided += 1;
        }
        // In the order they have: equal keys are usually sorted already.
        let mut kept = 0;
        for at in 0..open.len() {
            let c = open[at];
            match part.of(key(&c)).cmp(&divided) {
                Ordering::Less => {
                    open[kept] = c;
                    kept += 1;
                }
                Ordering::Equal => inside.push(c),
                Ordering::Greater => after.push(c),
            }
        }
        open[kept..kept + inside.len()].copy_from_slice(&inside);
        open[kept + inside.len()..].copy_from_slice(&after);
        (start, end, sum) = (start + kept, start + kept + inside.len(), before);
        inside.clear();
        after.clear();
    }
    candidates[start..end].sort_unstable_by(order);
    let reached = candidates[start..end].iter().position(|c| {
        sum += weight(c);
        sum >= wanted
    });
    let keep = reached.map_or(end, |at| start + at + 1);
    let min = min.max(1);
    if keep < min && min < candidates.len() {
        candidates.select_nth_unstable_by(min - 1, order);
    }
    candidates.truncate(keep.max(min));
}

/// Tells in which of `PARTS` equal parts of their range a key lies.
struct PartOf {
    low: f64,
    scale: f64,
}

impl PartOf {
    /// `None` if the keys are all the same.
    fn keys(keys: impl Iterator<Item = f32>) -> Option<Self> {
        let ends = (f32::INFINITY, f32::NEG_INFINITY);
        let (low, high) = keys
            .fold(ends, |(low, high), key| (if key < low { key } else { low }, if key > high { key } else { high }));
        let (low, high) = (f64::from(low), f64::from(high));
        (high > low).then(|| Self { low, scale: PARTS as f64 / (high - low) })
    }

    fn of(&self, key: f32) -> usize {
        (((f64::from(key) - self.low) * self.scale) as usize).min(PARTS - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Logits in a few steps, in all magnitudes, all equal but for one, or as a model has them.
    fn any_logits() -> impl Strategy<Value = Vec<f32>> {
        let steps = prop::collection::vec((-4i8..4).prop_map(f32::from), 1..900);
        let magnitudes = prop::collection::vec((-126i32..127).prop_map(|power| -(2f32.powi(power))), 1..900);
        let flat = (1usize..900, -100f32..100.0).prop_map(|(size, other)| [vec![0.0; size], vec![other]].concat());
        let usual = prop::collection::vec(-20f32..20.0, 1..900);
        prop_oneof![steps, magnitudes, flat, usual]
    }

    proptest! {
        #[test]
        fn keep_mass_equals_a_full_sort(
            logits in any_logits(), p in 0.0f64..1.1, min in 0usize..300, around in prop::option::of(-5f32..5.0),
        ) {
            let key = |c: &Candidate| around.map_or(-c.logit, |mean| (c.logit - mean).abs());
            let best = maximum(&logits);
            let weight = |c: &Candidate| f64::from((c.logit - best).exp());
            let mut kept: Vec<Candidate> =
                (0u32..).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
            let mut sorted = kept.clone();
            sorted.sort_by(|a, b| key(a).total_cmp(&key(b)).then_with(|| best_first(a, b)));
            let wanted = p * sorted.iter().map(weight).sum::<f64>();
            keep_mass(&mut kept, key, weight, wanted, min);
            // The sum may be reached one candidate sooner or later, as the order of adding rounds.
            let mass = |count: usize| sorted[..count].iter().map(weight).sum::<f64>();
            let (count, least) = (kept.len(), min.max(1).min(sorted.len()));
            prop_assert!(count >= least);
            prop_assert!(count == sorted.len() || mass(count) >= wanted - 1e-9, "too few: {count}");
            prop_assert!(count == least || mass(count - 1) < wanted + 1e-9, "too many: {count}");
            kept.sort_by(|a, b| key(a).total_cmp(&key(b)).then_with(|| best_first(a, b)));
            prop_assert_eq!(&kept[..], &sorted[..count]);
        }
    }

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
