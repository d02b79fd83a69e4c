//! One policy file: whether it changed, whether what is in it may serve, what is done if it may not.
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{Hook, Mode};

use super::{Loader, Patience, Policy, SETTLE};
use crate::error::PolicyError;
use crate::examine;
use crate::files::{Content, ContentKey, Files, Place, Stamps};
use crate::hooks::auth::Broken;
use crate::identity::Identity;
use crate::loaded::Loaded;
use crate::metrics::Swap;
use crate::sidecar::{OnFault, Sidecar};

/// A file that breaks off is given this long to be continued before it is said to be broken.
const CONTINUE: Duration = Duration::from_secs(1);
/// A stamp this old is trusted to mean the same content: clocks of file systems tick coarsely.
const TRUST: Duration = Duration::from_secs(2);

/// Content that may serve.
enum Verdict {
    Serve(Box<Loaded>),
    Off,
}

impl Loader {
    /// Looks at one policy. Whether it has to be looked at again soon.
    pub(super) fn look(&mut self, place: &Place, policy: &mut Policy, files: &Files, patience: Patience) -> bool {
        let stamps = match Stamps::of(files) {
            Ok(stamps) => stamps,
            Err(error) => {
                policy.judged = None;
                return self.unreadable(place, policy, &error, patience);
            }
        };
        if matches!(&policy.judged, Some((_, Some(trusted))) if *trusted == stamps) {
            policy.looked = None;
            return false;
        }
        let age = stamps.age(SystemTime::now());
        let still = match &policy.looked {
            Some((seen, since)) if *seen == stamps => since.elapsed() >= SETTLE,
            _ => {
                policy.looked = Some((stamps.clone(), Instant::now()));
                false
            }
        };
        if patience == Patience::Wait && age < SETTLE && !still {
            return true;
        }
        match Content::read(files, &stamps) {
            Ok(content) => self.judge(place, policy, (&content, stamps), patience),
            Err(error) => self.unreadable(place, policy, &error, patience),
        }
    }

    fn unreadable(&self, place: &Place, policy: &mut Policy, error: &PolicyError, patience: Patience) -> bool {
        if patience == Patience::Wait && matches!(error, PolicyError::Unsettled { .. }) {
            return true;
        }
        self.reject(place, policy, None, error);
        false
    }

    fn judge(
        &mut self,
        place: &Place,
        policy: &mut Policy,
        (content, stamps): (&Content, Stamps),
        patience: Patience,
    ) -> bool {
        let key = self.key_of(place, content);
        let age = stamps.age(SystemTime::now());
        let trusted = (age >= TRUST).then_some(stamps);
        let known = policy.judged.as_ref().is_some_and(|(judged, _)| *judged == key);
        if known {
            policy.judged = Some((key, trusted));
            return false;
        }
        if let Some((serving, of)) = &policy.serving
            && *of == key
        {
            // What serves was put back over something that was rejected.
            policy.mode = serving.sidecar.mode;
            policy.error = None;
            policy.reported = None;
            policy.judged = Some((key, trusted));
            return false;
        }
        let verdict = self.load(place, content, key.mode);
        if let Err(error) = &verdict
            && patience == Patience::Wait
            && age < CONTINUE
            && breaks_off(error)
        {
            return true;
        }
        policy.judged = Some((key.clone(), trusted));
        policy.looked = None;
        match verdict {
            Ok(Verdict::Serve(loaded)) => self.accept(place, policy, Arc::new(*loaded), key),
            Ok(Verdict::Off) => self.turn_off(place, policy, &key),
            Err(error) => self.reject(place, policy, Some(key), &error),
        }
        false
    }

    /// Everything that has to go well before content may serve.
    fn load(&mut self, place: &Place, content: &Content, mode: Option<Mode>) -> Result<Verdict, PolicyError> {
        let hook = place.hook;
        if mode == Some(Mode::Off) {
            return Ok(Verdict::Off);
        }
        let mut sidecar = parse_sidecar(hook, content)?;
        sidecar.mode = mode.unwrap_or(sidecar.mode);
        if sidecar.mode == Mode::Off {
            return Ok(Verdict::Off);
        }
        if let Some(pinned) = &sidecar.sha256
            && *pinned != content.digest
        {
            let (found, pinned) = (content.digest.clone(), pinned.clone());
            return Err(PolicyError::DigestMismatch { found, pinned });
        }
        let compiled = match self.compiled.get(&content.digest) {
            Some(compiled) => compiled.clone(),
            None => Arc::new(examine::compile(&self.runtime, &content.component)?),
        };
        let found = compiled.pre.hook();
        if found != hook {
            return Err(PolicyError::WrongHook { found, expected: hook });
        }
        let identity = self.identity(place);
        let (memory_bytes, settings) = (sidecar.memory_bytes, Some(sidecar.settings.as_str()));
        let said = examine::introduce(&self.runtime, &compiled, identity.clone(), memory_bytes, settings)?;
        let name = PolicyName::from(place.name());
        let digest = &content.digest[..12];
        tracing::info!(%hook, plugin = %name, digest, described = said.name, version = said.version, "policy loaded");
        self.compiled.insert(content.digest.clone(), compiled.clone());
        Ok(Verdict::Serve(Box::new(Loaded {
            metrics: self.metrics.link(hook, &name),
            name,
            compiled,
            sidecar,
            identity,
            generation: Generation(self.registry.current().generation.0 + 1),
            runtime: self.runtime.clone(),
        })))
    }

    fn identity(&mut self, place: &Place) -> Arc<Identity> {
        let name = place.name().to_owned();
        let make = || Arc::new(Identity::new(place.hook, PolicyName::from(name.as_str()), self.plugin_metrics.clone()));
        self.identities.entry((place.hook, name.clone())).or_insert_with(make).clone()
    }

    fn accept(&mut self, place: &Place, policy: &mut Policy, loaded: Arc<Loaded>, key: ContentKey) {
        if !self.on_trial {
            self.metrics.swap(loaded.hook(), Swap::Swapped);
            self.metrics.serving(loaded.hook(), &loaded.name, loaded.generation);
        }
        self.forget_override(place, &key);
        policy.mode = loaded.sidecar.mode;
        policy.serving = Some((loaded, key));
        policy.broken = None;
        policy.error = None;
        policy.reported = None;
    }

    fn turn_off(&mut self, place: &Place, policy: &mut Policy, key: &ContentKey) {
        self.forget_override(place, key);
        if policy.serving.take().is_some() | policy.broken.take().is_some() {
            self.metrics.swap(place.hook, Swap::Removed);
            self.metrics.gone(place.hook, &PolicyName::from(place.name()));
            tracing::info!(hook = %place.hook, plugin = place.name(), "policy turned off");
        }
        policy.mode = Mode::Off;
        policy.error = None;
        policy.reported = None;
    }

    pub(super) fn reject(&self, place: &Place, policy: &mut Policy, key: Option<ContentKey>, error: &PolicyError) {
        let text = error.to_string();
        policy.error = Some(text.clone());
        let serves = policy.serving.is_some();
        if self.starting && !serves && policy.broken.is_none() {
            policy.broken = self.stand_in(place, policy, &text);
        }
        let report = (key, text.clone());
        if policy.reported.as_ref() == Some(&report) {
            return;
        }
        policy.reported = Some(report);
        self.metrics.swap(place.hook, Swap::Rejected);
        let (hook, plugin, file) = (place.hook, place.name(), policy.file.display());
        let serving = match (serves, policy.broken.is_some()) {
            _ if self.on_trial => "the directory before goes on serving",
            (true, _) => "the version before goes on serving",
            (false, true) => "requests that need it fail as its on-fault setting says",
            (false, false) => "nothing serves in its place",
        };
        tracing::warn!(%hook, plugin, %file, why = text, "policy rejected; {serving}");
    }

    /// At start, a lock that does not load keeps its door shut (unless its settings say otherwise).
    fn stand_in(&self, place: &Place, policy: &Policy, why: &str) -> Option<Arc<Broken>> {
        if !matches!(place.hook, Hook::Auth | Hook::Validator) {
            return None;
        }
        let sidecar = std::fs::read_to_string(policy.file.with_extension("toml")).ok();
        let sidecar = sidecar.and_then(|text| Sidecar::parse(place.hook, &text).ok());
        let (mode, on_fault) = sidecar.map_or((Mode::Enforce, OnFault::Deny), |s| (s.mode, s.on_fault));
        let name = PolicyName::from(place.name());
        (mode == Mode::Enforce).then(|| {
            let metrics = self.metrics.link(place.hook, &name);
            Arc::new(Broken { name, on_fault, why: format!("could not be loaded: {why}"), metrics })
        })
    }
}

fn parse_sidecar(hook: Hook, content: &Content) -> Result<Sidecar, PolicyError> {
    let Some(bytes) = &content.sidecar else { return Ok(Sidecar::default_for(hook)) };
    let text = std::str::from_utf8(bytes).map_err(|error| PolicyError::SidecarSyntax(error.to_string()))?;
    Sidecar::parse(hook, text)
}

/// Whether the error is what the beginning of a good file would get.
fn breaks_off(error: &PolicyError) -> bool {
    matches!(
        error,
        PolicyError::Corrupt(_)
            | PolicyError::SidecarSyntax(_)
            | PolicyError::NoHook
            | PolicyError::DigestMismatch { .. }
    )
}
