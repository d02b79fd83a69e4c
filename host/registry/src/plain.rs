//! `https://…`: files whose digest somebody knows.
use url::Url;

use crate::address::shown_url;
use crate::client::{Answer, Ask, Client};
use crate::digest::Digest;
use crate::entry::Entry;
use crate::error::RegistryError;
use crate::file_name::FileName;
use crate::remote::{Remote, RemoteFile};
use crate::retry::Failure;
use crate::shards::parts_of;
use crate::source::with_last_segment;

/// The files beside this one that belong to its model. `sha256`: of the model.
///
/// # Errors
/// The name is no file's, which [`Source::parse`](crate::Source::parse) has checked.
pub(crate) fn resolve(url: &Url, file_name: &str, sha256: Digest) -> Result<Remote, RegistryError> {
    let bad = |why: &str| RegistryError::value("source", url.as_str(), why);
    let names = parts_of(file_name).map_err(|_| bad("has too many parts"))?;
    // Each part's digest is known only together with the others'.
    let alone = names.len() == 1;
    let file = |name: &String| {
        let name = FileName::new(name).map_err(|_| bad("names no file"))?;
        let url = with_last_segment(url, name.as_str());
        Ok(RemoteFile { name, url, secret: None, sha256: alone.then_some(sha256), bytes: None, etag: None })
    };
    let files = names.iter().map(file).collect::<Result<_, RegistryError>>()?;
    Ok(Remote { revision: None, files, hint: "" })
}

/// What a server says of a file that is cached.
pub(crate) enum Upstream {
    Same,
    /// It has another file now.
    Changed,
    /// It does not say.
    Unknown,
}

/// Asks whether what is cached is still what the server has. Nothing is downloaded.
pub(crate) fn revalidate(client: &Client, url: &Url, entry: &Entry) -> Result<Upstream, Failure> {
    let mut upstream = Upstream::Same;
    for file in &entry.files {
        let url = with_last_segment(url, file.name.as_str());
        let Some(etag) = &file.etag else { return Ok(Upstream::Unknown) };
        let answer = client.ask(&Ask::get(&url).header("if-none-match", etag.clone()))?;
        match judged(&answer, etag) {
            Some(Upstream::Same) => {}
            Some(other) => upstream = other,
            None => return Err(answer.failure("")),
        }
    }
    Ok(upstream)
}

/// `None`: no answer to what was asked.
fn judged(answer: &Answer, etag: &str) -> Option<Upstream> {
    match answer.status {
        304 => Some(Upstream::Same),
        // A server that knows no conditions sends everything; nobody reads it.
        200 => Some(match answer.etag() {
            Some(tag) if tag == etag => Upstream::Same,
            Some(_) => Upstream::Changed,
            None => Upstream::Unknown,
        }),
        _ => None,
    }
}

/// What is said of a file whose digest nobody knows.
pub(crate) fn needs_digest(url: &Url) -> RegistryError {
    let why = "needs the file's digest: --sha256 HEX, sha256 in the configuration, or #sha256=HEX behind the address";
    RegistryError::value("source", &shown_url(url), why)
}
