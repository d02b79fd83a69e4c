//! The queue of a model that computes batches: which inputs of which requests go into the next one.
//!
//! The same gate and classes as for generations decide who may wait and who goes first. Of one class, tenants have shares
//! by their weights (start-time fair queuing, Goyal et al. 1997), and so have the requests of one tenant: a large request's
//! inputs alternate with those of others. What a tenant has in one class counts as of a higher one for a batch, when
//! nothing was taken of it for long. How old its requests are does not matter: a backlog is old, and is served all the
//! time. An idle model takes the first input at once. A busy one waits until a batch is full, as many requests wait as
//! the last batch was of, or the oldest input has waited for the window: a client that is alone never waits for others.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gate::{Fill, Gate, Watermarks};
use crate::ids::TenantId;
use crate::jobs::lane::Lane;
use crate::jobs::order::Order;
use crate::jobs::{BatchLimits, Input};
use crate::limits::EMBED_INPUTS;
use crate::policy::Priority;

/// Bound of the inputs that wait. Past it, only tenants of which none waits may add some, up to twice as many in all.
const MAX_INPUTS: usize = 8 * EMBED_INPUTS;

/// In the order of their numbers.
const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// Less of a weight is no less: a tenant's position stays a number that others can reach.
const LEAST_WEIGHT: f64 = 1e-6;

/// A request that asks to wait. Times count from the queue's start.
#[derive(Debug)]
pub struct NewJob<I, T> {
    pub tenant: TenantId,
    pub priority: Priority,
    /// The tenant's, in (0, 1000].
    pub weight: f64,
    /// Share of the queue that the tenant's waiting requests may take.
    pub queue_share: Option<f64>,
    pub arrived: Duration,
    /// Latest moment of the answer.
    pub deadline: Option<Duration>,
    /// At least one, none of size 0.
    pub inputs: Vec<I>,
    /// Comes back with each input.
    pub owner: T,
}

/// Names a request of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

/// An input of a batch.
#[derive(Debug, Clone)]
pub struct BatchInput<I, T> {
    pub job: JobId,
    pub owner: T,
    /// Its place in the request.
    pub index: usize,
    pub input: I,
    /// For the first input of a request: how long the request has waited.
    pub waited: Option<Duration>,
}

#[derive(Debug)]
struct Job<I, T> {
    tenant: TenantId,
    priority: Priority,
    weight: f64,
    arrived: Duration,
    deadline: Option<Duration>,
    inputs: Vec<I>,
    /// Inputs before it are in a batch or computed.
    next: usize,
    computed: usize,
    /// Size that was taken of it, from the tenant's position when it arrived.
    served: f64,
    owner: T,
}

impl<I: Input, T> Job<I, T> {
    fn waits(&self) -> bool {
        self.next < self.inputs.len()
    }

    fn next_size(&self) -> Option<u32> {
        self.inputs.get(self.next).map(Input::size)
    }

    /// Of the inputs that wait.
    fn size_left(&self) -> u64 {
        self.inputs[self.next..].iter().map(|input| u64::from(input.size())).sum()
    }
}

/// Requests of a model, from their arrival until all inputs are computed. The caller passes the time in.
#[derive(Debug)]
pub struct JobQueue<I, T> {
    batch: BatchLimits,
    gate: Gate,
    jobs: BTreeMap<JobId, Job<I, T>>,
    next_id: u64,
    /// One for each class.
    lanes: [Lane; CLASSES.len()],
    /// Requests of the batch that was computed last.
    last: usize,
    /// Inputs that wait, and their size.
    inputs: usize,
    size: u64,
}

/// The queue does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull;

impl<I: Input, T: Clone> JobQueue<I, T> {
    pub fn new(batch: BatchLimits, watermarks: Watermarks) -> Self {
        Self {
            batch,
            gate: Gate::new(watermarks),
            jobs: BTreeMap::new(),
            next_id: 0,
            lanes: Default::default(),
            last: 0,
            inputs: 0,
            size: 0,
        }
    }

    /// Changes how many requests may wait. Those that wait already stay.
    pub fn set_watermarks(&mut self, watermarks: Watermarks) {
        self.gate.set_watermarks(watermarks);
    }

    /// Changes the bounds of batches, from the next one on.
    pub fn set_batch(&mut self, batch: BatchLimits) {
        self.batch = batch;
    }

    pub fn accepts(&self) -> bool {
        self.gate.is_open()
    }

    /// Requests of which an input waits: those that the watermarks count.
    pub fn waiting(&self) -> usize {
        self.gate.waiting()
    }

    /// Requests of which some inputs are or were in a batch. The others of a large one wait meanwhile.
    pub fn running(&self) -> usize {
        self.jobs.values().filter(|job| job.next > 0).count()
    }

    /// Class and tenant of each request that waits.
    pub fn queue(&self) -> impl Iterator<Item = (Priority, &TenantId)> {
        self.jobs.values().filter(|job| job.waits()).map(|job| (job.priority, &job.tenant))
    }

    /// Whether any input waits.
    pub fn has_inputs(&self) -> bool {
        self.inputs > 0
    }

    /// Adds a request.
    ///
    /// # Errors
    /// The queue is full, or the tenant's share of it.
    pub fn submit(&mut self, new: NewJob<I, T>) -> Result<JobId, QueueFull> {
        let NewJob { tenant, priority, weight, queue_share, arrived, deadline, inputs, owner } = new;
        let fill = Fill::of(self.inputs + inputs.len(), MAX_INPUTS);
        if !self.gate.enter(&tenant, queue_share, fill, self.next_id) {
            return Err(QueueFull);
        }
        let lane = &mut self.lanes[priority as usize];
        // A tenant that was away gets no credit for it.
        let progress = lane.tenants.entry(tenant.clone()).or_default();
        progress.served = progress.served.max(lane.clock);
        progress.jobs += 1;
        if progress.waiting == 0 {
            progress.waits_since = arrived;
        }
        progress.waiting += 1;
        let id = JobId(self.next_id);
        self.next_id += 1;
        let (served, next, computed) = (progress.job, 0, 0);
        let job = Job { tenant, priority, weight, arrived, deadline, inputs, next, computed, served, owner };
        self.inputs += job.inputs.len();
        self.size += job.size_left();
        self.jobs.insert(id, job);
        Ok(id)
    }

    /// Removes a request, wherever its inputs are. Returns its owner.
    pub fn remove(&mut self, id: JobId) -> Option<T> {
        self.remove_each([id]).pop()
    }

    /// Removes the requests for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.remove_all(|job| !keep(&job.owner));
    }

    /// Removes the requests whose deadline has passed, and returns their owners.
    pub fn expired(&mut self, now: Duration) -> Vec<T> {
        self.remove_all(|job| job.deadline.is_some_and(|deadline| deadline <= now))
    }

    fn remove_all(&mut self, gone: impl Fn(&Job<I, T>) -> bool) -> Vec<T> {
        let gone: Vec<JobId> = self.jobs.iter().filter(|(_, job)| gone(job)).map(|(&id, _)| id).collect();
        self.remove_each(gone)
    }

    fn remove_each(&mut self, gone: impl IntoIterator<Item = JobId>) -> Vec<T> {
        let owners: Vec<T> = gone.into_iter().filter_map(|id| self.take_out(id)).collect();
        if !owners.is_empty() {
            self.lanes.iter_mut().for_each(Lane::forget);
        }
        owners
    }

    fn take_out(&mut self, id: JobId) -> Option<T> {
        let job = self.jobs.remove(&id)?;
        let lane = &mut self.lanes[job.priority as usize];
        if job.waits() {
            self.gate.leave(&job.tenant);
            self.inputs -= job.inputs.len() - job.next;
            self.size -= job.size_left();
            lane.stop_waiting(&job.tenant);
        }
        if let Some(progress) = lane.tenants.get_mut(&job.tenant) {
            progress.jobs -= 1;
        }
        Some(job.owner)
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.jobs.values().filter_map(|job| job.deadline).min()
    }

    /// When the next batch is due for a worker that was busy until then, if it ever was; `None` while no input waits.
    pub fn due(&self, now: Duration, busy_until: Option<Duration>) -> Option<Duration> {
        let oldest = self.jobs.values().filter(|job| job.waits()).map(|job| job.arrived).min()?;
        let full = self.size >= u64::from(self.batch.size) || self.inputs >= self.batch.inputs;
        let was_idle = busy_until.is_none_or(|until| oldest >= until + self.batch.window);
        // Whoever had an answer just now may ask again.
        let expects_more = self.waiting() < self.last;
        if full || was_idle || !expects_more { Some(now) } else { Some(oldest + self.batch.window) }
    }

    /// Takes the next batch: at least one input if any waits, and no more than the bounds allow.
    pub fn take(&mut self, now: Duration) -> Vec<BatchInput<I, T>> {
        CLASSES.into_iter().for_each(|class| self.lanes[class as usize].begin(class, now));
        let mut order = self.order();
        let (mut batch, mut left) = (Vec::new(), self.batch.size);
        while batch.len() < self.batch.inputs
            && let Some(turn) = order.next()
        {
            let id = turn.request();
            let fits = |size: u32| batch.is_empty() || size <= left;
            let Some(job) = self.jobs.get(&id).filter(|job| job.next_size().is_some_and(fits)) else {
                // What is left gets less: it fits later neither.
                order.pass_over(&turn);
                continue;
            };
            let (priority, tenant) = (job.priority, job.tenant.clone());
            let Some(input) = self.take_input(id, now) else { break };
            left = left.saturating_sub(input.input.size());
            batch.push(input);
            let served = self.jobs.get(&id).filter(|job| job.waits()).map(|job| job.served);
            order.go_on(&turn, self.lanes[priority as usize].standing(&tenant), served);
        }
        batch
    }

    fn order(&self) -> Order<JobId> {
        let waiting = self.jobs.iter().filter(|(_, job)| job.waits());
        let waiting = waiting.map(|(&id, job)| (job.priority, &job.tenant, job.served, id));
        Order::new(waiting, |priority, tenant| self.lanes[priority as usize].standing(tenant))
    }

    fn take_input(&mut self, id: JobId, now: Duration) -> Option<BatchInput<I, T>> {
        let job = self.jobs.get_mut(&id)?;
        let (index, input) = (job.next, job.inputs.get(job.next)?.clone());
        let cost = f64::from(input.size());
        let lane = &mut self.lanes[job.priority as usize];
        lane.go_on();
        if let Some(progress) = lane.tenants.get_mut(&job.tenant) {
            progress.served += cost / job.weight.max(LEAST_WEIGHT);
            progress.job = progress.job.max(job.served);
            progress.waits_since = now;
        }
        job.served += cost;
        job.next += 1;
        self.inputs -= 1;
        self.size -= u64::from(input.size());
        let waited = (index == 0).then(|| now.saturating_sub(job.arrived));
        if !job.waits() {
            lane.stop_waiting(&job.tenant);
            self.gate.leave(&job.tenant);
        }
        Some(BatchInput { job: id, owner: job.owner.clone(), index, input, waited })
    }

    /// Records that a batch was computed.
    pub fn computed(&mut self, batch: &[BatchInput<I, T>]) {
        let mut done = Vec::new();
        self.last = batch.iter().map(|input| input.job).collect::<BTreeSet<_>>().len();
        for input in batch {
            let Some(job) = self.jobs.get_mut(&input.job) else { continue };
            job.computed += 1;
            if job.computed == job.inputs.len() {
                done.push(input.job);
            }
        }
        self.remove_each(done);
    }

    /// Whether the counts add up.
    pub fn check(&self) -> bool {
        let waiting = || self.jobs.values().filter(|job| job.waits());
        let tenants = || self.lanes.iter().flat_map(|lane| lane.tenants.values());
        let left = || waiting().flat_map(|job| &job.inputs[job.next..]);
        self.gate.check()
            && self.gate.waiting() == waiting().count()
            && self.inputs == left().count()
            && self.size == waiting().map(Job::size_left).sum::<u64>()
            && tenants().map(|progress| progress.jobs).sum::<usize>() == self.jobs.len()
            && tenants().map(|progress| progress.waiting).sum::<usize>() == waiting().count()
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
