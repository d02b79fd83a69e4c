//! Durations in settings.
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A duration: `"500ms"`, `"10s"`, `"2m"`, or milliseconds as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub ms: u64,
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time like \"10s\", \"500ms\" or \"2m\", or a whole number of milliseconds")
    }

    fn visit_u64<E: Error>(self, ms: u64) -> Result<Span, E> {
        Ok(Span { ms })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit_ms = match &text[digits.len()..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            _ => return Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        };
        match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)) {
            Some(ms) => Ok(Span { ms }),
            None => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str, expected: Option<u64>) {
        assert_eq!(serde_json::from_str::<Span>(json).ok().map(|span| span.ms), expected, "{json}");
    }

    #[test]
    fn reads_durations_with_a_unit_and_bare_milliseconds() {
        check("\"10s\"", Some(10_000));
        check("\"500ms\"", Some(500));
        check("\"2m\"", Some(120_000));
        check("250", Some(250));
        check("0", Some(0));
    }

    #[test]
    fn refuses_text_that_is_no_duration() {
        for json in
            ["\"10\"", "\"s\"", "\"1.5s\"", "\"-1s\"", "\"10 s\"", "-1", "1.5", "\"99999999999999999999s\"", "true"]
        {
            check(json, None);
        }
    }
}
