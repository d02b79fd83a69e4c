//! `hf:ORG/REPO/FILE[@REV]`: files of a Hugging Face repository, or of a server that speaks as it does.
use url::Url;

use crate::address::{self, shown_url};
use crate::client::{Answer, Ask, Client, Secret};
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::file_name::FileName;
use crate::limits::FILE_BYTES;
use crate::progress::Progress;
use crate::remote::{Remote, RemoteFile};
use crate::retry::{self, Failure};
use crate::settings::Settings;
use crate::shards::parts_of;
use crate::text::shown;

/// Follows a refusal.
const HINT: &str = ": HF_TOKEN must hold a token that may read it, and its licence may have to be accepted first";

/// A file of a repository.
pub(crate) struct HfFile<'a> {
    pub(crate) repository: &'a str,
    /// With its folders.
    pub(crate) file: &'a str,
    pub(crate) revision: &'a str,
}

/// What a server says of one file.
struct Head {
    commit: Option<String>,
    sha256: Option<Digest>,
    bytes: Option<u64>,
    etag: Option<String>,
}

/// Asks which commit the revision is, and what its files are.
///
/// # Errors
/// There is no such file, or no answer.
pub(crate) fn resolve(
    client: &Client,
    settings: &Settings,
    of: &HfFile<'_>,
    progress: &dyn Progress,
) -> Result<Remote, RegistryError> {
    let base = address::parse("models.hf-endpoint", &settings.hf_endpoint)?;
    let secret = settings.hf_token.as_ref().map(|token| Secret::new(&base, token));
    let (folder, name) = of.file.rsplit_once('/').map_or(("", of.file), |(folder, name)| (folder, name));
    let names = parts_of(name).map_err(|count| RegistryError::value("source", of.file, format!("{count} parts")))?;
    let (mut commit, mut files) = (None, Vec::new());
    for name in names {
        let name = FileName::new(&name).map_err(|why| RegistryError::value("source", &name, why.to_string()))?;
        // All parts are of the commit that the first one is of.
        let revision = commit.as_deref().unwrap_or(of.revision);
        let url = address_of(&base, of.repository, revision, folder, &name)?;
        let ask = Ask { head: true, secret: secret.as_ref(), stays: true, ..Ask::get(&url) };
        let head = retry::until_answered(&settings.times, progress, &shown_url(&url), || {
            let answer = client.ask(&ask)?;
            match answer.status {
                200 | 301 | 302 | 303 | 307 | 308 => read(&answer),
                _ => Err(answer.failure(HINT)),
            }
        })?;
        commit = commit.or(head.commit);
        let url = address_of(&base, of.repository, commit.as_deref().unwrap_or(of.revision), folder, &name)?;
        let Head { sha256, bytes, etag, .. } = head;
        files.push(RemoteFile { name, url, secret: secret.clone(), sha256, bytes, etag });
    }
    Ok(Remote { revision: commit, files, hint: HINT })
}

fn address_of(
    base: &Url,
    repository: &str,
    revision: &str,
    folder: &str,
    name: &FileName,
) -> Result<Url, RegistryError> {
    let mut url = base.clone();
    let cannot = |()| RegistryError::value("models.hf-endpoint", base.as_str(), "cannot be a base address");
    {
        let mut path = url.path_segments_mut().map_err(cannot)?;
        path.pop_if_empty().extend(repository.split('/')).push("resolve").push(revision);
        path.extend(folder.split('/').filter(|part| !part.is_empty())).push(name.as_str());
    }
    Ok(url)
}

fn read(answer: &Answer) -> Result<Head, Failure> {
    let url = || shown_url(&answer.url);
    let commit = answer.header("x-repo-commit").map(str::to_owned);
    if let Some(commit) = &commit
        && !((7..=64).contains(&commit.len()) && commit.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(RegistryError::answer(url(), format!("X-Repo-Commit {:?} is no commit", shown(commit))).into());
    }
    // Files in large file storage are named by their digest, others by git's.
    let linked = answer.header("x-linked-etag");
    let etag = linked.map(str::to_owned).or_else(|| answer.header("etag").map(str::to_owned));
    let sha256 = linked.and_then(|tag| tag.trim_start_matches("W/").trim_matches('"').parse().ok());
    let is_file = answer.status == 200;
    let bytes = answer.number("x-linked-size").or_else(|| answer.number("content-length").filter(|_| is_file));
    if let Some(bytes) = bytes.filter(|bytes| *bytes > FILE_BYTES) {
        return Err(RegistryError::FileTooLarge { file: url(), bytes, max: FILE_BYTES }.into());
    }
    Ok(Head { commit, sha256, bytes, etag })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_each_part_of_the_path_encoded() {
        let base = Url::parse("https://h/mirror/").unwrap();
        let name = FileName::new("a b?c#d.gguf").unwrap();
        let url = address_of(&base, "org/repo", "refs/pr/1", "x/y", &name).unwrap();
        assert_eq!(url.as_str(), "https://h/mirror/org/repo/resolve/refs%2Fpr%2F1/x/y/a%20b%3Fc%23d.gguf");
        assert_eq!(
            address_of(&base, "o/r", "main", "", &FileName::new("x").unwrap()).unwrap().path(),
            "/mirror/o/r/resolve/main/x"
        );
    }
}
