//! The breaker of a policy: whether one that faults is asked again, as a state machine that takes time as a value.
//!
//! Closed: it is asked. Open: it is not, until a pause is over. Half-open: one call tries it; an answer closes the breaker,
//! a fault opens it for twice as long. The pause is the first one again once the policy has gone without opening it for as long
//! as the next pause would be: one good answer is no recovery, or a policy that faults at every second call would be tried at
//! full rate.
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Parts of the window in which calls are counted: what is older than the window goes part by part.
const PARTS: usize = 8;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerSettings {
    /// Faults within the window that open it; 0: it never opens.
    pub faults: u32,
    /// Of a thousand calls in the window, how many must have faulted besides.
    pub share_permille: u32,
    pub window: Duration,
    /// The first pause. Each further one is twice as long, up to the longest.
    pub pause: Duration,
    pub max_pause: Duration,
}

impl BreakerSettings {
    /// Of policies that are asked for each request: a few requests that make a policy fault take it from nobody else.
    pub const SHARED: Self = Self {
        faults: 20,
        share_permille: 500,
        window: Duration::from_secs(10),
        pause: Duration::from_secs(1),
        max_pause: Duration::from_secs(60),
    };
    /// Of policies with one long-lived instance, which a fault costs.
    pub const SINGLE: Self = Self { faults: 1, share_permille: 0, ..Self::SHARED };
}

/// What a breaker is, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

impl BreakerState {
    pub fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half-open",
            BreakerState::Open => "open",
        }
    }
}

/// Whether the policy may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Ask,
    /// The breaker is half-open, and this call tries the policy.
    Try,
    Refuse,
}

/// A change that somebody may want to hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Opened { pause: Duration },
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Duration,
    },
    HalfOpen {
        /// When the call began that tries the policy. One that never ends is given up after a pause.
        tried: Duration,
    },
}

/// Calls of one part of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    /// The part's number since the beginning of time.
    number: u128,
    calls: u32,
    faults: u32,
}

/// The breaker of one version of a policy. Times count from any moment, the same for all calls.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: State,
    parts: [Part; PARTS],
    /// How long the next pause is.
    next_pause: Duration,
    /// When the policy was tried last after a pause.
    resumed: Duration,
}

impl Breaker {
    /// A closed one.
    pub fn new(settings: BreakerSettings) -> Self {
        let (state, parts) = (State::Closed, [Part::default(); PARTS]);
        Self { settings, state, parts, next_pause: settings.pause, resumed: Duration::ZERO }
    }

    pub fn settings(&self) -> BreakerSettings {
        self.settings
    }

    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether a call may be made now. Who is told `Try` makes one and tells how it went.
    pub fn admit(&mut self, now: Duration) -> Admission {
        if self.state == State::Closed {
            return Admission::Ask;
        }
        if self.refuses(now) {
            return Admission::Refuse;
        }
        // The pause is over, or whoever tried it last has not told.
        self.state = State::HalfOpen { tried: now };
        self.resumed = now;
        Admission::Try
    }

    /// Whether a call would be refused now.
    pub fn refuses(&self, now: Duration) -> bool {
        match self.state {
            State::Closed => false,
            State::Open { until } => now < until,
            State::HalfOpen { tried } => now < tried.saturating_add(self.settings.pause),
        }
    }

    /// When it is tried again; `None` unless it is open.
    pub fn tried_at(&self) -> Option<Duration> {
        match self.state {
            State::Open { until } => Some(until),
            State::Closed | State::HalfOpen { .. } => None,
        }
    }

    /// A call was answered.
    pub fn answered(&mut self, now: Duration) -> Option<Turn> {
        match self.state {
            // It began before the breaker opened.
            State::Open { .. } => return None,
            State::Closed => {
                self.note(now, 0);
                self.recover(now);
                return None;
            }
            State::HalfOpen { .. } => {}
        }
        self.state = State::Closed;
        self.parts = Default::default();
        self.note(now, 0);
        self.recover(now);
        Some(Turn::Closed)
    }

    /// A call faulted.
    pub fn faulted(&mut self, now: Duration) -> Option<Turn> {
        match self.state {
            State::Open { .. } => return None,
            State::Closed => {
                self.note(now, 1);
                if !self.is_over() {
                    return None;
                }
            }
            State::HalfOpen { .. } => {}
        }
        let pause = self.next_pause;
        self.state = State::Open { until: now.saturating_add(pause) };
        self.parts = Default::default();
        self.next_pause = pause.saturating_mul(2).min(self.settings.max_pause).max(pause);
        Some(Turn::Opened { pause })
    }

    /// The pause is the first one again, if it has been closed for long enough.
    fn recover(&mut self, now: Duration) {
        if now.saturating_sub(self.resumed) >= self.next_pause {
            self.next_pause = self.settings.pause;
        }
    }

    fn note(&mut self, now: Duration, faults: u32) {
        let length = (self.settings.window.as_nanos() / PARTS as u128).max(1);
        let number = now.as_nanos() / length;
        // What is left of an earlier window counts no more.
        for part in &mut self.parts {
            if part.number.saturating_add(PARTS as u128) <= number {
                *part = Part::default();
            }
        }
        let index = usize::try_from(number % PARTS as u128).unwrap_or_default();
        let Some(part) = self.parts.get_mut(index) else { return };
        part.number = number;
        part.calls = part.calls.saturating_add(1);
        part.faults = part.faults.saturating_add(faults);
    }

    fn is_over(&self) -> bool {
        let BreakerSettings { faults: most, share_permille, .. } = self.settings;
        let sum = |of: fn(&Part) -> u32| self.parts.iter().map(|part| u64::from(of(part))).sum::<u64>();
        let (calls, faults) = (sum(|part| part.calls), sum(|part| part.faults));
        most > 0 && faults >= u64::from(most) && faults * 1000 >= calls * u64::from(share_permille)
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
