//! When a scheduler wants to be called although nothing happens.
use std::time::Duration;

/// Shortest time from the answer that asks for a call to that call.
const LEAST: Duration = Duration::from_millis(10);

/// At most one call that was asked for.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    at: Option<Duration>,
}

impl Alarm {
    /// The scheduler asks at `now` to be called at `at`, in place of what it asked for before. What is too soon, or past, is as
    /// soon as may be.
    pub(super) fn set(&mut self, at: Duration, now: Duration) {
        self.at = Some(at.max(now.saturating_add(LEAST)));
    }

    pub(super) fn at(&self) -> Option<Duration> {
        self.at
    }

    /// Whether the time has come. Then it is over.
    pub(super) fn rings(&mut self, now: Duration) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn rings_once_at_its_time_and_never_sooner_than_may_be() {
        for (asked, rings) in [(0, 110), (100, 110), (109, 110), (110, 110), (111, 111), (500, 500)] {
            let mut alarm = Alarm::default();
            alarm.set(ms(asked), ms(100));
            assert_eq!(alarm.at(), Some(ms(rings)), "asked for {asked}");
            assert!(!alarm.rings(ms(rings - 1)) && alarm.rings(ms(rings)) && !alarm.rings(ms(rings)));
        }
        let mut alarm = Alarm::default();
        alarm.set(Duration::MAX, Duration::MAX);
        assert_eq!(alarm.at(), Some(Duration::MAX));
    }

    proptest! {
        #[test]
        fn the_last_wish_counts_and_calls_are_at_least_ten_milliseconds_apart(
            steps in prop::collection::vec((0u64..30, prop::option::of(0u64..100)), 1..100),
        ) {
            let (mut alarm, mut now, mut rang, mut wish) = (Alarm::default(), 0, None::<u64>, None::<u64>);
            for (step, asks) in steps {
                now += step;
                let due = wish.is_some_and(|at| at <= now);
                prop_assert_eq!(alarm.rings(ms(now)), due);
                if due {
                    prop_assert!(rang.is_none_or(|last| now >= last + 10));
                    (rang, wish) = (Some(now), None);
                }
                if let Some(at) = asks {
                    alarm.set(ms(at), ms(now));
                    wish = Some(at.max(now + 10));
                }
                prop_assert_eq!(alarm.at(), wish.map(ms));
            }
        }
    }
}
