//! A pool with a scheduler policy, whose workers the test plays.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::ids::{PolicyDigest, RequestId, Token, WorkerId};
use camshaft_core::message::{Event, FinishReason, Start, Usage, WorkerError};
use camshaft_core::policy::{Endpoint, Rejection, WorkerFacts};
use camshaft_core::pool::{NewRequest, Output, Pool, Watermarks};
use camshaft_core::report::Report;
use camshaft_core::reserve::Reserve;
use camshaft_core::sampling::SamplingParams;
use camshaft_core::segments::Namespace;

use crate::rig::Rig;

const LIMITS: EngineLimits = EngineLimits { sequences: 2, kv_tokens: 1000, batch_tokens: 64, context_tokens: 1000 };

/// Requests that began, with their workers.
pub(crate) type Began = Vec<(u64, u32)>;
/// Requests that the scheduler rejected.
pub(crate) type Rejected = Vec<(u64, Rejection)>;

pub(crate) struct Desk {
    pub(crate) pool: Pool,
}

impl Desk {
    pub(crate) fn new(rig: &Rig, model: &str, workers: u32) -> Self {
        let mut pool = Pool::new(rig.host.scheduler(model), Watermarks { high: 1000, low: 900 }, Reserve::Full);
        (0..workers).for_each(|id| pool.add_worker(WorkerId(id), LIMITS));
        Self { pool }
    }

    pub(crate) fn submit(&mut self, id: u64, tenant: &str, prompt: usize) {
        self.submit_as(request(id, tenant, prompt));
    }

    pub(crate) fn submit_as(&mut self, new: NewRequest) {
        self.pool.submit(new).unwrap();
    }

    pub(crate) fn schedule(&mut self, ms: u64) -> (Began, Rejected) {
        let (mut began, mut rejected) = (Began::new(), Rejected::new());
        for output in self.pool.schedule(Duration::from_millis(ms)) {
            match output {
                Output::Start { worker, start, .. } => began.push((start.id.0, worker.0)),
                Output::Fail { id, error: WorkerError::Rejected(rejection) } => rejected.push((id.0, *rejection)),
                other => panic!("{other:?}"),
            }
        }
        assert!(self.pool.check());
        (began, rejected)
    }

    /// A worker, all of whose KV is free, says so.
    pub(crate) fn tell(&mut self, worker: u32, event: Event) {
        let facts = self.pool.worker_facts().swap_remove(worker as usize);
        let facts = WorkerFacts { kv_free: facts.kv_total, ..facts };
        self.pool.apply(WorkerId(worker), Report { events: vec![event], ..Report::of(facts) });
    }

    pub(crate) fn finish(&mut self, worker: u32, id: u64) {
        self.tell(worker, Event::Finished { id: RequestId(id), reason: FinishReason::Stop, usage: Usage::default() });
    }
}

/// A request whose prompt consists of equal tokens.
pub(crate) fn request(id: u64, tenant: &str, prompt: usize) -> NewRequest {
    let start = Start {
        id: RequestId(id),
        model: "demo".to_owned(),
        tenant: tenant.into(),
        namespace: Namespace::Tenant(tenant.into()),
        adapters: Default::default(),
        session: None,
        priority: Default::default(),
        endpoint: Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        prompt: vec![Token(1); prompt].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 10,
        stop: Vec::new(),
        ignore_eos: false,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
        context: Default::default(),
    };
    NewRequest {
        start: Box::new(start),
        first_choice: RequestId(id),
        arrived: Duration::from_millis(id),
        deadline: None,
        weight: 1.0,
        queue_share: None,
        hints: Arc::default(),
    }
}
