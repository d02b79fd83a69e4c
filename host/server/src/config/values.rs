//! Values as configuration spells them: byte sizes ("2MiB"), time spans ("30s"), addresses to listen on, and what the server
//! chooses ("auto").
use std::borrow::Cow;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::json;

/// A number of bytes: an integer, or text with a unit (B, KiB, MiB, GiB, TiB).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(inline, extend("type" = ["integer", "string"], "format" = SIZE, "pattern" = "^[0-9]+ *(B|KiB|MiB|GiB|TiB)?$"))]
pub struct ByteSize(pub u64);

/// A time span: whole seconds, or text with a unit (ms, s, m, h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(inline, extend("type" = ["integer", "string"], "format" = SPAN, "pattern" = "^[0-9]+ *(ms|s|m|h)?$"))]
pub struct DurationValue(#[schemars(with = "u64")] pub Duration);

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

const AUTO: &str = "auto";

/// A value, or "auto": it follows from the models and the machine, see [`camshaft_core::sizes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Auto<T> {
    #[default]
    Auto,
    Set(T),
}

impl<T> Auto<T> {
    /// `None`: it is to be chosen.
    pub fn set(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Set(value) => Some(value),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Set(value) => value.fmt(f),
        }
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Set(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        if value.as_str() == Some(AUTO) {
            return Ok(Self::Auto);
        }
        let read = T::deserialize(value);
        read.map(Self::Set).map_err(|error| D::Error::custom(format!("{}, or \"auto\"", error.message().trim_end())))
    }
}

impl<T: JsonSchema> JsonSchema for Auto<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Auto{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        if let Some(words) = schema.get_mut("enum").and_then(|words| words.as_array_mut()) {
            words.insert(0, json!(AUTO));
            return schema;
        }
        // Bounds of a number hold for numbers only, so both types may stand in one schema.
        let pattern = schema.get("pattern").and_then(|pattern| pattern.as_str()).map(|of| format!("^auto$|{of}"));
        schema.insert("type".to_owned(), json!(["integer", "string"]));
        schema.insert("pattern".to_owned(), json!(pattern.unwrap_or_else(|| "^auto$".to_owned())));
        schema
    }
}

/// `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; empty: nowhere.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Listen(String);

impl Listen {
    pub fn loopback(port: u16) -> Self {
        Self(format!("127.0.0.1:{port}"))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The host name, if it is one.
    pub fn host_name(&self) -> Option<&str> {
        let (host, _) = self.0.rsplit_once(':')?;
        (self.0.parse::<SocketAddr>().is_err() && !host.is_empty()).then_some(host)
    }

    /// The address to bind. Of a host name with several, an IPv4 one, which is what clients try everywhere.
    ///
    /// # Errors
    /// A name that does not resolve.
    pub fn resolve(&self) -> std::io::Result<SocketAddr> {
        let addresses: Vec<SocketAddr> = self.0.to_socket_addrs()?.collect();
        let found = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
        found.copied().ok_or_else(|| std::io::Error::other("the name has no address"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `text` is `HOST:PORT`; names are resolved later, at the start.
fn is_well_formed(text: &str) -> bool {
    if text.is_empty() || text.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_name = |c: u8| c.is_ascii_alphanumeric() || b".-_".contains(&c);
    // What looks like an IPv4 address is one, or a mistake.
    let is_number = host.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    !host.is_empty() && !is_number && host.bytes().all(is_name) && port.parse::<u16>().is_ok()
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if is_well_formed(&text) {
            return Ok(Self(text));
        }
        let expected = "an IP address or host name, and a port (127.0.0.1:8080, [::1]:8080, localhost:8080)";
        Err(de::Error::invalid_value(de::Unexpected::Str(&text), &expected))
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

    #[test]
    fn auto_or_a_value_and_nothing_else() {
        let number = |text: &str| Auto::<u32>::deserialize(text.parse::<toml::Value>().unwrap());
        assert_eq!(number("\"auto\"").unwrap(), Auto::Auto);
        assert_eq!(number("7").unwrap(), Auto::Set(7));
        let error = number("\"automatic\"").unwrap_err().to_string();
        assert!(error.contains("automatic") && error.contains("or \"auto\""), "{error}");
        let size = Auto::<ByteSize>::deserialize(toml::Value::from("2MiB")).unwrap();
        assert_eq!((size, size.to_string()), (Auto::Set(ByteSize(2 << 20)), "2MiB".to_owned()));
        assert_eq!(toml::Value::try_from(Auto::<u32>::Auto).unwrap().as_str(), Some("auto"));
    }

    fn parse(text: &str) -> Result<Listen, String> {
        serde_json::from_value(serde_json::json!(text)).map_err(|error| error.to_string())
    }

    #[test]
    fn regression_a_host_name_is_an_address_to_listen_on() {
        let address = parse("localhost:8080").unwrap().resolve().unwrap();
        assert!(address.ip().is_loopback());
        assert_eq!(address.port(), 8080);
    }

    #[test]
    fn takes_addresses_and_names_with_a_port() {
        for good in ["127.0.0.1:0", "[::1]:8080", "0.0.0.0:65535", "localhost:1", "node-1.example.org:80", ""] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "nowhere",
            "localhost",
            ":8080",
            "localhost:",
            "127.0.0:80",
            "1.2.3.4:65536",
            "a b:1",
            "::1:x",
            "http://a:1",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(bad) && error.contains("port"), "{error}");
        }
    }
}
