//! Samplers and filters in another process: a copy of what is loaded here, and what happens there.
//!
//! The process that loads policies tells each process that runs them what it lacks ([`ReplicaUpdate`], made by a [`Replication`]): loads
//! with their code by name, generations, settings, documents and state. A generation is told before any request can begin under it. Back
//! come notes ([`Noted`]) of calls, faults and changes of state, which count here as if the calls had been made here.
mod copy;
mod feed;

use std::collections::BTreeMap;

use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::Hook;
use serde::{Deserialize, Serialize};

pub use self::copy::PolicyReplica;
pub use self::feed::Replication;
use crate::code::CodeName;
use crate::documents::Version;
use crate::grants::Grant;
use crate::imports::state::StateNews;
use crate::journal::Happened;
use crate::loaded::Asks;
use crate::secrets::Secrets;
use crate::set::SetCopy;
use crate::sidecar::Sidecar;

/// What a process that has a copy does not know yet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ReplicaUpdate {
    loads: Vec<LoadCopy>,
    /// Loads whose grant, documents or snapshot are others than before.
    changes: Vec<LoadChange>,
    /// The newest last.
    sets: Vec<SetCopy>,
    /// By the numbers that loads name.
    states: Vec<(u64, StateNews)>,
    gone_sets: Vec<Generation>,
    gone_loads: Vec<u64>,
}

/// One load of one policy file.
#[derive(Debug, Serialize, Deserialize)]
struct LoadCopy {
    number: u64,
    hook: Hook,
    name: PolicyName,
    digest: String,
    size_bytes: u64,
    code: CodeName,
    asks: Asks,
    sidecar: Sidecar,
    secrets: Secrets,
    /// The number of its store: several loads may have one.
    state: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct LoadChange {
    number: u64,
    grant: Grant,
    /// By name.
    documents: BTreeMap<String, Version>,
    /// Whether there is one, and whether an instance that begins with it may serve several requests.
    snapshot: Option<(CodeName, bool)>,
}

/// What happened in another process, each with the number of the load that it happened to, or of the store.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Noted(Vec<(u64, Happened)>);

impl Noted {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
