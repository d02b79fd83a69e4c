//! Configuration by environment variables, and those of our prefix that somebody else sets.
use std::ffi::OsString;
use std::path::PathBuf;

use super::error::ConfigError;
use super::overrides::{Given, Setting};
use super::tree::Source;

const PREFIX: &str = "CAMSHAFT_";
/// Names the configuration file.
const FILE: &str = "CAMSHAFT_CONFIG";
/// Variables with the prefix that are not configuration keys: the tests' models.
const NOT_KEYS: [&str; 1] = ["CAMSHAFT_MODELS"];

/// What the environment says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) file: Option<PathBuf>,
    /// Names with their text, in the order in which they are applied.
    pub(super) keys: Vec<(String, String)>,
    pub(super) ignored: Vec<String>,
}

/// Sorts out the variables with our prefix.
///
/// # Errors
/// One that is no UTF-8.
pub(super) fn read(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Found, ConfigError> {
    let mut found = Found::default();
    for (name, text) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if name == FILE {
            found.file = Some(PathBuf::from(text));
            continue;
        }
        if NOT_KEYS.contains(&name) {
            continue;
        }
        let not_text = |text| ConfigError::VariableNotText { name: name.to_owned(), text };
        let text = text.into_string().map_err(not_text)?;
        if is_service(name, &text) {
            found.ignored.push(name.to_owned());
        } else {
            found.keys.push((name.to_owned(), text));
        }
    }
    // Entries of a list in their own order, so that the tenth is not added before the second.
    found.keys.sort_by_key(|(name, _)| order(name));
    found.ignored.sort();
    Ok(found)
}

fn order(name: &str) -> Vec<(usize, String)> {
    key(name).split('.').map(|segment| (segment.parse().unwrap_or(0), segment.to_owned())).collect()
}

/// `CAMSHAFT_QUEUE__HIGH_WATERMARK` is `queue.high-watermark`.
fn key(name: &str) -> String {
    name[PREFIX.len()..].to_ascii_lowercase().replace("__", ".").replace('_', "-")
}

pub(super) fn setting(name: &str, text: &str) -> Setting {
    Setting { key: key(name), value: Given::Text(text.to_owned()), source: Source::Environment(name.to_owned()) }
}

/// Whether Kubernetes sets this variable for a Service called `camshaft`, or `camshaft-` something: it tells every pod of
/// the namespace where the Service is.
fn is_service(name: &str, text: &str) -> bool {
    let words: Vec<&str> = name.split('_').collect();
    let is_protocol = |word: &str| ["TCP", "UDP", "SCTP"].contains(&word);
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_digit());
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme));
    let host_or_port =
        words.windows(2).skip(1).any(|pair| pair == ["SERVICE", "PORT"]) || words.ends_with(&["SERVICE", "HOST"]);
    // CAMSHAFT_PORT_8080_TCP and what follows it.
    let address = words.windows(3).any(|three| three[0] == "PORT" && is_number(three[1]) && is_protocol(three[2]));
    let url = words.ends_with(&["PORT"]) && is_url;
    host_or_port || address || url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Found {
        read(variables.iter().map(|(name, text)| (OsString::from(name), OsString::from(text)))).unwrap()
    }

    #[test]
    fn regression_variables_of_a_kubernetes_service_are_ignored() {
        let of_a_service = [
            ("CAMSHAFT_PORT", "tcp://10.0.0.7:8080"),
            ("CAMSHAFT_PORT_8080_TCP", "tcp://10.0.0.7:8080"),
            ("CAMSHAFT_PORT_8080_TCP_ADDR", "10.0.0.7"),
            ("CAMSHAFT_PORT_8080_TCP_PORT", "8080"),
            ("CAMSHAFT_PORT_8080_TCP_PROTO", "tcp"),
            ("CAMSHAFT_SERVICE_HOST", "10.0.0.7"),
            ("CAMSHAFT_SERVICE_PORT", "8080"),
            ("CAMSHAFT_SERVICE_PORT_HTTP", "8080"),
            // Of a Service that is called camshaft-admin.
            ("CAMSHAFT_ADMIN_PORT", "tcp://10.0.0.8:9090"),
            ("CAMSHAFT_ADMIN_PORT_9090_TCP_ADDR", "10.0.0.8"),
            ("CAMSHAFT_ADMIN_SERVICE_HOST", "10.0.0.8"),
            ("CAMSHAFT_ADMIN_SERVICE_PORT_ADMIN", "9090"),
        ];
        let found = found(&of_a_service);
        assert_eq!(found.keys, []);
        assert_eq!(found.ignored.len(), of_a_service.len());
    }

    #[test]
    fn other_variables_are_keys_in_the_order_of_lists() {
        let found = found(&[
            ("HOME", "/"),
            ("CAMSHAFT_MODELS", "/models"),
            ("CAMSHAFT_CONFIG", "/etc/camshaft.toml"),
            ("CAMSHAFT_MODEL__10__ID", "k"),
            ("CAMSHAFT_MODEL__2__ID", "c"),
            // Written by hand: an error that names it is better than silence.
            ("CAMSHAFT_PORT", "8080"),
            ("CAMSHAFT_LISTEN_PORT", "8080"),
        ]);
        assert_eq!(found.file, Some(PathBuf::from("/etc/camshaft.toml")));
        let names: Vec<&str> = found.keys.iter().map(|(name, _)| name.as_str()).collect();
        let expected = ["CAMSHAFT_LISTEN_PORT", "CAMSHAFT_MODEL__2__ID", "CAMSHAFT_MODEL__10__ID", "CAMSHAFT_PORT"];
        assert_eq!(names, expected);
        assert_eq!(found.ignored, [""; 0]);
        assert_eq!(setting("CAMSHAFT_MODEL__10__CONTEXT_TOKENS", "1").key, "model.10.context-tokens");
    }

    #[test]
    fn a_variable_that_is_no_text_is_named() {
        use std::os::unix::ffi::OsStringExt;
        let bad = (OsString::from("CAMSHAFT_LISTEN"), OsString::from_vec(vec![0xff]));
        assert!(read([bad].into_iter()).unwrap_err().to_string().contains("CAMSHAFT_LISTEN"));
    }
}
