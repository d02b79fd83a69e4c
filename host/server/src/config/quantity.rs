//! Byte sizes ("2MiB") and time spans ("30s") as they stand in configuration.
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A number of bytes: an integer, or text with a unit (B, KiB, MiB, GiB, TiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(with = "NumberOrText")]
pub(super) struct ByteSize(pub(super) u64);

/// A time span: whole seconds, or text with a unit (ms, s, m, h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(with = "NumberOrText")]
pub(super) struct Span(pub(super) Duration);

/// How both are written, for the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its shape is used")]
enum NumberOrText {
    Number(u64),
    Text(String),
}

const SIZES: [(&str, u64); 5] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];
const MILLIS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// A number before one of the units, in the smallest unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = text[digits..].trim_start();
    let &(_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(scale)
}

struct Quantity {
    units: &'static [(&'static str, u64)],
    /// Scale of a bare number.
    bare: u64,
    expected: &'static str,
}

impl Visitor<'_> for Quantity {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        value.checked_mul(self.bare).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
        if let Ok(number) = value.trim().parse() {
            return self.visit_u64(number);
        }
        parse(value, self.units).ok_or_else(|| E::invalid_value(de::Unexpected::Str(value), &self))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a size such as 2097152, \"2MiB\" or \"1GiB\"";
        deserializer.deserialize_any(Quantity { units: &SIZES, bare: 1, expected }).map(ByteSize)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a time span such as 30, \"250ms\", \"30s\", \"10m\" or \"1h\"";
        let millis = deserializer.deserialize_any(Quantity { units: &MILLIS, bare: 1000, expected })?;
        Ok(Span(Duration::from_millis(millis)))
    }
}
