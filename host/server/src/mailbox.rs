//! Sends a pool's commands to a worker without ever making the pool wait.
//!
//! Reports may wait for the pool; commands never wait for a worker. So the two cannot block each other, however long a
//! step takes. Messages that do not fit the worker's channel are kept in order and sent later.
use std::collections::VecDeque;

use camshaft_core::message::Command;
use crossbeam_channel::TrySendError;

use crate::worker::{MessageWay, WorkerMessage};

/// Messages kept for a worker. Starts and cancellations are bounded by its sequences; past the bound, commands that the
/// worker can do without are dropped.
const MAX_BACKLOG: usize = 4096;

#[derive(Debug)]
pub(crate) struct Mailbox {
    messages: Box<dyn MessageWay>,
    backlog: VecDeque<WorkerMessage>,
}

impl Mailbox {
    pub(crate) fn new(messages: Box<dyn MessageWay>) -> Self {
        Self { messages, backlog: VecDeque::new() }
    }

    /// Sends a message, now or when the channel has room. False if it was dropped.
    pub(crate) fn post(&mut self, message: WorkerMessage) -> bool {
        self.flush();
        if self.backlog.is_empty() {
            return match self.messages.try_send(message) {
                Ok(()) => true,
                Err(TrySendError::Full(message)) => {
                    self.backlog.push_back(message);
                    true
                }
                Err(TrySendError::Disconnected(_)) => false,
            };
        }
        self.keep(message)
    }

    /// A newer setting replaces an older one, and a preemption is asked for once.
    fn keep(&mut self, message: WorkerMessage) -> bool {
        if let WorkerMessage::Command(new) = &message {
            let same = |kept: &&mut WorkerMessage| matches!(kept, WorkerMessage::Command(old) if supersedes(new, old));
            if let Some(kept) = self.backlog.iter_mut().find(same) {
                *kept = message;
                return true;
            }
            if self.backlog.len() >= MAX_BACKLOG && is_optional(new) {
                return false;
            }
        }
        self.backlog.push_back(message);
        true
    }

    /// Sends kept messages, as far as they fit.
    pub(crate) fn flush(&mut self) {
        while let Some(message) = self.backlog.pop_front() {
            if let Err(TrySendError::Full(message)) = self.messages.try_send(message) {
                self.backlog.push_front(message);
                return;
            }
        }
    }

    /// Whether messages are kept.
    pub(crate) fn is_behind(&self) -> bool {
        self.messages.is_behind() || !self.backlog.is_empty()
    }
}

/// Whether `new` makes `old` superfluous.
fn supersedes(new: &Command, old: &Command) -> bool {
    match (new, old) {
        (Command::PrefillBudget { .. }, Command::PrefillBudget { .. })
        | (Command::CacheLimits { .. }, Command::CacheLimits { .. })
        | (Command::Bounds(_), Command::Bounds(_)) => true,
        (Command::Preempt { .. }, old) => new == old,
        _ => false,
    }
}

/// Commands that a worker can do without: a session also expires, preemption and budgets are advice.
fn is_optional(command: &Command) -> bool {
    matches!(
        command,
        Command::CloseSession { .. }
            | Command::ListSessions { .. }
            | Command::Preempt { .. }
            | Command::PrefillBudget { .. }
    )
}

#[cfg(test)]
mod tests {
    use camshaft_core::ids::RequestId;
    use crossbeam_channel::bounded;

    use super::*;

    fn preempt(n: usize) -> WorkerMessage {
        WorkerMessage::Command(Command::Preempt { id: RequestId(n as u64) })
    }

    #[test]
    fn keeps_order_and_bound_while_a_worker_takes_nothing_in() {
        let (sender, receiver) = bounded(2);
        let mut mailbox = Mailbox::new(Box::new(sender));
        for n in 0..10_000 {
            assert_eq!(mailbox.post(preempt(n)), n < 2 + MAX_BACKLOG);
            // The same once more costs nothing.
            assert!(!(2..2 + MAX_BACKLOG).contains(&n) || mailbox.post(preempt(n)));
        }
        assert!(mailbox.backlog.len() == MAX_BACKLOG && mailbox.is_behind());
        let cancel = || WorkerMessage::Command(Command::Cancel { id: RequestId(1) });
        assert!(mailbox.post(cancel()), "nothing that matters is dropped");
        let mut got = Vec::new();
        while mailbox.is_behind() || !receiver.is_empty() {
            got.extend(receiver.try_iter());
            mailbox.flush();
        }
        assert_eq!(got.len(), 2 + MAX_BACKLOG + 1);
        let text = |message: &WorkerMessage| format!("{message:?}");
        assert!(got[..got.len() - 1].iter().enumerate().all(|(n, message)| text(message) == text(&preempt(n))));
        assert_eq!(text(&got[got.len() - 1]), text(&cancel()));
    }
}
