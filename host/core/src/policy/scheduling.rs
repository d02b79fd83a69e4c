//! What a scheduler is told beside its events, may ask of its pool, and leaves to its successor.
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attributes::Attributes;
use crate::ids::RequestId;

/// How a request ended that a worker had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// An end token, or a stop string.
    Stop,
    /// As long as it may be.
    Length,
    /// A filter ended it.
    Filter,
    /// It could not go on.
    Error,
    /// Its worker died.
    WorkerLost,
}

impl Ending {
    /// What schedulers call it. Which requests ended with their worker they are told beside it.
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Stop => "stop",
            Ending::Length => "length",
            Ending::Filter => "filter",
            Ending::Error | Ending::WorkerLost => "error",
        }
    }
}

/// Why nobody wants a request's output any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// Its client left.
    Client,
    /// Its deadline passed before its first token.
    Deadline,
    /// The scheduler rejected it.
    Rejected,
    /// Its client read too slowly.
    SlowReader,
    /// The server ends.
    Shutdown,
}

impl CancelReason {
    /// What schedulers call it.
    pub fn as_str(self) -> &'static str {
        match self {
            CancelReason::Client => "client",
            CancelReason::Deadline => "deadline",
            CancelReason::Rejected => "rejected",
            CancelReason::SlowReader => "slow-reader",
            CancelReason::Shutdown => "shutdown",
        }
    }
}

/// A scheduler's rejection of a waiting request; the client reads it with status 503.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    pub code: String,
    pub message: String,
    /// After how long the client may try again.
    pub retry_after: Duration,
}

impl Rejection {
    const CODE: &str = "overloaded";
    const RETRY_AFTER: Duration = Duration::from_secs(1);

    /// One that says nothing but why.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: Self::CODE.to_owned(), message: message.into(), retry_after: Self::RETRY_AFTER }
    }
}

/// What the client of a request says for schedulers to read. Nobody has checked that it is true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints(Vec<(String, String)>);

impl Hints {
    pub fn new(entries: Vec<(String, String)>) -> Self {
        Self(entries)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
}

/// A soft target for how soon tokens come. Nobody is told no because it is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatencyTarget {
    /// From the arrival to the first token.
    FirstToken,
    /// From one token to the next.
    PerToken,
}

impl LatencyTarget {
    /// The longest: a day.
    const MAX_MS: u64 = 86_400_000;

    /// The target that schedulers call so.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "first-token" => Some(Self::FirstToken),
            "per-token" => Some(Self::PerToken),
            _ => None,
        }
    }

    /// In milliseconds, as a policy has set it for a request; 0: none did, or no number that a target may be.
    pub fn of(self, attributes: &Attributes) -> u64 {
        let name = match self {
            Self::FirstToken => "target.first-token-ms",
            Self::PerToken => "target.per-token-ms",
        };
        let said = attributes.get(name).and_then(|text| text.parse().ok());
        said.filter(|ms| *ms <= Self::MAX_MS).unwrap_or(0)
    }
}

/// What a pool knows of a request beside its arrival.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// KV tokens that a worker must have free to admit it: what the pool compares when it checks a dispatch.
    pub need: u32,
    /// The same for all choices of an HTTP request, and for all requests of a session. Never 0.
    pub group: u64,
    /// Earlier requests of its session.
    pub turns: u32,
    /// One hash for each full block of its prompt, over everything up to the block's end and the cache namespace.
    pub prefix_blocks: &'a [u64],
    pub hints: &'a Hints,
    pub attributes: &'a Attributes,
}

/// What a scheduler may ask while it answers a point. Computed when it is asked, so that it costs nobody else anything.
pub trait PoolBooks: Send + Sync + fmt::Debug {
    /// Requests that it knows: those that wait or that a worker has, and those that ended since the last point.
    fn requests(&self) -> usize;
    /// `None`: it does not know the request.
    fn request(&self, id: RequestId) -> Option<RequestFacts<'_>>;
    /// Appends how many prompt tokens of a known request each worker of the point probably holds now, in their order.
    fn cached(&self, id: RequestId, cached: &mut Vec<u32>);
}

/// The books of a pool without requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmptyBooks;

impl PoolBooks for EmptyBooks {
    fn requests(&self) -> usize {
        0
    }

    fn request(&self, _: RequestId) -> Option<RequestFacts<'_>> {
        None
    }

    fn cached(&self, _: RequestId, _: &mut Vec<u32>) {}
}

/// Bytes that an instance of a scheduler leaves to the next one of the same plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint(pub Vec<u8>);

/// What became of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// The instance goes on with it.
    Taken,
    /// The instance refused it or faulted over it. A fresh one has to take its place.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_number_of_milliseconds_up_to_a_day_that_a_policy_has_set() {
        for (text, ms) in [
            ("1", 1),
            ("86400000", 86_400_000),
            ("86400001", 0),
            ("0", 0),
            ("-1", 0),
            ("1.5", 0),
            ("", 0),
            ("soon", 0),
            ("99999999999999999999", 0),
        ] {
            let mut attributes = Attributes::default();
            attributes.set("target.first-token-ms", text.to_owned()).unwrap();
            assert_eq!(LatencyTarget::FirstToken.of(&attributes), ms, "{text:?}");
            assert_eq!(LatencyTarget::PerToken.of(&attributes), 0);
        }
        assert_eq!(LatencyTarget::parse("per-token"), Some(LatencyTarget::PerToken));
        assert_eq!(LatencyTarget::parse("per-tokens"), None);
    }

    #[test]
    fn hints_are_found_by_their_whole_name() {
        let hints = Hints::new(vec![("tier".to_owned(), "batch".to_owned())]);
        assert_eq!((hints.get("tier"), hints.get("tie"), hints.get("")), (Some("batch"), None, None));
    }
}
