//! Finds the credential in a request's headers.
use camshaft_plugin::auth::Request;

/// The credential of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Credential<'a> {
    Key(&'a str),
    /// There is a credential that cannot be compared. Says why.
    Malformed(&'static str),
    Absent,
}

/// Reads the credential of a request. `authorization` has precedence over `x-api-key`.
pub(crate) fn of(request: &Request) -> Credential<'_> {
    // Refuse several values: another hop may have accepted another one.
    for name in ["authorization", "x-api-key"] {
        if request.headers.iter().filter(|(header, _)| header == name).count() > 1 {
            return Credential::Malformed("more than one credential was sent");
        }
    }
    if let Some(value) = request.header("authorization") {
        return bearer(value);
    }
    match request.header("x-api-key").map(str::trim) {
        Some("") => Credential::Malformed("the x-api-key header is empty"),
        Some(key) => Credential::Key(key),
        None => Credential::Absent,
    }
}

fn bearer(value: &str) -> Credential<'_> {
    match value.trim().split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Credential::Key(key.trim_start()),
        _ => Credential::Malformed("the authorization header must be: Bearer, a space, the API key"),
    }
}
