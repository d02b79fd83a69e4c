//! Byte sizes ("2MiB") and time spans ("30s") as configuration spells them.
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A number of bytes: an integer, or text with a unit (B, KiB, MiB, GiB, TiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A time span: whole seconds, or text with a unit (ms, s, m, h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationValue(pub Duration);

/// `format` of each in the schema.
pub(super) const SIZE: &str = "byte-size";
pub(super) const SPAN: &str = "time-span";

/// Largest first, so that the first unit that divides a quantity is the shortest way to write it.
const SIZES: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// Of a time span, in milliseconds: a year. Later moments than the clock can count are no use to anybody.
const SPAN_MAX: u64 = 365 * 24 * 3_600_000;
const MILLIS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A number before one of the units, in the smallest unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = text[digits..].trim_start();
    let &(_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(scale)
}

fn write(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)], zero: &str) -> fmt::Result {
    match units.iter().find(|(_, scale)| value >= *scale && value.is_multiple_of(*scale)) {
        Some((unit, scale)) => write!(f, "{}{unit}", value / scale),
        None => f.write_str(zero),
    }
}

impl ByteSize {
    pub const fn kib(number: u64) -> Self {
        Self(number << 10)
    }

    pub const fn mib(number: u64) -> Self {
        Self(number << 20)
    }

    pub const fn gib(number: u64) -> Self {
        Self(number << 30)
    }
}

impl DurationValue {
    pub const fn secs(number: u64) -> Self {
        Self(Duration::from_secs(number))
    }

    pub const fn millis(number: u64) -> Self {
        Self(Duration::from_millis(number))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, &SIZES, "0")
    }
}

impl fmt::Display for DurationValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Parsed from milliseconds that fit 64 bits.
        write(f, self.0.as_millis() as u64, &MILLIS, "0s")
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for DurationValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct Quantity {
    units: &'static [(&'static str, u64)],
    /// Scale of a bare number.
    bare: u64,
    most: u64,
    expected: &'static str,
}

impl Visitor<'_> for Quantity {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        let scaled = value.checked_mul(self.bare).filter(|scaled| *scaled <= self.most);
        scaled.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
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
        let parsed = parse(value, self.units).filter(|parsed| *parsed <= self.most);
        parsed.ok_or_else(|| E::invalid_value(de::Unexpected::Str(value), &self))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a size such as 2097152, \"2MiB\" or \"1GiB\"";
        deserializer.deserialize_any(Quantity { units: &SIZES, bare: 1, most: u64::MAX, expected }).map(ByteSize)
    }
}

impl<'de> Deserialize<'de> for DurationValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a time span such as 30, \"250ms\", \"30s\", \"10m\" or \"1h\", at most 8760h";
        let millis = deserializer.deserialize_any(Quantity { units: &MILLIS, bare: 1000, most: SPAN_MAX, expected })?;
        Ok(DurationValue(Duration::from_millis(millis)))
    }
}

fn number_or_text(format: &str, pattern: &str) -> Schema {
    json_schema!({"type": ["integer", "string"], "minimum": 0, "pattern": pattern, "format": format})
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        number_or_text(SIZE, "^[0-9]+ *(B|KiB|MiB|GiB|TiB)?$")
    }
}

impl JsonSchema for DurationValue {
    fn schema_name() -> Cow<'static, str> {
        "DurationValue".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        number_or_text(SPAN, "^[0-9]+ *(ms|s|m|h)?$")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_written_in_the_largest_unit_that_divides_it() {
        for (bytes, text) in [(0, "0"), (1, "1B"), (1536, "1536B"), (2 << 20, "2MiB"), (1 << 30, "1GiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        for (millis, text) in
            [(0, "0s"), (1, "1ms"), (1500, "1500ms"), (30_000, "30s"), (90_000, "90s"), (600_000, "10m")]
        {
            assert_eq!(DurationValue::millis(millis).to_string(), text);
        }
    }

    #[test]
    fn a_span_is_at_most_a_year() {
        let read = |text: &str| serde_json::from_str::<DurationValue>(text).map(|span| span.0.as_secs());
        for (text, seconds) in [("31536000", 31_536_000), ("\"8760h\"", 31_536_000), ("\"31536000000 ms\"", 31_536_000)]
        {
            assert_eq!(read(text).unwrap(), seconds, "{text}");
        }
        for text in ["31536001", "\"8761h\"", "\"31536000001ms\"", "\"999999999h\"", "18446744073709551615"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("at most 8760h"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_written_reads_as_the_same_quantity() {
        for bytes in [0, 1, 1023, 1024, 5 << 20, 3 << 40] {
            let text = serde_json::to_value(ByteSize(bytes)).unwrap();
            assert_eq!(serde_json::from_value::<ByteSize>(text).unwrap(), ByteSize(bytes));
        }
        for millis in [0, 1, 999, 1000, 61_000, 7_200_000] {
            let text = serde_json::to_value(DurationValue::millis(millis)).unwrap();
            assert_eq!(serde_json::from_value::<DurationValue>(text).unwrap(), DurationValue::millis(millis));
        }
    }
}
