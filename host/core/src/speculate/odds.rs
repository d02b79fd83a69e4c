//! Decides when a draft pays: its acceptance rate against the cost of its rows.

/// Weight of the latest draft token in the acceptance rate.
const WEIGHT: f32 = 0.1;
/// Assumed acceptance rate before the first draft.
const FIRST_CHANCE: f32 = 0.7;
/// Steps without a draft before one token is tried again: the text may have become predictable.
const TRY_AGAIN: u32 = 64;
/// Share of the earlier measurements that is kept with each step.
const MEMORY: f64 = 0.98;
/// Spread of step sizes below which the cost of a row is unknown.
const MIN_SPREAD: f64 = 1.0;
/// Acceptance rate required while the cost of a row is unknown.
const UNKNOWN: f32 = 0.3;

/// The acceptance rate of one request's drafts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Odds {
    /// Probability that a draft token is accepted, given that those before it were.
    chance: f32,
    steps_without: u32,
}

impl Default for Odds {
    fn default() -> Self {
        Self { chance: FIRST_CHANCE, steps_without: 0 }
    }
}

impl Odds {
    /// Tokens worth drafting, at most `most`, if a row pays when its probability of use is above `least`.
    pub(crate) fn wanted(&mut self, least: f32, most: usize) -> usize {
        let (mut count, mut chance) = (0, self.chance);
        while count < most && chance > least {
            count += 1;
            chance *= self.chance;
        }
        if count > 0 || most == 0 {
            return count;
        }
        self.steps_without += 1;
        usize::from(self.steps_without.is_multiple_of(TRY_AGAIN))
    }

    /// The first `accepted` of `drafted` tokens were accepted.
    pub(crate) fn learn(&mut self, drafted: u32, accepted: u32) {
        for trial in 0..drafted.min(accepted + 1) {
            let hit = if trial < accepted { 1.0 } else { 0.0 };
            self.chance += WEIGHT * (hit - self.chance);
        }
    }
}

/// The cost of a step: `fixed + each * rows` seconds, fitted to recent steps by least squares.
#[derive(Debug, Default)]
pub(crate) struct Price {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Price {
    pub(crate) fn note(&mut self, rows: u32, seconds: f32) {
        let (x, y) = (f64::from(rows), f64::from(seconds));
        for (sum, term) in
            [(&mut self.weight, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)]
        {
            *sum = *sum * MEMORY + term;
        }
    }

    /// Probability of use above which a further row pays in a step of `rows` rows: it then yields more tokens for its time
    /// than the rest of the step.
    pub(crate) fn least_chance(&self, rows: usize) -> f32 {
        let spread = self.weight * self.xx - self.x * self.x;
        if spread < MIN_SPREAD {
            return UNKNOWN;
        }
        let each = ((self.weight * self.xy - self.x * self.y) / spread).max(0.0);
        let fixed = ((self.y - each * self.x) / self.weight).max(0.0);
        let whole = fixed + each * rows as f64;
        if whole > 0.0 { (each * rows as f64 / whole) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_more_while_accepted_and_only_now_and_then_while_rejected() {
        let mut odds = Odds::default();
        (0..20).for_each(|_| odds.learn(4, 4));
        assert_eq!(odds.wanted(0.3, 8), 8);
        (0..20).for_each(|_| odds.learn(4, 0));
        let tries: usize = (0..640).map(|_| odds.wanted(0.3, 8)).sum();
        assert_eq!(tries, 10, "one token each 64 steps");
        (0..40).for_each(|_| odds.learn(1, 1));
        assert_eq!(odds.wanted(0.3, 0), 0);
        assert!(odds.wanted(0.3, 8) > 1, "it is accepted again");
    }

    #[test]
    fn asks_for_better_odds_where_rows_cost_as_much_as_steps() {
        let mut price = Price::default();
        assert_eq!(price.least_chance(1), UNKNOWN);
        // 4 ms for a step and 1 ms for each row.
        for rows in (0..300).map(|i| 1 + i % 4) {
            price.note(rows, 0.004 + 0.001 * rows as f32);
        }
        assert!((price.least_chance(1) - 0.2).abs() < 0.01, "{}", price.least_chance(1));
        assert!((price.least_chance(16) - 0.8).abs() < 0.01, "{}", price.least_chance(16));
        // Rows that cost nothing.
        let mut price = Price::default();
        (0..300).for_each(|i| price.note(1 + i % 4, 0.004));
        assert!(price.least_chance(16) < 0.01);
    }
}
