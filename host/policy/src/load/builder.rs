//! From what is in a policy's files to something that may serve.
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, Mode};

use super::compile::{Compile, CompileJob, Compiler};
use crate::error::{PolicyError, SettingsError};
use crate::examine;
use crate::files::{Content, Place};
use crate::identity::Identity;
use crate::imports::metrics::MetricFamilies;
use crate::loaded::{Compiled, Loaded};
use crate::metrics::PolicyMetrics;
use crate::runtime::Runtime;
use crate::sidecar::Sidecar;
use camshaft_core::threads::Spawner;

/// The result of building a policy.
#[derive(Debug)]
pub(crate) enum Built {
    Ready(Arc<Loaded>),
    /// Its settings file turns it off: its component is not even compiled.
    Off,
    /// Its component is being compiled, or (without a job) waits for its turn.
    Compiling(Option<Arc<CompileJob>>),
}

/// Makes loads of policies.
#[derive(Debug)]
pub(crate) struct Builder {
    runtime: Arc<Runtime>,
    pub(crate) compiler: Compiler,
    pub(crate) metrics: PolicyMetrics,
    families: Arc<MetricFamilies>,
    identities: HashMap<(Hook, String), Arc<Identity>>,
}

impl Builder {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        compile: Compile,
        metrics: PolicyMetrics,
        families: MetricFamilies,
        spawner: Spawner,
    ) -> Self {
        let (compiler, families) = (Compiler::new(compile, spawner), Arc::new(families));
        Self { runtime, compiler, metrics, families, identities: HashMap::new() }
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
        if mode == Some(Mode::Off) {
            return Ok(Built::Off);
        }
        let mut sidecar = sidecar_of(place, content)?;
        sidecar.mode = mode.unwrap_or(sidecar.mode);
        if sidecar.mode == Mode::Off {
            return Ok(Built::Off);
        }
        sidecar.check_digest(&place.sidecar_name(), &content.digest)?;
        let job = self.compiler.compile(place.hook, &content.digest, &content.component, content.stamps.changed());
        let Some(outcome) = job.as_ref().and_then(|job| job.outcome()) else { return Ok(Built::Compiling(job)) };
        self.load(place, outcome?, sidecar, content).map(Built::Ready)
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
        self.load(place, compiled.clone(), sidecar, content)
    }

    fn load(
        &mut self,
        place: &Place,
        compiled: Arc<Compiled>,
        sidecar: Sidecar,
        content: &Content,
    ) -> Result<Arc<Loaded>, Arc<PolicyError>> {
        let found = compiled.pre.hook();
        if found != place.hook {
            return Err(PolicyError::WrongHook { found, expected: place.hook }.into());
        }
        self.compiler.remember(&compiled);
        let identity = self.identity(place);
        let settings = Some(sidecar.settings.as_str());
        let said = examine::introduce(&self.runtime, &compiled, identity.clone(), sidecar.memory_bytes, settings);
        let said = said.map_err(|error| in_settings(error, place, content))?;
        let name = PolicyName::from(place.name());
        let (hook, digest) = (place.hook, &compiled.digest[..12]);
        tracing::info!(%hook, plugin = %name, digest, described = said.name, version = said.version, "policy loaded");
        Ok(Arc::new(Loaded {
            metrics: self.metrics.link(hook, &name),
            name,
            compiled,
            sidecar,
            identity,
            generation: OnceLock::new(),
            runtime: self.runtime.clone(),
        }))
    }

    fn identity(&mut self, place: &Place) -> Arc<Identity> {
        let name = place.name().to_owned();
        let make = || Arc::new(Identity::new(place.hook, &PolicyName::from(place.name()), self.families.clone()));
        self.identities.entry((place.hook, name)).or_insert_with(make).clone()
    }

    /// Forgets what belongs to plugins of other names than these.
    pub(crate) fn forget_others<'a>(&mut self, known: impl Iterator<Item = &'a Place>) {
        let known: Vec<(Hook, &str)> = known.map(|place| (place.hook, place.name())).collect();
        self.identities.retain(|(hook, name), _| known.contains(&(*hook, name.as_str())));
    }
}

fn sidecar_of(place: &Place, content: &Content) -> Result<Sidecar, PolicyError> {
    match &content.sidecar {
        Some(bytes) => Sidecar::read(place.hook, &place.sidecar_name(), bytes),
        None => Ok(Sidecar::default_for(place.hook)),
    }
}

/// Names the settings file where the plugin refuses what is in it.
fn in_settings(error: PolicyError, place: &Place, content: &Content) -> PolicyError {
    match error {
        PolicyError::RefusesSettings(text) if content.sidecar.is_some() => {
            PolicyError::Settings { file: place.sidecar_name(), line: None, problem: SettingsError::Refused(text) }
        }
        error => error,
    }
}
