//! Examines a component: compiles it and checks that it fits its hook. Every possible error has a sentence for the
//! operator.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::policy::{FaultKind, Hook};
use camshaft_core::vocabulary::Vocabulary;
use wasmtime::component::{Component, Linker};

use crate::addresses::Addresses;
use crate::bindings::Description;
use crate::code::{CodeDir, CodeName};
use crate::digest::digest_of;
use crate::engine::{self, compile_error};
use crate::error::PolicyError;
use crate::files::COMPONENT_MAX_BYTES;
use crate::identity::Identity;
use crate::loaded::{Compiled, HookPre, state_for};
use crate::private_dir;
use crate::runtime::{self, Runtime};
use crate::spec::spec;
use crate::store::{self, GuestState};
use crate::task::Task;
use crate::text::{on_one_line, truncated};
use crate::wasi;

/// The version of `camshaft:policy` that this host speaks.
pub(crate) const API_VERSION: &str = "0.1.0";
/// Versions of the same track. A host supports all patches of its track.
const API_TRACK: &str = "0.1.";
const PACKAGE: &str = "camshaft:policy/";

const START_LIMIT: Duration = Duration::from_secs(1);
const DESCRIBE_LIMIT: Duration = Duration::from_millis(100);
const CONFIGURE_LIMIT: Duration = Duration::from_secs(1);
/// Maximum bytes of a guest's error text, of its name and version, and of its schema.
const SENTENCE_BYTES: usize = 1024;
const NAME_BYTES: usize = 128;
const SCHEMA_BYTES: usize = 256 << 10;

/// Compiles a component and checks that its imports are granted and its exports are a hook's.
pub(crate) fn compile(runtime: &Runtime, task: &Task<'_>) -> Result<Compiled, PolicyError> {
    check_header(task.bytes)?;
    // Hostile input that makes the compiler panic must not end this thread.
    let built = catch_unwind(AssertUnwindSafe(|| build(runtime, task)));
    built.unwrap_or(Err(PolicyError::CompilerPanic))
}

/// Compiles a component, checks that it fits its hook, and keeps its code in this directory.
///
/// # Errors
/// It cannot be compiled, has more code than `code_max_bytes` or is no policy of this hook; or the directory does not take it.
pub(crate) fn compile_into(
    cache_dir: &Path,
    hook: Hook,
    bytes: &[u8],
    (code_max_bytes, addresses): (usize, Addresses),
) -> Result<(), PolicyError> {
    check_header(bytes)?;
    let cache_dir = private_dir::make_private(cache_dir)?;
    let engine = engine::for_compiling(code_max_bytes, addresses)?;
    let built = catch_unwind(AssertUnwindSafe(|| {
        let component = Component::from_binary(&engine, bytes).map_err(compile_error)?;
        let keep = |hook| {
            let linker = runtime::linker(&engine, hook).map_err(|error| PolicyError::Runtime(error.into()))?;
            fit(&linker, &component, hook)?;
            CodeDir::new(&cache_dir).keep(&CodeName::of(&engine, hook, bytes), &component)
        };
        let kept = keep(hook);
        if let Err(PolicyError::WrongHook { found, .. }) = kept {
            // Whoever asked only to learn the hook finds it next time.
            keep(found)?;
        }
        kept
    }));
    built.unwrap_or(Err(PolicyError::CompilerPanic))
}

fn build(runtime: &Runtime, task: &Task<'_>) -> Result<Compiled, PolicyError> {
    let Task { hook, bytes, .. } = *task;
    let component = runtime.component(task)?;
    let Fit { api_version, imports, pre } = fit(runtime.linker(hook), &component, hook)?;
    Ok(Compiled { digest: digest_of(bytes), size_bytes: bytes.len() as u64, api_version, imports, pre })
}

/// What a component of the right hook is found to be.
struct Fit {
    api_version: String,
    imports: Vec<String>,
    pre: HookPre,
}

fn fit(linker: &Linker<GuestState>, component: &Component, expected: Hook) -> Result<Fit, PolicyError> {
    let (found, api_version) = find_hook(component)?;
    if found != expected {
        return Err(PolicyError::WrongHook { found, expected });
    }
    let imports = check_imports(component, expected)?;
    let pre = link(linker, component, expected)?;
    Ok(Fit { api_version, imports, pre })
}

fn check_header(bytes: &[u8]) -> Result<(), PolicyError> {
    if bytes.len() as u64 > COMPONENT_MAX_BYTES {
        let (size_bytes, limit_bytes) = (bytes.len() as u64, COMPONENT_MAX_BYTES);
        return Err(PolicyError::TooLarge { what: "a component", size_bytes, limit_bytes });
    }
    match bytes {
        [] => Err(PolicyError::Empty),
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(PolicyError::CoreModule),
        [b'\0', b'a', b's', b'm', _, _, _, _, ..] => Ok(()),
        _ if b"\0asm".starts_with(&bytes[..bytes.len().min(4)]) => Err(PolicyError::Cut { size_bytes: bytes.len() }),
        _ => Err(PolicyError::NotWasm),
    }
}

/// Splits `camshaft:policy/auth@0.1.0` into `auth` and `0.1.0`.
fn interface(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix(PACKAGE)?;
    Some(rest.split_once('@').unwrap_or((rest, "")))
}

fn check_version(version: &str) -> Result<(), PolicyError> {
    if version.starts_with(API_TRACK) {
        return Ok(());
    }
    let found = if version.is_empty() { "(no version)".to_owned() } else { version.to_owned() };
    Err(PolicyError::WrongVersion { found, spoken: API_VERSION })
}

fn find_hook(component: &Component) -> Result<(Hook, String), PolicyError> {
    let engine = component.engine();
    let ty = component.component_type();
    let exports: Vec<(&str, &str)> = ty.exports(engine).filter_map(|(name, _)| interface(name)).collect();
    let imports: Vec<(&str, &str)> = ty.imports(engine).filter_map(|(name, _)| interface(name)).collect();
    exports.iter().chain(&imports).try_for_each(|(_, version)| check_version(version))?;
    let mut hooks = Hook::ALL.into_iter().filter_map(|hook| {
        exports.iter().find(|(name, _)| *name == hook.as_str()).map(|(_, version)| (hook, (*version).to_owned()))
    });
    let found = hooks.next().ok_or(PolicyError::NoHook)?;
    if let Some((second, _)) = hooks.next() {
        return Err(PolicyError::ManyHooks(found.0, second));
    }
    if !exports.iter().any(|(name, _)| *name == "plugin") {
        return Err(PolicyError::MissingExport("plugin", found.0));
    }
    Ok(found)
}

fn check_imports(component: &Component, hook: Hook) -> Result<Vec<String>, PolicyError> {
    let ty = component.component_type();
    let imports: Vec<String> = ty.imports(component.engine()).map(|(name, _)| name.to_owned()).collect();
    for import in &imports {
        let plain = import.split('@').next().unwrap_or(import).to_owned();
        if let Some((name, _)) = interface(import) {
            if spec(hook).grants(name) {
                continue;
            }
            if Hook::ALL.iter().any(|other| spec(*other).grants(name)) {
                return Err(PolicyError::NotGrantedToHook { import: plain, hook });
            }
            return Err(PolicyError::NotGranted { import: plain });
        }
        match plain.strip_prefix("wasi:").map(|name| wasi::INTERFACES.contains(&name)) {
            Some(true) if import.contains("@0.2.") => {}
            // Only the version is wrong.
            Some(true) => return Err(PolicyError::NotGranted { import: import.clone() }),
            _ => return Err(PolicyError::NotGranted { import: plain }),
        }
    }
    Ok(imports)
}

fn link(linker: &Linker<GuestState>, component: &Component, hook: Hook) -> Result<HookPre, PolicyError> {
    let mistyped = |error: wasmtime::Error| PolicyError::Mistyped { hook, source: error.into() };
    let pre = linker.instantiate_pre(component).map_err(mistyped)?;
    HookPre::new(hook, pre).map_err(mistyped)
}

/// Makes a throwaway instance describe itself and, if there are settings, accept them.
pub(crate) fn introduce(
    runtime: &Runtime,
    compiled: &Compiled,
    identity: Arc<Identity>,
    memory_bytes: usize,
    settings: Option<&str>,
) -> Result<Description, PolicyError> {
    let hook = compiled.pre.hook();
    let mut state = state_for(hook, identity, memory_bytes, None);
    // There is no model yet, so the vocabulary is not available to a sampler.
    state.vocabulary = Some(Arc::new(Vocabulary::new([""; 0], Vec::new())));
    let mut store = store::open(runtime.engine(hook), state, START_LIMIT);
    let guest = compiled.pre.instantiate(&mut store).map_err(|e| start_error("start", START_LIMIT, &e, &store))?;
    store::arm(&mut store, DESCRIBE_LIMIT);
    let said = guest.describe(&mut store).map_err(|e| start_error("describe", DESCRIBE_LIMIT, &e, &store))?;
    if let Some(settings) = settings {
        store::arm(&mut store, CONFIGURE_LIMIT);
        let accepted = guest.configure(&mut store, settings);
        let accepted = accepted.map_err(|e| start_error("configure", CONFIGURE_LIMIT, &e, &store))?;
        accepted.map_err(|text| PolicyError::RefusesSettings(sentence(&text)))?;
    }
    Ok(Description {
        name: on_one_line(truncated(&said.name, NAME_BYTES)),
        version: on_one_line(truncated(&said.version, NAME_BYTES)),
        settings_schema: truncated(&said.settings_schema, SCHEMA_BYTES).to_owned(),
    })
}

fn start_error(
    call: &'static str,
    limit: Duration,
    error: &wasmtime::Error,
    store: &wasmtime::Store<GuestState>,
) -> PolicyError {
    let (kind, detail) = store.data().classify(error);
    let detail = sentence(&detail);
    match kind {
        FaultKind::Deadline => PolicyError::Spins { call, limit },
        FaultKind::Memory => PolicyError::MemoryAtStart(detail),
        FaultKind::Trap => PolicyError::TrapsAtStart(detail),
        FaultKind::InvalidOutput => PolicyError::NonsenseAtStart(detail),
        FaultKind::Unavailable | FaultKind::Exhausted => PolicyError::NoInstance(detail),
    }
}

/// A text of the guest or the compiler, made fit for one line of a log.
fn sentence(text: &str) -> String {
    on_one_line(truncated(text.trim(), SENTENCE_BYTES))
}
