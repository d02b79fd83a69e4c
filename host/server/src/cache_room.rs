//! Each worker's part of the room for kept prefixes, and `camshaft cache`.
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::ids::WorkerId;
use camshaft_engine::disk::{self, DiskError, DiskOptions, DiskTier, Layout};
use camshaft_engine::{EngineOptions, LoadedModel};

use crate::check::print;
use crate::config::{CacheConfig, DiskConfig};
use crate::error::ServerError;

/// An equal part for every worker, since each has its own pages.
#[derive(Debug, Clone)]
pub(crate) struct CacheRoom {
    pub(crate) ram_bytes: u64,
    session_ttl: Duration,
    pub(crate) disk: Option<DiskConfig>,
}

impl CacheRoom {
    pub(crate) fn of(config: &CacheConfig, workers: u64) -> Self {
        let workers = workers.max(1);
        let disk = config.disk.clone().map(|disk| DiskConfig { bytes: disk.bytes / workers, ..disk });
        Self { ram_bytes: config.ram_bytes / workers, session_ttl: config.session_ttl, disk }
    }

    /// A worker's cache, with what an earlier process left on disk. A disk that cannot be used costs its tier, no more.
    pub(crate) fn open(&self, model: &LoadedModel, options: &EngineOptions, worker: WorkerId) -> PrefixCache {
        let cache = PrefixCache::new(self.ram_bytes).with_session_ttl(self.session_ttl);
        let (Some(config), Some(identity)) = (&self.disk, model.identity()) else { return cache };
        let context = format!("{}|worker {worker}", options.state_layout());
        let layout = Layout { model: identity.to_owned(), context };
        let opened = DiskTier::open(&DiskOptions { dir: config.dir.clone(), capacity_bytes: config.bytes, layout });
        match opened {
            Ok((tier, pages)) => {
                tracing::info!(pages = pages.len(), %worker, dir = %config.dir.display(), "prefixes found on disk");
                cache.with_cold(Box::new(tier), pages)
            }
            Err(error) => {
                tracing::warn!(%error, %worker, "no prefixes are kept on disk");
                cache
            }
        }
    }
}

fn from_disk(error: DiskError) -> ServerError {
    match error {
        DiskError::Io { ref path, ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            ServerError::MissingInput { path: path.clone(), why: error.to_string() }
        }
        DiskError::InUse(_) => ServerError::Config(format!("{error}: stop the server first")),
        error => ServerError::internal("look at the cache", error),
    }
}

/// `camshaft cache stats` and, with the states read too, `camshaft cache verify`.
pub(crate) fn report(dir: &Path, verify: bool) -> Result<(), ServerError> {
    let mut out = String::new();
    let mut bad = 0;
    for one in disk::report(dir, verify).map_err(from_disk)? {
        let _ = writeln!(
            out,
            "{}: {} pages, {} tokens, {} bytes in {} segments",
            one.path.display(),
            one.pages,
            one.tokens,
            one.bytes,
            one.segments
        );
        bad += one.damage.len();
        for damage in one.damage {
            let _ = writeln!(out, "  {damage}");
        }
    }
    if out.is_empty() {
        let _ = writeln!(out, "{}: nothing is kept here", dir.display());
    }
    print(&out)?;
    match bad {
        0 => Ok(()),
        count if verify => Err(ServerError::BadData(format!("{count} damaged places; what they held is recomputed"))),
        _ => Ok(()),
    }
}

/// `camshaft cache clear`.
pub(crate) fn clear(dir: &Path) -> Result<(), ServerError> {
    let count = disk::clear(dir).map_err(from_disk)?;
    print(&format!("removed {count} caches below {}\n", dir.display()))
}
