//! How many prompt tokens a step may prefill without delaying the streams that decode beside them for too long, nor wasting
//! most of the time on steps that are too small.
use std::ops::Range;
use std::time::Duration;

use crate::speculate;
use crate::step_times::{StepTimes, Work};

/// Minimum of prompt tokens in a step, so that prefill never stalls.
const MIN_TOKENS: f64 = 8.0;
/// With one prompt beside eight streams or more, a step takes this many times what it takes without prefill, where the target
/// is shorter.
const SLOWER: f64 = 2.8;
/// Streams beside which one prompt gets the least time.
const STREAMS: f64 = 8.0;
/// Twice as many prompts for each stream get twice as much time to this power.
const POWER: f64 = 2.6;
/// Fewer streams count as four, so that a prompt stops one stream for no more of its steps than four of theirs.
const FEW: f64 = 4.0;
/// The most times as much time, however many prompts wait: whoever sends many must not stop the streams of others.
const MOST: f64 = 7.0;
/// A step that took so many times as long as expected was interrupted.
const INTERRUPTED: f64 = 4.0;
/// Beside streams a step has at most eight times as many prompt tokens as one that was measured.
const GROWTH: f64 = 8.0;
/// They attend to three times as many entries: fewer, because what an entry takes may still be unknown when tokens are not.
/// Nor is a step expected to take longer than rows that attend to three times as many as were measured.
const GROWTH_ATTENDED: f64 = 3.0;
/// Or this many tokens.
const SMALL: f64 = 64.0;
/// And this many entries, which take about as long as a step of few streams.
const SMALL_ATTENDED: f64 = 16_384.0;

/// Measures what steps take.
#[derive(Debug)]
pub(super) struct Pacer {
    target: Duration,
    times: StepTimes,
    last: Option<Planned>,
    /// The most of each that a measured step had.
    largest: Work,
}

/// The step that is running.
#[derive(Debug, Clone, Copy)]
struct Planned {
    begun: Duration,
    work: Work,
}

impl Pacer {
    pub(super) fn new(target: Duration) -> Self {
        Self { target, times: StepTimes::default(), last: None, largest: Work::default() }
    }

    /// A step begins, so the one before it has just ended, unless the worker was idle in between.
    pub(super) fn begin(&mut self, now: Duration) {
        let Some(Planned { begun, work }) = self.last.take() else { return };
        let took = now.saturating_sub(begun).as_secs_f64();
        let expected = self.times.fitted().map_or(0.0, |times| times.total(work));
        // What no smaller step could tell may be anything.
        let (tokens, attended) = self.trusted();
        let is_known = expected > 0.0 && work.prompt as f64 <= tokens && work.attended <= attended;
        self.times.record(work, if is_known { took.min(INTERRUPTED * expected) } else { took });
        self.largest = self.largest.max(work);
    }

    /// Prompt tokens, and entries that they attend to, up to which the steps that were measured tell what a step takes.
    fn trusted(&self) -> (f64, f64) {
        let Work { prompt, attended, .. } = self.largest;
        ((GROWTH * prompt as f64).max(SMALL), (GROWTH_ATTENDED * attended).max(SMALL_ATTENDED))
    }

    /// The step that began at `now` computes this.
    pub(super) fn planned(&mut self, now: Duration, work: Work) {
        self.last = Some(Planned { begun: now, work });
    }

    pub(super) fn idle(&mut self) {
        self.last = None;
    }

    /// Probability of acceptance above which a draft token pays in a step of this work.
    pub(super) fn break_even(&self, work: Work) -> f32 {
        speculate::break_even(self.times.fitted().filter(|_| self.times.rows_vary()), work)
    }

    /// Prompt tokens for the next step, in which `streams` decode `rows`, those of their drafts too, while prompts wait for
    /// these of their positions to be computed, in this order.
    pub(super) fn budget(
        &self,
        streams: usize,
        rows: Work,
        waiting: impl Iterator<Item = Range<u32>> + Clone,
    ) -> usize {
        // Before the first prefill nothing is known of it. From then on, whatever is believed of its tokens may be wrong.
        let (most, attended) = if self.largest.prompt == 0 { (f64::INFINITY, f64::INFINITY) } else { self.trusted() };
        let Some(times) = self.times.fitted().filter(|times| times.token > 0.0) else { return most as usize };
        // The more it is expected to take, the more time prefill gets beside it.
        let step = times.decoding(Work { read: rows.read.min(GROWTH_ATTENDED * self.largest.read), ..rows });
        let backlog = STREAMS * waiting.clone().count() as f64 / FEW.max(streams as f64);
        let least = (self.target.as_secs_f64() - step).max((SLOWER - 1.0) * step);
        let seconds = least * backlog.powf(POWER).clamp(1.0, MOST);
        // Of what a step with prefill takes longer, at least half goes to tokens, also where prefill takes long by itself.
        let of_tokens = (seconds - times.prefill).max(times.prefill.min(seconds));
        times.prompt_tokens(of_tokens, attended, waiting).clamp(MIN_TOKENS, most.min(1e6)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn work(rows: usize, prompt: usize) -> Work {
        (0..rows).fold(Work::default(), |work, _| work.and_rows(99, 1)).and_prompt(0, prompt as u32)
    }

    /// For a step of `streams` while endless prompts begin.
    fn budget(pacer: &Pacer, streams: usize, prefilling: usize) -> usize {
        pacer.budget(streams, work(streams, 0), (0..prefilling).map(|_| 0..u32::MAX))
    }

    /// A pacer that has seen steps of 10 ms and 0.1 ms a row, with prefill of 2 ms and 1 ms a token.
    fn learned(target: Duration) -> Pacer {
        let mut pacer = Pacer::new(target);
        let mut now = Duration::ZERO;
        for (rows, prompt) in (0..200).map(|i| (i % 9, [0, 0, 0, 30, 300][i as usize % 5])) {
            let prefill = if prompt > 0 { 2 * MS } else { Duration::ZERO };
            pacer.planned(now, work(rows as usize, prompt as usize));
            now += 10 * MS + rows * MS / 10 + prefill + prompt * MS;
            pacer.begin(now);
        }
        pacer
    }

    fn assert_about(pacer: &Pacer, (decoding, prefilling): (usize, usize), expected: usize) {
        let budget = budget(pacer, decoding, prefilling);
        let off = budget.abs_diff(expected);
        assert!(off <= 1 + expected / 20, "{decoding} decode, {prefilling} wait: {budget} instead of {expected}");
    }

    #[test]
    fn gives_what_fits_into_the_target_or_into_some_steps() {
        assert_eq!(budget(&Pacer::new(MS), 8, 1), usize::MAX, "nothing is known");
        // A step of 8 streams takes 10.8 ms, one of 32 takes 13.2.
        assert_about(&learned(100 * MS), (8, 1), 100 - 11 - 2);
        assert_about(&learned(MS), (8, 1), 18 * 108 / 100 - 2);
        assert_about(&learned(MS), (32, 1), 18 * 132 / 100 - 2);
    }

    #[test]
    fn prefill_gets_more_where_more_wait_for_each_stream() {
        // What a target of 1 ms leaves is less than the steps, what one of 80 ms leaves is more.
        for (target, least) in [(1, [18.0, 1.8]), (80, [70.0, -1.0])] {
            let more = |streams: usize, waiting, times: f64| {
                let least = least[0] + least[1] * streams as f64 / 10.0;
                assert_about(&learned(target * MS), (streams, waiting), (least * times - 2.0).round() as usize);
            };
            more(8, 1, 1.0);
            more(32, 4, 1.0);
            more(32, 5, 1.25f64.powf(2.6));
            more(32, 8, 2f64.powf(2.6));
            more(8, 2, 2f64.powf(2.6));
            // Seven times at most.
            more(8, 3, 7.0);
            more(8, 1000, 7.0);
            // Up to four streams are alike.
            more(4, 1, 2f64.powf(2.6));
            more(1, 1, 2f64.powf(2.6));
            more(1, 2, 7.0);
        }
    }

    /// Eight streams of up to 600 tokens were seen, then eight of 8,000 go on. What they take need not grow as it did: attention
    /// may reach back no further.
    #[test]
    fn streams_count_as_no_longer_than_three_times_those_that_were_seen() {
        let streams = |position| (0..8).fold(Work::default(), |work, _| work.and_rows(position, 1));
        let mut pacer = Pacer::new(MS);
        let mut now = Duration::ZERO;
        for i in 0..1200u32 {
            let work = if i % 4 == 0 { streams(i / 2).and_prompt(0, 30) } else { streams(i / 2) };
            pacer.planned(now, work);
            let ms = 10.0 + 1e-3 * work.read + work.prompt as f64;
            now += Duration::from_secs_f64(ms / 1e3);
            pacer.begin(now);
        }
        let budget = |position| pacer.budget(8, streams(position), std::iter::once(0..u32::MAX));
        assert_eq!(budget(1799), budget(8000));
        assert!(budget(8000) <= (1.8 * 26.0) as usize, "{}", budget(8000));
        assert!(budget(1000) < budget(1799));
    }

    #[test]
    fn draft_tokens_are_no_streams() {
        let pacer = learned(MS);
        let with_drafts = pacer.budget(2, work(32, 0), std::iter::once(0..u32::MAX));
        // They only make the step longer: it takes 13.2 ms.
        assert!(with_drafts.abs_diff((18.0 * 1.32 * 2f64.powf(2.6)) as usize) <= 8, "{with_drafts}");
    }

    #[test]
    fn at_least_half_of_the_time_goes_to_tokens() {
        // Steps take 10 ms, a token 0.1, and prefill at all takes some, most or more than all of 18 ms.
        for (prefill, expected) in [(5.2, 128), (15.0, 150), (40.0, 180)] {
            let mut pacer = Pacer::new(MS);
            let mut now = Duration::ZERO;
            for prompt in (0..200).map(|i| [0, 400, 0, 7][i % 4]) {
                pacer.planned(now, work(8, prompt));
                let prefill = if prompt > 0 { prefill + prompt as f64 / 10.0 } else { 0.0 };
                now += Duration::from_secs_f64((10.0 + prefill) / 1e3);
                pacer.begin(now);
            }
            assert_about(&pacer, (8, 1), expected);
        }
    }

    #[test]
    fn a_step_that_was_interrupted_counts_as_four_and_idle_time_not_at_all() {
        let mut pacer = learned(100 * MS);
        pacer.idle();
        pacer.begin(9999 * MS);
        assert_about(&pacer, (8, 1), 100 - 11 - 2);
        pacer.planned(Duration::ZERO, work(8, 0));
        pacer.begin(Duration::from_secs(100));
        assert!(budget(&pacer, 8, 1) > 60, "{}", budget(&pacer, 8, 1));
    }

    #[test]
    fn chunks_grow_no_faster_than_what_was_measured() {
        // 180 tokens attend to 16,290 entries, and three times as many as those of 200 are those of 346.
        for (measured, most) in [(1, 64), (8, 64), (9, 72), (22, 176), (23, 180), (104, 180), (105, 182), (200, 346)] {
            // A target that leaves room for any chunk.
            let mut pacer = Pacer::new(100_000 * MS);
            for (i, prompt) in (0..20).map(|i| (i, if i % 2 == 0 { 0 } else { measured })) {
                pacer.planned(100 * i * MS, work(8, prompt as usize));
                pacer.begin(100 * i * MS + 10 * MS + prompt * MS / 10);
            }
            assert_eq!(budget(&pacer, 8, 1), most, "{measured}");
        }
    }

    #[test]
    fn regression_a_long_prompt_after_many_of_one_token_stops_no_stream() {
        let mut pacer = Pacer::new(500 * MS);
        let (mut now, mut noise, mut longest) = (Duration::ZERO, 3u32, Duration::ZERO);
        // Steps of 100 ms, 20 ms a prompt token, each up to a tenth more or less.
        let mut step = |pacer: &mut Pacer, prompt: usize| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let took = f64::from(0.9f32 + 0.2 * (noise >> 8) as f32 / (1 << 24) as f32) * (0.1 + 0.02 * prompt as f64);
            pacer.planned(now, work(8, prompt));
            now += Duration::from_secs_f64(took);
            pacer.begin(now);
            Duration::from_secs_f64(took)
        };
        for i in 0..12_000 {
            step(&mut pacer, usize::from(i % 7 == 0));
        }
        let mut left = 2000;
        while left > 0 {
            let chunk = budget(&pacer, 8, 1).min(left);
            longest = longest.max(step(&mut pacer, chunk));
            left -= chunk;
        }
        // 64 tokens of which nothing is known yet.
        assert!(longest < 1600 * MS, "{longest:?}");
    }

    /// What is left of the budget beside 8 streams when `slow` steps took `factor` times as long, of which the first had much
    /// prefill, and then so many steps in which prompts wait took what they usually do.
    fn recovered(slow: u32, factor: f64, steps: usize) -> f64 {
        let budget_after = |slow: u32| {
            let mut pacer = Pacer::new(15 * MS);
            let mut now = Duration::ZERO;
            let mut step = |pacer: &mut Pacer, rows: usize, prompt: usize, factor: f64| {
                let prefill = if prompt > 0 { 2.0 + 0.2 * prompt as f64 } else { 0.0 };
                pacer.planned(now, work(rows, prompt));
                now += Duration::from_secs_f64(factor * (3.0 + 0.1 * rows as f64 + prefill) / 1e3);
                pacer.begin(now);
            };
            let first = if slow > 0 { factor } else { 1.0 };
            (0..2).for_each(|_| step(&mut pacer, 0, 512, first));
            for i in 0..slow as usize + steps {
                let prompt = if i % 2 == 0 { 0 } else { budget(&pacer, 8, 1).min(512) };
                step(&mut pacer, 8, prompt, if i < slow as usize { factor } else { 1.0 });
            }
            budget(&pacer, 8, 1) as f64
        };
        budget_after(slow) / budget_after(0)
    }

    #[test]
    fn regression_a_phase_of_slow_steps_is_forgotten_while_streams_run() {
        // A cold model, a machine that others used, a pause of everything.
        for (slow, factor) in [(1, 10.0), (30, 10.0), (300, 4.0)] {
            let left = recovered(slow, factor, 400);
            assert!((0.8..1.3).contains(&left), "{slow} steps {factor} times as long: {left}");
        }
    }

    /// Two unequal chunks, the first of them slow, leave nothing for the step in the fit, and the first step that decodes is slow.
    #[test]
    fn regression_a_slow_step_of_a_kind_that_is_new_is_not_believed_for_long() {
        for (cold, first_decode) in [(1.5, 10.0), (1.2, 30.0), (4.0, 4.0)] {
            let mut pacer = Pacer::new(15 * MS);
            let mut now = Duration::ZERO;
            let mut step = |pacer: &mut Pacer, rows: usize, prompt: usize, factor: f64| {
                pacer.planned(now, work(rows, prompt));
                now += Duration::from_secs_f64(factor * (3.0 + 0.1 * rows as f64 + 0.2 * prompt as f64) / 1e3);
                pacer.begin(now);
            };
            for (prompt, factor) in [(512, cold), (512, 1.0), (176, 1.0)] {
                step(&mut pacer, 0, prompt, factor);
            }
            step(&mut pacer, 8, 0, first_decode);
            (0..100).for_each(|_| step(&mut pacer, 8, 0, 1.0));
            let decoding = pacer.times.fitted().unwrap().decoding(work(8, 0));
            assert!((0.003..0.005).contains(&decoding), "{cold}, {first_decode}: {decoding} s instead of 0.0038");
        }
    }

    /// Attention that reaches back 512 tokens costs no more from there on, which prompts shorter than that cannot tell.
    #[test]
    fn chunks_of_models_with_a_window_are_not_too_small_deep_in_a_prompt() {
        let mut pacer = Pacer::new(15 * MS);
        let (mut now, mut steps, mut longest) = (Duration::ZERO, 0, 0.0f64);
        for prompt in [256, 400, 512, 8000] {
            let mut start = 0;
            steps = 0;
            while start < prompt {
                let chunk =
                    (pacer.budget(8, work(8, 0), std::iter::once(start..prompt)) as u32).min(prompt - start).min(512);
                let entries: f64 = (start..start + chunk).map(|position| f64::from(position.min(512))).sum();
                let took = 2.4 + 0.05 * f64::from(chunk) + 0.00013 * entries;
                pacer.planned(now, work(8, 0).and_prompt(start, chunk));
                now += Duration::from_secs_f64(took / 1e3);
                pacer.begin(now);
                (start, steps) = (start + chunk, steps + 1);
                // The first of all is not bounded by anything.
                longest = longest.max(if prompt > 256 { took } else { 0.0 });
                for _ in 0..2 {
                    pacer.planned(now, work(8, 0));
                    now += Duration::from_secs_f64(2.4 / 1e3);
                    pacer.begin(now);
                }
            }
        }
        // Of 15 ms each, 74 would do.
        assert!(steps < 110 && longest < 25.0, "{steps} steps, {longest} ms");
    }

    #[test]
    fn prefill_never_stalls() {
        let mut pacer = Pacer::new(MS);
        // A token takes as long as a hundred steps.
        for i in 0..100u32 {
            let prompt = i % 2;
            pacer.planned(1000 * i * MS, work(1, prompt as usize * 8));
            pacer.begin(1000 * i * MS + MS + 800 * prompt * MS);
        }
        assert_eq!(budget(&pacer, 8, 1), 8);
    }
}
