//! What one component is, without a policy directory.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;
use serde::Serialize;

use crate::error::PolicyError;
use crate::examine::{self, COMPONENT_MAX_BYTES};
use crate::files;
use crate::identity::Identity;
use crate::imports::metrics::PluginMetrics;
use crate::runtime::{Runtime, Ticker};
use crate::sidecar::Sidecar;

/// Facts about a component that is fit to be a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PluginReport {
    pub file: PathBuf,
    pub hook: Hook,
    /// Version of the `camshaft:policy` package that it was built for.
    pub api_version: String,
    /// Names of the interfaces that it imports, all of which are granted.
    pub imports: Vec<String>,
    pub size_bytes: u64,
    /// In lower-case hexadecimal.
    pub sha256: String,
    /// What the plugin calls itself.
    pub name: String,
    pub version: String,
    /// JSON Schema of its settings; empty if it has none.
    pub settings_schema: String,
}

/// Examines a component as a load would, and lets it describe itself. It is given no settings.
///
/// # Errors
/// What a load would reject it for.
pub fn inspect(path: &Path) -> Result<PluginReport, PolicyError> {
    let bytes = files::read(path, "a component", COMPONENT_MAX_BYTES)?;
    let runtime = Runtime::new(None)?;
    let _ticker = Ticker::start(&runtime.engine)?;
    let compiled = examine::compile(&runtime, &bytes)?;
    let hook = compiled.pre.hook();
    let metrics = Arc::new(PluginMetrics::new(prometheus::Registry::new()));
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let identity = Arc::new(Identity::new(hook, PolicyName::new(name), metrics));
    let memory_bytes = Sidecar::default_for(hook).memory_bytes;
    let said = examine::introduce(&runtime, &compiled, identity, memory_bytes, None)?;
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
    })
}
