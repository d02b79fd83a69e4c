//! What can go wrong with a policy file, as sentences that an operator reads.
use std::path::PathBuf;
use std::time::Duration;

use camshaft_core::policy::Hook;

/// Why a policy (or the policy host itself) could not be brought up.
///
/// For everything that is wrong with one file the text says what is wrong and leaves the path to whoever prints it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The runtime could not be set up.
    #[error("cannot set up the WebAssembly runtime: {0}")]
    Runtime(String),
    /// A metric could not be registered.
    #[error("cannot register the policy metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A thread could not be started.
    #[error("cannot start the thread {name}")]
    Thread { name: &'static str, source: std::io::Error },
    /// A file or directory could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// Whoever loads policies is gone or stuck.
    #[error("the thread that loads policies does not answer")]
    Unanswered,
    #[error("{} holds no policies: it has none of auth/, validator/, scheduler/, sampler/", path.display())]
    NoPolicyDirectory { path: PathBuf },
    #[error("{} has no auth policy in force, but callers that are not local may come (or set allow-anonymous)", path.display())]
    NoAuth { path: PathBuf },
    /// A policy of another directory that was to serve from now on.
    #[error("{}: {why}", path.display())]
    Relocation { path: PathBuf, why: String },
    /// The file changed while it was read.
    #[error("{} is being written", path.display())]
    Unsettled { path: PathBuf },
    #[error("{what} of {size_bytes} bytes is larger than the {limit_bytes} bytes allowed")]
    TooLarge { what: &'static str, size_bytes: u64, limit_bytes: u64 },
    #[error("not a WebAssembly component: this is a core module (build for wasm32-wasip2, or wrap it as a component)")]
    CoreModule,
    #[error("not a WebAssembly component: the file does not begin as one")]
    NotWasm,
    #[error("file is truncated or corrupt: {0}")]
    Corrupt(String),
    #[error("needs more than a policy may have: {0}")]
    OverLimits(String),
    #[error("wrong hook: exports camshaft:policy/{found} but lies in {expected}/")]
    WrongHook { found: Hook, expected: Hook },
    #[error("exports no hook: expected one of camshaft:policy/auth, validator, scheduler, sampler")]
    NoHook,
    #[error("exports more than one hook: {0} and {1}")]
    ManyHooks(Hook, Hook),
    #[error("built for camshaft:policy@{found}; this host speaks {spoken}")]
    WrongVersion { found: String, spoken: &'static str },
    #[error("does not export camshaft:policy/{0}, which every {1} policy must")]
    MissingExport(&'static str, Hook),
    #[error("imports {import}, which {hook}s are not granted")]
    NotGrantedToHook { import: String, hook: Hook },
    #[error("imports {import}, which is not granted")]
    NotGranted { import: String },
    #[error("does not fit the {hook} world: {detail}")]
    Mistyped { hook: Hook, detail: String },
    #[error("traps at start: {0}")]
    TrapsAtStart(String),
    #[error("asks for more than its memory at start: {0}")]
    MemoryAtStart(String),
    #[error("spins: {call} ran past {}", seconds(*.limit))]
    Spins { call: &'static str, limit: Duration },
    #[error("answers nonsense at start: {0}")]
    NonsenseAtStart(String),
    #[error("refuses its settings: {0}")]
    RefusesSettings(String),
    #[error("its settings file is not valid TOML: {0}")]
    SidecarSyntax(String),
    #[error("its settings file has an unknown key {key}{}", nearest.as_ref().map(|n| format!(" (did you mean {n}?)")).unwrap_or_default())]
    SidecarKey { key: String, nearest: Option<String> },
    #[error("its settings file has {key} = {value}: {expected}")]
    SidecarValue { key: String, value: String, expected: &'static str },
    #[error("mode \"monitor\" is not supported for the {0} hook yet")]
    MonitorUnsupported(Hook),
    #[error("on-fault = {value:?} is not supported for the {hook} hook: {why}")]
    OnFaultUnsupported { hook: Hook, value: &'static str, why: &'static str },
    #[error("its SHA-256 is {found}, but its settings file pins {pinned}")]
    DigestMismatch { found: String, pinned: String },
    #[error("the name {name} is taken by {first}")]
    NameTaken { name: String, first: String },
}

fn seconds(limit: Duration) -> String {
    if limit.as_millis().is_multiple_of(1000) {
        format!("{} s", limit.as_secs())
    } else {
        format!("{} ms", limit.as_millis())
    }
}
