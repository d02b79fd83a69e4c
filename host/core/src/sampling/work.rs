//! What a plan's step takes at most, so that a plan is refused before it holds up a worker.
use super::step::Step;

/// Work of a plan for one token, in logits that are looked at once: so many passes over the vocabulary, and what the lists and
/// the history of any model may take. On a core of today it takes at most some milliseconds with 128k tokens.
pub(super) const MAX_PASSES: u64 = 64;
pub(super) const MAX_MORE: u64 = 1 << 20;

/// A logit that is found by its token, with the maximum of its block.
const SCATTERED: u64 = 8;
/// A token of the history that is compared, sorted, and found in the row.
const REMEMBERED: u64 = 8;
/// A candidate whose probability is computed and ranked.
const RANKED: u64 = 12;

/// The work that a plan may take with a vocabulary of `size` tokens.
pub(super) fn bound(size: usize) -> u64 {
    MAX_PASSES * size as u64 + MAX_MORE
}

/// What the steps take, in order, for a sequence of up to `tokens` tokens.
pub(super) fn of<'a>(steps: impl Iterator<Item = &'a Step>, size: usize, tokens: usize) -> u64 {
    let (size, tokens) = (size as u64, tokens as u64);
    let mut candidates = size;
    let mut work = 0u64;
    for step in steps {
        let entries = step.entries() as u64;
        work = work.saturating_add(match step {
            Step::Bias { .. } | Step::Ban(_) => SCATTERED * entries + candidates,
            Step::AllowOnly(_) => SCATTERED * entries + size + candidates,
            Step::Mask(_) => 2 * size + candidates,
            Step::Penalize { .. } => REMEMBERED * tokens,
            Step::PenalizeRepeats(repeats) => 2 * REMEMBERED * tokens.min(u64::from(repeats.last_n)),
            Step::Temperature(_) | Step::KeepBest | Step::KeepMinP { .. } => 2 * candidates,
            Step::KeepTopK(k) => 2 * candidates + RANKED * candidates.min(u64::from(*k)),
            Step::KeepTopSigma(_) => 4 * candidates,
            Step::KeepTopP { .. } | Step::ExcludeTop { .. } | Step::KeepSurprise { .. } => RANKED * candidates,
            Step::KeepTypical { .. } => 2 * RANKED * candidates,
        });
        // Other steps may leave all candidates.
        candidates = match step {
            Step::KeepBest => 1,
            Step::KeepTopK(k) => candidates.min(u64::from(*k)),
            _ => candidates,
        };
    }
    work
}
