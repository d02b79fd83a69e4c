//! The logits of one step, with the maximum of each block of them. With the maxima, most sampler operations read a few
//! blocks instead of the whole vocabulary.
use super::select::{self, Candidate, best_first, fold_lanes};
use crate::vectorized;
use crate::vectors::exp;

/// Logits of a block: enough to fill several vector registers, and few enough that reading a block costs little.
pub(super) const BLOCK: usize = 64;
/// Once more than an eighth of the logits were noted one by one, all of them are.
const NOTED_SHARE: usize = 8;
/// Tokens that a word of a mask has bits for.
const WORD: usize = u32::BITS as usize;
/// Parallel lanes of the kernels below: a multiple of every vector width in use.
const LANES: usize = 16;

/// Logits by token id. The buffers are reused from step to step, for all sequences of a worker.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    logits: Vec<f32>,
    /// The maximum of each block of `BLOCK` tokens.
    maxima: Vec<f32>,
    /// Scratch of `top_k`.
    order: Vec<f32>,
    journal: Journal,
}

/// What changes since `begin` replaced: the logits of some tokens, or, once those are many, of all.
#[derive(Debug, Clone, Default)]
struct Journal {
    open: bool,
    /// In the order of the changes.
    some: Vec<(u32, f32)>,
    /// Empty as long as `some` has all that changed.
    all: Vec<f32>,
}

impl Values {
    /// Loads the logits of a step in one pass. Returns false if one is NaN or +infinity, or none is finite.
    pub(super) fn load(&mut self, logits: &[f32]) -> bool {
        self.resize(logits.len());
        let numbers = copy(logits, &mut self.logits, &mut self.maxima);
        let best = self.maximum();
        self.trusted(numbers && best > f32::NEG_INFINITY && best < f32::INFINITY)
    }

    /// The same, but tokens whose bit is 0 or absent are banned, whatever their logits, and all may be. Returns false if the logit of
    /// another one is NaN or +infinity.
    pub(super) fn load_masked(&mut self, logits: &[f32], bits: &[u32]) -> bool {
        self.resize(logits.len());
        let numbers = copy_masked(logits, &mut self.logits, &mut self.maxima, bits);
        let valid = numbers && self.maximum() < f32::INFINITY;
        self.trusted(valid)
    }

    /// Where logits are no numbers, neither are maxima: a block of such logits would seem to be banned as a whole, and not be written
    /// when another row is loaded over it.
    fn trusted(&mut self, valid: bool) -> bool {
        if !valid {
            self.maxima.fill(f32::NAN);
        }
        valid
    }

    fn resize(&mut self, size: usize) {
        if self.logits.len() != size {
            // A block that is banned as a whole is not written again: none may keep its maximum and become longer.
            self.maxima.clear();
            self.logits.resize(size, 0.0);
            self.maxima.resize(size.div_ceil(BLOCK), f32::NAN);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.logits.len()
    }

    pub(super) fn as_slice(&self) -> &[f32] {
        &self.logits
    }

    /// The largest logit of each block of [`BLOCK`] tokens; the last one may have fewer.
    pub(super) fn maxima(&self) -> &[f32] {
        &self.maxima
    }

    /// The logit of a token, which must be in the vocabulary.
    pub(super) fn get(&self, token: u32) -> f32 {
        self.logits[token as usize]
    }

    /// From here on changes can be undone.
    pub(super) fn begin(&mut self) {
        self.keep();
        self.journal.open = true;
    }

    /// The changes since `begin` are final.
    pub(super) fn keep(&mut self) {
        self.journal.open = false;
        self.journal.some.clear();
        self.journal.all.clear();
    }

    /// Restores the logits of `begin`.
    pub(super) fn undo(&mut self) {
        let journal = std::mem::take(&mut self.journal);
        if !journal.all.is_empty() {
            self.write(0, &journal.all);
        }
        for &(token, logit) in journal.some.iter().rev() {
            self.set(token, logit);
        }
        // Its buffers are used again.
        self.journal = journal;
        self.keep();
    }

    /// Notes all logits, before most of them change.
    fn note_all(&mut self) {
        if self.journal.open && self.journal.all.is_empty() {
            self.journal.all.extend_from_slice(&self.logits);
        }
    }

    /// Notes one logit before it changes.
    fn note(&mut self, token: u32) {
        let journal = &mut self.journal;
        if !journal.open || !journal.all.is_empty() {
            return;
        }
        journal.some.push((token, self.logits[token as usize]));
        if journal.some.len() * NOTED_SHARE > self.logits.len() {
            self.note_all();
        }
    }

    /// Replaces the logit of a token, which must be in the vocabulary.
    pub(super) fn set(&mut self, token: u32, logit: f32) {
        self.note(token);
        self.logits[token as usize] = logit;
        self.refresh(token as usize / BLOCK);
    }

    /// Replaces the logits from token `start` on. The range must be within the vocabulary.
    pub(super) fn write(&mut self, start: usize, values: &[f32]) {
        self.note_all();
        self.logits[start..start + values.len()].copy_from_slice(values);
        for block in start / BLOCK..(start + values.len()).div_ceil(BLOCK) {
            self.refresh(block);
        }
    }

    /// Sets the logits of all tokens but `ids` to minus infinity.
    pub(super) fn allow_only(&mut self, ids: &[u32]) {
        self.note_all();
        let kept: Vec<f32> = ids.iter().map(|&token| self.get(token)).collect();
        self.logits.fill(f32::NEG_INFINITY);
        self.maxima.fill(f32::NEG_INFINITY);
        for (&token, logit) in ids.iter().zip(kept) {
            self.set(token, logit);
        }
    }

    /// Sets the logits of all tokens to minus infinity whose bit is 0.
    pub(super) fn mask(&mut self, bits: &[u32]) {
        self.note_all();
        mask(&mut self.logits, &mut self.maxima, bits);
    }

    /// Multiplies all logits by a positive number.
    pub(super) fn scale(&mut self, by: f32) {
        self.note_all();
        self.logits.iter_mut().chain(&mut self.maxima).for_each(|value| *value *= by);
    }

    /// The largest logit; minus infinity for an empty vocabulary.
    pub(super) fn maximum(&self) -> f32 {
        select::maximum(&self.maxima)
    }

    /// The first token with the largest logit; `None` if all are banned.
    pub(super) fn argmax(&self) -> Option<u32> {
        let best = self.maximum();
        if best == f32::NEG_INFINITY {
            return None;
        }
        let block = self.maxima.iter().position(|&maximum| maximum == best)?;
        let within = self.block(block).iter().position(|&logit| logit == best)?;
        Some((block * BLOCK + within) as u32)
    }

    /// Fills `out` with the `k` largest (fewer if fewer are finite), best first. Of equal logits it
    /// takes the tokens with smaller ids.
    pub(super) fn top_k(&mut self, k: usize, out: &mut Vec<Candidate>) {
        self.select_k(k, out);
        out.sort_unstable_by(best_first);
    }

    /// As `top_k`, in no particular order.
    pub(super) fn select_k(&mut self, k: usize, out: &mut Vec<Candidate>) {
        out.clear();
        if k == 0 {
            return;
        }
        // At least k logits are as large as the k-th largest block maximum, so the k largest are too.
        let floor = if k < self.maxima.len() {
            self.order.clone_from(&self.maxima);
            *self.order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
        } else {
            f32::NEG_INFINITY
        };
        self.at_least(floor, out);
        select::shrink(out, k);
    }

    /// Fills `out` with the finite logits that are at least `floor`, by token id.
    pub(super) fn at_least(&self, floor: f32, out: &mut Vec<Candidate>) {
        out.clear();
        let floor = floor.max(f32::MIN);
        for (block, &maximum) in self.maxima.iter().enumerate() {
            if maximum >= floor {
                let base = (block * BLOCK) as u32;
                let above = (base..).zip(self.block(block)).filter(|&(_, &logit)| logit >= floor);
                out.extend(above.map(|(token, &logit)| Candidate { token, logit }));
            }
        }
    }

    /// The sum of exp(logit - maximum).
    pub(super) fn total(&self) -> f64 {
        total(&self.logits, self.maximum())
    }

    /// The sums of exp(x) and of x exp(x), where x is a logit less the maximum.
    pub(super) fn moments(&self) -> (f64, f64) {
        moments(&self.logits, self.maximum())
    }

    fn block(&self, block: usize) -> &[f32] {
        let start = block * BLOCK;
        &self.logits[start..(start + BLOCK).min(self.logits.len())]
    }

    fn refresh(&mut self, block: usize) {
        self.maxima[block] = select::lane_maximum(self.block(block));
    }
}

vectorized! {
    /// Copies logits and finds the maximum of each block. Returns whether none is NaN.
    fn copy(from: &[f32], to: &mut [f32], maxima: &mut [f32]) -> bool {
        let ((blocks, rest), (copies, rest_copy)) = (from.as_chunks::<BLOCK>(), to.as_chunks_mut::<BLOCK>());
        let (mut valid, mut maxima) = (true, maxima.iter_mut());
        // Of a known size, blocks are computed in one stretch of code.
        for ((from, to), maximum) in blocks.iter().zip(copies).zip(&mut maxima) {
            valid &= copy_block(from, to, maximum);
        }
        match maxima.next() {
            Some(maximum) => valid & copy_block(rest, rest_copy, maximum),
            None => valid,
        }
    }
}

/// Returns whether no logit is NaN.
#[inline(always)]
fn copy_block(from: &[f32], to: &mut [f32], maximum: &mut f32) -> bool {
    to.copy_from_slice(from);
    let (best, no_nan) = scan(from);
    *maximum = best;
    no_nan
}

vectorized! {
    /// `copy` of the tokens whose bit is 1; the others are banned. Most blocks are banned or allowed as a whole, and one that was
    /// banned before is not written.
    fn copy_masked(from: &[f32], to: &mut [f32], maxima: &mut [f32], bits: &[u32]) -> bool {
        let ((blocks, rest), (copies, rest_copy)) = (from.as_chunks::<BLOCK>(), to.as_chunks_mut::<BLOCK>());
        let (whole, last) = bits.as_chunks::<{ BLOCK / WORD }>();
        let mut valid = true;
        let masks = whole.iter().map(|words| &words[..]).chain([last]).chain(std::iter::repeat(&[][..]));
        let mut masks = masks.zip(maxima);
        // Of a known size, blocks are computed in one stretch of code.
        for ((from, to), (words, maximum)) in blocks.iter().zip(copies).zip(&mut masks) {
            valid &= copy_masked_block(from, to, maximum, words);
        }
        match masks.next() {
            Some((words, maximum)) => valid & copy_masked_block(rest, rest_copy, maximum, words),
            None => valid,
        }
    }
}

/// Returns whether no token's logit that the words allow is NaN.
#[inline(always)]
fn copy_masked_block(from: &[f32], to: &mut [f32], maximum: &mut f32, words: &[u32]) -> bool {
    match Extent::of(words) {
        Extent::None if *maximum == f32::NEG_INFINITY => true,
        Extent::None => {
            to.fill(f32::NEG_INFINITY);
            *maximum = f32::NEG_INFINITY;
            true
        }
        Extent::All => copy_block(from, to, maximum),
        Extent::Some => {
            to.copy_from_slice(from);
            mask_block(to, words);
            let (best, no_nan) = scan(to);
            *maximum = best;
            no_nan
        }
    }
}

/// Which tokens of a block its words allow.
enum Extent {
    None,
    Some,
    All,
}

impl Extent {
    /// Tokens without a word are banned.
    #[inline(always)]
    fn of(words: &[u32]) -> Self {
        if words.iter().all(|&word| word == 0) {
            Self::None
        } else if words.len() == BLOCK / WORD && words.iter().all(|&word| word == u32::MAX) {
            Self::All
        } else {
            Self::Some
        }
    }
}

vectorized! {
    /// Bans the tokens whose bit is 0 or absent. Most blocks are banned or allowed as a whole: those are not looked at one by one.
    fn mask(logits: &mut [f32], maxima: &mut [f32], bits: &[u32]) {
        let words = bits.chunks(BLOCK / WORD).chain(std::iter::repeat(&[][..]));
        for ((block, maximum), words) in logits.chunks_mut(BLOCK).zip(maxima).zip(words) {
            match Extent::of(words) {
                _ if *maximum == f32::NEG_INFINITY => {}
                Extent::All => {}
                Extent::None => {
                    block.fill(f32::NEG_INFINITY);
                    *maximum = f32::NEG_INFINITY;
                }
                Extent::Some => {
                    mask_block(block, words);
                    *maximum = select::lane_maximum(block);
                }
            }
        }
    }
}

#[inline(always)]
fn mask_block(block: &mut [f32], words: &[u32]) {
    let mut words = words.iter().copied().chain(std::iter::repeat(0));
    let (whole, rest) = block.as_chunks_mut::<WORD>();
    for (logits, word) in whole.iter_mut().zip(&mut words) {
        // All together, so that they are computed in vector registers.
        *logits = std::array::from_fn(|bit| masked(logits[bit], word, bit));
    }
    if let Some(word) = words.next() {
        rest.iter_mut().enumerate().for_each(|(bit, logit)| *logit = masked(*logit, word, bit));
    }
}

#[inline(always)]
fn masked(logit: f32, word: u32, bit: usize) -> f32 {
    // All bits are 1 where the token is allowed.
    let allowed = ((word >> bit) & 1).wrapping_neg();
    f32::from_bits(logit.to_bits() & allowed | f32::NEG_INFINITY.to_bits() & !allowed)
}

vectorized! {
    /// The sum of exp(value - best). No value may be above `best`.
    fn total(values: &[f32], best: f32) -> f64 {
        let (blocks, rest) = values.as_chunks::<BLOCK>();
        let mut total = 0.0;
        // Of a known size, blocks are computed in one stretch of code, and not by a call for each.
        for block in blocks {
            total += block_exp_sum(block, best);
        }
        total + block_exp_sum(rest, best)
    }
}

vectorized! {
    /// The sums of exp(x) and of x exp(x), where x is a value less `best`.
    fn moments(values: &[f32], best: f32) -> (f64, f64) {
        let (mut total, mut more) = (0.0, 0.0);
        for block in values.chunks(BLOCK) {
            let (mut totals, mut weighted) = ([0.0f32; LANES], [0.0f32; LANES]);
            for group in block.chunks(LANES) {
                for (lane, &value) in group.iter().enumerate() {
                    let weight = exp(value - best);
                    totals[lane] += weight;
                    // A banned token weighs nothing, and its product would be no number.
                    weighted[lane] += if weight > 0.0 { weight * (value - best) } else { 0.0 };
                }
            }
            total += totals.iter().map(|&lane| f64::from(lane)).sum::<f64>();
            more += weighted.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
        (total, more)
    }
}

/// The maximum, and whether no value is NaN.
#[inline(always)]
fn scan(values: &[f32]) -> (f32, bool) {
    let mut best = [f32::NEG_INFINITY; LANES];
    // As wide as the values, for registers of any kind.
    let mut nan = [0u32; LANES];
    let groups = values.chunks_exact(LANES);
    let rest = groups.remainder();
    for group in groups {
        for lane in 0..LANES {
            let value = group[lane];
            best[lane] = if value > best[lane] { value } else { best[lane] };
            nan[lane] |= if value.is_nan() { u32::MAX } else { 0 };
        }
    }
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let best = rest.iter().fold(fold_lanes(best, larger), |a, &b| larger(a, b));
    (best, fold_lanes(nan, |a, b| a | b) == 0 && rest.iter().all(|value| !value.is_nan()))
}

vectorized! {
    /// The sum of exp(value - best). No value may be above `best`.
    pub(super) fn exp_sum(values: &[f32], best: f32) -> f64 {
        block_exp_sum(values, best)
    }
}

#[inline(always)]
fn block_exp_sum(values: &[f32], best: f32) -> f64 {
    let mut sums = [0.0f32; LANES];
    let groups = values.chunks_exact(LANES);
    let rest: f64 = groups.remainder().iter().map(|&value| f64::from(exp(value - best))).sum();
    for group in groups {
        for lane in 0..LANES {
            sums[lane] += exp(group[lane] - best);
        }
    }
    f64::from(fold_lanes(sums, |a, b| a + b)) + rest
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
