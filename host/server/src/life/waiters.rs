//! Requests that wait until a model is in memory.
use tokio::sync::oneshot;

/// How long the list may grow before it is first looked through.
const FIRST_LOOK: usize = 16;

/// Tells one request that the model is in memory, or why not.
type Waiter = oneshot::Sender<Result<(), String>>;

/// Those who wait, and some who have left: the list is looked through only where it has doubled, so that each further request costs
/// the same however many wait.
#[derive(Debug)]
pub(super) struct Waiters {
    all: Vec<Waiter>,
    /// Length at which those who have left are removed.
    look_at: usize,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { all: Vec::new(), look_at: FIRST_LOOK }
    }
}

impl Waiters {
    pub(super) fn push(&mut self, waiter: Waiter) {
        if self.all.len() >= self.look_at {
            self.all.retain(|other| !other.is_closed());
            self.look_at = (2 * self.all.len()).max(FIRST_LOOK);
        }
        self.all.push(waiter);
    }

    /// Answers all of them. Who has left hears nothing.
    pub(super) fn answer(&mut self, answer: &Result<(), String>) {
        let all = std::mem::take(self).all;
        all.into_iter().for_each(|waiter| drop(waiter.send(answer.clone())));
    }

    /// Whether nobody has asked since the last answer.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether somebody waits still.
    pub(super) fn is_waited(&self) -> bool {
        self.all.iter().any(|waiter| !waiter.is_closed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_further_request_looks_at_no_other_until_they_have_doubled() {
        let mut waiters = Waiters::default();
        let mut wait = || {
            let (waiter, woken) = oneshot::channel();
            waiters.push(waiter);
            (woken, waiters.all.len())
        };
        let mut waiting: Vec<_> = (0..100).map(|_| wait().0).collect();
        waiting.truncate(50);
        assert_eq!(wait().1, 101, "nobody has looked for those who have left");
        let longest = (0..10_000).map(|_| wait().1).max();
        assert!(longest.is_some_and(|longest| longest <= 129), "twice those who waited at most: {longest:?}");
        drop(waiting);
        for _ in 0..300 {
            wait();
        }
        assert!(wait().1 <= FIRST_LOOK + 1, "the list has shrunk");
    }

    #[test]
    fn all_who_wait_are_answered_once() {
        let mut waiters = Waiters::default();
        let (left, mut stays) = (oneshot::channel(), oneshot::channel());
        waiters.push(left.0);
        waiters.push(stays.0);
        drop(left.1);
        assert!(waiters.is_waited());
        waiters.answer(&Err("no memory".to_owned()));
        assert_eq!(stays.1.try_recv(), Ok(Err("no memory".to_owned())));
        assert!(!waiters.is_waited());
    }
}
