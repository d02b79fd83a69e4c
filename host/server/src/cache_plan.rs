//! Each worker's share of the prefix cache.
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, iter};

use camshaft_core::cache::PrefixCache;
use camshaft_core::ids::WorkerId;
use camshaft_core::segments::{SegmentId, SegmentInfo};
use camshaft_core::threads::Spawner;
use camshaft_engine::disk::{self, DiskError, DiskOptions, DiskRoom, DiskTier, Layout};
use camshaft_engine::{EngineOptions, LoadedModel};
use camshaft_policy::{Untrusted, check_secret, check_trusted};
use serde::{Deserialize, Serialize};

use crate::config::{CacheMemory, Config, Origins};
use crate::error::{self, ServerError};

/// An equal share for every worker, since each keeps its own segments, as it is told to another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CacheParts {
    pub(crate) ram_bytes: u64,
    session_ttl: Duration,
    disk: Option<DiskShare>,
    origins: Origins,
}

/// Where prefixes outlive the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct DiskShare {
    dir: PathBuf,
    all_bytes: u64,
    /// Of one worker.
    bytes: u64,
}

impl CacheParts {
    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    pub(crate) fn dir(&self) -> Option<&Path> {
        self.disk.as_ref().map(|disk| disk.dir.as_path())
    }
}

/// The same, and whose threads write to the disk.
#[derive(Debug, Clone)]
pub(crate) struct CachePlan {
    parts: CacheParts,
    spawner: Spawner,
}

/// Whose prefixes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheOwner<'a> {
    /// The model's name in the configuration. Two models may have the same weights, and each has workers of its own.
    pub(crate) id: &'a str,
    pub(crate) model: &'a LoadedModel,
    pub(crate) options: &'a EngineOptions,
    pub(crate) worker: WorkerId,
}

/// A tier on disk with the segments that are in it.
type Opened = (DiskTier, Vec<(SegmentId, SegmentInfo)>);

/// How the RAM for prefixes is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheShare {
    /// Those that keep prefixes: each gets an equal part.
    pub(crate) workers: u64,
    /// Bytes for all of them, unless the configuration says how many.
    pub(crate) chosen: u64,
    /// Bytes that there is memory for.
    pub(crate) most: u64,
}

impl CacheShare {
    /// Bytes of one worker.
    pub(crate) fn of(&self, memory: &CacheMemory) -> u64 {
        self.part(self.all(memory))
    }

    /// Bytes of all workers.
    pub(crate) fn all(&self, memory: &CacheMemory) -> u64 {
        memory.ram.set().map_or(self.chosen, |ram| ram.0.min(self.most))
    }

    fn part(&self, bytes: u64) -> u64 {
        bytes / self.workers.max(1)
    }
}

impl CachePlan {
    pub(crate) fn of(config: &Config, share: CacheShare) -> Self {
        let disk = config.fixed.cache.tier();
        let disk = disk.map(|disk| DiskShare { dir: disk.dir, all_bytes: disk.bytes, bytes: share.part(disk.bytes) });
        let memory = &config.live.cache;
        let (ram_bytes, session_ttl) = (share.of(memory), memory.session_ttl.0);
        Self::of_parts(CacheParts { ram_bytes, session_ttl, disk, origins: config.origins.clone() })
    }

    /// Nothing is kept.
    pub(crate) fn none() -> Self {
        let (session_ttl, origins) = (Duration::ZERO, Origins::default());
        Self::of_parts(CacheParts { ram_bytes: 0, session_ttl, disk: None, origins })
    }

    pub(crate) fn parts(&self) -> CacheParts {
        self.parts.clone()
    }

    /// In another process.
    pub(crate) fn of_parts(parts: CacheParts) -> Self {
        Self { parts, spawner: Spawner::detached() }
    }

    /// Whose threads write to the disk.
    pub(crate) fn on(self, spawner: Spawner) -> Self {
        Self { spawner, ..self }
    }

    /// A worker's cache, with what an earlier process left on disk. Without a usable disk there is no disk tier.
    pub(crate) fn open(&self, owner: &CacheOwner<'_>) -> PrefixCache {
        let (model, worker) = (owner.id, owner.worker);
        let cache = PrefixCache::new(self.parts.ram_bytes).with_session_ttl(self.parts.session_ttl);
        match self.trusting(|| self.open_disk(owner).map_err(|error| self.unusable(&error))) {
            Ok(None) => cache,
            Ok(Some((tier, segments))) => {
                let dir = self.parts.dir().map(|dir| tracing::field::display(dir.display()));
                tracing::info!(segments = segments.len(), model, %worker, dir, "prefixes found on disk");
                cache.with_cold(Box::new(tier), segments)
            }
            Err(error) => {
                tracing::warn!(%error, model, %worker, "no prefixes are kept on disk");
                cache
            }
        }
    }

    /// Opens the directory, if it can be trusted: before, and after that, since somebody else may make a part of its path
    /// meanwhile.
    fn trusting<T>(&self, open: impl FnOnce() -> Result<T, ServerError>) -> Result<T, ServerError> {
        self.check_trust()?;
        let opened = open()?;
        self.check_trust().map(|()| opened)
    }

    /// Whether nobody else can write to the directory, or read the keys in it with which segments are verified.
    ///
    /// # Errors
    /// Which part of its path, or which key, cannot be trusted.
    pub(crate) fn check_trust(&self) -> Result<(), ServerError> {
        let Some(dir) = self.parts.dir() else { return Ok(()) };
        let below = fs::read_dir(dir).into_iter().flatten().flatten();
        let below = below.filter(|entry| disk::is_layout(&entry.file_name())).map(|entry| entry.path());
        let check = || {
            check_trusted(dir)?;
            for path in iter::once(dir.to_owned()).chain(below) {
                check_trusted(&path)?;
                check_secret(&path.join("key"))?;
            }
            Ok::<_, Untrusted>(())
        };
        check().map_err(|error| ServerError::value(&self.parts.origins, "cache.disk-dir", &dir.display(), error))
    }

    /// A worker's segments on disk; `None` if none are to be kept there.
    ///
    /// # Errors
    /// The directory cannot be made or read, or another process uses it.
    fn open_disk(&self, owner: &CacheOwner<'_>) -> Result<Option<Opened>, DiskError> {
        self.disk_options(owner).map(|options| DiskTier::open(&options)).transpose()
    }

    /// Whether segments could be kept on disk. Leaves nothing behind.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub(crate) fn check_disk(&self) -> Result<(), DiskError> {
        self.parts.dir().map_or(Ok(()), |dir| DiskTier::check(&dir.join("a model")))
    }

    fn disk_options(&self, owner: &CacheOwner<'_>) -> Option<DiskOptions> {
        let (share, identity) = (self.parts.disk.as_ref()?, owner.model.identity()?);
        let context = format!("{}|model {}|worker {}", owner.options.state_layout(), owner.id, owner.worker);
        let layout = Layout { model: identity.to_owned(), context };
        let (room, spawner) = (DiskRoom::new(share.dir.clone(), share.all_bytes).into(), self.spawner.clone());
        Some(DiskOptions { room, capacity_bytes: share.bytes, layout, spawner })
    }

    /// Names the key that is to blame for a directory that cannot be used, and who wrote it.
    pub(crate) fn unusable(&self, error: &DiskError) -> ServerError {
        let dir = self.parts.dir().map(|dir| dir.display().to_string()).unwrap_or_default();
        ServerError::value(&self.parts.origins, "cache.disk-dir", &dir, error::chain(error))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// With a cache on disk.
    fn plan(dir: &Path) -> CachePlan {
        let mut plan = CachePlan::none();
        plan.parts.disk = Some(DiskShare { dir: dir.to_owned(), all_bytes: 1 << 20, bytes: 1 << 20 });
        plan
    }

    #[test]
    fn regression_a_directory_that_somebody_else_makes_meanwhile_is_not_used() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("made/by/others");
        let plan = plan(&dir);
        let make = |mode| {
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(above.path().join("made"), fs::Permissions::from_mode(mode)).unwrap();
            Ok("opened")
        };
        let why = plan.trusting(|| make(0o777)).unwrap_err().to_string();
        assert!(why.contains("made can be written to by others"), "{why}");
        fs::remove_dir_all(above.path().join("made")).unwrap();
        assert_eq!(plan.trusting(|| make(0o700)).unwrap(), "opened");
    }

    #[test]
    fn regression_what_else_lies_in_the_directory_turns_nothing_off() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path());
        fs::write(dir.path().join(".gitkeep"), "").unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::write(dir.path().join("lost+found/key"), "").unwrap();
        plan.check_trust().unwrap();
        // What may be a layout's is checked, whatever it is.
        let layout = dir.path().join("0123456789abcdef");
        fs::create_dir(&layout).unwrap();
        fs::write(layout.join("key"), "").unwrap();
        fs::set_permissions(layout.join("key"), fs::Permissions::from_mode(0o644)).unwrap();
        let why = plan.check_trust().unwrap_err().to_string();
        assert!(why.contains("0123456789abcdef/key can be read by others"), "{why}");
    }
}
