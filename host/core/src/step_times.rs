//! What steps take, learned from those that were run.
use std::ops::Range;

/// Weight that earlier steps keep with each new one, with prefill or without, as they have.
const DECAY: f64 = 0.98;
/// Where steps do not tell parts apart, the time goes to those with the smaller numbers here: rather to prompt tokens than to
/// prefill at all, and rather to a step than to its rows, so that chunks are too small rather than too large until more is known.
/// What tokens attend to gets little: chunks at the beginning of a prompt, which come first, do not tell it from their number.
/// What rows attend to gets less: it grows so slowly that noise would pass for its price.
const RIDGE: [f64; PARTS] = [1e-6, 1e-5, 1e-2, 1e-2, 1e-6, 1e-4];
const PARTS: usize = 6;
/// Minimum variance of the rows of steps from which the cost of a row can be told.
const MIN_VARIANCE: f64 = 1e-3;

/// Seconds of a step, by its parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepTime {
    /// Of any step.
    pub(crate) step: f64,
    /// For each row that decodes.
    pub(crate) row: f64,
    /// For each of these rows and each entry that it attends to.
    pub(crate) read: f64,
    /// For prefill, however short.
    pub(crate) prefill: f64,
    /// For each prompt token, wherever it is.
    pub(crate) token: f64,
    /// For each prompt token and each entry that it attends to.
    pub(crate) attended: f64,
}

/// What a step computes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Work {
    /// Tokens of sequences that decode.
    pub(crate) rows: usize,
    /// Entries that these attend to, counted for each of them.
    pub(crate) read: f64,
    /// Prompt tokens.
    pub(crate) prompt: usize,
    /// Entries that prompt tokens attend to, counted for each of them.
    pub(crate) attended: f64,
}

impl Work {
    /// The same with the rows of a sequence that decodes: its next token, at position `start`, and those of its draft.
    pub(crate) fn and_rows(self, start: u32, rows: u32) -> Self {
        let read = self.read + attended(f64::from(start), f64::from(rows));
        Self { rows: self.rows + rows as usize, read, ..self }
    }

    /// The same with prompt tokens from position `start` on.
    pub(crate) fn and_prompt(self, start: u32, tokens: u32) -> Self {
        let attended = self.attended + attended(f64::from(start), f64::from(tokens));
        Self { prompt: self.prompt + tokens as usize, attended, ..self }
    }

    /// The larger of each part.
    pub(crate) fn max(self, other: Self) -> Self {
        let Self { rows, read, prompt, attended } = other;
        Self {
            rows: self.rows.max(rows),
            read: self.read.max(read),
            prompt: self.prompt.max(prompt),
            attended: self.attended.max(attended),
        }
    }
}

/// Entries that so many tokens from position `start` on attend to: each to all before it and to itself.
fn attended(start: f64, tokens: f64) -> f64 {
    tokens * (start + (tokens + 1.0) / 2.0)
}

/// Normal equations, with the right side last.
type Equations = [[f64; PARTS + 1]; PARTS];

/// Prompt tokens from which steps with prefill are of the next kind.
const PROMPT_KINDS: [usize; 2] = [16, 128];
/// Entries that rows attend to from which steps without prefill are of the next kind: those of one kind alone hardly tell what
/// an entry takes.
const READ_KINDS: [f64; 2] = [1024.0, 16_384.0];
/// Steps of a kind that are not forgotten however many come of the other kinds with prefill.
const KEPT: f64 = 2.0;
/// Without prefill: enough to tell what an entry takes, and too little to hold up what the machine's speed says about the step.
const KEPT_WITHOUT: f64 = 0.5;
/// Seconds that any step takes at least.
const SHORTEST: f64 = 1e-5;
/// A step that took more than so many times as long as expected weighs as if it had been expected to take that part of its time:
/// what the fit knows nothing of yet may be expected to take next to nothing, and would outweigh a thousand steps after it.
const SURPRISE: f64 = 4.0;

/// Steps of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    /// How many, less for those from long ago.
    steps: f64,
    /// Each step divided by the square of what it was expected to take, so that the fit is about as far off for short steps as
    /// for long ones, in proportion. Otherwise two long steps, which are kept, would outweigh any number of short ones, and
    /// what they took once would be believed for ever.
    sums: Equations,
}

/// A fit by least squares, to which later steps count more.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepTimes {
    /// Of steps without prefill whose rows attend to few entries, to more and to many.
    without: [Kind; READ_KINDS.len() + 1],
    /// Of steps with a little prefill, with more and with much. Neither they nor the others are forgotten while only one kind
    /// comes.
    with: [Kind; PROMPT_KINDS.len() + 1],
    /// `None` before the first step.
    fitted: Option<StepTime>,
}

impl StepTimes {
    pub(crate) fn record(&mut self, work: Work, seconds: f64) {
        let (prompt, parts) = (work.prompt, Self::parts(work));
        // Not by what it took: that would count slow steps less, and notice late that all are slow now.
        let expected = self.fitted.filter(|fitted| prompt == 0 || fitted.token > 0.0);
        let expected = expected.map_or(seconds, |fitted| fitted.total(work)).max(seconds / SURPRISE).max(SHORTEST);
        let (kinds, kept, kind) = match prompt {
            0 => (&mut self.without, KEPT_WITHOUT, READ_KINDS.iter().filter(|&&least| work.read >= least).count()),
            _ => (&mut self.with, KEPT, PROMPT_KINDS.iter().filter(|&&least| prompt >= least).count()),
        };
        kinds.iter_mut().filter(|kind| kind.steps * DECAY >= kept).for_each(Kind::decay);
        kinds[kind].add(parts, seconds, expected);
        self.fitted = self.fit();
    }

    fn parts(Work { rows, read, prompt, attended }: Work) -> [f64; PARTS] {
        [1.0, rows as f64, read, if prompt > 0 { 1.0 } else { 0.0 }, prompt as f64, attended]
    }

    /// Of all steps.
    fn equations(&self) -> Equations {
        let kinds = || self.without.iter().chain(&self.with);
        std::array::from_fn(|part| std::array::from_fn(|other| kinds().map(|kind| kind.sums[part][other]).sum()))
    }

    /// Whether steps had different numbers of rows, which tells what a row costs.
    pub(crate) fn rows_vary(&self) -> bool {
        let seen = self.without.iter().map(|kind| &kind.sums).filter(|sums| sums[0][0] > 0.0);
        let (weight, squares) = seen.fold((0.0, 0.0), |(weight, squares), sums| {
            (weight + sums[0][0], squares + sums[1][1] - sums[0][1].powi(2) / sums[0][0])
        });
        weight > 0.0 && squares / weight >= MIN_VARIANCE
    }

    /// `None` before the first step.
    pub(crate) fn fitted(&self) -> Option<StepTime> {
        self.fitted
    }

    fn fit(&self) -> Option<StepTime> {
        // No part takes negative time: of the fits with some parts that have none, the one that leaves the least is taken.
        let sums = self.equations();
        let is_feasible = |fit: &[f64; PARTS]| fit.iter().all(|part| *part >= 0.0);
        let all = Some(solve(sums, [true; PARTS])).filter(is_feasible);
        let fitted = all.or_else(|| Self::best(sums))?;
        let [step, row, read, prefill, token, attended] = fitted;
        Some(StepTime { step, row, read, prefill, token, attended })
    }

    /// The best fit with some parts that take no time.
    fn best(sums: Equations) -> Option<[f64; PARTS]> {
        let uses = (0..1u32 << PARTS).map(|mask| std::array::from_fn(|part| mask >> part & 1 == 1));
        // Prompt tokens always take some: else chunks would have no bound.
        let fits = uses
            .filter(|[_, _, _, prefill, token, attended]| *token || !prefill && !attended)
            .map(|used| solve(sums, used));
        let explained = |fit: &[f64; PARTS]| fit.iter().zip(&sums).map(|(part, sums)| part * sums[PARTS]).sum::<f64>();
        let feasible = fits.filter(|fit| fit.iter().all(|part| *part >= 0.0));
        feasible.max_by(|one, other| explained(one).total_cmp(&explained(other)))
    }
}

impl Kind {
    fn add(&mut self, parts: [f64; PARTS], seconds: f64, expected: f64) {
        self.steps += 1.0;
        for (sums, x) in self.sums.iter_mut().zip(parts) {
            for (sum, y) in sums.iter_mut().zip(parts.into_iter().chain([seconds])) {
                *sum += x * y / expected.powi(2);
            }
        }
    }

    /// Forgets a little of what was seen before.
    fn decay(&mut self) {
        self.steps *= DECAY;
        self.sums.iter_mut().flatten().for_each(|sum| *sum *= DECAY);
    }
}

/// The fit with the `used` parts alone.
fn solve(mut sums: Equations, used: [bool; PARTS]) -> [f64; PARTS] {
    for part in 0..PARTS {
        sums[part][part] *= 1.0 + RIDGE[part];
        // Nothing tells what a part takes that no step had.
        if !used[part] || sums[part][part] == 0.0 {
            sums.iter_mut().for_each(|sums| sums[part] = 0.0);
            sums[part] = [0.0; PARTS + 1];
            sums[part][part] = 1.0;
        }
    }
    // Gauss and Jordan: with what was added, no pivot is zero.
    for pivot in 0..PARTS {
        let row = sums[pivot].map(|sum| sum / sums[pivot][pivot]);
        for (other, sums) in sums.iter_mut().enumerate() {
            let factor = if other == pivot { 0.0 } else { sums[pivot] };
            sums.iter_mut().zip(row).for_each(|(sum, of_row)| *sum -= factor * of_row);
        }
        sums[pivot] = row;
    }
    std::array::from_fn(|part| sums[part][PARTS])
}

impl StepTime {
    /// Of the rows that decode in a step.
    pub(crate) fn of_rows(&self, Work { rows, read, .. }: Work) -> f64 {
        self.row * rows as f64 + self.read * read
    }

    /// Of a step, without its prefill.
    pub(crate) fn decoding(&self, work: Work) -> f64 {
        self.step + self.of_rows(work)
    }

    pub(crate) fn total(&self, work: Work) -> f64 {
        let prefill = if work.prompt > 0 { self.prefill } else { 0.0 };
        self.decoding(work) + prefill + self.token * work.prompt as f64 + self.attended * work.attended
    }

    /// Prompt tokens that are computed in so many seconds, beside what prefill takes at all, and attend to at most so many
    /// entries, where prompts wait for these positions, in this order.
    pub(crate) fn prompt_tokens(
        &self,
        mut seconds: f64,
        mut most: f64,
        waiting: impl Iterator<Item = Range<u32>>,
    ) -> f64 {
        let mut all = 0.0;
        for Range { start, end } in waiting {
            let (start, left) = (f64::from(start), f64::from(end.saturating_sub(start)));
            let of_time = longest(self.token, self.attended, start, seconds);
            let tokens = left.min(of_time).min(longest(0.0, 1.0, start, most)).max(0.0);
            all += tokens;
            if tokens < left {
                break;
            }
            seconds -= self.token * tokens + self.attended * attended(start, tokens);
            most -= attended(start, tokens);
        }
        all
    }
}

/// The most tokens from position `start` on that cost at most `most`, by what each costs and what each entry it attends to.
fn longest(token: f64, entry: f64, start: f64, most: f64) -> f64 {
    // n * token + entry * n * (start + (n + 1) / 2) = most, a quadratic equation in n, solved so that nothing is lost where its
    // first term is small.
    let linear = token + entry * (start + 0.5);
    let most = most.max(0.0);
    2.0 * most / (linear + (linear * linear + 2.0 * entry * most).sqrt()).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: StepTime =
        StepTime { step: 0.004, row: 0.001, read: 1e-6, prefill: 0.006, token: 0.0005, attended: 0.0 };

    /// Prompts begin.
    fn work(rows: usize, prompt: usize) -> Work {
        (0..rows).fold(Work::default(), |work, _| work.and_rows(99, 1)).and_prompt(0, prompt as u32)
    }

    fn assert_near(seen: f64, real: f64, what: &str) {
        assert!((seen / real - 1.0).abs() < 0.1, "{what}: {seen}, really {real}");
    }

    #[test]
    fn tells_the_parts_of_steps_apart() {
        let mut times = StepTimes::default();
        assert_eq!(times.fitted(), None);
        for (rows, prompt) in (0..300).map(|i| (i % 9, [0, 0, 64, 500, 0, 200][i % 6])) {
            times.record(work(rows, prompt), REAL.total(work(rows, prompt)));
        }
        let fitted = times.fitted().unwrap();
        assert_near(fitted.total(work(8, 0)), REAL.total(work(8, 0)), "decoding");
        assert_near(fitted.total(work(1, 0)), REAL.total(work(1, 0)), "decoding alone");
        assert_near(fitted.total(work(8, 16)), REAL.total(work(8, 16)), "a short chunk");
        assert_near(fitted.total(work(8, 512)), REAL.total(work(8, 512)), "a long chunk");
        // Later steps count more.
        for (rows, prompt) in (0..450).map(|i| (i % 9, [0, 0, 64, 500, 0, 200][i % 6])) {
            times.record(work(rows, prompt), 3.0 * REAL.total(work(rows, prompt)));
        }
        assert_near(times.fitted().unwrap().total(work(8, 512)), 3.0 * REAL.total(work(8, 512)), "three times slower");
    }

    /// A prompt of a thousand tokens in chunks of 250, on 30m: the last one took twice as long as the first.
    #[test]
    fn regression_what_prompt_tokens_attend_to_is_told_apart_from_their_number() {
        let real = StepTime { step: 0.0008, row: 0.0002, read: 0.0, prefill: 0.0, token: 0.00005, attended: 1.3e-7 };
        let mut times = StepTimes::default();
        for _ in 0..3 {
            for start in [0, 250, 500, 750] {
                (0..10).for_each(|_| times.record(work(8, 0), real.total(work(8, 0))));
                let chunk = work(8, 0).and_prompt(start, 250);
                times.record(chunk, real.total(chunk));
            }
        }
        let fitted = times.fitted().unwrap();
        for (start, tokens) in [(0, 250), (750, 250), (4000, 100)] {
            let chunk = work(8, 0).and_prompt(start, tokens);
            assert_near(fitted.total(chunk), real.total(chunk), "a chunk");
        }
    }

    #[test]
    fn chunks_are_as_long_as_fits_into_the_time_wherever_they_begin() {
        let times = StepTime { step: 0.0, row: 0.0, read: 0.0, prefill: 0.0, token: 0.001, attended: 1e-6 };
        for start in [0, 1, 100, 10_000, 1 << 30] {
            for seconds in [1e-9, 0.001, 0.1, 10.0] {
                let tokens = times.prompt_tokens(seconds, f64::INFINITY, std::iter::once(start..u32::MAX));
                let took = times.token * tokens + times.attended * attended(f64::from(start), tokens);
                assert_near(took, seconds, "what was asked for");
            }
        }
        // Those that wait behind get what the first leave.
        let waiting = [0..30, 7000..7010, 0..1000];
        let tokens = times.prompt_tokens(0.5, f64::INFINITY, waiting.iter().cloned());
        assert!((tokens - 40.0 - 320.0).abs() < 20.0, "{tokens}");
        assert_eq!(times.prompt_tokens(1e9, f64::INFINITY, waiting.iter().cloned()), 1040.0);
        // And no more than attends to what was measured.
        assert_eq!(times.prompt_tokens(1e9, attended(0.0, 17.0), waiting.iter().cloned()).round(), 17.0);
        assert_eq!(times.prompt_tokens(-1.0, f64::INFINITY, waiting.iter().cloned()), 0.0);
        assert_eq!(times.prompt_tokens(1.0, f64::INFINITY, std::iter::empty()), 0.0);
    }

    #[test]
    fn what_one_chunk_took_is_put_down_to_its_tokens() {
        let mut times = StepTimes::default();
        times.record(work(0, 256), REAL.total(work(0, 256)));
        (0..100).for_each(|_| times.record(work(8, 0), REAL.total(work(8, 0))));
        let fitted = times.fitted().unwrap();
        assert!(fitted.token > 0.75 * REAL.token, "{fitted:?}");
    }

    #[test]
    fn neither_kind_of_step_is_forgotten_while_only_the_other_comes() {
        let mut times = StepTimes::default();
        let all = |times: &mut StepTimes| {
            for (rows, prompt) in (0..300).map(|i| (i % 9, [0, 0, 64, 500, 0, 200][i % 6])) {
                times.record(work(rows, prompt), REAL.total(work(rows, prompt)));
            }
        };
        all(&mut times);
        // Nothing is left of a weight of 1 after 2,000 steps.
        (0..5000).for_each(|_| times.record(work(8, 0), REAL.total(work(8, 0))));
        assert_near(times.fitted().unwrap().total(work(8, 512)), REAL.total(work(8, 512)), "a chunk");
        all(&mut times);
        (0..5000).for_each(|_| times.record(work(3, 300), REAL.total(work(3, 300))));
        assert_near(times.fitted().unwrap().total(work(8, 0)), REAL.total(work(8, 0)), "a step without");
    }

    #[test]
    fn regression_what_a_prompt_token_takes_is_not_forgotten_while_prompts_are_of_one_token() {
        let mut times = StepTimes::default();
        (0..50).for_each(|i| times.record(work(8, 64 * (i % 5)), REAL.total(work(8, 64 * (i % 5)))));
        // Prompts whose tokens are cached but for the last one. Steps move by a tenth.
        let mut noise = 7u32;
        for i in 0..5000 {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let prompt = usize::from(i % 7 == 0);
            times.record(
                work(8, prompt),
                REAL.total(work(8, prompt)) * (0.9 + 0.2 * f64::from(noise >> 8) / f64::from(1 << 24)),
            );
            if i % 100 == 0 {
                assert_near(times.fitted().unwrap().total(work(8, 256)), REAL.total(work(8, 256)), "a chunk");
            }
        }
    }

    #[test]
    fn nothing_is_negative_or_no_number_whatever_steps_take() {
        for (rows, prompt, seconds) in [(0, 0, 0.0), (1, 0, 1e-9), (256, 2048, 1e3), (3, 1, 0.0)] {
            let mut times = StepTimes::default();
            for _ in 0..3 {
                times.record(work(rows, prompt), seconds);
                times.record(work(1, 512), 0.001);
                let StepTime { step, row, read, prefill, token, attended } = times.fitted().unwrap();
                assert!(
                    [step, row, read, prefill, token, attended].iter().all(|part| part.is_finite() && *part >= 0.0)
                );
            }
        }
    }

    #[test]
    fn what_steps_of_one_row_took_is_put_down_to_the_step() {
        let mut times = StepTimes::default();
        (0..100).for_each(|_| times.record(work(1, 0), REAL.total(work(1, 0))));
        assert!(times.fitted().unwrap().decoding(work(32, 0)) < 4.0 * REAL.total(work(1, 0)), "{:?}", times.fitted());
        // Nor do prompts tell what a row costs.
        times.record(work(0, 256), REAL.total(work(0, 256)));
        assert!(!times.rows_vary());
    }

    /// The steps of eight streams of 160m, which take up to a tenth more or less, as their texts grow.
    #[test]
    fn regression_steps_of_streams_that_begin_are_not_expected_to_take_what_those_of_long_ones_took() {
        let real = StepTime { step: 0.0072, row: 0.0001, read: 1.06e-6, ..REAL };
        let mut times = StepTimes::default();
        let mut noise = 7u32;
        for round in 0..4 {
            let streams = |position| (0..8).fold(Work::default(), |work, _| work.and_rows(position, 1));
            times.record(work(0, 256), real.total(work(0, 256)));
            if round > 0 {
                let [begun, ended] = [32, 431].map(|position| times.fitted().unwrap().decoding(streams(position)));
                assert_near(begun, real.decoding(streams(32)), "as they begin");
                assert_near(ended, real.decoding(streams(431)), "as they end");
            }
            for position in 32..432 {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let around = 0.9 + 0.2 * f64::from(noise >> 8) / f64::from(1 << 24);
                times.record(streams(position), real.decoding(streams(position)) * around);
            }
        }
    }

    /// Streams had long texts once. Then the machine became slower, and all texts are short.
    #[test]
    fn regression_steps_of_another_kind_do_not_hold_up_what_slower_steps_tell() {
        let real = StepTime { step: 0.0072, row: 0.0001, read: 1.06e-6, ..REAL };
        let streams = |position| (0..8).fold(Work::default(), |work, _| work.and_rows(position, 1));
        let mut times = StepTimes::default();
        for position in [50, 3000, 500] {
            (0..100).for_each(|i| times.record(streams(position + i), real.decoding(streams(position + i))));
        }
        for slower in [3.0, 1.0] {
            for round in 0..4 {
                (100..200).for_each(|i| times.record(streams(i), slower * real.decoding(streams(i))));
                let seen = times.fitted().unwrap().decoding(streams(150));
                assert!(
                    round == 0 || (seen / slower / real.decoding(streams(150)) - 1.0).abs() < 0.1,
                    "{slower} {seen}"
                );
            }
        }
        // And what an entry takes is not forgotten.
        let long = times.fitted().unwrap().decoding(streams(3000)) / real.decoding(streams(3000));
        assert!((0.5..2.0).contains(&long), "{long}");
    }

    #[test]
    fn the_cost_of_a_row_is_unknown_while_all_steps_have_as_many() {
        let mut times = StepTimes::default();
        assert!(!times.rows_vary());
        (0..100).for_each(|_| times.record(work(3, 0), 0.01));
        assert!(!times.rows_vary());
        times.record(work(4, 0), 0.01);
        assert!(times.rows_vary());
    }
}
