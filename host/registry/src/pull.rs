//! One pull, from a source to a model of the cache that is held in use.
use std::cell::Cell;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::commit::{self, Committed, commit};
use crate::copy::{self, Copying};
use crate::digest::Digest;
use crate::entry::{Entry, EntryFile};
use crate::error::RegistryError;
use crate::hf::{self, HfFile};
use crate::lock::{self, Kind};
use crate::ollama::{self, Tagged};
use crate::partial;
use crate::plain::{self, Upstream};
use crate::progress::{Event, Progress};
use crate::remote::{Remote, RemoteFile};
use crate::retry;
use crate::room;
use crate::settings::Settings;
use crate::source::{Source, check_name};
use crate::store::{InUse, Store};
use crate::transfer::{Fetched, Transfer};

/// Times that a pull begins anew because a cached file vanished under it.
const VANISHED: u32 = 3;

/// What to pull.
#[derive(Debug, Clone)]
pub struct Request {
    pub source: Source,
    /// What the model must have. Of a split one: the digest of its parts' digests.
    pub sha256: Option<Digest>,
    /// What to call it. Unset: as its source.
    pub name: Option<String>,
}

impl Request {
    /// Under the source's own name, with the digest that it names.
    pub fn new(source: Source) -> Self {
        Self { source, sha256: None, name: None }
    }

    /// # Errors
    /// Two digests are asked for that differ.
    pub(crate) fn expected(&self) -> Result<Option<Digest>, RegistryError> {
        let Source::Url { sha256: Some(own), .. } = &self.source else { return Ok(self.sha256) };
        match &self.sha256 {
            Some(other) if other != own => {
                let why = format!("differs from the one behind the address, {own}");
                Err(RegistryError::value("sha256", &other.to_string(), why))
            }
            _ => Ok(Some(*own)),
        }
    }
}

/// What a pull did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// At least one file was downloaded, or copied.
    Fetched,
    /// Everything was in the cache.
    Current,
}

/// A model that was pulled.
#[derive(Debug)]
pub struct Pulled {
    pub outcome: Outcome,
    /// What the source had under its name: a commit, a manifest's digest.
    pub revision: Option<String>,
    /// Keeps it in the cache.
    pub held: InUse,
}

/// What pulls.
pub(crate) struct Pull<'a> {
    pub(crate) store: &'a Store,
    pub(crate) settings: &'a Settings,
    pub(crate) client: &'a Client,
    pub(crate) progress: &'a dyn Progress,
}

/// What is asked for, in the forms that are used again and again.
struct Asked<'a> {
    request: &'a Request,
    source: String,
    name: String,
    expected: Option<Digest>,
}

/// What the source has, with what of it is here.
struct Plan {
    revision: Option<String>,
    files: Vec<Planned>,
    hint: &'static str,
}

enum Planned {
    /// In the cache.
    Here(EntryFile),
    Download(RemoteFile),
    Copy(copy::LocalFile),
}

impl Pull<'_> {
    /// # Errors
    /// The model cannot be had. What was there before is still there.
    pub(crate) fn run(&self, request: &Request) -> Result<Pulled, RegistryError> {
        let source = request.source.to_string();
        let name = request.name.clone().unwrap_or_else(|| source.clone());
        if request.name.is_some() {
            check_name(&name)?;
        }
        let asked = Asked { request, expected: request.expected()?, source, name };
        if let (Source::Url { url, .. }, None) = (&request.source, asked.expected) {
            return Err(plain::needs_digest(url));
        }
        let before = stamp(&self.store.name(&asked.name));
        let lock_path = self.store.pull_lock(&asked.source);
        let (lock, waited) = self.lock(&lock_path, &asked.source)?;
        let pulled = self.run_alone(&asked, waited && stamp(&self.store.name(&asked.name)) != before);
        if pulled.is_ok() {
            // Nobody has it but this pull; whoever waits for it makes another one.
            let _ = fs::remove_file(&lock_path);
        }
        drop(lock);
        pulled
    }

    /// One pull of a source at a time. Whether another one was waited for.
    fn lock(&self, path: &Path, source: &str) -> Result<(File, bool), RegistryError> {
        let mut waits = false;
        let lock = lock::wait(path, Kind::Exclusive, self.settings.times.look, |_| {
            if !waits {
                waits = true;
                self.progress.tell(&Event::Waiting { source });
            }
            if self.progress.is_cancelled() { Err(RegistryError::Cancelled) } else { Ok(()) }
        })?;
        Ok((lock, waits))
    }

    fn run_alone(&self, asked: &Asked<'_>, is_fresh: bool) -> Result<Pulled, RegistryError> {
        for _ in 0..VANISHED {
            let cached = self.cached(asked)?;
            if is_fresh && let Some((entry, held)) = cached {
                return Ok(Pulled { outcome: Outcome::Current, revision: entry.revision, held });
            }
            let plan = self.plan(asked, cached.as_ref().map(|(entry, _)| entry))?;
            if let Some(pulled) = self.carry_out(asked, plan, cached)? {
                return Ok(pulled);
            }
        }
        Err(RegistryError::Vanished)
    }

    /// The model of this source that is here, whole.
    fn cached(&self, asked: &Asked<'_>) -> Result<Option<(Entry, InUse)>, RegistryError> {
        let tables = self.store.tables(Kind::Shared)?;
        let named = self.store.find(&tables, &asked.name)?.filter(|entry| entry.source == asked.source);
        let Some(entry) = named.map_or_else(|| self.store.find(&tables, &asked.source), |entry| Ok(Some(entry)))?
        else {
            return Ok(None);
        };
        let is_it = entry.source == asked.source && asked.expected.is_none_or(|digest| digest == entry.digest());
        if !is_it {
            return Ok(None);
        }
        Ok(self.store.hold(&tables, &entry)?.map(|held| (entry, held)))
    }

    /// Asks the source what it has.
    fn plan(&self, asked: &Asked<'_>, cached: Option<&Entry>) -> Result<Plan, RegistryError> {
        let (settings, client, progress) = (self.settings, self.client, self.progress);
        progress.tell(&Event::Resolving { source: &asked.source });
        let remote = match &asked.request.source {
            Source::Path(path) => {
                let files = copy::files(path)?.into_iter().map(Planned::Copy).collect();
                return Ok(Plan { revision: None, files, hint: "" });
            }
            Source::Url { url, .. } => {
                if let Some(entry) = cached {
                    self.revalidate(url, entry);
                    let files = entry.files.iter().cloned().map(Planned::Here).collect();
                    return Ok(Plan { revision: None, files, hint: "" });
                }
                let expected = asked.expected.ok_or_else(|| plain::needs_digest(url))?;
                plain::resolve(url, &asked.request.source.file_name(), expected)?
            }
            Source::Hf { repository, file, revision } => {
                hf::resolve(client, settings, &HfFile { repository, file, revision }, progress)?
            }
            Source::Registry { host, namespace, model, tag } => {
                let host = host.as_deref();
                ollama::resolve(client, settings, &Tagged { host, namespace, model, tag }, progress)?
            }
        };
        self.planned(asked, remote, cached)
    }

    /// What is cached has the digest that was asked for, whatever the server says now.
    fn revalidate(&self, url: &url::Url, entry: &Entry) {
        let say = |why: &str| self.progress.tell(&Event::Note(why));
        let asked = retry::until_answered(&self.settings.times, self.progress, url.as_str(), || {
            plain::revalidate(self.client, url, entry)
        });
        match asked {
            Ok(Upstream::Same | Upstream::Unknown) => {}
            Ok(Upstream::Changed) => {
                say("the file changed upstream; what is cached has the digest that was asked for, and stays");
            }
            Err(error) => say(&format!("what is cached is taken as it is: {error}")),
        }
    }

    fn planned(&self, asked: &Asked<'_>, remote: Remote, cached: Option<&Entry>) -> Result<Plan, RegistryError> {
        let Remote { revision, mut files, hint } = remote;
        if let ([file], Some(expected)) = (&mut files[..], asked.expected) {
            if let Some(got) = file.sha256.filter(|got| *got != expected) {
                let hint = " (as the source announces it)";
                return Err(RegistryError::WrongDigest { file: file.name.to_string(), expected, got, hint });
            }
            file.sha256 = Some(expected);
        }
        let known = |file: &RemoteFile| {
            cached.and_then(|entry| entry.files.iter().find(|known| known.name == file.name)).filter(|known| {
                match file.sha256 {
                    Some(sha256) => known.sha256 == sha256,
                    // Without a digest only the tag says that nothing changed.
                    None => file.etag.is_some() && known.etag == file.etag,
                }
            })
        };
        let files = files.into_iter().map(|file| {
            if let Some(known) = known(&file) {
                return Planned::Here(known.clone());
            }
            match (file.sha256, file.bytes) {
                (Some(sha256), Some(bytes)) if self.store.has(&sha256, bytes) => {
                    Planned::Here(EntryFile { name: file.name, sha256, bytes, etag: file.etag })
                }
                _ => Planned::Download(file),
            }
        });
        Ok(Plan { revision, files: files.collect(), hint })
    }

    /// Brings here what is not, and gives it its name. `None`: something that was here vanished.
    fn carry_out(
        &self,
        asked: &Asked<'_>,
        plan: Plan,
        cached: Option<(Entry, InUse)>,
    ) -> Result<Option<Pulled>, RegistryError> {
        let dir = self.store.partial(&asked.source);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(|error| RegistryError::io("make the directory", &dir, error))?;
        let fetched = self.fetch(asked, &plan, &dir);
        if fetched.is_err() {
            // Only if nothing is left to be resumed.
            let _ = fs::remove_dir(&dir);
        }
        let (files, paths): (Vec<_>, Vec<_>) = fetched?.into_iter().unzip();
        let outcome = if paths.iter().any(Option::is_some) { Outcome::Fetched } else { Outcome::Current };
        let entry = Entry::new(asked.name.clone(), asked.source.clone(), plan.revision, files);
        if let Some(expected) = asked.expected.filter(|expected| *expected != entry.digest()) {
            let _ = commit::remove_folder(&dir);
            let got = entry.digest();
            let hint = " (of all parts together)";
            return Err(RegistryError::WrongDigest { file: asked.source.clone(), expected, got, hint });
        }
        if let Some((known, held)) = cached
            && (known.name == entry.name && known.revision == entry.revision && known.files == entry.files)
        {
            let _ = commit::remove_folder(&dir);
            return Ok(Some(Pulled { outcome: Outcome::Current, revision: entry.revision, held }));
        }
        let tables = self.store.tables(Kind::Exclusive)?;
        let committed = commit(self.store, &tables, &entry, &paths)?;
        let Committed::Done(held) = committed else { return Ok(None) };
        let _ = commit::remove_folder(&dir);
        room::evict(self.store, &tables, &entry, self.settings.bytes_max, self.progress)?;
        Ok(Some(Pulled { outcome, revision: entry.revision, held }))
    }

    /// The files of the model, and where those are that are not in the cache.
    fn fetch(
        &self,
        asked: &Asked<'_>,
        plan: &Plan,
        dir: &Path,
    ) -> Result<Vec<(EntryFile, Option<PathBuf>)>, RegistryError> {
        let bound = self.settings.bytes_max;
        let known: u64 = plan.files.iter().map(Planned::bytes).fold(0, u64::saturating_add);
        room::in_cache(self.store, &asked.source, known, bound)?;
        let missing: u64 = plan.files.iter().map(Planned::missing).fold(0, u64::saturating_add);
        room::on_disk(self.store, missing.saturating_sub(partial::announced(dir).0))?;
        // Sizes that are heard of only now.
        let heard = Cell::new(known);
        let parts = plan.files.len() as u32;
        let mut brought = Vec::new();
        for (planned, part) in plan.files.iter().zip(1..) {
            let news = |total: u64, remaining: u64| {
                let all = if planned.bytes() == 0 { heard.get().saturating_add(total) } else { heard.get() };
                room::in_cache(self.store, &asked.source, all, bound)?;
                room::on_disk(self.store, remaining)
            };
            let (name, fetched) = match planned {
                Planned::Here(file) => {
                    brought.push((file.clone(), None));
                    continue;
                }
                Planned::Copy(file) => {
                    let copying = Copying { progress: self.progress, room: &news, parts };
                    (&file.name, copying.run(file, dir, part)?)
                }
                Planned::Download(file) => {
                    let (client, times, progress) = (self.client, &self.settings.times, self.progress);
                    let transfer = Transfer { client, times, progress, room: &news, parts, hint: plan.hint };
                    (&file.name, transfer.run(file, dir, part)?)
                }
            };
            let Fetched { path, sha256, bytes, etag } = fetched;
            if planned.bytes() == 0 {
                heard.set(heard.get().saturating_add(bytes));
            }
            brought.push((EntryFile { name: name.clone(), sha256, bytes, etag }, path));
        }
        Ok(brought)
    }
}

impl Planned {
    /// 0: not known yet.
    fn bytes(&self) -> u64 {
        match self {
            Self::Here(file) => file.bytes,
            Self::Download(file) => file.bytes.unwrap_or_default(),
            Self::Copy(file) => fs::metadata(&file.path).map_or(0, |data| data.len()),
        }
    }

    fn missing(&self) -> u64 {
        if matches!(self, Self::Here(_)) { 0 } else { self.bytes() }
    }
}

/// Differs once a name's file was written anew.
fn stamp(path: &Path) -> Option<(u64, i64, i64)> {
    let data = fs::symlink_metadata(path).ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec()))
}
