//! The trial of a new version of a policy: which requests it serves, when a scheduler has its turn, and how the trial ends.
//!
//! A scheduler's queue cannot be shared out, so time is: a pool gives the new version whole slots. Time is a value here, and
//! every choice follows from hashes, so that the same caller, request or slot meets the same version each time.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a share counts.
const WHOLE: u32 = 1_000_000;
/// How much larger than that of the version before the share of faults may be, in parts of a hundred.
const MORE_FAULTS_PERCENT: u128 = 1;
/// Faults that end no trial before its time, however few calls it had: one caller can bring a few about.
const EARLY_FAULTS: u64 = 3;

/// What traffic is shared out by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CanaryBy {
    /// All requests of a tenant meet the same version.
    #[default]
    Tenant,
    Request,
}

impl CanaryBy {
    pub fn as_str(self) -> &'static str {
        match self {
            CanaryBy::Tenant => "tenant",
            CanaryBy::Request => "request",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [CanaryBy::Tenant, CanaryBy::Request].into_iter().find(|by| by.as_str() == text)
    }
}

/// A share of traffic, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share(u32);

impl Share {
    /// `None` unless it is from 0.000001 to 0.999999.
    pub fn of(share: f64) -> Option<Self> {
        let is_share = (0.000001..=0.999999).contains(&share);
        is_share.then(|| Self((share * f64::from(WHOLE)).round() as u32))
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    fn takes(self, hash: u64) -> bool {
        hash % u64::from(WHOLE) < u64::from(self.0)
    }
}

/// How a new version is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanarySettings {
    pub share: Share,
    pub by: CanaryBy,
    /// Calls that must have been answered before it is promoted, as a [`Tally`] counts them.
    pub calls: u64,
    /// How long the trial takes at least.
    pub time: Duration,
    /// How long a scheduler decides at a stretch.
    pub slot: Duration,
}

/// Calls of a version during a trial. One that is called for each token, or each piece of text, counts once for a choice of a
/// request: as calls, a few long answers would outweigh all that it breaks. One that got no instance does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub calls: u64,
    pub faults: u64,
}

impl Tally {
    /// What came after `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { calls: self.calls.saturating_sub(earlier.calls), faults: self.faults.saturating_sub(earlier.faults) }
    }

    fn answered(self) -> u64 {
        self.calls.saturating_sub(self.faults)
    }
}

/// What becomes of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    GoOn,
    /// The new version serves everything.
    Promote,
    /// The version before serves everything again.
    RollBack(String),
}

impl CanarySettings {
    /// Whether the new version serves whoever has this key. `salt` is the version's: the trials of different versions choose
    /// independently of one another.
    pub fn chooses(&self, salt: u64, key: &[&[u8]]) -> bool {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        self.share.takes(hasher.finish())
    }

    /// Whether the new version of a scheduler decides in the pool of this model now. Times count from the pool's start.
    pub fn has_turn(&self, salt: u64, model: &str, now: Duration) -> bool {
        let slot = now.as_nanos() / self.slot.as_nanos().max(1);
        self.chooses(salt, &[model.as_bytes(), &slot.to_le_bytes()])
    }

    /// The rule by which a trial ends. `opened`: why the breaker of the new version opened, if it did.
    pub fn judge(&self, elapsed: Duration, opened: Option<&str>, new: Tally, before: Tally) -> Outlook {
        if let Some(why) = opened {
            return Outlook::RollBack(format!("its breaker opened: {why}"));
        }
        let is_over = elapsed >= self.time && new.calls >= self.calls;
        if (is_over || self.spends_allowance(new)) && faults_more(new, before) {
            return Outlook::RollBack(format!(
                "{} of its {} calls faulted, of the version before {} of {}: more than {MORE_FAULTS_PERCENT} percentage point \
                 above",
                new.faults, new.calls, before.faults, before.calls
            ));
        }
        if is_over && new.answered() >= self.calls { Outlook::Promote } else { Outlook::GoOn }
    }

    /// Whether more calls faulted than may among all that are wanted, beside a version that never faults: waiting for these
    /// would only break more requests.
    fn spends_allowance(&self, new: Tally) -> bool {
        let allowed = u128::from(self.calls) * MORE_FAULTS_PERCENT / 100;
        u128::from(new.faults) > allowed.max(u128::from(EARLY_FAULTS))
    }
}

/// Whether the share of faults is that much larger. A version that was not called has no faults. Up to 2^56 calls fit.
fn faults_more(new: Tally, before: Tally) -> bool {
    let (calls, faults) = (u128::from(new.calls), u128::from(new.faults));
    let (calls_before, faults_before) = (u128::from(before.calls).max(1), u128::from(before.faults));
    100 * faults * calls_before > 100 * faults_before * calls + MORE_FAULTS_PERCENT * calls * calls_before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(share: f64) -> CanarySettings {
        let (time, slot) = (Duration::from_secs(600), Duration::from_secs(10));
        CanarySettings { share: Share::of(share).unwrap(), by: CanaryBy::Tenant, calls: 1000, time, slot }
    }

    #[test]
    fn a_share_is_neither_nothing_nor_everything() {
        for share in [0.000_001, 0.05, 0.999_999] {
            assert_eq!(Share::of(share).map(Share::as_f64), Some(share));
        }
        for share in [0.0, -0.5, 1.0, 1.5, 0.000_000_1, 0.999_999_9, f64::NAN, f64::INFINITY] {
            assert_eq!(Share::of(share), None, "{share}");
        }
    }

    #[test]
    fn the_same_key_meets_the_same_version_and_about_the_share_of_keys_the_new_one() {
        for share in [0.05, 0.5, 0.9] {
            let settings = settings(share);
            let chosen = |salt| (0..20_000u32).filter(move |key| settings.chooses(salt, &[&key.to_le_bytes()]));
            let first: Vec<u32> = chosen(1).collect();
            assert_eq!(first, chosen(1).collect::<Vec<_>>());
            let found = first.len() as f64 / 20_000.0;
            assert!((found - share).abs() < 0.02, "{found} for {share}");
            // Another trial chooses others: those that both choose are about the square.
            let both = chosen(2).filter(|key| first.binary_search(key).is_ok()).count() as f64 / 20_000.0;
            assert!((both - share * share).abs() < 0.02, "{both} for {share}");
        }
    }

    #[test]
    fn a_key_of_two_parts_is_not_the_one_of_their_sum() {
        let settings = settings(0.5);
        let differ = (0..64u64)
            .filter(|salt| settings.chooses(*salt, &[b"ab", b"c"]) != settings.chooses(*salt, &[b"a", b"bc"]));
        assert!(differ.count() > 8);
    }

    #[test]
    fn a_scheduler_has_whole_slots_in_its_share_of_the_time() {
        let settings = settings(0.25);
        let turn = |ms: u64| settings.has_turn(7, "demo", Duration::from_millis(ms));
        let slots: Vec<bool> = (0..4000).map(|slot| turn(slot * 10_000)).collect();
        for (slot, has_turn) in (0..).zip(&slots) {
            assert!(turn(slot * 10_000 + 5_000) == *has_turn && turn(slot * 10_000 + 9_999) == *has_turn);
        }
        let share = slots.iter().filter(|has_turn| **has_turn).count() as f64 / 4000.0;
        assert!((share - 0.25).abs() < 0.03, "{share}");
        let mut other = (0..4000u64).filter(|slot| settings.has_turn(7, "other", Duration::from_secs(slot * 10)));
        assert!(!other.all(|slot| slots[slot as usize]), "each pool has its own slots");
    }

    #[test]
    fn a_trial_ends_by_its_rule() {
        let settings = settings(0.05);
        let tally = |calls, faults| Tally { calls, faults };
        let (short, long) = (Duration::from_secs(599), Duration::from_secs(600));
        let judge = |elapsed, new, before| settings.judge(elapsed, None, new, before);
        let good = tally(100_000, 0);
        assert_eq!(judge(short, tally(1_000_000, 0), good), Outlook::GoOn, "not long enough");
        assert_eq!(judge(long, tally(999, 0), good), Outlook::GoOn, "not often enough");
        assert_eq!(judge(long, tally(1000, 0), good), Outlook::Promote);
        assert_eq!(judge(long, tally(1000, 1), good), Outlook::GoOn, "what faulted was not answered");
        assert_eq!(judge(long, tally(10_000, 100), good), Outlook::Promote, "a percentage point is allowed");
        assert!(
            matches!(judge(long, tally(10_000, 101), good), Outlook::RollBack(why) if why.contains("101 of its 10000"))
        );
        let bad = tally(1000, 500);
        assert_eq!(judge(long, tally(10_000, 5100), bad), Outlook::Promote, "the version before is no better");
        assert!(matches!(judge(long, tally(10_000, 5101), bad), Outlook::RollBack(_)));
        assert_eq!(judge(long, tally(10_000, 0), Tally::default()), Outlook::Promote, "nobody met the version before");
        assert!(matches!(judge(long, tally(1000, 1000), Tally::default()), Outlook::RollBack(_)));
        assert!(matches!(judge(long, tally(1 << 56, 1 << 56), tally(1 << 56, 0)), Outlook::RollBack(_)));
        let opened = settings.judge(Duration::ZERO, Some("trapped"), tally(1, 1), good);
        assert_eq!(opened, Outlook::RollBack("its breaker opened: trapped".to_owned()), "at once");
        assert_eq!(tally(5, 2).since(tally(3, 2)), tally(2, 0));
    }

    #[test]
    fn regression_a_version_that_breaks_its_requests_does_not_wait_for_the_end_of_its_trial() {
        let tally = |calls, faults| Tally { calls, faults };
        let good = tally(100_000, 0);
        // One of a hundred of the calls that are wanted, and three at least.
        for (calls, allowed) in [(1000, 10), (1_000_000, 10_000), (400, 4), (399, 3), (1, 3)] {
            let settings = CanarySettings { calls, ..settings(0.05) };
            let judge = |new, before| settings.judge(Duration::ZERO, None, new, before);
            assert_eq!(judge(tally(allowed, allowed), good), Outlook::GoOn, "{calls}");
            let ended = judge(tally(allowed + 1, allowed + 1), good);
            assert!(matches!(ended, Outlook::RollBack(_)), "{calls}: {ended:?}");
            assert_eq!(judge(tally(allowed + 1, allowed + 1), tally(7, 7)), Outlook::GoOn, "{calls}: it is no worse");
            assert_eq!(judge(tally(allowed * 200, allowed + 1), good), Outlook::GoOn, "{calls}: among so many it may");
        }
    }
}
