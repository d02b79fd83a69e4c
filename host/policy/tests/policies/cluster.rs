//! A real pool and real workers on fake engines, in virtual time, with messages that take as long as chance wants.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::EngineLimits;
use camshaft_core::fake::FakeEngine;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName, RequestId, TenantId, Token, WorkerId};
use camshaft_core::message::{Command, Event, Start};
use camshaft_core::policy::{
    Fault, NamedScheduler, Priority, SamplerHook, SamplingRequest, SchedulerHook, TokenSampler,
};
use camshaft_core::pool::{NewRequest, Output, Pool, Watermarks};
use camshaft_core::report::{Report, Reporter};
use camshaft_core::reserve::Reserve;
use camshaft_core::sampling::{SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
use camshaft_core::worker::{Step, Worker, WorkerOptions};

/// Time between two turns.
const TURN: Duration = Duration::from_millis(100);

/// A scheduler hook, and the faults that it was told of.
#[derive(Debug)]
pub(crate) struct Watched {
    hook: Arc<dyn SchedulerHook>,
    faults: AtomicU32,
}

impl SchedulerHook for Watched {
    fn generation(&self) -> Generation {
        self.hook.generation()
    }

    fn open(&self) -> Result<Option<NamedScheduler>, Fault> {
        self.hook.open()
    }

    fn refused(&self, fault: &Fault) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.hook.refused(fault);
    }

    fn replaced(&self, fault: &Fault) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.hook.replaced(fault);
    }

    fn returned(&self, policy: Option<&PolicyName>) {
        self.hook.returned(policy);
    }
}

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

/// A worker, and what is on its way to and from it.
struct Node {
    worker: Worker,
    engine: FakeEngine,
    inbox: VecDeque<Command>,
    reporter: Reporter,
    outbox: VecDeque<Report>,
}

pub(crate) struct Cluster {
    pool: Pool,
    hook: Arc<Watched>,
    nodes: Vec<Node>,
    pub(crate) now: Duration,
    numbers: u64,
    /// When those that wait or run arrived; `started`: how long they waited.
    arrived: BTreeMap<RequestId, Duration>,
    pub(crate) waits: BTreeMap<RequestId, Duration>,
    pub(crate) finished: usize,
}

/// What a request is like; the rest is as everywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) tenant: &'static str,
    pub(crate) priority: Priority,
}

impl Cluster {
    pub(crate) fn new(hook: Arc<dyn SchedulerHook>, workers: u32, limits: EngineLimits, seed: u64) -> Self {
        let hook = Arc::new(Watched { hook, faults: AtomicU32::new(0) });
        let mut pool = Pool::new(hook.clone(), Watermarks { high: 1000, low: 900 }, Reserve::Expected);
        let nodes = (0..workers).map(|id| {
            pool.add_worker(WorkerId(id), limits);
            let worker = Worker::new(WorkerOptions {
                id: WorkerId(id),
                limits,
                vocabulary: FakeEngine::info(limits).vocabulary,
                samplers: Arc::new(Native),
                cache: PrefixCache::new(1 << 20),
                step_target: Duration::from_secs(1),
                speculation: None,
            });
            let mut engine = FakeEngine::new(limits, u64::from(id));
            engine.memory = 8;
            Node { worker, engine, inbox: VecDeque::new(), reporter: Reporter::default(), outbox: VecDeque::new() }
        });
        Self {
            nodes: nodes.collect(),
            pool,
            hook,
            now: Duration::ZERO,
            numbers: seed,
            arrived: BTreeMap::new(),
            waits: BTreeMap::new(),
            finished: 0,
        }
    }

    /// A number below `bound` (SplitMix64).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.numbers = self.numbers.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.numbers;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub(crate) fn submit(&mut self, id: u64, load: Load) {
        let Load { prompt, max_tokens, tenant, priority } = load;
        let tenant = TenantId::from(tenant);
        // Prompts begin alike, so that some of each is in a cache.
        let tokens: Vec<Token> =
            (0..prompt).map(|n| Token((u64::from(n) * if n < 64 { 1 } else { id }) as u32 % 255)).collect();
        let start = Start {
            id: RequestId(id),
            model: "demo".to_owned(),
            namespace: Namespace::Tenant(tenant.clone()),
            tenant,
            session: None,
            priority,
            sampler_chain: PolicyDigest::NATIVE,
            prompt: tokens.into(),
            params: SamplingParams::greedy(),
            samplers: None,
            choice: 0,
            max_tokens,
            stop: Vec::new(),
            ignore_eos: true,
            logprobs: None,
        };
        let new =
            NewRequest { start: Box::new(start), arrived: self.now, deadline: None, weight: 1.0, queue_share: None };
        self.pool.submit(new).unwrap();
        self.arrived.insert(RequestId(id), self.now);
    }

    /// One turn of everything; `delays`: messages may stay on their way.
    pub(crate) fn turn(&mut self, delays: bool) {
        self.now += TURN;
        for at in 0..self.nodes.len() {
            let most = if delays { self.below(12) as usize } else { usize::MAX };
            self.deliver(at, most);
        }
        self.schedule();
        assert!(self.pool.check());
        for at in 0..self.nodes.len() {
            if delays && self.below(4) == 0 {
                continue;
            }
            self.nodes[at].run(self.now);
        }
    }

    /// What a worker said reaches the pool, in order.
    fn deliver(&mut self, at: usize, most: usize) {
        let node = &mut self.nodes[at];
        let count = most.min(node.outbox.len());
        for report in node.outbox.drain(..count) {
            for event in &report.events {
                match event {
                    Event::Finished { id, .. } => {
                        self.finished += 1;
                        self.arrived.remove(id);
                    }
                    Event::Failed { id, error } => panic!("request {id}: {error}"),
                    _ => {}
                }
            }
            self.pool.apply(WorkerId(at as u32), report);
        }
    }

    /// Until everything that is on its way has arrived and the scheduler has answered to it.
    fn settle(&mut self) {
        for at in 0..self.nodes.len() {
            self.deliver(at, usize::MAX);
        }
        self.schedule();
    }

    fn schedule(&mut self) {
        for output in self.pool.schedule(self.now) {
            match output {
                Output::Start { worker, start, need, .. } => {
                    self.waits.insert(start.id, self.now - self.arrived[&start.id]);
                    self.nodes[worker.0 as usize].inbox.push_back(Command::Start { start, need });
                }
                Output::Send { worker, command } => self.nodes[worker.0 as usize].inbox.push_back(command),
                Output::Fail { id, error } => panic!("request {id}: {error}"),
            }
        }
    }

    /// No scheduler faulted, and nobody waits beside an idle worker. Every request fits an idle one.
    pub(crate) fn check(&mut self) {
        self.settle();
        assert_eq!(self.hook.faults.load(Ordering::Relaxed), 0, "the scheduler faulted");
        let workers = self.pool.worker_facts();
        let idle = workers.iter().any(|facts| facts.healthy && facts.running_sequences == 0);
        assert!(!idle || self.pool.waiting() == 0, "{} wait beside an idle worker: {workers:?}", self.pool.waiting());
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.arrived.len()
    }

    /// The longest that a request which has not been dispatched waits now.
    pub(crate) fn longest_wait(&self) -> Duration {
        let waiting = self.arrived.iter().filter(|(id, _)| !self.waits.contains_key(id));
        waiting.map(|(_, &arrived)| self.now - arrived).max().unwrap_or_default()
    }
}

impl Node {
    /// Takes in what has come and decodes one batch.
    fn run(&mut self, now: Duration) {
        let Self { worker, engine, inbox, reporter, outbox } = self;
        let mut events = Vec::new();
        for command in inbox.drain(..) {
            worker.handle(command, engine, &mut events);
        }
        let step = worker.step(now, engine, &mut events);
        assert!(worker.check(), "the worker's books after {step:?}");
        events.iter().for_each(|event| reporter.note(event));
        if let Step::Decoded { tokens } = step {
            reporter.decoded(tokens);
        }
        outbox.extend(reporter.take(worker));
    }
}
