//! The penalty on tokens that would go on with a repetition ("DRY", by p-e-w, 2024).
use super::checks::{RowError, check, check_ids};
use super::row::Row;

/// Tokens of the past that are looked at, at most.
pub const MAX_REPEATS_WINDOW: u32 = 65_536;
/// Tokens that no repetition goes across, at most.
pub const MAX_BREAKERS: usize = 4096;
/// Keeps the penalty of long repetitions finite.
const LARGEST_POWER: f32 = 1e6;

/// How much a token is penalised that would lengthen a repetition of `n` tokens: by `multiplier * base^(n - allowed)`,
/// from `n = allowed` on.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeats {
    /// 0: off.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Length in tokens, at least 1.
    pub allowed: u32,
    /// Number of last tokens of prompt and output among which repetitions are found.
    pub last_n: u32,
    /// Tokens that no repetition goes across.
    pub breakers: Vec<u32>,
}

impl Repeats {
    pub(super) fn check(&self, size: usize) -> Result<(), RowError> {
        check("multiplier", self.multiplier, self.multiplier.is_finite() && self.multiplier >= 0.0)?;
        check("base", self.base, self.base.is_finite() && self.base >= 1.0)?;
        check("allowed-length", self.allowed as f32, self.allowed > 0)?;
        check("last-n", self.last_n as f32, self.last_n <= MAX_REPEATS_WINDOW)?;
        let ids = self.breakers.len();
        if ids > MAX_BREAKERS {
            return Err(RowError::TooManyBreakers { ids, max: MAX_BREAKERS });
        }
        check_ids(&self.breakers, size)
    }

    /// What a plan does once and not at every token.
    pub(super) fn prepare(&mut self) {
        self.breakers.sort_unstable();
        self.breakers.dedup();
    }

    /// What is subtracted from the logit of a token that would lengthen a repetition of so many tokens.
    fn penalty(&self, length: usize) -> f32 {
        let over = length.saturating_sub(self.allowed as usize);
        self.multiplier * self.base.powf(over as f32).min(LARGEST_POWER)
    }
}

impl Row {
    /// Penalises every token that followed, earlier in the text, the same tokens as those that the text ends with.
    ///
    /// # Errors
    /// An argument is out of range.
    pub fn penalize_repeats(&mut self, repeats: &Repeats) -> Result<(), RowError> {
        repeats.check(self.size())?;
        if repeats.breakers.is_sorted() {
            return self.penalize_repeats_prepared(repeats);
        }
        let mut repeats = repeats.clone();
        repeats.prepare();
        self.penalize_repeats_prepared(&repeats)
    }

    /// The same with arguments that were checked, and breakers that are sorted.
    pub(super) fn penalize_repeats_prepared(&mut self, repeats: &Repeats) -> Result<(), RowError> {
        if repeats.multiplier == 0.0 {
            return Ok(());
        }
        let recent = self.history.last(repeats.last_n as usize);
        let newest_first: Vec<u32> = recent.iter().rev().map(|token| token.0).collect();
        let limit = newest_first.iter().position(|token| repeats.breakers.binary_search(token).is_ok());
        let mut found = longest_by_next(&newest_first, limit.unwrap_or(newest_first.len()));
        found.retain(|&(_, length)| length >= repeats.allowed as usize);
        let (ids, minus): (Vec<u32>, Vec<f32>) =
            found.into_iter().map(|(token, length)| (token, -repeats.penalty(length))).unzip();
        self.bias(&ids, &minus)
    }
}

/// Each token that went on with the end of the text before, with the length of the longest such repetition. `newest_first`
/// is the text from its end; a repetition is at most `limit` tokens long.
///
/// Takes time linear in the text (the Z algorithm: Gusfield 1997), but for the sort of the tokens found.
fn longest_by_next(newest_first: &[u32], limit: usize) -> Vec<(u32, usize)> {
    let n = newest_first.len();
    let mut lengths = vec![0usize; n];
    // The stretch [left, right) is equal to the beginning of the text, and reaches furthest of those found.
    let (mut left, mut right) = (0, 0);
    let mut found = Vec::new();
    for at in 1..n {
        let mut length = if at < right { lengths[at - left].min(right - at) } else { 0 };
        while at + length < n && newest_first[length] == newest_first[at + length] {
            length += 1;
        }
        if at + length > right {
            (left, right) = (at, at + length);
        }
        lengths[at] = length;
        let length = length.min(limit);
        if length > 0 {
            found.push((newest_first[at - 1], length));
        }
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    found.dedup_by_key(|(token, _)| *token);
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::Token;

    /// Every end of the text against every earlier place.
    fn slowly(text: &[u32], limit: usize) -> Vec<(u32, usize)> {
        let mut found = std::collections::BTreeMap::new();
        for next in 1..text.len() {
            let before = &text[..next];
            let length = (1..=before.len()).take_while(|&n| before[next - n..] == text[text.len() - n..]).last();
            if let Some(length) = length.map(|length| length.min(limit)).filter(|&length| length > 0) {
                let longest = found.entry(text[next]).or_insert(0);
                *longest = length.max(*longest);
            }
        }
        found.into_iter().collect()
    }

    proptest! {
        #[test]
        fn finds_what_comparing_every_place_finds(text in prop::collection::vec(0u32..3, 0..40), limit in 0usize..40) {
            let newest_first: Vec<u32> = text.iter().rev().copied().collect();
            prop_assert_eq!(longest_by_next(&newest_first, limit), slowly(&text, limit));
        }
    }

    fn repeats(breakers: Vec<u32>) -> Repeats {
        Repeats { multiplier: 2.0, base: 3.0, allowed: 2, last_n: 64, breakers }
    }

    fn row(history: &[u32]) -> Row {
        let prompt: Vec<Token> = history.iter().map(|&token| Token(token)).collect();
        let mut row = Row::new(&prompt, 1);
        row.load(&[1.0; 8]).unwrap();
        row
    }

    #[test]
    fn the_longer_the_repetition_the_more_its_next_token_is_penalised() {
        // The text ends with 1 2 3, which 4 followed; and with 2 3, which 5 followed.
        let mut row = row(&[1, 2, 3, 4, 2, 3, 5, 1, 2, 3]);
        row.penalize_repeats(&repeats(Vec::new())).unwrap();
        assert_eq!(row.read(0, 8).unwrap(), [1.0, 1.0, 1.0, 1.0, 1.0 - 6.0, 1.0 - 2.0, 1.0, 1.0]);
    }

    #[test]
    fn no_repetition_goes_across_a_breaker() {
        let mut row = row(&[1, 2, 3, 4, 2, 3, 5, 1, 2, 3]);
        row.penalize_repeats(&repeats(vec![1])).unwrap();
        assert_eq!(row.read(4, 2).unwrap(), [-1.0, -1.0], "both go on with 2 3 only");
    }

    #[test]
    fn as_many_breakers_as_the_bound_in_any_order_are_taken() {
        let breakers: Vec<u32> = (0..MAX_BREAKERS as u32).rev().collect();
        let mut long = Row::new(&[Token(9000), Token(9001), Token(9002), Token(1), Token(9001), Token(9002)], 1);
        long.load(&[1.0; 10_000]).unwrap();
        long.penalize_repeats(&repeats(breakers.clone())).unwrap();
        assert_eq!(long.read(1, 1).unwrap(), [-1.0], "9001 9002 came before 1");
        let too_many = Repeats { breakers: breakers.into_iter().chain([5000]).collect(), ..repeats(Vec::new()) };
        let error = long.penalize_repeats(&too_many).unwrap_err();
        assert_eq!(error, RowError::TooManyBreakers { ids: MAX_BREAKERS + 1, max: MAX_BREAKERS });
    }

    #[test]
    fn a_text_of_one_token_is_penalised_by_a_finite_number() {
        let mut row = row(&[1; 4000]);
        row.penalize_repeats(&Repeats { last_n: MAX_REPEATS_WINDOW, ..repeats(Vec::new()) }).unwrap();
        let logit = row.read(1, 1).unwrap()[0];
        assert!(logit < -1e6 && logit.is_finite(), "{logit}");
    }

    #[test]
    fn arguments_out_of_range_are_refused_and_change_nothing() {
        let right = repeats(Vec::new());
        for wrong in [
            Repeats { multiplier: f32::NAN, ..right.clone() },
            Repeats { multiplier: -1.0, ..right.clone() },
            Repeats { base: 0.5, ..right.clone() },
            Repeats { base: f32::INFINITY, ..right.clone() },
            Repeats { allowed: 0, ..right.clone() },
            Repeats { last_n: MAX_REPEATS_WINDOW + 1, ..right.clone() },
            Repeats { breakers: vec![8], ..right.clone() },
            Repeats { breakers: vec![7; MAX_BREAKERS + 1], ..right.clone() },
        ] {
            let mut row = row(&[1, 2, 1, 2, 1]);
            assert!(row.penalize_repeats(&wrong).is_err(), "{wrong:?}");
            assert_eq!(row.read(0, 8).unwrap(), [1.0; 8]);
        }
    }
}
