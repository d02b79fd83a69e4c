//! What a client reads first: output, or that its deadline passed. Never both.
//!
//! The worker's side sends output, the pool tells of deadlines, and each hears of the other too late: a first token may
//! have been sent while the worker's report of it is on its way to the pool. So both ask here before they speak.
use std::sync::{Arc, OnceLock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Output,
    Expiry,
}

/// Shared by the pool and the streams of all choices of a request: a deadline bounds the time to the first token of any.
#[derive(Debug, Clone, Default)]
pub struct FirstReply(Arc<OnceLock<Reply>>);

impl FirstReply {
    /// Output is about to be sent. False if the client has been told that its deadline passed.
    pub fn begin(&self) -> bool {
        *self.0.get_or_init(|| Reply::Output) == Reply::Output
    }

    /// The deadline passed. False if the client has been sent output: then the deadline was kept.
    pub fn expire(&self) -> bool {
        *self.0.get_or_init(|| Reply::Expiry) == Reply::Expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_decides() {
        let (kept, passed) = (FirstReply::default(), FirstReply::default());
        assert!(kept.begin() && kept.begin() && !kept.expire());
        assert!(passed.expire() && passed.expire() && !passed.begin());
    }
}
