//! Finds the credential in a request's headers.
use camshaft_plugin::auth::Request;

/// The credential of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    Key(String),
    /// There is a credential that cannot be compared. Says why.
    Malformed(&'static str),
    Absent,
}

/// Reads the credential of a request. `authorization` has precedence over `x-api-key`.
pub(crate) fn of(request: &Request<'_>) -> Credential {
    let [authorization, api_key] = ["authorization", "x-api-key"].map(|name| request.values(name));
    // Refuse several values: another hop may have accepted another one.
    if authorization.len() > 1 || api_key.len() > 1 {
        return Credential::Malformed("more than one credential was sent");
    }
    let text = |values: Vec<Vec<u8>>| values.into_iter().next().map(String::from_utf8);
    match (text(authorization), text(api_key)) {
        (Some(Ok(value)), _) => bearer(&value),
        (None, Some(Ok(value))) if value.trim().is_empty() => Credential::Malformed("the x-api-key header is empty"),
        (None, Some(Ok(value))) => Credential::Key(value.trim().to_owned()),
        (None, None) => Credential::Absent,
        (Some(Err(_)), _) | (None, Some(Err(_))) => Credential::Malformed("the credential is not UTF-8"),
    }
}

fn bearer(value: &str) -> Credential {
    match value.trim().split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Credential::Key(key.trim_start().to_owned()),
        _ => Credential::Malformed("the authorization header must be: Bearer, a space, the API key"),
    }
}
