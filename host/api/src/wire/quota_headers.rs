//! `x-ratelimit-…`: the headers that say what a caller has left of its quotas.
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use camshaft_core::quota::{Standing, Standings};

/// OpenAI's headers for quotas: limit, what remains, and when all of it is back, of requests and of tokens.
pub(crate) const NAMES: [&str; 6] = [
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];

pub(crate) fn write(standings: &Standings, headers: &mut HeaderMap) {
    let mut put = |limit, remaining, reset, standing: Option<Standing>| {
        let Some(standing) = standing else { return };
        headers.insert(HeaderName::from_static(limit), HeaderValue::from(standing.limit));
        headers.insert(HeaderName::from_static(remaining), HeaderValue::from(standing.remaining));
        if let Ok(value) = HeaderValue::from_str(&span(standing.reset)) {
            headers.insert(HeaderName::from_static(reset), value);
        }
    };
    let [limit, remaining, reset, token_limit, tokens_remaining, token_reset] = NAMES;
    put(limit, remaining, reset, standings.requests);
    put(token_limit, tokens_remaining, token_reset, standings.tokens);
}

/// Formats a duration as OpenAI does: `17ms`, `7.66s`, `6m0s`.
fn span(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 {
        return format!("{}ms", time.as_millis());
    }
    if seconds < 60.0 {
        let text = format!("{seconds:.2}");
        return format!("{}s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    let whole = seconds.ceil() as u64;
    format!("{}m{}s", whole / 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_spans_as_openai_does() {
        for (ms, expected) in
            [(0, "0ms"), (17, "17ms"), (1000, "1s"), (7660, "7.66s"), (59_990, "59.99s"), (360_000, "6m0s")]
        {
            assert_eq!(span(Duration::from_millis(ms)), expected);
        }
    }
}
