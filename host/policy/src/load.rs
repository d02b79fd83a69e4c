//! From the policy directory to a published generation: what changed, whether it may serve, what serves instead.
mod judge;
mod mode;
mod relocate;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{Hook, Mode, PolicyState, PolicyStatus};

use crate::error::PolicyError;
use crate::files::{self, ContentKey, Files, Place, Stamps};
use crate::hooks::auth::Broken;
use crate::identity::Identity;
use crate::imports::metrics::PluginMetrics;
use crate::loaded::{Compiled, Loaded};
use crate::metrics::{PolicyMetrics, Swap};
use crate::registry::{Link, LoadedSet, Registry};
use crate::runtime::Runtime;

/// A file that was written to less than this ago may still be written to.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);

/// Whether to wait for files that may still be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Come back later for what has not settled.
    Wait,
    /// Judge what is there.
    Judge,
}

/// What a scan came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Some file has not settled: scan again soon.
    pub(crate) pending: bool,
    /// A new generation was published.
    pub(crate) published: bool,
}

/// Keeps the registry as the directory says. One thread's.
#[derive(Debug)]
pub(crate) struct Loader {
    dir: PathBuf,
    runtime: Arc<Runtime>,
    registry: Arc<Registry>,
    metrics: Arc<PolicyMetrics>,
    plugin_metrics: Arc<PluginMetrics>,
    policies: BTreeMap<Place, Policy>,
    identities: HashMap<(Hook, String), Arc<Identity>>,
    compiled: HashMap<String, Arc<Compiled>>,
    /// Modes that an operator chose, each for the files that it was chosen for.
    overrides: BTreeMap<Place, ContentKey>,
    /// While what another directory holds is being judged, nothing of it serves.
    on_trial: bool,
    /// Why a directory could not be listed while it was on trial.
    unread: Option<PolicyError>,
    /// Whether nothing has been published yet: what cannot be loaded then has no older version to fall back on.
    starting: bool,
}

/// What is known of one policy file.
#[derive(Debug, Default)]
struct Policy {
    file: PathBuf,
    mode: Mode,
    serving: Option<(Arc<Loaded>, ContentKey)>,
    /// Stands in the chain where nothing was ever good.
    broken: Option<Arc<Broken>>,
    /// The newest content that was judged, and the stamps it had (if they can be trusted).
    judged: Option<(ContentKey, Option<Stamps>)>,
    /// Stamps of the last look at a file that had not settled, and when they were first seen.
    looked: Option<(Stamps, Instant)>,
    error: Option<String>,
    /// The error of which the log and the metric know.
    reported: Option<(Option<ContentKey>, String)>,
}

impl Policy {
    /// Whether it runs, or does not, in a mode that an operator chose.
    fn is_overridden(&self) -> bool {
        let key = self.serving.as_ref().map(|(_, key)| key).or(self.judged.as_ref().map(|(key, _)| key));
        key.is_some_and(|key| key.mode.is_some())
    }
}

impl Loader {
    pub(crate) fn new(
        dir: PathBuf,
        runtime: Arc<Runtime>,
        registry: Arc<Registry>,
        metrics: PolicyMetrics,
        plugin_metrics: PluginMetrics,
    ) -> Self {
        Self {
            dir,
            runtime,
            registry,
            metrics: Arc::new(metrics),
            plugin_metrics: Arc::new(plugin_metrics),
            policies: BTreeMap::new(),
            identities: HashMap::new(),
            compiled: HashMap::new(),
            overrides: BTreeMap::new(),
            on_trial: false,
            unread: None,
            starting: true,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Files of all policies, for watching what their links point at.
    pub(crate) fn component_files(&self) -> impl Iterator<Item = &Path> {
        self.policies.values().map(|policy| policy.file.as_path())
    }

    /// The first load. Waits for files that are being written, but not for long.
    ///
    /// # Errors
    /// A directory that cannot be read: who may call is then unknown.
    pub(crate) fn start(&mut self) -> Result<(), PolicyError> {
        for hook in Hook::ALL {
            files::list(&self.dir, hook)?;
        }
        self.scan_settled();
        self.starting = false;
        Ok(())
    }

    /// Scans until everything has settled, at most for a few seconds, and judges what is there in the end.
    pub(crate) fn scan_settled(&mut self) -> Scan {
        const LOOKS: u32 = 20;
        let mut published = false;
        for _ in 0..LOOKS {
            let scan = self.scan(Patience::Wait);
            published |= scan.published;
            if !scan.pending {
                return Scan { pending: false, published };
            }
            std::thread::sleep(SETTLE / 4);
        }
        let scan = self.scan(Patience::Judge);
        Scan { pending: scan.pending, published: published | scan.published }
    }

    /// Looks at every file, judges what changed, and publishes a generation if what serves is now something else.
    pub(crate) fn scan(&mut self, patience: Patience) -> Scan {
        let mut pending = false;
        for hook in Hook::ALL {
            match files::list(&self.dir, hook) {
                Ok(listed) => pending |= self.scan_hook(hook, listed, patience),
                // Not being able to look is no reason to believe that policies were removed.
                Err(error) if self.on_trial => self.unread = Some(error),
                Err(error) => tracing::warn!(%hook, %error, "cannot look for policies; what serves goes on serving"),
            }
        }
        if self.on_trial {
            return Scan { pending, published: false };
        }
        // The first generation is a whole one.
        let published = !(self.starting && pending) && self.publish();
        self.registry.set_statuses(self.statuses());
        Scan { pending, published }
    }

    fn scan_hook(&mut self, hook: Hook, listed: BTreeMap<Place, Files>, patience: Patience) -> bool {
        let gone: Vec<Place> =
            self.policies.keys().filter(|place| place.hook == hook && !listed.contains_key(place)).cloned().collect();
        gone.iter().for_each(|place| self.remove(place));
        let mut pending = false;
        let mut names: HashMap<String, String> = HashMap::new();
        for (place, files) in listed {
            let name = place.name().to_owned();
            let first = names.entry(name.clone()).or_insert_with(|| place.stem.clone()).clone();
            let mut policy = self.policies.remove(&place).unwrap_or_default();
            policy.file = files.component.clone();
            if first == place.stem {
                pending |= self.look(&place, &mut policy, &files, patience);
            } else {
                let taken = PolicyError::NameTaken { name, first: format!("{first}.wasm") };
                policy.judged = None;
                self.reject(&place, &mut policy, None, &taken);
            }
            self.policies.insert(place, policy);
        }
        pending
    }

    fn remove(&mut self, place: &Place) {
        let Some(policy) = self.policies.remove(place) else { return };
        self.overrides.remove(place);
        let (hook, plugin) = (place.hook, place.name().to_owned());
        let renamed = self.policies.keys().any(|other| other.hook == hook && other.name() == plugin);
        if !renamed {
            self.identities.remove(&(hook, plugin.clone()));
        }
        if policy.serving.is_some() || policy.broken.is_some() {
            self.metrics.swap(hook, Swap::Removed);
            self.metrics.gone(hook, &PolicyName::from(plugin.as_str()));
            tracing::info!(%hook, plugin, "policy removed");
        }
    }

    /// Publishes what serves now, if it is not what served before.
    fn publish(&mut self) -> bool {
        let current = self.registry.current();
        let mut set = LoadedSet::empty(current.allow_anonymous);
        set.generation = Generation(current.generation.0 + 1);
        for (place, policy) in &self.policies {
            let ready = policy.serving.as_ref().map(|(loaded, _)| loaded);
            let link = ready.cloned().map(Link::Ready).or_else(|| policy.broken.clone().map(Link::Broken));
            match (place.hook, ready) {
                (Hook::Auth, Some(loaded)) if loaded.sidecar.mode == Mode::Monitor => {
                    set.auth_monitors.push(loaded.clone());
                }
                (Hook::Auth, _) => set.auth.extend(link),
                (Hook::Validator, _) => set.validators.extend(link),
                (Hook::Sampler, ready) => set.samplers.extend(ready.cloned()),
                (Hook::Scheduler, ready) => set.scheduler = ready.cloned().or(set.scheduler.take()),
            }
        }
        set.name_chains();
        self.forget_unused();
        let first = current.generation == Generation(0);
        if set.same(&current) && !first {
            return false;
        }
        set.scheduler_generation =
            if set.same_scheduler(&current) { current.scheduler_generation } else { set.generation };
        self.registry.publish(set);
        true
    }

    /// Forgets compiled code that no policy serves with.
    fn forget_unused(&mut self) {
        let policies = &self.policies;
        self.compiled.retain(|digest, _| {
            policies.values().any(|p| p.serving.as_ref().is_some_and(|(loaded, _)| loaded.compiled.digest == *digest))
        });
    }

    fn statuses(&self) -> Vec<PolicyStatus> {
        let status = |(place, policy): (&Place, &Policy)| {
            let serving = policy.serving.as_ref().map(|(loaded, _)| loaded);
            let state = match (&policy.error, serving) {
                (Some(_), _) => PolicyState::Rejected,
                (None, Some(_)) => PolicyState::Active,
                (None, None) if policy.mode == Mode::Off => PolicyState::Off,
                // Not judged yet.
                (None, None) => return None,
            };
            Some(PolicyStatus {
                hook: place.hook,
                name: place.name().to_owned(),
                file: policy.file.display().to_string(),
                mode: policy.mode,
                overridden: policy.is_overridden(),
                state,
                serving: serving.map(|loaded| loaded.compiled.digest.clone()),
                generation: serving.map(|loaded| loaded.generation),
                error: policy.error.clone(),
            })
        };
        self.policies.iter().filter_map(status).collect()
    }

    /// Notes how long a change took from its first notice to its publication.
    pub(crate) fn note_swap_time(&self, noticed: Instant) {
        self.metrics.swapped_in(noticed.elapsed());
    }
}
