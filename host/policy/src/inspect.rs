//! Inspects a component without a policy directory.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, Mode};
use serde::Serialize;

use crate::documents::{Document, DocumentSpec};
use crate::engine::Ticker;
use crate::error::{PolicyError, SettingsError};
use crate::examine;
use crate::files::{self, COMPONENT_MAX_BYTES, SIDECAR_MAX_BYTES};
use crate::imports::identity::Identity;
use crate::imports::metrics::{MetricFamilies, PluginMetrics};
use crate::runtime::Runtime;
use crate::sandbox::CompileProgram;
use crate::secrets::Secrets;
use crate::sidecar::Sidecar;
use crate::supplies::Supplies;
use crate::task::Task;

/// Facts about a component that can serve as a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PluginReport {
    pub file: PathBuf,
    pub hook: Hook,
    /// Version of its hook's package that it was built for.
    pub api_version: String,
    /// Names of the interfaces that it imports. All of them are granted.
    pub imports: Vec<String>,
    /// Names of the interfaces that it exports beside its hook, and of which the host makes use.
    pub exports: Vec<String>,
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
    /// Why it does not run without a settings file, in the plugin's words; `None` if it does, or has one.
    pub needs: Option<String>,
    pub mode: Mode,
}

/// Examines a component and the settings file beside it as a load does. Caches compiled code in `cache_dir`, where a
/// server with the same directory finds it. `compiler` compiles it, if there is one.
///
/// # Errors
/// The reason for which a load would reject it.
pub fn inspect(
    path: &Path,
    cache_dir: Option<&Path>,
    compiler: Option<CompileProgram>,
) -> Result<PluginReport, PolicyError> {
    let bytes = files::read(path, "a component", COMPONENT_MAX_BYTES)?;
    let runtime = Runtime::new(cache_dir, compiler)?;
    let _ticker = Ticker::start(runtime.engines(), &runtime.clock)?;
    let stopping = AtomicBool::new(false);
    let compile = |hook| examine::compile(&runtime, &Task { hook, bytes: &bytes, stopping: &stopping });
    let compiled = match compile(Hook::Auth) {
        // It says itself which it is.
        Err(PolicyError::WrongHook { found, .. }) => compile(found)?,
        compiled => compiled?,
    };
    let hook = compiled.pre.hook();
    let settings_file = Some(path.with_extension("toml")).filter(|file| file.exists());
    let file_name = path.with_extension("toml").file_name().map(|name| name.to_string_lossy().into_owned());
    let file_name = file_name.unwrap_or_default();
    let sidecar = match &settings_file {
        Some(file) => Sidecar::read(hook, &file_name, &files::read(file, "a settings file", SIDECAR_MAX_BYTES)?)?,
        None => Sidecar::default_for(hook),
    };
    sidecar.check_digest(&file_name, &compiled.digest)?;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    // As a server calls it where it is installed under this name.
    let name = files::parse(&format!("{stem}.wasm"))
        .and_then(|_| stem.split_once('-'))
        .map_or(stem.as_str(), |(_, name)| name);
    let families = Arc::new(MetricFamilies::new(&prometheus::Registry::new()));
    let name = PolicyName::new(name);
    let metrics = PluginMetrics::new(hook, name.clone(), families);
    let identity = Arc::new(Identity::new(hook, &name, metrics, None));
    let supplies = Arc::new(supplies_of(hook, name.as_str(), &sidecar)?);
    let introduce = |settings| {
        examine::introduce(&runtime, &compiled, (identity.clone(), supplies.clone()), sidecar.memory_bytes, settings)
    };
    let (said, needs) = match introduce(Some(sidecar.settings.as_str())) {
        // Its operator may write the file when it is installed. Where a server finds it, it is refused as it is.
        Err(PolicyError::RefusesSettings(why)) if settings_file.is_none() && !is_installed(path, hook) => {
            (introduce(None)?, Some(why))
        }
        Err(PolicyError::RefusesSettings(text)) if settings_file.is_some() => {
            return Err(PolicyError::Settings { file: file_name, line: None, problem: SettingsError::Refused(text) });
        }
        said => (said?, None),
    };
    Ok(PluginReport {
        file: path.to_path_buf(),
        hook,
        api_version: compiled.api_version,
        imports: compiled.imports,
        exports: compiled.exports,
        size_bytes: compiled.size_bytes,
        sha256: compiled.digest,
        name: said.name,
        version: said.version,
        settings_schema: said.settings_schema,
        settings_file,
        needs,
        mode: sidecar.mode,
    })
}

/// What the settings file names, read here and now.
fn supplies_of(hook: Hook, plugin: &str, sidecar: &Sidecar) -> Result<Supplies, PolicyError> {
    let secrets = Secrets::read(&sidecar.secrets).map_err(|(name, why)| PolicyError::NoSecret { name, why })?;
    let read = |spec: &DocumentSpec| {
        let missing = |why| PolicyError::NoDocument { name: spec.name.clone(), from: spec.source.to_string(), why };
        Document::read_once(hook, plugin, spec).map_err(missing)
    };
    let documents = sidecar.documents.iter().map(read).collect::<Result<_, _>>()?;
    Ok(Supplies { documents, secrets })
}

/// Whether a server would load the file: it lies in the directory of its hook, under the name of a policy.
fn is_installed(path: &Path, hook: Hook) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let directory = path.parent().and_then(Path::file_name);
    let name = path.file_name().and_then(|name| name.to_str());
    directory.is_some_and(|directory| directory == hook.as_str())
        && name.is_some_and(|name| files::parse(name).is_some())
}
