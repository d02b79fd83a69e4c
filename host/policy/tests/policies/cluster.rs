//! A real pool and real workers on fake engines, in virtual time, with messages that take as long as chance wants.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::ids::{PolicyDigest, RequestId, SessionId, TenantId, Token, WorkerId};
use camshaft_core::message::{Command, Event, FinishReason, Start, WorkerError};
use camshaft_core::policy::{CancelReason, Priority, SchedulerHook};
use camshaft_core::pool::{NewRequest, Output, Pool, Watermarks};
use camshaft_core::report::Report;
use camshaft_core::reserve::Reserve;
use camshaft_core::sampling::SamplingParams;
use camshaft_core::segments::Namespace;

use crate::node::{Message, Node};
use crate::watched::Watched;

/// Time between two turns.
pub(crate) const TURN: Duration = Duration::from_millis(100);

/// How a request ended, as its client read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Finished,
    /// Its client left.
    Cancelled,
    /// Its client read too slowly.
    Cut,
    DeadlineExceeded,
    WorkerLost,
}

/// Whoever waits for a request's output.
#[derive(Debug)]
struct Client {
    arrived: Duration,
    deadline: Option<Duration>,
    /// The worker that was sent the request.
    worker: Option<WorkerId>,
    has_first_token: bool,
    /// Its reader was behind at some time.
    was_paused: bool,
}

/// What a request is like; the rest is as everywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) prompt: u32,
    pub(crate) max_tokens: u32,
    pub(crate) tenant: &'static str,
    pub(crate) priority: Priority,
    pub(crate) session: Option<u64>,
    /// From the arrival on.
    pub(crate) timeout: Option<Duration>,
}

impl Load {
    pub(crate) fn plain(prompt: u32, max_tokens: u32, tenant: &'static str, priority: Priority) -> Self {
        Self { prompt, max_tokens, tenant, priority, session: None, timeout: None }
    }
}

/// What a cluster is made of.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) hook: Arc<dyn SchedulerHook>,
    pub(crate) workers: u32,
    pub(crate) limits: EngineLimits,
    pub(crate) reserve: Reserve,
    pub(crate) seed: u64,
}

pub(crate) struct Cluster {
    pool: Pool,
    hook: Arc<Watched>,
    limits: EngineLimits,
    nodes: Vec<Node>,
    /// The incarnation of each worker that the pool sends commands to; `None`: down, as far as the pool knows.
    known: Vec<Option<u64>>,
    pub(crate) now: Duration,
    numbers: u64,
    clients: BTreeMap<RequestId, Client>,
    ends: BTreeMap<RequestId, End>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("now", &self.now).field("clients", &self.clients).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup { hook, workers, limits, reserve, seed } = setup;
        let hook = Arc::new(Watched::new(hook));
        let mut pool = Pool::new(hook.clone(), Watermarks { high: 1000, low: 900 }, reserve);
        let nodes: Vec<Node> = (0..workers).map(|id| Node::new(WorkerId(id), limits)).collect();
        (0..workers).for_each(|id| pool.add_worker(WorkerId(id), limits));
        let known = nodes.iter().map(|node| Some(node.incarnation())).collect();
        Self {
            pool,
            hook,
            limits,
            nodes,
            known,
            now: Duration::ZERO,
            numbers: seed,
            clients: BTreeMap::new(),
            ends: BTreeMap::new(),
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

    /// Whether something happens that does so once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn submit(&mut self, id: u64, load: Load) {
        let Load { prompt, max_tokens, tenant, priority, session, timeout } = load;
        let tenant = TenantId::from(tenant);
        // Prompts begin alike, so that some of each is in a cache.
        let tokens: Vec<Token> =
            (0..prompt).map(|n| Token((u64::from(n) * if n < 64 { 1 } else { id }) as u32 % 255)).collect();
        let start = Start {
            id: RequestId(id),
            model: "demo".to_owned(),
            namespace: Namespace::Tenant(tenant.clone()),
            adapters: Default::default(),
            tenant,
            session: session.map(|number| SessionId::new(number.to_string())),
            priority,
            endpoint: camshaft_core::policy::Endpoint::Completion,
            sampler_chain: PolicyDigest::NATIVE,
            filter_chain: PolicyDigest::NATIVE,
            context: Default::default(),
            prompt: tokens.into(),
            params: SamplingParams::greedy(),
            samplers: None,
            choice: 0,
            max_tokens,
            stop: Vec::new(),
            ignore_eos: true,
            ends: Default::default(),
            score_prompt: false,
            logprobs: None,
            grammar: None,
            shown: Arc::default(),
        };
        let deadline = timeout.map(|timeout| self.now + timeout);
        let (start, arrived) = (Box::new(start), self.now);
        let first_choice = start.id;
        let hints = Arc::default();
        let new = NewRequest { start, first_choice, arrived, deadline, weight: 1.0, queue_share: None, hints };
        self.pool.submit(new).unwrap();
        let client = Client { arrived, deadline, worker: None, has_first_token: false, was_paused: false };
        self.clients.insert(RequestId(id), client);
    }

    /// One turn of everything; `delays`: messages may stay on their way.
    pub(crate) fn turn(&mut self, delays: bool) {
        self.now += TURN;
        for at in 0..self.nodes.len() {
            let max = if delays { self.below(12) as usize } else { usize::MAX };
            self.deliver(at, max);
        }
        self.schedule();
        for at in 0..self.nodes.len() {
            if !delays || !self.once_in(4) {
                self.nodes[at].run(self.now);
            }
        }
        assert_eq!(self.hook.faults(), [] as [String; 0], "the scheduler faulted");
    }

    /// What a worker said reaches the pool, in order, as `pool_thread` takes it in.
    fn deliver(&mut self, at: usize, max: usize) {
        let worker = WorkerId(at as u32);
        for _ in 0..max {
            match self.nodes[at].outbox.pop_front() {
                None => break,
                Some(Message::Step(report)) => self.apply(worker, *report),
                Some(Message::Down) => {
                    self.known[at] = None;
                    for id in self.pool.worker_lost(worker) {
                        self.end_if_live(id, End::WorkerLost);
                    }
                }
                Some(Message::Up { incarnation }) => {
                    self.known[at] = Some(incarnation);
                    self.pool.add_worker(worker, self.limits);
                }
            }
            assert!(self.pool.check(), "the pool's books");
        }
    }

    fn apply(&mut self, worker: WorkerId, report: Report) {
        for event in &report.events {
            match *event {
                Event::Finished { id, reason: FinishReason::Cancelled, .. } => {
                    let live = self.clients.get(&id).map(|_| id);
                    assert_eq!(live, None, "cancelled although its client waits for it");
                }
                Event::Finished { id, .. } => self.end_if_live(id, End::Finished),
                Event::Progressed { id, .. } => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.has_first_token = true;
                    }
                }
                // Too many are paused, and it was paused for longest.
                Event::Failed { id, error: WorkerError::SlowReader } => {
                    assert!(self.clients.get(&id).is_none_or(|client| client.was_paused), "{id} was never paused");
                    self.end_if_live(id, End::Cut);
                }
                Event::Failed { id, ref error } => panic!("request {id}: {error}"),
                _ => {}
            }
        }
        self.pool.apply(worker, report);
    }

    /// A client that has left, or was told that its deadline passed, hears of no other end.
    fn end_if_live(&mut self, id: RequestId, end: End) {
        if self.clients.contains_key(&id) {
            self.end(id, end);
        }
    }

    fn end(&mut self, id: RequestId, end: End) -> Client {
        let client = self.clients.remove(&id);
        let before = self.ends.insert(id, end);
        assert_eq!(before, None, "request {id} ended twice, now as {end:?}");
        client.unwrap_or_else(|| panic!("request {id}, which nobody waits for, ended as {end:?}"))
    }

    fn schedule(&mut self) -> usize {
        let outputs = self.pool.schedule(self.now);
        let count = outputs.len();
        outputs.into_iter().for_each(|output| self.carry_out(output));
        assert!(self.pool.check(), "the pool's books");
        let late = |client: &&Client| !client.has_first_token && client.deadline.is_some_and(|at| at <= self.now);
        assert!(!self.clients.values().any(|client| late(&client)), "a deadline passed and nobody was told: {self:?}");
        count
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Start { worker, start, need, .. } => {
                let client = self.clients.get_mut(&start.id).unwrap_or_else(|| panic!("{} has no client", start.id));
                assert_eq!(client.worker.replace(worker), None, "request {} was dispatched twice", start.id);
                self.post(worker, Command::Start { start, need });
            }
            Output::Send { worker, command } => self.post(worker, command),
            Output::Fail { id, error: WorkerError::DeadlineExceeded } => {
                let client = self.end(id, End::DeadlineExceeded);
                assert!(!client.has_first_token && client.deadline.is_some_and(|at| at <= self.now), "{client:?}");
            }
            Output::Fail { id, error } => panic!("request {id}: {error}"),
        }
    }

    fn post(&mut self, worker: WorkerId, command: Command) {
        let at = worker.0 as usize;
        if let Some(incarnation) = self.known[at] {
            self.nodes[at].post(incarnation, command);
        }
    }

    /// Until everything that is on its way has arrived and the scheduler has answered to it.
    fn settle(&mut self) {
        for at in 0..self.nodes.len() {
            self.deliver(at, usize::MAX);
        }
        // A request that went to its session's worker leaves capacity behind, which the next point finds.
        while self.schedule() > 0 {}
    }

    /// Nobody waits beside a healthy worker that could take whoever is next. An idle worker could take anybody.
    pub(crate) fn check(&mut self) {
        self.settle();
        let Some(need) = self.pool.queue().iter().map(|arrival| arrival.need).max() else { return };
        let workers = self.pool.worker_facts();
        let takes_any = workers.iter().find(|facts| facts.healthy && facts.free_sequences > 0 && facts.kv_free >= need);
        assert!(takes_any.is_none(), "{} wait beside {takes_any:?}, at most {need} long", self.pool.waiting());
        let idle = workers.iter().find(|facts| facts.healthy && facts.running_sequences == 0);
        assert!(idle.is_none(), "{} wait beside the idle worker {idle:?}", self.pool.waiting());
    }

    /// Nothing runs and nothing is on its way: everything is free, on both sides.
    pub(crate) fn assert_all_free(&mut self) {
        assert_eq!((self.pool.waiting(), self.pool.running()), (0, 0));
        for (node, facts) in self.nodes.iter().zip(self.pool.worker_facts()) {
            node.assert_all_free();
            let free = (facts.healthy, facts.free_sequences, facts.kv_free);
            assert_eq!(free, (true, self.limits.sequences, self.limits.kv_tokens), "as the pool sees it: {facts:?}");
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.clients.is_empty() && self.nodes.iter().all(Node::is_quiet)
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.clients.len()
    }

    /// How many requests ended in each way.
    pub(crate) fn ends(&self) -> BTreeMap<End, usize> {
        let mut count = BTreeMap::new();
        self.ends.values().for_each(|&end| *count.entry(end).or_default() += 1);
        count
    }

    /// The longest that a request which has not been dispatched waits now.
    pub(crate) fn longest_wait(&self) -> Duration {
        let waiting = self.clients.values().filter(|client| client.worker.is_none());
        waiting.map(|client| self.now - client.arrived).max().unwrap_or_default()
    }

    fn any_client(&mut self) -> Option<RequestId> {
        let nth = self.below(self.clients.len().max(1) as u64) as usize;
        self.clients.keys().nth(nth).copied()
    }

    /// A client leaves.
    pub(crate) fn cancel_any(&mut self) {
        let Some(id) = self.any_client() else { return };
        self.end(id, End::Cancelled);
        if let Some(output) = self.pool.cancel(id, CancelReason::Client) {
            self.carry_out(output);
        }
    }

    /// A reader is behind: its worker pauses it, or ends it if it reads nothing at all.
    pub(crate) fn pause_any(&mut self) {
        let Some((id, client)) = self.any_client().map(|id| (id, &self.clients[&id])) else { return };
        let Some(worker) = client.worker.filter(|_| client.has_first_token) else { return };
        if self.once_in(4) {
            self.end(id, End::Cut);
            self.post(worker, Command::Cancel { id });
        } else if self.known[worker.0 as usize] == Some(self.nodes[worker.0 as usize].incarnation()) {
            self.nodes[worker.0 as usize].pause(id);
            if let Some(client) = self.clients.get_mut(&id) {
                client.was_paused = true;
            }
        }
    }

    /// A paused reader has caught up.
    pub(crate) fn resume_any(&mut self) {
        let at = self.below(self.nodes.len() as u64) as usize;
        self.nodes[at].resume();
    }

    /// As schedulers do that know better than the shipped ones.
    pub(crate) fn preempt_any(&mut self) {
        let Some((id, client)) = self.any_client().map(|id| (id, &self.clients[&id])) else { return };
        if let Some(worker) = client.worker {
            self.post(worker, Command::Preempt { id });
        }
    }

    /// A worker dies.
    pub(crate) fn crash_any(&mut self) {
        let at = self.below(self.nodes.len() as u64) as usize;
        let in_step = self.once_in(2).then_some(self.now);
        self.nodes[at].crash(in_step);
    }

    pub(crate) fn restart_any(&mut self) {
        let at = self.below(self.nodes.len() as u64) as usize;
        self.nodes[at].restart();
    }

    /// A fresh instance of the scheduler, which gets a replay.
    pub(crate) fn swap_scheduler(&mut self) {
        self.hook.swap();
    }
}
