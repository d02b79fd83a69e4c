//! What an auth policy adds to the response, whatever becomes of the request.
use std::time::Duration;

/// Headers of one response that policies set.
pub const REPLY_HEADERS: usize = 16;
/// Characters of a name, and of a value.
pub const REPLY_NAME_CHARS: usize = 64;
pub const REPLY_VALUE_CHARS: usize = 1024;
/// Longest time that a refused client is told to wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// Names that a policy may set besides those that begin with `x-`.
const NAMED: [&str; 5] = ["www-authenticate", "cache-control", "deprecation", "sunset", "link"];
/// Beginnings of names that it may not set: the server writes these itself, or proxies obey them.
const RESERVED: [&str; 6] = ["x-request-id", "x-should-retry", "x-ratelimit-", "x-accel-", "x-sendfile", "x-reproxy-"];
/// Characters of a name or value that an error repeats.
const SHOWN_CHARS: usize = 128;

/// Headers, and how long a refused client should wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    headers: Vec<(String, String)>,
    /// Of a refusal.
    pub retry_after: Option<Duration>,
}

/// Nothing was set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error(
        "a response header of the name {name:?}, which is not 1 to {REPLY_NAME_CHARS} of the characters a-z, 0-9, '-' and '_'"
    )]
    Name { name: String },
    #[error("the response header {name} is none that a policy may set")]
    Reserved { name: String },
    #[error("the response header {name} has {chars} characters, over {REPLY_VALUE_CHARS}")]
    Long { name: String, chars: usize },
    #[error("the response header {name} is {value:?}, which has a character that is not printable ASCII")]
    Value { name: String, value: String },
    #[error("the response header {name} is one more than the {REPLY_HEADERS} that policies may set")]
    Full { name: String },
}

impl Reply {
    /// Sets a header, in place of what a policy has set before.
    ///
    /// # Errors
    /// Name or value are out of bounds, the name is no policy's, or there are too many.
    pub fn set(&mut self, name: &str, value: String) -> Result<(), ReplyError> {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        if name.is_empty() || name.len() > REPLY_NAME_CHARS || !name.bytes().all(is_allowed) {
            return Err(ReplyError::Name { name: shown(name) });
        }
        let is_reserved = RESERVED.iter().any(|reserved| name.starts_with(reserved));
        if is_reserved || !(name.starts_with("x-") || NAMED.contains(&name)) {
            return Err(ReplyError::Reserved { name: name.to_owned() });
        }
        // What ends a line would begin another header, or the body.
        if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(ReplyError::Value { name: name.to_owned(), value: shown(&value) });
        }
        if value.len() > REPLY_VALUE_CHARS {
            return Err(ReplyError::Long { name: name.to_owned(), chars: value.len() });
        }
        match self.headers.iter().position(|(set, _)| set == name) {
            Some(at) => self.headers[at].1 = value,
            None if self.headers.len() >= REPLY_HEADERS => return Err(ReplyError::Full { name: name.to_owned() }),
            None => self.headers.push((name.to_owned(), value)),
        }
        Ok(())
    }

    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Whole seconds that a refused client should wait, rounded up, at least one.
    pub fn retry_seconds(&self) -> Option<u8> {
        let wait = self.retry_after?.clamp(Duration::from_secs(1), RETRY_AFTER_MAX);
        u8::try_from(wait.as_millis().div_ceil(1000)).ok()
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_what_is_a_policys_and_nothing_else() {
        let mut reply = Reply::default();
        for name in ["x-tenant", "www-authenticate", "cache-control", "deprecation", "sunset", "link"] {
            reply.set(name, "1".to_owned()).unwrap();
        }
        for name in [
            "set-cookie",
            "location",
            "content-length",
            "transfer-encoding",
            "access-control-allow-origin",
            "retry-after",
            "x-request-id",
            "x-should-retry",
            "x-ratelimit-limit-requests",
            "x-accel-redirect",
            "x-accel-buffering",
            "x-sendfile",
        ] {
            assert_eq!(reply.set(name, "1".to_owned()), Err(ReplyError::Reserved { name: name.to_owned() }));
        }
        reply.set("x-tenant", "2".to_owned()).unwrap();
        assert_eq!((reply.headers().len(), reply.headers()[0].1.as_str()), (6, "2"));
    }

    #[test]
    fn takes_names_values_and_counts_at_their_bounds_and_none_past_them() {
        let mut reply = Reply::default();
        let long = |chars: usize| format!("x-{}", "a".repeat(chars - 2));
        reply.set(&long(64), "v".repeat(1024)).unwrap();
        for name in ["", "X-A", "x-a b", "x-a:", "x-a\r\nx-b", "x-é", &long(65)] {
            assert!(matches!(reply.set(name, String::new()), Err(ReplyError::Name { .. })), "{name}");
        }
        assert_eq!(
            reply.set("x-b", "v".repeat(1025)).unwrap_err().to_string(),
            "the response header x-b has 1025 characters, over 1024"
        );
        for value in ["a\r\nset-cookie: b", "a\n", "\0", "\u{7f}", "\t", "é"] {
            assert!(matches!(reply.set("x-b", value.to_owned()), Err(ReplyError::Value { .. })), "{value:?}");
        }
        for number in 1..REPLY_HEADERS {
            reply.set(&format!("x-{number}"), String::new()).unwrap();
        }
        assert_eq!(reply.set("x-b", String::new()), Err(ReplyError::Full { name: "x-b".to_owned() }));
        reply.set("x-1", "again".to_owned()).unwrap();
        assert_eq!(reply.headers().len(), REPLY_HEADERS);
    }

    #[test]
    fn tells_to_wait_whole_seconds_up_to_two_minutes() {
        for (ms, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (120_000, 120), (120_001, 120), (u64::MAX, 120)] {
            let reply = Reply { retry_after: Some(Duration::from_millis(ms)), ..Reply::default() };
            assert_eq!(reply.retry_seconds(), Some(seconds), "{ms}");
        }
        assert_eq!(Reply::default().retry_seconds(), None);
    }
}
