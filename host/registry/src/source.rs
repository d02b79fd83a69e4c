//! Where a model comes from, as people write it.
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::address;
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::file_name::FileName;
use crate::limits::{NAME_CHARS, SOURCE_BYTES};
use crate::shards;

/// The revision of a Hugging Face repository that is meant where none is named.
const MAIN: &str = "main";
/// What a registry's model is where no tag, and no namespace, is named.
const LATEST: &str = "latest";
const LIBRARY: &str = "library";
/// Characters of a segment of a repository's name, of a model's, and of a tag.
const SEGMENT_CHARS: usize = 128;
/// Characters of a revision.
const REVISION_CHARS: usize = 200;

/// A source of a model. `Display` writes the name that it has in the cache; [`Source::parse`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `./x.gguf`, `/x.gguf`: a file of this machine.
    Path(PathBuf),
    /// `https://…`, with the digest that `#sha256=…` names.
    Url { url: Url, sha256: Option<Digest> },
    /// `hf:ORG/REPO/FILE[@REV]`.
    Hf { repository: String, file: String, revision: String },
    /// `ollama:[NAMESPACE/]NAME[:TAG]`, or with a host, `HOST/NAMESPACE/NAME:TAG`.
    Registry { host: Option<String>, namespace: String, model: String, tag: String },
}

impl Source {
    /// # Errors
    /// What is wrong with it, and what is expected.
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        let wrong = |why: &str| RegistryError::value("source", text, why);
        if text.is_empty() || text.len() > SOURCE_BYTES {
            return Err(wrong(&format!("must have 1 to {SOURCE_BYTES} bytes, got {}", text.len())));
        }
        if text.chars().any(char::is_control) {
            return Err(wrong("must not contain control characters"));
        }
        match Form::of(text) {
            Form::Url => url_source(text),
            Form::Hf(rest) => hf_source(rest).map_err(wrong),
            Form::Ollama(rest) => ollama_source(rest).map_err(wrong),
            Form::Host(host, rest) => host_source(host, rest).map_err(wrong),
            Form::Path => path_source(text),
        }
    }

    /// Whether a text names a source that has to be pulled, where a path may stand as well.
    pub fn is_remote(text: &str) -> bool {
        !matches!(Form::of(text), Form::Path)
    }

    /// The name of the model's first file.
    pub fn file_name(&self) -> String {
        match self {
            Self::Path(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Url { url, .. } => last_segment(url),
            Self::Hf { file, .. } => file.rsplit('/').next().unwrap_or_default().to_owned(),
            Self::Registry { model, tag, .. } => format!("{model}-{tag}.gguf"),
        }
    }

    /// What the model is called where nobody gave it a name.
    pub fn default_id(&self) -> String {
        match self {
            Self::Registry { model, .. } => model.clone(),
            other => shards::stem(&other.file_name()).to_owned(),
        }
    }
}

impl FromStr for Source {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        Self::parse(text)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Url { url, .. } => f.write_str(url.as_str()),
            Self::Hf { repository, file, revision } if revision == MAIN => write!(f, "hf:{repository}/{file}"),
            Self::Hf { repository, file, revision } => write!(f, "hf:{repository}/{file}@{revision}"),
            Self::Registry { host: None, namespace, model, tag } if namespace == LIBRARY => {
                write!(f, "ollama:{model}:{tag}")
            }
            Self::Registry { host: None, namespace, model, tag } => write!(f, "ollama:{namespace}/{model}:{tag}"),
            Self::Registry { host: Some(host), namespace, model, tag } => {
                write!(f, "{host}/{namespace}/{model}:{tag}")
            }
        }
    }
}

/// Which kind of source a text is, by its beginning alone.
enum Form<'a> {
    Url,
    Hf(&'a str),
    Ollama(&'a str),
    Host(&'a str, &'a str),
    Path,
}

impl<'a> Form<'a> {
    fn of(text: &'a str) -> Self {
        if text.contains("://") && !text.starts_with(['.', '/']) {
            return Self::Url;
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return Self::Hf(rest);
        }
        if let Some(rest) = text.strip_prefix("ollama:") {
            return Self::Ollama(rest);
        }
        // `models/x.gguf` is a path: a host has a dot or a port, or is this machine, and a tag follows.
        match text.split_once('/') {
            Some((host, rest))
                if !host.starts_with('.')
                    && (host == "localhost" || host.contains(['.', ':']))
                    && rest.rsplit('/').next().is_some_and(|last| last.contains(':')) =>
            {
                Self::Host(host, rest)
            }
            _ => Self::Path,
        }
    }
}

fn url_source(text: &str) -> Result<Source, RegistryError> {
    let mut url = address::parse("source", text)?;
    let sha256 = match url.fragment() {
        None => None,
        Some(fragment) => {
            let digest = fragment.strip_prefix("sha256=").and_then(|digits| digits.parse().ok());
            let why = "what follows # must be sha256= and 64 hexadecimal digits";
            Some(digest.ok_or_else(|| RegistryError::value("source", text, why))?)
        }
    };
    url.set_fragment(None);
    // The model is its first part, whichever was named.
    let first = first_part(&last_segment(&url)).map_err(|why| RegistryError::value("source", text, why))?;
    Ok(Source::Url { url: with_last_segment(&url, &first), sha256 })
}

/// The decoded last segment of a path.
fn last_segment(url: &Url) -> String {
    let last = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    percent_decode_str(last).decode_utf8_lossy().into_owned()
}

/// The address of another file beside this one.
pub(crate) fn with_last_segment(url: &Url, name: &str) -> Url {
    let mut url = url.clone();
    if last_segment(&url) != name
        && let Ok(mut segments) = url.path_segments_mut()
    {
        segments.pop().push(name);
    }
    url
}

fn hf_source(rest: &str) -> Result<Source, &'static str> {
    let expected = "must be hf:ORG/REPO/FILE or hf:ORG/REPO/FILE@REV";
    let (path, revision) = rest.rsplit_once('@').unwrap_or((rest, MAIN));
    let mut segments = path.split('/');
    let (org, repo) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
    let mut file: Vec<String> = segments.map(str::to_owned).collect();
    let Some(last) = file.pop() else { return Err(expected) };
    if !is_segment(org) || !is_segment(repo) {
        return Err(expected);
    }
    if file.iter().any(|folder| FileName::new(folder).is_err()) {
        return Err("the file's path must have no \"..\", no empty part and none that begins with \".\"");
    }
    let revisions = revision.split('/').all(is_segment) && revision.len() <= REVISION_CHARS;
    if !revisions {
        return Err("the revision must have 1 to 200 characters of a-z, A-Z, 0-9, \".\", \"_\", \"-\" and \"/\"");
    }
    file.push(first_part(&last)?);
    Ok(Source::Hf { repository: format!("{org}/{repo}"), file: file.join("/"), revision: revision.to_owned() })
}

fn ollama_source(rest: &str) -> Result<Source, &'static str> {
    let expected = "must be ollama:NAME, ollama:NAME:TAG or ollama:NAMESPACE/NAME:TAG";
    let (path, tag) = rest.split_once(':').unwrap_or((rest, LATEST));
    let (namespace, model) = path.split_once('/').unwrap_or((LIBRARY, path));
    if ![namespace, model, tag].into_iter().all(is_segment) {
        return Err(expected);
    }
    Ok(registry(None, namespace, model, tag))
}

fn host_source(host: &str, rest: &str) -> Result<Source, &'static str> {
    let expected = "must be HOST/NAMESPACE/NAME:TAG";
    let (path, tag) = rest.split_once(':').ok_or(expected)?;
    let (namespace, model) = path.split_once('/').ok_or(expected)?;
    let authority = Url::parse(&format!("https://{host}/")).is_ok_and(|url| url.path() == "/" && !host.contains('@'));
    let characters = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b));
    if !authority || !characters || ![namespace, model, tag].into_iter().all(is_segment) {
        return Err(expected);
    }
    Ok(registry(Some(host.to_owned()), namespace, model, tag))
}

fn registry(host: Option<String>, namespace: &str, model: &str, tag: &str) -> Source {
    Source::Registry { host, namespace: namespace.to_owned(), model: model.to_owned(), tag: tag.to_owned() }
}

fn path_source(text: &str) -> Result<Source, RegistryError> {
    let wrong = |why: &str| RegistryError::value("source", text, why);
    let path = std::path::absolute(text).map_err(|error| wrong(&error.to_string()))?;
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| wrong("must name a file"))?;
    let first = first_part(name).map_err(wrong)?;
    Ok(Source::Path(path.with_file_name(first)))
}

/// The name of a model's first file, by that of any.
fn first_part(name: &str) -> Result<String, &'static str> {
    if FileName::new(name).is_err() {
        return Err("must end in a file's name of 1 to 255 bytes that does not begin with \".\"");
    }
    let parts = shards::parts_of(name).map_err(|_| "must have at most 512 parts")?;
    Ok(parts.into_iter().next().unwrap_or_default())
}

fn is_segment(text: &str) -> bool {
    (1..=SEGMENT_CHARS).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// A name for a model in the cache, as somebody chose it.
///
/// # Errors
/// It is empty, too long, or holds control characters.
pub(crate) fn check_name(name: &str) -> Result<(), RegistryError> {
    let good = (1..=NAME_CHARS).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    let why = || format!("must have 1 to {NAME_CHARS} characters, none of them a control character");
    if good { Ok(()) } else { Err(RegistryError::value("name", name, why())) }
}

/// What is asked for by a name that may be a source, written in another way.
pub(crate) fn canonical(name: &str) -> Option<String> {
    Source::parse(name).ok().map(|source| source.to_string())
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
