//! From the policy directory to a published generation: what is there serves, or what was there goes on serving.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use camshaft_core::ids::Generation;
use camshaft_core::policy::{Hook, PolicyEvent, PolicyHistory, PolicyState, PolicyStatus};
use crossbeam_channel::Receiver;

use super::builder::Builder;
use super::compile::Compile;
use super::directory::{Directory, Patience, Scan, scan_settled};
use super::policy::{Phase, Policy};
use crate::chronicle::Note;
use crate::error::PolicyError;
use crate::examine;
use crate::grants::Grants;
use crate::imports::metrics::MetricFamilies;
use crate::metrics::PolicyMetrics;
use crate::misplaced::{self, Warnings};
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::set::LoadedSet;
use camshaft_core::threads::Spawner;

/// Keeps the registry as the directory says. One thread's.
#[derive(Debug)]
pub(crate) struct Loader {
    pub(super) directory: Directory,
    pub(super) builder: Builder,
    pub(super) registry: Arc<Registry>,
    warnings: Warnings,
    #[cfg(test)]
    pub(crate) scans: usize,
}

impl Loader {
    /// `metrics` are the host's own, and get those of the plugins, too. `spawner` starts the threads that compile.
    pub(crate) fn new(
        dir: PathBuf,
        runtime: Arc<Runtime>,
        registry: Arc<Registry>,
        metrics: &prometheus::Registry,
        spawner: Spawner,
    ) -> Result<Self, PolicyError> {
        let of = runtime.clone();
        let compile: Compile = Box::new(move |task| examine::compile(&of, task));
        let (own, families) = (PolicyMetrics::register(metrics)?, MetricFamilies::new(metrics));
        Ok(Self::with_builder(dir, registry, Builder::new(runtime, compile, own, families, spawner)))
    }

    pub(super) fn with_builder(dir: PathBuf, registry: Arc<Registry>, builder: Builder) -> Self {
        Self {
            directory: Directory::new(dir, Phase::Starting),
            builder,
            registry,
            warnings: Warnings::default(),
            #[cfg(test)]
            scans: 0,
        }
    }

    /// The same with these grants, before anything is loaded.
    pub(crate) fn granting(mut self, grants: Grants) -> Self {
        self.builder.set_grants(grants);
        self
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.directory.path
    }

    /// Files of all policies, for watching what their links point at.
    pub(crate) fn component_files(&self) -> impl Iterator<Item = &Path> {
        self.directory.files()
    }

    /// Receives something after each component that was compiled.
    pub(crate) fn compiled(&self) -> Receiver<()> {
        self.builder.compiler.finished()
    }

    /// The first load. Waits for all components to be compiled, and, not for long, for files that are being written.
    ///
    /// # Errors
    /// A directory that cannot be listed, however briefly, one that holds too many guards, or one that loses some meanwhile.
    pub(crate) fn start(&mut self) -> Result<(), PolicyError> {
        let compiled = self.compiled();
        loop {
            let scan = self.scan_settled();
            if let Some(unread) = self.directory.unread.take() {
                // Who may call is unknown.
                return Err(unread);
            }
            if !scan.compiling {
                break;
            }
            // The sender lives in the compiler.
            let _ = compiled.recv();
        }
        self.directory.phase = Phase::Serving;
        // Also what was not whole to the last.
        self.publish();
        self.tell();
        self.tell_unused_grants();
        Ok(())
    }

    /// Refuses a directory without the file of any policy.
    ///
    /// # Errors
    /// It is missing, or empty.
    pub(crate) fn refuse_empty(&self) -> Result<(), PolicyError> {
        if self.directory.policies.is_empty() {
            return Err(PolicyError::NoPolicies { path: self.dir().to_path_buf(), missing: !self.dir().is_dir() });
        }
        Ok(())
    }

    /// Has the next scan examine everything again, after a panic that may have interrupted a scan. What serves goes on
    /// serving where its files cannot; modes that operators chose and the state of plugins stay.
    pub(crate) fn recover(&mut self) {
        self.builder.examine_under(None);
        self.directory.examine_again();
    }

    /// Has the next scan try components again that were given up, and load policies again whose secrets have changed.
    pub(crate) fn try_again(&mut self) {
        self.directory.policies.values_mut().for_each(Policy::try_again);
        self.directory.policies.values_mut().for_each(Policy::read_secrets_again);
        self.read_secrets_of_trials();
    }

    /// Where changes are noted.
    pub(crate) fn history(&self) -> Arc<Mutex<PolicyHistory>> {
        self.builder.chronicle.history.clone()
    }

    /// Receives something when the breaker of a policy opens.
    pub(crate) fn alarms(&self) -> Receiver<()> {
        self.builder.alarms.clone()
    }

    /// Begins nothing more.
    pub(crate) fn close(&self) {
        self.builder.compiler.close();
        self.builder.documents.close();
    }

    /// Scans until everything has settled, at most for a second, and then examines what is there. Compiling is not waited for.
    pub(crate) fn scan_settled(&mut self) -> Scan {
        scan_settled(|patience| self.scan(patience))
    }

    /// Scans every file, examines what changed, and publishes a generation if what serves is now something else.
    pub(crate) fn scan(&mut self, patience: Patience) -> Scan {
        #[cfg(test)]
        {
            self.scans += 1;
        }
        let mut scan = self.directory.scan(&mut self.builder, patience);
        let found = misplaced::misplaced(&self.directory.path);
        scan.unsettled |= self.warnings.update(found, patience == Patience::Now);
        // The first generation is a whole one.
        let whole = !scan.unsettled && !scan.compiling;
        if self.directory.phase == Phase::Serving || whole {
            scan.published = self.publish();
        }
        self.count_trials();
        self.tell();
        scan
    }

    /// Has others see how every policy stands.
    pub(super) fn tell(&self) {
        let statuses = self.directory.statuses();
        for hook in Hook::ALL {
            let is_rejected = |status: &&PolicyStatus| status.hook == hook && status.state == PolicyState::Rejected;
            self.builder.chronicle.metrics.rejected(hook, statuses.iter().filter(is_rejected).count());
        }
        self.registry.set_statuses(statuses);
        for (hook, missing) in self.directory.missing() {
            self.builder.chronicle.metrics.without_files(hook, missing);
        }
    }

    /// Publishes what serves now, if it is not what served before.
    pub(super) fn publish(&mut self) -> bool {
        let current = self.registry.current();
        let set = LoadedSet::after(&current, self.directory.seats());
        self.announce(set.generation);
        let first = current.generation == Generation(0);
        if set.same(&current) && !first {
            return false;
        }
        self.registry.publish(set);
        true
    }

    /// Tells the metrics what came into force with this generation.
    fn announce(&self, generation: Generation) {
        let chronicle = &self.builder.chronicle;
        for (place, policy) in &self.directory.policies {
            let who = || chronicle.who(place).or_else(|| policy.who.clone());
            if let Some(trial) = &policy.trial
                && trial.candidate.generation.set(generation).is_ok()
            {
                trial.candidate.comes_into_force();
                let canary = trial.candidate.sidecar.canary;
                let detail = canary.map(|canary| format!("share {} by {}", canary.share.as_f64(), canary.by.as_str()));
                let digest = Some(trial.candidate.compiled.digest.clone());
                let note = Note { generation: Some(generation), digest, who: who(), detail };
                chronicle.note(place, PolicyEvent::Canary, note);
            }
            let Some((loaded, _)) = &policy.serving else { continue };
            if loaded.generation.set(generation).is_ok() {
                loaded.comes_into_force();
                let digest = Some(loaded.compiled.digest.clone());
                let detail = Some(format!("mode {}", loaded.sidecar.mode));
                let note = Note { generation: Some(generation), digest, who: who(), detail };
                chronicle.note(place, PolicyEvent::Swapped, note);
                chronicle.metrics.serving(loaded.hook(), &loaded.name, generation);
            }
        }
    }

    /// Notes how long a change took from its first notice to its publication.
    pub(crate) fn note_swap_time(&self, noticed: Instant) {
        self.builder.chronicle.metrics.swapped_in(noticed.elapsed());
    }
}
