//! Inspects a component without a policy directory.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, Mode};
use serde::Serialize;

use crate::engine::Ticker;
use crate::error::{PolicyError, SettingsError};
use crate::examine;
use crate::files::{self, COMPONENT_MAX_BYTES, SIDECAR_MAX_BYTES};
use crate::identity::Identity;
use crate::imports::metrics::MetricFamilies;
use crate::runtime::Runtime;
use crate::sidecar::Sidecar;

/// Facts about a component that can serve as a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PluginReport {
    pub file: PathBuf,
    pub hook: Hook,
    /// Version of the `camshaft:policy` package that it was built for.
    pub api_version: String,
    /// Names of the interfaces that it imports. All of them are granted.
    pub imports: Vec<String>,
    pub size_bytes: u64,
    /// In lower-case hexadecimal.
    pub sha256: String,
    /// The name that the plugin gives itself.
    pub name: String,
    pub version: String,
    /// JSON Schema of its settings; empty if it has none.
    pub settings_schema: String,
    /// The settings file beside it, which the plugin has accepted.
    pub settings_file: Option<PathBuf>,
    pub mode: Mode,
}

/// Examines a component and the settings file beside it as a load does. Caches compiled code in `cache_dir`, where a
/// server with the same directory finds it.
///
/// # Errors
/// The reason for which a load would reject it.
pub fn inspect(path: &Path, cache_dir: Option<&Path>) -> Result<PluginReport, PolicyError> {
    let bytes = files::read(path, "a component", COMPONENT_MAX_BYTES)?;
    let runtime = Runtime::new(cache_dir)?;
    let _ticker = Ticker::start(&runtime.engine)?;
    let compiled = examine::compile(&runtime, &bytes)?;
    let hook = compiled.pre.hook();
    let settings_file = Some(path.with_extension("toml")).filter(|file| file.exists());
    let file_name = path.with_extension("toml").file_name().map(|name| name.to_string_lossy().into_owned());
    let file_name = file_name.unwrap_or_default();
    let sidecar = match &settings_file {
        Some(file) => Sidecar::read(hook, &file_name, &files::read(file, "a settings file", SIDECAR_MAX_BYTES)?)?,
        None => Sidecar::default_for(hook),
    };
    sidecar.check_digest(&file_name, &compiled.digest)?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let families = Arc::new(MetricFamilies::new(prometheus::Registry::new()));
    let identity = Arc::new(Identity::new(hook, &PolicyName::new(name), families));
    // Without a settings file, do not configure it: it may need settings that only its operator knows.
    let settings = settings_file.as_ref().map(|_| sidecar.settings.as_str());
    let said = examine::introduce(&runtime, &compiled, identity, sidecar.memory_bytes, settings);
    let said = said.map_err(|error| match error {
        PolicyError::RefusesSettings(text) => {
            PolicyError::Settings { file: file_name, line: None, problem: SettingsError::Refused(text) }
        }
        error => error,
    })?;
    Ok(PluginReport {
        file: path.to_path_buf(),
        hook,
        api_version: compiled.api_version,
        imports: compiled.imports,
        size_bytes: compiled.size_bytes,
        sha256: compiled.digest,
        name: said.name,
        version: said.version,
        settings_schema: said.settings_schema,
        settings_file,
        mode: sidecar.mode,
    })
}
