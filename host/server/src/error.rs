//! What can end the process, and the exit code each condition has (sysexits).
use std::error::Error;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::{fmt, io};

use camshaft_api::{NotAdded, StartError};
use camshaft_core::engine::EngineError;
use camshaft_engine::EngineLoadError;
use camshaft_engine::disk::DiskError;
use camshaft_policy::{FileError, Misplaced, PolicyError};
use camshaft_registry::{Class, RegistryError};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGKILL, SIGXCPU};

use crate::config::{ConfigError, ModelConfig, Origin, Origins};

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    #[error("configuration: {0}")]
    Value(#[from] Box<BadValue>),
    #[error("configuration: no cache on disk is configured (cache.disk-dir and cache.disk)")]
    NoDiskCache,
    #[error("{}: no such file", path.display())]
    NoFile { path: PathBuf },
    #[error(transparent)]
    Model(#[from] Box<BadModel>),
    #[error("policy {file}: {why}")]
    BadPolicy { file: String, why: String },
    #[error("policy {}: {}", .0.path.display(), .0.reason)]
    Misplaced(Misplaced),
    /// Of components on the command line, each with its file.
    #[error("{}", .0.iter().map(BadPlugin::to_string).collect::<Vec<_>>().join("\ncamshaft: "))]
    BadPlugins(Vec<BadPlugin>),
    #[error("{}", chain(source))]
    NoDiskDirectory { source: DiskError },
    #[error("{source}: stop the server first")]
    DiskInUse { source: DiskError },
    #[error("{count} damaged places; what they held is recomputed")]
    DamagedCache { count: usize },
    #[error("the models cannot be served: {0}")]
    Api(#[from] StartError),
    #[error("cannot start the policy host: {}", .source.sentence())]
    Policies { source: PolicyError },
    #[error("cannot listen on {address}: {source}{origin}")]
    Listen { address: SocketAddr, source: std::io::Error, origin: Box<Origin> },
    /// A server that was asked how it is.
    #[error("http://{address}{path}: {why}")]
    Unwell { address: SocketAddr, path: &'static str, why: String },
    /// Of the cache of models, or of what is pulled into it.
    #[error("{0}")]
    Registry(#[from] RegistryError),
    #[error("{count} models are damaged or cannot be read")]
    DamagedModels { count: usize },
    #[error("{what}: {source}")]
    Internal { what: &'static str, source: anyhow::Error },
}

/// A value of the configuration that turned out wrong when it was used, and who wrote it.
#[derive(Debug, thiserror::Error)]
#[error("{} = {value}: {source}{origin}", .origin.key)]
pub(crate) struct BadValue {
    value: String,
    source: Problem,
    origin: Origin,
}

/// What is wrong with a value that is well-formed: an error, or a sentence.
pub(crate) type Problem = Box<dyn Error + Send + Sync>;

/// A model that cannot be served, and who wrote the key at fault.
#[derive(Debug, thiserror::Error)]
#[error("model {id:?}: {source}{origin}")]
pub(crate) struct BadModel {
    id: String,
    pub(crate) source: ModelProblem,
    origin: Origin,
}

/// Why another process cannot do what it was started for, as it says, or as its end says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Of the model's configuration: what is to blame.
    key: String,
    pub(crate) why: String,
    /// See [`ServerError::exit_code`].
    code: u8,
    /// There was no memory for a context, where it should lie.
    pub(crate) lacks_context: bool,
}

impl Failure {
    pub(crate) fn of(error: &ServerError) -> Self {
        let (key, why) = match error {
            ServerError::Model(model) => (model.origin.key.clone(), model.source.to_string()),
            ServerError::Value(value) => (value.origin.key.clone(), value.source.to_string()),
            error => ("path".to_owned(), error.to_string()),
        };
        Self { key, why, code: error.exit_code(), lacks_context: error.lacks_context() }
    }

    pub(crate) fn internal(error: &impl fmt::Display) -> Self {
        Self { key: "path".to_owned(), why: format!("no process for it: {error}"), code: 70, lacks_context: false }
    }

    /// Of a process that did not say why it ended, or that is ended because it says nothing. `does`: what it was started for.
    pub(crate) fn of_process(config: &ModelConfig, does: &str, mut child: Child, error: &io::Error) -> Self {
        let path = config.file_name();
        let is_gone = error.kind() == io::ErrorKind::UnexpectedEof;
        if !is_gone {
            // It may have ended by itself.
            let _ = child.kill();
        }
        let signal = child.wait().ok().and_then(|status| status.signal());
        let (why, code) = match signal.filter(|_| is_gone) {
            // From outside: the machine's fault, and not the file's.
            Some(SIGKILL) => ("was killed, as the system does when memory is short".to_owned(), 70),
            Some(SIGXCPU) => ("took too much time".to_owned(), 65),
            Some(signal) => (format!("crashed (signal {signal}); the log says more"), 65),
            None if is_gone => ("ended; the log says more".to_owned(), 65),
            None => (format!("failed: {error}"), 65),
        };
        let why = format!("bad model file {}: the process that {does} it {why}", path.display());
        Self { key: "path".to_owned(), why, code, lacks_context: false }
    }

    /// As this process says it.
    pub(crate) fn error(self, config: &ModelConfig) -> ServerError {
        let Self { key, why, code, .. } = self;
        ServerError::model(&config.id, &config.origins, &key, ModelProblem::Process { why, code })
    }
}

impl ModelProblem {
    /// As a process says.
    pub(crate) fn said(why: String) -> Self {
        Self::Process { why, code: 65 }
    }
}

/// What is wrong with a model's files.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelProblem {
    #[error("{0}")]
    Load(#[from] EngineLoadError),
    #[error("cannot compute: {0}")]
    Compute(#[from] EngineError),
    #[error("bad model file {}: {why}", path.display())]
    Refused { path: PathBuf, why: String },
    /// As a process says that has loaded it, or tried.
    #[error("{why}")]
    Process { why: String, code: u8 },
    #[error(
        "a device that it was on failed, and the host's memory has no room for it: it takes {wanted} bytes, and {available} are \
         left for it beside what others were given"
    )]
    NoRoom { wanted: u64, available: u64 },
    #[error("{0}")]
    Adapter(NotAdded),
    #[error("cannot be pulled: {0}")]
    Pull(#[from] RegistryError),
    #[error("chat-template: {0}")]
    Template(#[from] FileError),
    #[error("its chat template does not compile, so it answers no chats: {0}")]
    Jinja(String),
    #[error("draft-model {}: {source}", path.display())]
    Draft { path: PathBuf, source: DraftProblem },
}

/// Why a model cannot draft for another one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DraftProblem {
    #[error("its vocabulary of {theirs} tokens is not the model's own of {ours}")]
    Vocabulary { theirs: usize, ours: usize },
    #[error("{0}")]
    KvType(EngineLoadError),
    #[error("a rejected draft cannot be removed from the state of such a model")]
    StateCannotBeCut,
}

/// A component that this host does not take.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", file.display(), source.sentence())]
pub(crate) struct BadPlugin {
    pub(crate) file: PathBuf,
    pub(crate) source: PolicyError,
}

impl ServerError {
    /// 64 usage or configuration, 65 bad model or plugin data, 66 missing input, 69 address in use or no answer, 70 internal.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(ConfigError::NoFile { .. } | ConfigError::File(FileError::NotRegular { .. })) => 66,
            Self::NoFile { .. } | Self::NoDiskDirectory { .. } => 66,
            Self::Config(ConfigError::Unwritable(_)) => 70,
            Self::Config(_) | Self::Value(_) | Self::NoDiskCache | Self::DiskInUse { .. } => 64,
            Self::Model(bad) => bad.exit_code(),
            Self::BadPolicy { .. } | Self::Misplaced(_) | Self::BadPlugins(_) => 65,
            Self::DamagedCache { .. } | Self::DamagedModels { .. } | Self::Api(_) => 65,
            Self::Registry(error) => of_registry(error),
            Self::Listen { .. } | Self::Unwell { .. } => 69,
            Self::Policies { .. } | Self::Internal { .. } => 70,
        }
    }

    pub(crate) fn internal(what: &'static str, source: impl Into<anyhow::Error>) -> Self {
        Self::Internal { what, source: source.into() }
    }

    /// The value of `key` turned out wrong.
    pub(crate) fn value(
        origins: &Origins,
        key: &str,
        value: &(impl fmt::Display + ?Sized),
        problem: impl Into<Problem>,
    ) -> Self {
        Box::new(BadValue { value: format!("{value}"), source: problem.into(), origin: origins.at(key) }).into()
    }

    /// The model cannot be served because of `key`.
    pub(crate) fn model(id: &str, origins: &Origins, key: &str, problem: impl Into<ModelProblem>) -> Self {
        Box::new(BadModel { id: id.to_owned(), source: problem.into(), origin: origins.at(key) }).into()
    }

    /// There was no memory for a context, where it should lie.
    fn lacks_context(&self) -> bool {
        let Self::Model(model) = self else { return false };
        matches!(model.source, ModelProblem::Load(EngineLoadError::NoContext { .. }))
    }
}

/// 69: the network, space, or somebody who has a model in use; later it may work.
fn of_registry(error: &RegistryError) -> u8 {
    match error.class() {
        Class::Usage => 64,
        Class::Data => 65,
        Class::Missing => 66,
        Class::Unavailable => 69,
        Class::Internal => 70,
    }
}

/// An error and its causes, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => format!("{error}"),
    }
}

impl BadModel {
    fn exit_code(&self) -> u8 {
        match &self.source {
            ModelProblem::Load(error) if error.is_missing_input() => 66,
            ModelProblem::Process { code, .. } => *code,
            ModelProblem::Pull(error) => of_registry(error),
            ModelProblem::Template(_) => 66,
            _ => 65,
        }
    }
}
