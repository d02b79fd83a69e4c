//! `camshaft:policy/clock`: time, for hooks that may know it.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::bindings::host::clock::Host;
use crate::store::{GuestState, Time};

/// Nanoseconds of the monotonic clock as an instance with this view of time sees it.
pub(crate) fn monotonic_ns(time: Time) -> u64 {
    match time {
        Time::Real => {
            let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
            u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
        }
        Time::Frozen => 0,
    }
}

/// Time since the Unix epoch as an instance with this view of time sees it.
pub(crate) fn unix_time(time: Time) -> Duration {
    match time {
        Time::Real => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        Time::Frozen => Duration::ZERO,
    }
}

impl Host for GuestState {
    fn monotonic_ns(&mut self) -> wasmtime::Result<u64> {
        Ok(monotonic_ns(self.time))
    }

    fn unix_ms(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(unix_time(self.time).as_millis()).unwrap_or(u64::MAX))
    }
}
