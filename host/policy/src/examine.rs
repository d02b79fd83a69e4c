//! Examines a component: compiles it and checks that it fits its hook. Every possible error has a sentence for the
//! operator.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use camshaft_core::policy::{FaultKind, Hook};
use camshaft_core::shown::on_one_line;
use camshaft_core::vocabulary::Vocabulary;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};

use crate::addresses::Addresses;
use crate::bindings::Description;
use crate::bindings::checkpoint::Checkpoints;
use crate::code::{CodeDir, CodeName};
use crate::digest::digest_of;
use crate::engine::{self, compile_error};
use crate::error::PolicyError;
use crate::files::COMPONENT_MAX_BYTES;
use crate::imports::identity::Identity;
use crate::loaded::{Asks, Compiled, HookPre, state_for};
use crate::private_dir;
use crate::runtime::{self, Runtime};
use crate::store::{self, GuestState};
use crate::supplies::Supplies;
use crate::surface::{self, Surface};
use crate::task::Task;
use crate::text::truncated;

pub(crate) const START_LIMIT: Duration = Duration::from_secs(1);
const DESCRIBE_LIMIT: Duration = Duration::from_millis(100);
pub(crate) const CONFIGURE_LIMIT: Duration = Duration::from_secs(1);
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
        surface::of_hook(bytes, hook)?;
        let linker = runtime::linker(&engine, hook).map_err(|error| PolicyError::Runtime(error.into()))?;
        link(&linker, &component, hook)?;
        CodeDir::new(&cache_dir).keep(&CodeName::of(&engine, hook, bytes), &component)
    }));
    built.unwrap_or(Err(PolicyError::CompilerPanic))
}

fn build(runtime: &Runtime, task: &Task<'_>) -> Result<Compiled, PolicyError> {
    let Task { hook, bytes, .. } = *task;
    let Surface { api_version, imports, exports, .. } = surface::of_hook(bytes, hook)?;
    let component = runtime.component(task)?;
    let pre = link(runtime.linker(hook), &component, hook)?;
    let asks = asks(&component);
    let (digest, size_bytes) = (digest_of(bytes), bytes.len() as u64);
    let (file, code) = (ArcSwapOption::empty(), runtime.code_name(hook, bytes));
    Ok(Compiled { digest, size_bytes, file, code, api_version, imports, exports, asks, pre })
}

/// A component imports the methods that it may call, and no others.
fn asks(component: &Component) -> Asks {
    let (engine, whole) = (component.engine(), component.component_type());
    let mut asks = Asks::default();
    for (interface, import) in whole.imports(engine) {
        let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
        let has = |method| instance.exports(engine).any(|(name, _)| name == method);
        if interface.starts_with("camshaft:sampler/context@") {
            asks.fields |= has("[method]sequence.field");
        }
        if interface.starts_with("camshaft:filter/context@") {
            asks.fields |= has("[method]stream.field");
            asks.logprobs |= has("[method]stream.logprobs");
        }
    }
    asks
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

pub(crate) fn link(linker: &Linker<GuestState>, component: &Component, hook: Hook) -> Result<HookPre, PolicyError> {
    let pre = linker.instantiate_pre(component).map_err(|error| unlinked(hook, error))?;
    HookPre::new(hook, pre).map_err(|error| PolicyError::Mistyped { hook, source: error.into() })
}

/// Why a component whose imports are all granted cannot be linked: it calls a function that there is not, or one of another type.
/// wasmtime tells them apart in words only. Where those change, a test fails, and the operator reads them as they are.
fn unlinked(hook: Hook, error: wasmtime::Error) -> PolicyError {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    let quoted = |text: &str| text.split('`').nth(1).map(str::to_owned);
    let is_missing = causes.last().is_some_and(|cause| cause.contains("implementation is missing"));
    let interface = causes.iter().find(|cause| cause.starts_with("component imports instance `"));
    let function = causes.iter().find(|cause| cause.starts_with("instance export `"));
    match (interface.and_then(|text| quoted(text)), function.and_then(|text| quoted(text))) {
        (Some(interface), Some(function)) if is_missing => PolicyError::MissingFunction { interface, function },
        _ => PolicyError::Mistyped { hook, source: error.into() },
    }
}

/// Makes a throwaway instance describe itself and, if there are settings, accept them.
pub(crate) fn introduce(
    runtime: &Runtime,
    compiled: &Compiled,
    of: (Arc<Identity>, Arc<Supplies>),
    memory_bytes: usize,
    settings: Option<&str>,
) -> Result<Description, PolicyError> {
    let hook = compiled.pre.hook();
    let mut state = state_for(hook, of, memory_bytes, None);
    // There is no model yet, so the vocabulary is not available to a sampler.
    state.vocabulary = Some(Arc::new(Vocabulary::new([""; 0], Vec::new())));
    let mut store = store::open((runtime.engine(hook), &runtime.clock), state, START_LIMIT);
    let whole = compiled.pre.instantiate_whole(&mut store);
    let (guest, instance) = whole.map_err(|e| start_error("start", START_LIMIT, &e, &store))?;
    if compiled.has_checkpoint() {
        let checkpoints = Checkpoints::new(&mut store, &instance);
        checkpoints.map_err(|source| PolicyError::Mistyped { hook, source: source.into() })?;
    }
    store::arm(&mut store, DESCRIBE_LIMIT);
    let said = guest.describe(&mut store).map_err(|e| start_error("describe", DESCRIBE_LIMIT, &e, &store))?;
    if let Some(settings) = settings {
        store::arm(&mut store, CONFIGURE_LIMIT);
        let accepted = guest.configure(&mut store, settings);
        let accepted = accepted.map_err(|e| start_error("configure", CONFIGURE_LIMIT, &e, &store))?;
        accepted.map_err(|text| PolicyError::RefusesSettings(sentence(&text)))?;
    }
    Ok(Description {
        name: name_of(&said),
        version: on_one_line(truncated(&said.version, NAME_BYTES)),
        settings_schema: truncated(&said.settings_schema, SCHEMA_BYTES).to_owned(),
    })
}

/// The name by which a plugin describes itself, as it is known.
pub(crate) fn name_of(said: &Description) -> String {
    on_one_line(truncated(&said.name, NAME_BYTES))
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
