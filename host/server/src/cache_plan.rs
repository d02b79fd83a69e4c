//! Each worker's share of the prefix cache.
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::ids::WorkerId;
use camshaft_engine::disk::{DiskOptions, DiskTier, Layout};
use camshaft_engine::{EngineOptions, LoadedModel};

use crate::config::{Config, DiskConfig};

/// An equal share for every worker, since each keeps its own segments.
#[derive(Debug, Clone)]
pub(crate) struct CachePlan {
    pub(crate) ram_bytes: u64,
    session_ttl: Duration,
    pub(crate) disk: Option<DiskConfig>,
}

impl CachePlan {
    pub(crate) fn of(config: &Config, workers: u64) -> Self {
        let workers = workers.max(1);
        let disk = config.fixed.cache.tier().map(|disk| DiskConfig { bytes: disk.bytes / workers, ..disk });
        let memory = &config.live.cache;
        Self { ram_bytes: memory.ram.0 / workers, session_ttl: memory.session_ttl.0, disk }
    }

    /// A worker's cache, with what an earlier process left on disk. Without a usable disk there is no disk tier.
    pub(crate) fn open(&self, model: &LoadedModel, options: &EngineOptions, worker: WorkerId) -> PrefixCache {
        let cache = PrefixCache::new(self.ram_bytes).with_session_ttl(self.session_ttl);
        let (Some(config), Some(identity)) = (&self.disk, model.identity()) else { return cache };
        let context = format!("{}|worker {worker}", options.state_layout());
        let layout = Layout { model: identity.to_owned(), context };
        let opened = DiskTier::open(&DiskOptions { dir: config.dir.clone(), capacity_bytes: config.bytes, layout });
        match opened {
            Ok((tier, segments)) => {
                tracing::info!(segments = segments.len(), %worker, dir = %config.dir.display(), "prefixes found on disk");
                cache.with_cold(Box::new(tier), segments)
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, %worker, "no prefixes are kept on disk");
                cache
            }
        }
    }
}
