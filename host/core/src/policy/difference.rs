//! What a monitored policy would have changed: the kinds of differences, and the figures that operators read.
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a monitored policy would have decided otherwise than what is in force did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Difference {
    /// Auth: it lets in whom what is enforced does not.
    Allow,
    /// It refuses what is let through. Of a sampler: the request.
    Refuse,
    /// Auth: both let the caller in, as another principal: tenant, class, weight, limits, models or namespace differ.
    Principal,
    /// Auth: both refuse, with another status.
    Status,
    /// A validator: it changes the body.
    Amend,
    /// A validator: it sets attributes or the class.
    Mark,
    /// A scheduler: it dispatches a request while one waits that the scheduler in force preferred to it.
    FirstChoice,
    /// A scheduler: it rejects a request.
    Reject,
    /// A scheduler: it preempts a request.
    Preempt,
    /// A scheduler: a request that was served in reality waits past its deadline.
    Late,
    /// A scheduler: more requests wait in its virtual book than that holds. It is not asked any more.
    Overflow,
    /// A sampler: the distribution of the row is another one.
    Shape,
    /// A sampler: another token is drawn with the same random number.
    Token,
    /// A sampler or filter: it ends the generation.
    Finish,
    /// A filter: other text goes out.
    Replace,
    /// A filter: tokens are taken back.
    Rewind,
    /// A filter: text is held although none follows. Enforced, that would be a fault.
    HoldAtEnd,
}

impl Difference {
    pub const ALL: [Difference; 17] = [
        Difference::Allow,
        Difference::Refuse,
        Difference::Principal,
        Difference::Status,
        Difference::Amend,
        Difference::Mark,
        Difference::FirstChoice,
        Difference::Reject,
        Difference::Preempt,
        Difference::Late,
        Difference::Overflow,
        Difference::Shape,
        Difference::Token,
        Difference::Finish,
        Difference::Replace,
        Difference::Rewind,
        Difference::HoldAtEnd,
    ];

    /// The name in labels, logs and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Difference::Allow => "allow",
            Difference::Refuse => "refuse",
            Difference::Principal => "principal",
            Difference::Status => "status",
            Difference::Amend => "amend",
            Difference::Mark => "mark",
            Difference::FirstChoice => "first-choice",
            Difference::Reject => "reject",
            Difference::Preempt => "preempt",
            Difference::Late => "late",
            Difference::Overflow => "overflow",
            Difference::Shape => "shape",
            Difference::Token => "token",
            Difference::Finish => "finish",
            Difference::Replace => "replace",
            Difference::Rewind => "rewind",
            Difference::HoldAtEnd => "hold-at-end",
        }
    }
}

/// How long a request waited that both schedulers have dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Under the monitored scheduler, in its virtual book.
    pub monitored: Duration,
    /// Under the one in force.
    pub enforced: Duration,
}

/// Of a monitored scheduler, in one pool: the queueing that it would have caused. Times in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WaitFigures {
    /// Requests that both schedulers have dispatched: the times are theirs.
    pub compared: u64,
    pub monitored_mean_us: Option<u64>,
    pub monitored_p99_us: Option<u64>,
    pub enforced_mean_us: Option<u64>,
    pub enforced_p99_us: Option<u64>,
    /// Requests that wait in its virtual book now.
    pub waiting: u64,
    /// Scheduling points at which it was not asked, because the pool had other work.
    pub skipped: u64,
}

/// Of a monitored sampler: how far it moves the rows' distributions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct RowFigures {
    /// Rows that were compared.
    pub compared: u64,
    /// Total variation distance, from 0 to 1.
    pub mean_distance: f64,
    pub max_distance: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_and_its_place() {
        for (place, kind) in Difference::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
            assert_eq!(Difference::ALL.into_iter().filter(|other| other.as_str() == kind.as_str()).count(), 1);
        }
    }
}
