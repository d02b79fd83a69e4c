//! What can go wrong with a policy file, as sentences that an operator reads.
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::policy::{Hook, guarded};
use camshaft_core::shown::on_one_line;
use rustix::process::Signal;

use crate::bindings::export_of;
use crate::text::truncated;

/// Bytes of a whole sentence.
const SENTENCE_BYTES: usize = 4096;

/// An error of a library's that is kept as the cause.
type Cause = Box<dyn Error + Send + Sync>;

/// Why a policy (or the policy host itself) could not be brought up.
///
/// Where one component is at fault the text does not name its path: the caller knows it. Causes are not in the text either:
/// [`PolicyError::sentence`] has them all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The runtime could not be set up.
    #[error("cannot set up the WebAssembly runtime")]
    Runtime(#[source] Cause),
    /// The process may not reserve the addresses of guests' memories.
    #[error("policies need 512 GiB of addresses, which take no memory, and the limit is {limit} bytes (`ulimit -v`)")]
    Addresses { limit: u64, source: Cause },
    #[error("the directory for compiled code, {}, cannot be used", path.display())]
    Cache { path: PathBuf, source: std::io::Error },
    #[error("the directory for compiled code, {}, belongs to another user", path.display())]
    ForeignCache { path: PathBuf },
    /// A metric could not be registered.
    #[error("cannot register the policy metrics")]
    Metrics(#[from] prometheus::Error),
    /// A thread could not be started.
    #[error("cannot start the thread {name}")]
    Thread { name: &'static str, source: std::io::Error },
    /// A file or directory could not be read.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The thread that loads policies is gone or stuck.
    #[error("the thread that loads policies does not answer")]
    Unanswered,
    /// As many requests wait for the thread as may wait.
    #[error("too many requests wait for policies that are being compiled")]
    Busy,
    #[error("{} holds no policies: it has none of {}", path.display(), hook_directories())]
    NoPolicyDirectory { path: PathBuf },
    #[error("{} has no auth policy in force, but callers that are not local may come (or set allow-anonymous)", path.display())]
    NoAuth { path: PathBuf },
    #[error(
        "{} {}: nothing in it would say who may call. Name a directory with policies, or set policy.allow-empty = true if \
         you want none",
        path.display(),
        if *missing { "does not exist" } else { "holds no policies" }
    )]
    NoPolicies { path: PathBuf, missing: bool },
    #[error("{} has no {hook} policy in force, but one serves now (set policy.allow-empty = true if you want none)", path.display())]
    Unguards { path: PathBuf, hook: Hook },
    #[error(
        "{} has no settings, or no [match], for the {hook} policy {plugin}, which has some now (copy its settings file, or set \
         policy.allow-empty = true if you want none)",
        path.display()
    )]
    Unsettles { path: PathBuf, hook: Hook, plugin: String },
    /// Another directory was asked for before this one could serve, or nobody waits for it any more.
    #[error("{} was not taken: something else was asked for meanwhile", path.display())]
    Superseded { path: PathBuf },
    /// A policy of another directory that was to serve from now on.
    #[error("{}", path.display())]
    Relocation { path: PathBuf, source: Arc<PolicyError> },
    #[error("{} holds more than {most} policies; which of them guard must not depend on their numbers", path.display())]
    TooManyPolicies { path: PathBuf, most: usize },
    /// What guards was there, and is gone before it served.
    #[error("{} has vanished while the policies were read", path.display())]
    Vanished { path: PathBuf },
    /// The file changed while it was read.
    #[error("{} is being written", path.display())]
    Unsettled { path: PathBuf },
    #[error("{what} of {size_bytes} bytes is larger than the {limit_bytes} bytes allowed")]
    TooLarge { what: &'static str, size_bytes: u64, limit_bytes: u64 },
    #[error("not a WebAssembly component: this is a core module (build for wasm32-wasip2, or wrap it as a component)")]
    CoreModule,
    #[error("not a WebAssembly component: the file does not begin as one")]
    NotWasm,
    #[error("file is truncated or corrupt: it is empty")]
    Empty,
    #[error("file is truncated or corrupt: it ends after {size_bytes} bytes")]
    Cut { size_bytes: usize },
    #[error("file is truncated or corrupt")]
    Corrupt(#[source] Cause),
    #[error("file is truncated or corrupt: the compiler panicked over it")]
    CompilerPanic,
    #[error("cannot run the process that compiles it")]
    CompileProcess { source: std::io::Error },
    #[error("the process that compiled it was killed by signal {signal}")]
    CompileKilled { signal: i32 },
    #[error("compiling it took more than the {} that a compile may take", seconds(*.limit))]
    CompileTime { limit: Duration },
    #[error(
        "compiling it took more than the {limit_bytes} bytes of memory (or the stack) that a compile may take: {said}"
    )]
    CompileMemory { limit_bytes: u64, said: String },
    #[error("compiling it took more than the {left_bytes} bytes of memory that its control group leaves: {said}")]
    CompileMemoryLeft { left_bytes: u64, said: String },
    #[error("loading its code takes up to {needs_bytes} bytes of memory, but its control group leaves {left_bytes}")]
    LoadMemory { needs_bytes: u64, left_bytes: u64 },
    #[error("its canary {digest} was ended, because {why}; it is tried again when its file changes, or with promote")]
    CanaryEnded { digest: String, why: String },
    #[error("{most} new versions of its hook are on trial, as many as may be: it waits for one of them")]
    TooManyTrials { most: usize },
    #[error("there is no earlier version of it that served cleanly since the server started")]
    NoLastGood,
    #[error("only its settings changed")]
    OnlySettings,
    #[error(
        "{}, because {why}; it is loaded again when its file changes, or with promote", rolled_back(.digest, .good)
    )]
    RolledBack { digest: String, good: String, why: String },
    #[error(
        "{times} times in a row: {last} (is there not enough memory?); it is tried again when its file changes, or at a \
         reload"
    )]
    GivenUp { last: Arc<PolicyError>, times: u32 },
    #[error(
        "there is no directory for compiled code, without which nothing is compiled: set XDG_CACHE_HOME to one that only \
         this user can write to"
    )]
    NoCodeDirectory,
    #[error("its compiled code could not be kept in {}", path.display())]
    CodeNotKept { path: PathBuf, source: std::io::Error },
    #[error("the server ends: it was not compiled")]
    CompileStopped,
    #[error("needs more than a policy may have")]
    OverLimits(#[source] Cause),
    #[error("needs more than a policy may have: {0}")]
    NoInstance(String),
    #[error("wrong hook: exports {} but lies in {expected}/", export_of(*found))]
    WrongHook { found: Hook, expected: Hook },
    /// In the words of the process that compiled it.
    #[error("{0}")]
    Unfit(String),
    #[error("exports no hook: expected one of {}", hook_exports())]
    NoHook,
    #[error("exports {export}, which is no hook of this host: expected one of {}", hook_exports())]
    UnknownExport { export: String },
    #[error("exports more than one hook: {0} and {1}")]
    ManyHooks(Hook, Hook),
    #[error("built for {interface}@{found}; this host speaks {spoken}")]
    WrongVersion { interface: String, found: String, spoken: &'static str },
    #[error(
        "needs the function {function} of {interface}, which this host does not have: it was built for a newer one"
    )]
    MissingFunction { interface: String, function: String },
    #[error("does not export {0}, which every {1} policy must")]
    MissingExport(&'static str, Hook),
    #[error("imports {import}, which {hook}s are not granted")]
    NotGrantedToHook { import: String, hook: Hook },
    #[error("imports {import}, which is not granted")]
    NotGranted { import: String },
    #[error("does not fit the {hook} world")]
    Mistyped { hook: Hook, source: Cause },
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
    /// It runs without settings, which it does not take.
    #[error("refuses its settings: {why} (it has none, since there is no {file} beside it)")]
    NeedsSettings { file: String, why: String },
    /// The file is the one beside the component.
    #[error("{file}{}: {problem}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Settings { file: String, line: Option<usize>, problem: SettingsError },
    /// Before it is had for the first time. Later, its last good version stays.
    #[error("its document {name} cannot be read from {from}: {why}")]
    NoDocument { name: String, from: String, why: String },
    #[error("its secret {name} cannot be read: {why}")]
    NoSecret { name: String, why: String },
    #[error("its {what} is at {from}, which the configuration does not grant it (policy.grant)")]
    Withheld { what: String, from: String },
    /// Only while a newer component is being compiled.
    #[error("its documents are being read")]
    DocumentsOpening,
    #[error("the name {name} is taken by {first}")]
    NameTaken { name: String, first: String },
}

/// What is wrong in a settings file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// In the parser's words.
    #[error("not valid TOML: {0}")]
    Syntax(String),
    #[error("unknown key {key}{hint}")]
    UnknownKey { key: String, hint: String },
    #[error("{key} belongs under [policy]")]
    OutsidePolicy { key: String },
    #[error("{key} = {value}: {expected}")]
    Value { key: String, value: String, expected: &'static str },
    #[error("match.endpoints: {pattern} is no route that auth guards: these are {}", routes())]
    NoRoute { pattern: String },
    #[error("monitor-share is for samplers: monitored policies of the {hook} hook see all")]
    MonitorShareUnsupported { hook: Hook },
    #[error("on-fault = {value:?} is not supported for the {hook} hook: {why}")]
    OnFaultUnsupported { hook: Hook, value: &'static str, why: &'static str },
    #[error("required = true is for samplers, which requests may choose; policies of the {hook} hook always run")]
    RequiredUnsupported { hook: Hook },
    #[error(
        "body-digest = true is for auth, before which no body is read otherwise; policies of the {hook} hook are called later"
    )]
    BodyDigestUnsupported { hook: Hook },
    #[error("pins the SHA-256 {pinned}, but the component's is {found}")]
    DigestMismatch { found: String, pinned: String },
    /// A file that was cut looks like this, too.
    #[error(
        "no settings, or no [match], where there was one: write settings = {{}}, or match = {{}}, as its first line if there \
         is to be none, or remove the file"
    )]
    Emptied,
    /// The same policy serves at another place, with settings.
    #[error(
        "there is no such file, and {at}.wasm, of the same name, serves with settings: move {at}.toml here, too, or write \
         settings = {{}} into it if there are to be none"
    )]
    LeftBehind { at: String },
    /// In the plugin's words.
    #[error("the plugin refuses its settings: {0}")]
    Refused(String),
    /// The same of a policy with documents: what it refuses may be what these hold at present.
    #[error("the plugin refuses its settings or a document: {0}")]
    RefusedWithDocuments(String),
}

impl PolicyError {
    /// Whether the same files may be good at another time: nothing in them is the reason.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NoInstance(_)
                | Self::Spins { .. }
                | Self::Thread { .. }
                | Self::Runtime(_)
                | Self::CompileProcess { .. }
                | Self::CompileKilled { .. }
                | Self::CompileMemoryLeft { .. }
                | Self::LoadMemory { .. }
                | Self::CodeNotKept { .. }
                | Self::Cache { .. }
                | Self::NoDocument { .. }
                | Self::DocumentsOpening
                | Self::Settings { problem: SettingsError::RefusedWithDocuments(_), .. }
                | Self::NoSecret { .. }
                | Self::ForeignCache { .. }
                | Self::TooManyTrials { .. }
        )
    }

    /// Whether the component itself is not fit to be a policy, whenever and wherever it is compiled.
    pub(crate) fn is_of_component(&self) -> bool {
        matches!(
            self,
            Self::Empty
                | Self::Cut { .. }
                | Self::TooLarge { .. }
                | Self::CoreModule
                | Self::NotWasm
                | Self::NoHook
                | Self::UnknownExport { .. }
                | Self::MissingFunction { .. }
                | Self::ManyHooks(..)
                | Self::MissingExport(..)
                | Self::WrongVersion { .. }
                | Self::NotGranted { .. }
                | Self::NotGrantedToHook { .. }
                | Self::Mistyped { .. }
        )
    }

    /// Whether it stands for memory that was not there. What takes more than there is does so each time.
    pub(crate) fn lacks_memory(&self) -> bool {
        match self {
            Self::CompileKilled { signal } => *signal == Signal::KILL.as_raw(),
            Self::CompileMemoryLeft { .. } | Self::LoadMemory { .. } => true,
            _ => false,
        }
    }

    /// The error and all its causes, on one line.
    pub fn sentence(&self) -> String {
        on_one_line(truncated(with_causes(self).trim(), SENTENCE_BYTES))
    }
}

/// The error and all its causes.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Why a policy was rejected, with all causes in its text.
#[derive(Debug)]
pub(crate) struct Rejection(pub(crate) Arc<PolicyError>);

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.sentence())
    }
}

impl Error for Rejection {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

fn hook_directories() -> String {
    Hook::ALL.map(|hook| format!("{hook}/")).join(", ")
}

fn hook_exports() -> String {
    Hook::ALL.map(export_of).join(", ")
}

/// As patterns: what has a placeholder is any that begins so.
fn routes() -> String {
    guarded::ROUTES.join(", ").replace("{*id}", "*")
}

fn rolled_back(digest: &str, good: &str) -> String {
    if digest == good {
        return format!("its settings were rolled back to those before them, with the same component {digest}");
    }
    format!("its component {digest} was rolled back to {good}")
}

fn seconds(limit: Duration) -> String {
    if limit.as_millis().is_multiple_of(1000) {
        format!("{} s", limit.as_secs())
    } else {
        format!("{} ms", limit.as_millis())
    }
}
