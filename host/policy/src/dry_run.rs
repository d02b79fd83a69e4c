//! Examines a component that an operator sends, as a load would, and changes nothing.
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, ModeError, PolicyCheck};

use crate::error::{PolicyError, Rejection, SettingsError};
use crate::examine;
use crate::files::SIDECAR_MAX_BYTES;
use crate::imports::identity::Identity;
use crate::imports::metrics::{MetricFamilies, PluginMetrics};
use crate::runtime::Runtime;
use crate::sidecar::Sidecar;
use crate::supplies::Supplies;
use crate::task::Task;

/// What errors call the settings that come with a component.
const SETTINGS: &str = "settings";
/// Who may check must not have the host read any file and tell what is in it.
const NO_SUPPLIES: &str = "a check hands over no documents and no secrets: camshaft plugin check does";

/// Examines one component at a time.
#[derive(Debug)]
pub(crate) struct Checks {
    runtime: Arc<Runtime>,
    one: Mutex<()>,
}

impl Checks {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, one: Mutex::default() }
    }

    /// `settings`: a whole settings file.
    ///
    /// # Errors
    /// Another component is being checked, or the reason for which a load would reject this one.
    pub(crate) fn check(&self, component: &[u8], settings: Option<&str>) -> Result<PolicyCheck, ModeError> {
        let _one = self.one.try_lock().map_err(|_| ModeError::Checking)?;
        let rejected = |error: PolicyError| ModeError::Rejected(Arc::new(Rejection(Arc::new(error))));
        self.examine(component, settings).map_err(rejected)
    }

    fn examine(&self, component: &[u8], settings: Option<&str>) -> Result<PolicyCheck, PolicyError> {
        let runtime = &*self.runtime;
        let stopping = AtomicBool::new(false);
        let compile = |hook| examine::compile(runtime, &Task { hook, bytes: component, stopping: &stopping });
        let compiled = match compile(Hook::Auth) {
            // It says itself which it is.
            Err(PolicyError::WrongHook { found, .. }) => compile(found)?,
            compiled => compiled?,
        };
        let hook = compiled.pre.hook();
        let sidecar = match settings {
            Some(text) if text.len() as u64 > SIDECAR_MAX_BYTES => {
                let (size_bytes, limit_bytes) = (text.len() as u64, SIDECAR_MAX_BYTES);
                return Err(PolicyError::TooLarge { what: "a settings file", size_bytes, limit_bytes });
            }
            Some(text) => Sidecar::read(hook, SETTINGS, text.as_bytes())?,
            None => Sidecar::default_for(hook),
        };
        sidecar.check_digest(SETTINGS, &compiled.digest)?;
        let families = Arc::new(MetricFamilies::new(&prometheus::Registry::new()));
        // Neither its state nor its metrics are those of a policy that serves.
        let name = PolicyName::from("check");
        let metrics = PluginMetrics::new(hook, name.clone(), families);
        let identity = Arc::new(Identity::new(hook, &name, metrics, None));
        // It is given neither documents nor secrets: they are for what serves.
        let of = (identity, Arc::<Supplies>::default());
        let said = examine::introduce(runtime, &compiled, of, sidecar.memory_bytes, Some(&sidecar.settings));
        let said = said.map_err(|error| match error {
            PolicyError::RefusesSettings(text) => {
                let has_supplies = !sidecar.documents.is_empty() || !sidecar.secrets.is_empty();
                let text = if has_supplies { format!("{text} ({NO_SUPPLIES})") } else { text };
                PolicyError::Settings { file: SETTINGS.to_owned(), line: None, problem: SettingsError::Refused(text) }
            }
            error => error,
        })?;
        Ok(PolicyCheck {
            hook,
            name: said.name,
            version: said.version,
            api_version: compiled.api_version,
            imports: compiled.imports,
            size_bytes: compiled.size_bytes,
            sha256: compiled.digest,
            mode: sidecar.mode,
        })
    }
}
