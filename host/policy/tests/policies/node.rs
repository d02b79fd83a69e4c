//! A real worker on a fake engine, with its messages on their way: it may die at any time, and comes back as new.
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::EngineLimits;
use camshaft_core::fake::FakeEngine;
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{PolicyDigest, RequestId, WorkerId};
use camshaft_core::message::Command;
use camshaft_core::policy::{NoSampler, SamplerHook, SamplingRequest, TokenSampler, WorkerFacts};
use camshaft_core::report::{Report, Reporter};
use camshaft_core::sampling::StandardChain;
use camshaft_core::worker::{Step, Worker, WorkerOptions};

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

/// Worker to pool, all through one channel: what a worker reported before its end arrives before the news of it.
pub(crate) enum Message {
    Step(Box<Report>),
    Down,
    /// Another incarnation is up, which takes commands that are addressed to it.
    Up {
        incarnation: u64,
    },
}

/// A worker with its engine, from its making to its end.
struct Incarnation {
    worker: Worker,
    engine: FakeEngine,
    reporter: Reporter,
    inbox: VecDeque<Command>,
    /// Requests whose readers are behind.
    paused: BTreeSet<RequestId>,
}

pub(crate) struct Node {
    id: WorkerId,
    limits: EngineLimits,
    /// How often a worker was made.
    made: u64,
    /// `None` while the worker is down.
    incarnation: Option<Incarnation>,
    pub(crate) outbox: VecDeque<Message>,
}

impl Node {
    pub(crate) fn new(id: WorkerId, limits: EngineLimits) -> Self {
        let mut node = Self { id, limits, made: 0, incarnation: None, outbox: VecDeque::new() };
        node.make();
        node
    }

    fn make(&mut self) {
        let worker = Worker::new(WorkerOptions {
            id: self.id,
            limits: self.limits,
            vocabulary: FakeEngine::info(self.limits).vocabulary,
            samplers: Arc::new(Native),
            filters: Arc::new(camshaft_core::fake::NoFilters),
            cache: PrefixCache::new(1 << 20),
            step_target: Duration::from_secs(1),
            grammars: Arc::new(GrammarStore::new(FakeEngine::info(self.limits).vocabulary)),
            masks: None,
            speculation: None,
        });
        let mut engine = FakeEngine::new(self.limits, u64::from(self.id.0));
        engine.memory = 8;
        self.made += 1;
        let (reporter, inbox, paused) = (Reporter::default(), VecDeque::new(), BTreeSet::new());
        self.incarnation = Some(Incarnation { worker, engine, reporter, inbox, paused });
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.made
    }

    /// Puts a command on its way to one incarnation; it is lost if that one is not there any more.
    pub(crate) fn post(&mut self, incarnation: u64, command: Command) {
        if let Some(current) = self.incarnation.as_mut().filter(|_| self.made == incarnation) {
            current.inbox.push_back(command);
        }
    }

    /// The worker's own thread pauses a request's sequence; [`Node::resume`] ends that.
    pub(crate) fn pause(&mut self, id: RequestId) {
        if let Some(current) = &mut self.incarnation
            && current.paused.insert(id)
        {
            current.inbox.push_back(Command::Pause { id });
        }
    }

    /// Ends the oldest pause, if there is one.
    pub(crate) fn resume(&mut self) {
        if let Some(current) = &mut self.incarnation
            && let Some(id) = current.paused.pop_first()
        {
            current.inbox.push_back(Command::Resume { id });
        }
    }

    /// Takes in the commands that have come and decodes one batch.
    pub(crate) fn run(&mut self, now: Duration) {
        let Some(current) = &mut self.incarnation else { return };
        current.step(now);
        let report = current.reporter.take(&mut current.worker);
        self.outbox.extend(report.map(|report| Message::Step(Box::new(report))));
    }

    /// The worker panics: at the end of a step, before it reports, or between two steps. Its inbox is lost with it.
    pub(crate) fn crash(&mut self, in_step: Option<Duration>) {
        let Some(mut current) = self.incarnation.take() else { return };
        if let Some(now) = in_step {
            current.step(now);
        }
        self.outbox.push_back(Message::Down);
    }

    /// A new worker, with an empty cache, in place of one that crashed.
    pub(crate) fn restart(&mut self) {
        if self.incarnation.is_none() {
            self.make();
            self.outbox.push_back(Message::Up { incarnation: self.made });
        }
    }

    /// Fails if anything is held that no request holds. Only of a worker that has nothing to do.
    pub(crate) fn assert_all_free(&self) {
        let Some(current) = &self.incarnation else { panic!("worker {} is down", self.id) };
        assert!(current.worker.is_idle() && current.inbox.is_empty(), "worker {} has something to do", self.id);
        let facts = WorkerFacts { tokens_per_second: 0.0, ..current.worker.facts() };
        let idle = WorkerFacts {
            worker: self.id,
            healthy: true,
            free_sequences: self.limits.sequences,
            running_sequences: 0,
            kv_free: self.limits.kv_tokens,
            kv_used: 0,
            kv_total: self.limits.kv_tokens,
            prefilling_tokens: 0,
            tokens_per_second: 0.0,
            can_preempt: true,
        };
        assert_eq!(facts, idle);
        assert_eq!(current.engine.used(), 0, "the engine of worker {} holds KV entries", self.id);
    }

    /// Whether nothing is on its way and nothing runs.
    pub(crate) fn is_quiet(&self) -> bool {
        let quiet = |current: &Incarnation| current.inbox.is_empty() && current.worker.is_idle();
        self.outbox.is_empty() && self.incarnation.as_ref().is_some_and(quiet)
    }
}

impl Incarnation {
    fn step(&mut self, now: Duration) {
        let Self { worker, engine, reporter, inbox, .. } = self;
        let mut events = Vec::new();
        for command in inbox.drain(..) {
            worker.handle(command, engine, &mut events);
            assert!(worker.check(), "the worker's books after a command");
        }
        let step = worker.step(now, engine, &mut events);
        assert!(worker.check(), "the worker's books after {step:?}");
        events.iter().for_each(|event| reporter.note(event));
        if let Step::Decoded { tokens } = step {
            reporter.decoded(tokens, now);
        }
    }
}
