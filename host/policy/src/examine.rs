//! From bytes to a component that is known to fit its hook, with a sentence for everything that can be wrong with it.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::policy::{FaultKind, Hook};
use camshaft_core::vocabulary::Vocabulary;
use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use crate::bindings::auth::AuthPolicyPre;
use crate::bindings::sampler::SamplerPolicyPre;
use crate::bindings::scheduler::SchedulerPolicyPre;
use crate::bindings::validator::ValidatorPolicyPre;
use crate::error::PolicyError;
use crate::fault::classify;
use crate::identity::Identity;
use crate::loaded::{Compiled, HookPre, state_for};
use crate::runtime::Runtime;
use crate::store;
use crate::text::{on_one_line, truncated};
use crate::wasi;

/// Bytes of a component.
pub(crate) const COMPONENT_MAX_BYTES: u64 = 64 << 20;
/// The version of `camshaft:policy` that this host speaks.
pub(crate) const API_VERSION: &str = "0.1.0";
/// Versions of one track: patches add nothing that a host of the same track lacks.
const API_TRACK: &str = "0.1.";
const PACKAGE: &str = "camshaft:policy/";

const START_LIMIT: Duration = Duration::from_secs(1);
const DESCRIBE_LIMIT: Duration = Duration::from_millis(100);
const CONFIGURE_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of a guest's own sentence, of its name and version, and of its schema.
const SENTENCE_BYTES: usize = 1024;
const NAME_BYTES: usize = 128;
const SCHEMA_BYTES: usize = 256 << 10;

/// The SHA-256 of a file in lower-case hexadecimal.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compiles a component and checks that its imports are granted and its exports are a hook's.
pub(crate) fn compile(runtime: &Runtime, bytes: &[u8]) -> Result<Compiled, PolicyError> {
    check_header(bytes)?;
    // A compiler that panics on hostile input must not take the watcher with it.
    let built = catch_unwind(AssertUnwindSafe(|| Component::from_binary(&runtime.engine, bytes)));
    let component = match built {
        Ok(Ok(component)) => component,
        Ok(Err(error)) => return Err(compile_error(&error)),
        Err(_) => return Err(PolicyError::Corrupt("the compiler gave up on it".to_owned())),
    };
    let (hook, api_version) = find_hook(&component)?;
    let imports = check_imports(&component, hook)?;
    let pre = link(runtime, &component, hook)?;
    Ok(Compiled { digest: digest_of(bytes), size_bytes: bytes.len() as u64, api_version, imports, pre })
}

fn check_header(bytes: &[u8]) -> Result<(), PolicyError> {
    if bytes.len() as u64 > COMPONENT_MAX_BYTES {
        let (size_bytes, limit_bytes) = (bytes.len() as u64, COMPONENT_MAX_BYTES);
        return Err(PolicyError::TooLarge { what: "a component", size_bytes, limit_bytes });
    }
    match bytes {
        [] => Err(PolicyError::Corrupt("it is empty".to_owned())),
        [b'\0', b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(PolicyError::CoreModule),
        [b'\0', b'a', b's', b'm', _, _, _, _, ..] => Ok(()),
        _ if b"\0asm".starts_with(&bytes[..bytes.len().min(4)]) => {
            Err(PolicyError::Corrupt(format!("it ends after {} bytes", bytes.len())))
        }
        _ => Err(PolicyError::NotWasm),
    }
}

fn compile_error(error: &wasmtime::Error) -> PolicyError {
    let text = sentence(&error.root_cause().to_string());
    // What is too large for the pool is well formed: only then does the chain of causes not come from the parser.
    if error
        .chain()
        .any(|cause| cause.to_string().contains("instance allocat") || cause.to_string().contains("pooling"))
    {
        return PolicyError::OverLimits(text);
    }
    PolicyError::Corrupt(text)
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

/// What a component of this hook may import from the policy package.
fn granted(hook: Hook) -> &'static [&'static str] {
    match hook {
        Hook::Auth | Hook::Validator => &["types", "log", "clock", "random", "metrics", "state"],
        Hook::Scheduler => &["types", "log", "random", "metrics", "state"],
        Hook::Sampler => &["types", "log", "clock", "random", "metrics", "state", "vocabulary", "logits"],
    }
}

fn check_imports(component: &Component, hook: Hook) -> Result<Vec<String>, PolicyError> {
    let ty = component.component_type();
    let imports: Vec<String> = ty.imports(component.engine()).map(|(name, _)| name.to_owned()).collect();
    for import in &imports {
        let plain = import.split('@').next().unwrap_or(import).to_owned();
        if let Some((name, _)) = interface(import) {
            if granted(hook).contains(&name) {
                continue;
            }
            if Hook::ALL.iter().any(|other| granted(*other).contains(&name)) {
                return Err(PolicyError::NotGrantedToHook { import: plain, hook });
            }
            return Err(PolicyError::NotGranted { import: plain });
        }
        match plain.strip_prefix("wasi:").map(|name| wasi::INTERFACES.contains(&name)) {
            Some(true) if import.contains("@0.2.") => {}
            // The version is what is wrong.
            Some(true) => return Err(PolicyError::NotGranted { import: import.clone() }),
            _ => return Err(PolicyError::NotGranted { import: plain }),
        }
    }
    Ok(imports)
}

fn link(runtime: &Runtime, component: &Component, hook: Hook) -> Result<HookPre, PolicyError> {
    let mistyped = |error: wasmtime::Error| PolicyError::Mistyped { hook, detail: sentence(&format!("{error:#}")) };
    let pre = runtime.linker(hook).instantiate_pre(component).map_err(mistyped)?;
    match hook {
        Hook::Auth => AuthPolicyPre::new(pre).map(HookPre::Auth),
        Hook::Validator => ValidatorPolicyPre::new(pre).map(HookPre::Validator),
        Hook::Scheduler => SchedulerPolicyPre::new(pre).map(HookPre::Scheduler),
        Hook::Sampler => SamplerPolicyPre::new(pre).map(HookPre::Sampler),
    }
    .map_err(mistyped)
}

/// Who a plugin says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) settings_schema: String,
}

/// Lets a throwaway instance describe itself and, where there are settings, accept them.
pub(crate) fn introduce(
    runtime: &Runtime,
    compiled: &Compiled,
    identity: Arc<Identity>,
    memory_bytes: usize,
    settings: Option<&str>,
) -> Result<Description, PolicyError> {
    let hook = compiled.pre.hook();
    let mut state = state_for(hook, identity, memory_bytes, None);
    // The model is not known yet: a sampler that asks here finds no tokens.
    state.vocabulary = (hook == Hook::Sampler).then(|| Arc::new(Vocabulary::new([""; 0], Vec::new())));
    let mut store = store::open(&runtime.engine, state, START_LIMIT);
    macro_rules! meet {
        ($pre:expr) => {{
            let guest = $pre.instantiate(&mut store).map_err(|e| start_error("start", START_LIMIT, &e, &store))?;
            store::arm(&mut store, DESCRIBE_LIMIT);
            let plugin = guest.camshaft_policy_plugin();
            let said = plugin.call_describe(&mut store);
            let said = said.map_err(|e| start_error("describe", DESCRIBE_LIMIT, &e, &store))?;
            if let Some(settings) = settings {
                store::arm(&mut store, CONFIGURE_LIMIT);
                let accepted = plugin.call_configure(&mut store, settings);
                accepted
                    .map_err(|e| start_error("configure", CONFIGURE_LIMIT, &e, &store))?
                    .map_err(|text| PolicyError::RefusesSettings(sentence(&text)))?;
            }
            Ok(Description {
                name: on_one_line(truncated(&said.name, NAME_BYTES)),
                version: on_one_line(truncated(&said.version, NAME_BYTES)),
                settings_schema: truncated(&said.settings_schema, SCHEMA_BYTES).to_owned(),
            })
        }};
    }
    match &compiled.pre {
        HookPre::Auth(pre) => meet!(pre),
        HookPre::Validator(pre) => meet!(pre),
        HookPre::Scheduler(pre) => meet!(pre),
        HookPre::Sampler(pre) => meet!(pre),
    }
}

fn start_error(
    call: &'static str,
    limit: Duration,
    error: &wasmtime::Error,
    store: &wasmtime::Store<store::GuestState>,
) -> PolicyError {
    let (kind, detail) = classify(error, store.data());
    let detail = sentence(&detail);
    match kind {
        FaultKind::Deadline => PolicyError::Spins { call, limit },
        FaultKind::Memory => PolicyError::MemoryAtStart(detail),
        FaultKind::Trap => PolicyError::TrapsAtStart(detail),
        FaultKind::InvalidOutput => PolicyError::NonsenseAtStart(detail),
        FaultKind::Unavailable => PolicyError::OverLimits(detail),
    }
}

/// A text of the guest's or the compiler's, fit for one line of a log.
fn sentence(text: &str) -> String {
    on_one_line(truncated(text.trim(), SENTENCE_BYTES))
}
