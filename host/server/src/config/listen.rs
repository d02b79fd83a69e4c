//! Addresses to listen on: an IP address or a host name, and a port.
use std::borrow::Cow;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

/// `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; empty: nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
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

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
