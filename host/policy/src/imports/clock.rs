//! `camshaft:host/clock`: time, for the hooks that are granted it.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::clock::{self, Host};

/// The time that an instance sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    Real,
    /// Always zero, because the instance must be replayable.
    Frozen,
}

impl Time {
    /// Nanoseconds of the monotonic clock.
    pub(crate) fn monotonic_ns(self) -> u64 {
        match self {
            Time::Real => {
                let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
                u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
            }
            Time::Frozen => 0,
        }
    }

    /// Time since the Unix epoch.
    pub(crate) fn unix_time(self) -> Duration {
        match self {
            Time::Real => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Time::Frozen => Duration::ZERO,
        }
    }
}

/// The part of a guest's state that the clock needs.
pub(crate) trait ClockView: 'static {
    fn time(&mut self) -> Time;
}

struct Clock;

impl HasData for Clock {
    type Data<'a> = Time;
}

pub(crate) fn add_to_linker<T: ClockView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    clock::add_to_linker::<_, Clock>(linker, T::time)
}

impl Host for Time {
    fn monotonic_ns(&mut self) -> wasmtime::Result<u64> {
        Ok(Time::monotonic_ns(*self))
    }

    fn unix_ms(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(self.unix_time().as_millis()).unwrap_or(u64::MAX))
    }
}
