//! Addresses that are asked: which are allowed, how redirects join them, and how they are shown.
use url::{Host, Url};

use crate::error::RegistryError;
use crate::limits::SOURCE_BYTES;
use crate::text::shown;

/// Reads an address of a server: `what` names it in errors.
///
/// # Errors
/// It is no http or https URL, or one with a user and password.
pub(crate) fn parse(what: &'static str, text: &str) -> Result<Url, RegistryError> {
    let wrong = |why: &str| RegistryError::value(what, text, why);
    if text.len() > SOURCE_BYTES {
        return Err(wrong(&format!("must have at most {SOURCE_BYTES} bytes, got {}", text.len())));
    }
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    check_form(&url).map_err(wrong)?;
    Ok(url)
}

fn check_form(url: &Url) -> Result<(), &'static str> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with https:// or http://");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a user or password");
    }
    Ok(())
}

/// Where a redirect leads: any form of address that a browser takes.
///
/// # Errors
/// It is no address, or leads from https to http.
pub(crate) fn joined(from: &Url, location: &str) -> Result<Url, RegistryError> {
    let bad = |why: &str| RegistryError::answer(shown_url(from), format!("redirects to {:?}: {why}", shown(location)));
    if location.len() > SOURCE_BYTES {
        return Err(bad(&format!("more than {SOURCE_BYTES} bytes")));
    }
    let to = from.join(location).map_err(|error| bad(&error.to_string()))?;
    check_form(&to).map_err(bad)?;
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err(bad("leads from https to http"));
    }
    Ok(to)
}

/// Whether what is sent there leaves this machine unencrypted.
pub(crate) fn is_open(url: &Url) -> bool {
    url.scheme() != "https" && !is_loopback(url)
}

/// Whether the host is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        None => false,
    }
}

/// Refuses http to other machines, unless it is allowed.
///
/// # Errors
/// Says how to allow it.
pub(crate) fn check_open(what: &'static str, url: &Url, allow_http: bool) -> Result<(), RegistryError> {
    if allow_http || !is_open(url) {
        return Ok(());
    }
    let why =
        "http:// is for loopback addresses: use https://, or allow it with --allow-http or models.allow-http = true";
    Err(RegistryError::value(what, &shown_url(url), why))
}

/// Without its query, which may hold a signature.
pub(crate) fn shown_url(url: &Url) -> String {
    let mut bare = url.clone();
    bare.set_query(None);
    bare.set_fragment(None);
    shown(bare.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        parse("source", text).unwrap()
    }

    #[test]
    fn addresses_are_http_with_a_host_and_without_credentials() {
        for bad in ["ftp://x/y", "https://", "https://me:secret@x/y", "https://me@x/", "x", "file:///etc/passwd"] {
            assert!(parse("source", bad).is_err(), "{bad}");
        }
        assert!(parse("source", &format!("https://x/{}", "y".repeat(SOURCE_BYTES - 10))).is_ok());
        assert!(parse("source", &format!("https://x/{}", "y".repeat(SOURCE_BYTES - 9))).is_err());
    }

    #[test]
    fn a_redirect_joins_and_never_leads_from_https_to_http() {
        let from = url("https://a/b/c?d");
        for (location, to) in [
            ("/x", "https://a/x"),
            ("x", "https://a/b/x"),
            ("//h/x", "https://h/x"),
            ("https://h:1/x?s", "https://h:1/x?s"),
        ] {
            assert_eq!(joined(&from, location).unwrap().as_str(), to);
        }
        for bad in ["http://a/x", "file:///x", "https://u:p@h/", &"x".repeat(2 << 20)] {
            assert!(joined(&from, bad).is_err(), "{:.30}", bad);
        }
        assert!(joined(&url("http://a/x"), "https://a/x").is_ok());
    }

    #[test]
    fn http_is_for_this_machine_alone() {
        for own in ["http://127.0.0.1:1/", "http://127.9.9.9/", "http://[::1]:2/", "http://LOCALHOST/", "https://h/"] {
            assert!(check_open("source", &url(own), false).is_ok(), "{own}");
        }
        for other in ["http://h/", "http://10.0.0.1/", "http://localhost.example.org/", "http://127.0.0.1.example.org/"]
        {
            assert!(check_open("source", &url(other), false).is_err(), "{other}");
            assert!(check_open("source", &url(other), true).is_ok(), "{other}");
        }
    }

    #[test]
    fn what_is_shown_has_no_query() {
        assert_eq!(shown_url(&url("https://h/x?signature=secret#y")), "https://h/x");
    }
}
