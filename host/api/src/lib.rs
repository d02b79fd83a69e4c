//! The HTTP surface: OpenAI-style endpoints over the pools behind [`backend`], health, metrics and admin.
//!
//! Three layers, each of which uses only those below it: [`http`] (routes, auth, admin), [`flow`] (a request from its
//! body to its response), [`wire`] (the format of bodies and responses).
#![forbid(unsafe_code)]

mod flow;
#[doc(hidden)]
pub mod fuzz;
mod http;
mod wire;

pub use flow::adapters::{
    Adapter, AdapterLease, AdapterSource, Adapters, LoadedFile, NotAdded, WantedAdapter, is_name as is_adapter_name,
};
pub use flow::api::{Api, ApiLimits, ApiOptions, Replaced, StartError};
pub use flow::backend::FirstReply;
pub use flow::backend::PoolSnapshot;
pub use flow::backend::{
    self, Backend, ConfiguredSampling, EmbedBackend, GenerateBackend, Model, Naming, PoolMessage, PredictBackend,
    PredictInfo, Submission, TextModel,
};
pub use flow::backend::{Control, PolicyScan, Reloaded};
pub use flow::catalog::Absence;
pub use flow::jobs::{EmbedJobs, Job, Jobs, NotTaken, PendingJob, PredictJobs, Queue, QueueBounds, Ticket, Work, jobs};
pub use flow::life::{
    AdapterRefusal, Change, FixedModels, ModelControl, ModelRefusal, Operation, OperationState, Residence, Usage, Woken,
};
pub use flow::notation::markers;
pub use flow::quota::Spent;
pub use flow::quota::{LocalQuotas, QuotaStore};
pub use flow::readiness::{Health, ModelHealth, Readiness, ServerState, WorkerState};
pub use flow::trace;
pub use http::access::PeerCertificates;
pub use http::access::PublicAccess;
pub use http::admin::AdminAccess;
pub use http::error::MAX_HEADERS;
pub use http::head::refused_head;
pub use http::health::loading_router;
pub use http::routes::{Access, ROUTES, Route, admin_router, public_router};
