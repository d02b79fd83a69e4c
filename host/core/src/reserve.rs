//! How many KV tokens a request is admitted with.
//!
//! The pool computes `need` once, when a request arrives. The scheduler places by it, the pool checks dispatches by it, and
//! the worker reserves it. A worker whose running sequences hold part of the prompt already reserves less, never more.

/// KV tokens by which a sequence grows beyond its reserve, and the minimum reserve for output.
pub const GROWTH_TOKENS: u32 = 32;
const FIRST_EXPECTATION: f32 = 128.0;
/// Weight of one finished request in the expected output.
const EXPECTATION_WEIGHT: f32 = 0.1;

/// How much of a request's output is reserved when it is admitted. The rest is taken as the request grows; if no KV is free
/// then, a sequence is preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reserve {
    /// The minimum only: the most sequences at once, and the most preemptions.
    None,
    /// The average output of recent requests.
    #[default]
    Expected,
    /// All that the request may generate: growth never preempts a sequence.
    Full,
}

/// The policy, and what it has learned from finished requests.
#[derive(Debug, Clone)]
pub struct Reservation {
    policy: Reserve,
    /// Average output tokens of recent requests.
    expected_tokens: f32,
    /// KV tokens that one sequence can hold at most.
    capacity: u32,
}

impl Reservation {
    pub fn new(policy: Reserve) -> Self {
        Self { policy, expected_tokens: FIRST_EXPECTATION, capacity: u32::MAX }
    }

    /// No sequence holds more than `tokens`.
    pub fn bound(&mut self, tokens: u32) {
        self.capacity = tokens;
    }

    /// A request finished with this many output tokens.
    pub fn learn(&mut self, generated_tokens: u32) {
        self.expected_tokens += (generated_tokens as f32 - self.expected_tokens) * EXPECTATION_WEIGHT;
    }

    /// KV tokens that must be free to admit a request. Never more than an idle worker has, so that every request runs in
    /// the end.
    pub fn need(&self, prompt_tokens: u32, max_tokens: u32) -> u32 {
        let output = match self.policy {
            Reserve::None => GROWTH_TOKENS,
            Reserve::Expected => GROWTH_TOKENS.max(self.expected_tokens as u32),
            Reserve::Full => max_tokens,
        };
        self.bounded(prompt_tokens.saturating_add(output.min(max_tokens)))
    }

    /// What of a need an idle worker has.
    pub(crate) fn bounded(&self, need: u32) -> u32 {
        need.min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: Reserve, (prompt, max): (u32, u32), expected: u32) {
        let mut reservation = Reservation::new(policy);
        reservation.bound(1000);
        assert_eq!(reservation.need(prompt, max), expected, "{policy:?} of {prompt} and {max}");
    }

    #[test]
    fn reserves_by_policy_up_to_what_a_sequence_can_hold() {
        check(Reserve::None, (500, 4096), 532);
        check(Reserve::Expected, (500, 4096), 628);
        check(Reserve::Full, (500, 400), 900);
        check(Reserve::Full, (500, 4096), 1000);
        for policy in [Reserve::None, Reserve::Expected, Reserve::Full] {
            check(policy, (10, 5), 15);
            check(policy, (990, 50), 1000);
        }
        assert_eq!(Reservation::new(Reserve::Full).need(u32::MAX, 7), u32::MAX);
    }

    #[test]
    fn learns_how_much_requests_generate_and_keeps_a_minimum() {
        let mut reservation = Reservation::new(Reserve::Expected);
        (0..100).for_each(|_| reservation.learn(300));
        assert_eq!(reservation.need(10, 1000), 309);
        (0..100).for_each(|_| reservation.learn(0));
        assert_eq!(reservation.need(10, 1000), 10 + GROWTH_TOKENS);
    }
}
