//! From what is in a policy's files to something that may serve.
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, Mode};

use super::compile::{Compile, CompileJob, Compiler};
use super::granted;
use crate::ahead::Ahead;
use crate::chronicle::Chronicle;
use crate::documents::{Judge, Library, Missing, Opened, Reader, Version};
use crate::error::{PolicyError, SettingsError};
use crate::examine;
use crate::files::{Content, Place};
use crate::grants::{Grant, Grants};
use crate::health::Health;
use crate::imports::identity::Identity;
use crate::imports::metrics::{MetricFamilies, PluginMetrics};
use crate::imports::state::PluginState;
use crate::kept::Kept;
use crate::loaded::{Compiled, Loaded};
use crate::metrics::PolicyMetrics;
use crate::pace::Pace;
use crate::reuse::Verdicts;
use crate::runtime::Runtime;
use crate::secrets::Secrets;
use crate::sidecar::Sidecar;
use crate::snapshot::Snapshots;
use crate::supplies::Supplies;
use crate::take_snapshot;
use camshaft_core::threads::Spawner;
use crossbeam_channel::{Receiver, Sender, bounded};

/// The result of building a policy.
#[derive(Debug)]
pub(crate) enum Built {
    Ready(Arc<Loaded>),
    /// Its settings file turns it off: its component is not even compiled.
    Off,
    /// Its component is being compiled, or (without a job) waits for its turn, or its documents are being read.
    Compiling(Option<Arc<CompileJob>>),
}

/// Makes loads of policies.
#[derive(Debug)]
pub(crate) struct Builder {
    pub(super) runtime: Arc<Runtime>,
    pub(crate) compiler: Compiler,
    pub(super) documents: Library,
    pub(crate) chronicle: Chronicle,
    families: Arc<MetricFamilies>,
    identities: HashMap<(Hook, String), Arc<Identity>>,
    /// Policies that serve although their files are gone: others may go on with their state.
    pub(super) gone: BTreeSet<Place>,
    /// Told when the breaker of a policy opens.
    alarm: Sender<()>,
    pub(super) alarms: Receiver<()>,
    grants: Grants,
    /// Those under which another directory is examined.
    grants_there: Option<Grants>,
    /// Loads so far.
    loads: u64,
    /// Those that were removed last, the newest at the end.
    retired: VecDeque<(Hook, String, Arc<PluginState>)>,
}

/// Removed policies whose state is kept.
const RETIRED_MAX: usize = 16;

impl Builder {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        compile: Compile,
        metrics: PolicyMetrics,
        families: MetricFamilies,
        spawner: Spawner,
    ) -> Self {
        // A full channel says already what there is to say.
        let (alarm, alarms) = bounded(1);
        let (compiler, families) = (Compiler::new(compile, spawner.clone()), Arc::new(families));
        let documents = Library::new(spawner, compiler.notices(), metrics.documents.clone());
        Self {
            runtime,
            compiler,
            documents,
            chronicle: Chronicle::new(metrics),
            families,
            identities: HashMap::new(),
            gone: BTreeSet::new(),
            alarm,
            alarms,
            grants: Grants::default(),
            grants_there: None,
            loads: 0,
            retired: VecDeque::new(),
        }
    }

    /// Builds what is in a policy's files; `mode` holds instead of the file's.
    ///
    /// # Errors
    /// It cannot serve.
    pub(crate) fn build(
        &mut self,
        place: &Place,
        content: &Content,
        mode: Option<Mode>,
    ) -> Result<Built, Arc<PolicyError>> {
        let Some(sidecar) = sidecar_unless_off(place, content, mode)? else { return Ok(Built::Off) };
        sidecar.check_digest(&place.sidecar_name(), &content.digest)?;
        let job = self.compiler.compile(place.hook, &content.digest, &content.component, content.stamps.changed());
        let Some(outcome) = job.as_ref().and_then(|job| job.outcome()) else { return Ok(Built::Compiling(job)) };
        let compiled = outcome?;
        compiled.file.store(Some(Arc::new(content.file.clone())));
        let Some(supplies) = self.supplies(place, &sidecar)? else { return Ok(Built::Compiling(None)) };
        self.assemble(place, compiled, (sidecar, supplies), content.sidecar.is_some()).map(Built::Ready)
    }

    /// The same with other code than that of the file, which was rolled back.
    ///
    /// # Errors
    /// The settings are not for this component.
    pub(crate) fn build_with(
        &mut self,
        place: &Place,
        compiled: &Arc<Compiled>,
        content: &Content,
        mode: Option<Mode>,
    ) -> Result<Built, Arc<PolicyError>> {
        let Some(sidecar) = sidecar_unless_off(place, content, mode)? else { return Ok(Built::Off) };
        sidecar.check_digest(&place.sidecar_name(), &compiled.digest)?;
        let Some(supplies) = self.supplies(place, &sidecar)? else { return Ok(Built::Compiling(None)) };
        self.assemble(place, compiled.clone(), (sidecar, supplies), content.sidecar.is_some()).map(Built::Ready)
    }

    /// Runs a component that is compiled already with the settings in a policy's files; `mode` holds instead of the file's.
    ///
    /// # Errors
    /// The settings are not for this component.
    pub(crate) fn reconfigure(
        &mut self,
        place: &Place,
        compiled: &Arc<Compiled>,
        content: &Content,
        mode: Option<Mode>,
    ) -> Result<Arc<Loaded>, Arc<PolicyError>> {
        let mut sidecar = sidecar_of(place, content)?;
        sidecar.mode = mode.unwrap_or(sidecar.mode);
        sidecar.check_digest(&place.sidecar_name(), &compiled.digest)?;
        self.load(place, compiled.clone(), sidecar, content.sidecar.is_some())
    }

    /// A load of this code with these settings. `has_file`: they come from a settings file.
    ///
    /// # Errors
    /// It is of another hook, does not take the settings, or waits for a document.
    pub(super) fn load(
        &mut self,
        place: &Place,
        compiled: Arc<Compiled>,
        sidecar: Sidecar,
        has_file: bool,
    ) -> Result<Arc<Loaded>, Arc<PolicyError>> {
        let supplies = self.supplies(place, &sidecar)?.ok_or(PolicyError::DocumentsOpening)?;
        self.assemble(place, compiled, (sidecar, supplies), has_file)
    }

    /// What the settings file names; `None` while a document is being read for the first time.
    fn supplies(&self, place: &Place, sidecar: &Sidecar) -> Result<Option<Arc<Supplies>>, PolicyError> {
        self.check_grant(place, sidecar)?;
        let secrets = Secrets::read(&sidecar.secrets).map_err(|(name, why)| PolicyError::NoSecret { name, why })?;
        let reader = Reader { hook: place.hook, plugin: place.name() };
        match self.documents.open(reader, &sidecar.documents) {
            Ok(Opened::Ready(documents)) => Ok(Some(Arc::new(Supplies { documents, secrets }))),
            Ok(Opened::Reading) => Ok(None),
            Err(Missing { name, from, why }) => Err(PolicyError::NoDocument { name, from, why }),
        }
    }

    /// # Errors
    /// It is of another hook, or does not take the settings.
    fn assemble(
        &mut self,
        place: &Place,
        compiled: Arc<Compiled>,
        (sidecar, supplies): (Sidecar, Arc<Supplies>),
        has_file: bool,
    ) -> Result<Arc<Loaded>, Arc<PolicyError>> {
        let found = compiled.pre.hook();
        if found != place.hook {
            return Err(PolicyError::WrongHook { found, expected: place.hook }.into());
        }
        self.compiler.remember(&compiled);
        let known = self.identities.get(&(place.hook, place.name().to_owned())).cloned();
        let identity = known.clone().unwrap_or_else(|| self.new_identity(place, None));
        let (settings, has_documents) = (Some(sidecar.settings.as_str()), !sidecar.documents.is_empty());
        let of = (identity.clone(), supplies.clone());
        let said = examine::introduce(&self.runtime, &compiled, of, sidecar.memory_bytes, settings);
        let said = said.map_err(|error| in_settings(error, place, (has_file, has_documents)))?;
        let identity = match known {
            Some(known) => known,
            None => {
                let settled = self.settle_identity(place, &identity, &said.name);
                if !Arc::ptr_eq(&settled, &identity) {
                    // What it notes about its settings belongs into the state that it goes on with.
                    let of = (settled.clone(), supplies.clone());
                    examine::introduce(&self.runtime, &compiled, of, sidecar.memory_bytes, settings)
                        .map_err(|error| in_settings(error, place, (has_file, has_documents)))?;
                }
                settled
            }
        };
        let judge = self.judge(&compiled, (&identity, &supplies), &sidecar);
        let name = PolicyName::from(place.name());
        let (hook, digest) = (place.hook, &compiled.digest[..12]);
        tracing::info!(%hook, plugin = %name, digest, described = said.name, version = said.version, "policy loaded");
        self.loads += 1;
        let number = self.loads;
        Ok(Arc::new_cyclic(|me| Loaded {
            number,
            me: me.clone(),
            ahead: Ahead::new(self.runtime.ahead(hook)),
            snapshots: Snapshots::default(),
            take_snapshot: take_snapshot::take,
            metrics: self.chronicle.metrics.link(hook, &name),
            monitored: Default::default(),
            health: Health::new(sidecar.breaker, self.alarm.clone()),
            name,
            compiled,
            sidecar,
            identity,
            supplies,
            generation: OnceLock::new(),
            lane: self.runtime.lanes.lane(),
            pace: Pace::default(),
            runtime: self.runtime.clone(),
            kept: Kept::default(),
            judge,
            verdicts: Verdicts::default(),
            journal: None,
        }))
    }

    /// A new version of a document must be one that an instance takes with these settings: it stands for all that come.
    fn judge(
        &self,
        compiled: &Arc<Compiled>,
        (identity, supplies): (&Arc<Identity>, &Arc<Supplies>),
        sidecar: &Sidecar,
    ) -> Judge {
        let (runtime, compiled) = (self.runtime.clone(), compiled.clone());
        let (identity, others) = (identity.clone(), supplies.clone());
        let (memory_bytes, settings) = (sidecar.memory_bytes, sidecar.settings.clone());
        let accepts = move |name: &str, version: &Arc<Version>| {
            let of = (identity.clone(), Arc::new(others.with(name, version)));
            let said = examine::introduce(&runtime, &compiled, of, memory_bytes, Some(&settings));
            said.map(drop).map_err(|error| error.sentence())
        };
        let judge = Judge::new(Arc::new(accepts));
        supplies.documents.iter().for_each(|document| document.ask_before_changes(&judge));
        judge
    }

    fn new_identity(&self, place: &Place, state: Option<Arc<PluginState>>) -> Arc<Identity> {
        let name = PolicyName::from(place.name());
        let metrics = PluginMetrics::new(place.hook, name.clone(), self.families.clone());
        let identity = Identity::new(place.hook, &name, metrics, state);
        identity.grant.store(self.grants_for(place));
        Arc::new(identity)
    }

    /// Lets policies have what these grants say, also those that serve. Whether they are others than before.
    pub(super) fn set_grants(&mut self, grants: Grants) -> bool {
        if self.grants == grants {
            return false;
        }
        self.grants = grants;
        self.tell_grants();
        true
    }

    /// Those in force.
    pub(super) fn grants(&self) -> &Grants {
        &self.grants
    }

    /// What is examined from now on is to serve under other grants than those in force; `None`: under these again. What serves
    /// keeps what it has.
    pub(super) fn examine_under(&mut self, grants: Option<Grants>) {
        self.grants_there = grants;
        // Whoever was first met there may belong to what serves by now.
        self.tell_grants();
    }

    fn tell_grants(&self) {
        if self.grants_there.is_some() {
            return;
        }
        for ((hook, name), identity) in &self.identities {
            let grant = self.grants.of(*hook, name);
            if **identity.grant.load() != *grant {
                identity.grant.store(grant);
            }
        }
        self.runtime.feeds.bump();
    }

    fn grants_for(&self, place: &Place) -> Arc<Grant> {
        self.grants_there.as_ref().unwrap_or(&self.grants).of(place.hook, place.name())
    }

    /// # Errors
    /// The settings name what the policy may not have.
    pub(super) fn check_grant(&self, place: &Place, sidecar: &Sidecar) -> Result<(), PolicyError> {
        granted::check(&self.grants_for(place), sidecar)
    }

    /// Remembers whose state a new name has: that of a plugin which describes itself by the same name and is gone, so that
    /// a policy that is renamed keeps it; or else its own.
    fn settle_identity(&mut self, place: &Place, own: &Arc<Identity>, described: &str) -> Arc<Identity> {
        let mut of_gone = self.gone.iter().filter_map(|gone| {
            let old = self.identities.get(&(gone.hook, gone.name().to_owned()))?;
            let is_same = gone.hook == place.hook && old.described.get().is_some_and(|name| name == described);
            is_same.then(|| old.state.clone())
        });
        let inherited = of_gone.next_back();
        let is_same = |(hook, name, _): &(Hook, String, Arc<PluginState>)| *hook == place.hook && name == described;
        let retired = self.retired.iter().rposition(is_same);
        let inherited = inherited.or_else(|| self.retired.remove(retired?).map(|(_, _, state)| state));
        let identity = match inherited {
            Some(state) => self.new_identity(place, Some(state)),
            None => own.clone(),
        };
        // A new identity has none yet.
        let _ = identity.described.set(described.to_owned());
        self.identities.insert((place.hook, place.name().to_owned()), identity.clone());
        identity
    }

    /// Forgets what belongs to plugins of other names than these, but for the state of the last few.
    pub(crate) fn forget_others<'a>(&mut self, known: impl Iterator<Item = &'a Place>) {
        let known: Vec<(Hook, &str)> = known.map(|place| (place.hook, place.name())).collect();
        let others = self.identities.extract_if(|(hook, name), _| !known.contains(&(*hook, name.as_str())));
        let left = |((hook, _), identity): ((Hook, String), Arc<Identity>)| {
            Some((hook, identity.described.get()?.clone(), identity.state.clone()))
        };
        self.retired.extend(others.filter_map(left));
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}

/// The settings of a policy; `None`: it is off. `mode` holds instead of the file's.
fn sidecar_unless_off(place: &Place, content: &Content, mode: Option<Mode>) -> Result<Option<Sidecar>, PolicyError> {
    if mode == Some(Mode::Off) {
        return Ok(None);
    }
    let mut sidecar = sidecar_of(place, content)?;
    sidecar.mode = mode.unwrap_or(sidecar.mode);
    Ok(Some(sidecar).filter(|sidecar| sidecar.mode != Mode::Off))
}

fn sidecar_of(place: &Place, content: &Content) -> Result<Sidecar, PolicyError> {
    match &content.sidecar {
        Some(bytes) => Sidecar::read(place.hook, &place.sidecar_name(), bytes),
        None => Ok(Sidecar::default_for(place.hook)),
    }
}

/// Names the settings file where the plugin refuses what is in it, or that there is none.
fn in_settings(error: PolicyError, place: &Place, (has_file, has_documents): (bool, bool)) -> PolicyError {
    match error {
        PolicyError::RefusesSettings(text) if has_file => {
            let refused = if has_documents { SettingsError::RefusedWithDocuments } else { SettingsError::Refused };
            PolicyError::Settings { file: place.sidecar_name(), line: None, problem: refused(text) }
        }
        PolicyError::RefusesSettings(why) => PolicyError::NeedsSettings { file: place.sidecar_name(), why },
        error => error,
    }
}
