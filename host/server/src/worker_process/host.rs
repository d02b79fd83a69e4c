//! The server's side of a process that computes, or of the threads that do its work.
mod keeper;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use camshaft_core::embed::EmbedderLimits;
use camshaft_core::grammar::{CompiledElsewhere, Grammar, GrammarError};
use camshaft_core::ids::{AdapterDigest, GrammarDigest, WorkerId};
use camshaft_core::tensor::Signature;
use camshaft_policy::{PolicyHost, PolicyReplica, Replication};
use camshaft_tensor::TensorOutline;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;
use tokio::task::block_in_place;

use self::keeper::{Computes, Keeper};
use super::child::{Hooks, Surroundings};
use super::{Fakes, Job, Limits, Order, Reply, Setup, Standby};
use crate::cache_plan::CachePlan;
use crate::config::ModelConfig;
use crate::cores;
use crate::engines;
use crate::error::{Failure, ModelProblem, ServerError};
use crate::logging::LogHandle;
use crate::models;
use crate::own_program::has_roles;
use crate::progress::{LoadBar, ProgressSink};

/// How long an answer may take before the process is asked whether it still hears, and that one.
const PATIENCE: Duration = Duration::from_secs(30);

/// Orders that wait until the process takes them.
const ORDERS: usize = 4096;

/// How long a process may say nothing while it loads, and how long a worker may take to be opened: drivers compile for a device when
/// it is used first, a software one slowly.
const LOAD: Duration = Duration::from_secs(900);

/// What a process is started with, each time.
pub(crate) struct ProcessSetup {
    pub(crate) job: Job,
    /// A process of its own; otherwise threads of this one.
    pub(crate) is_isolated: bool,
    /// The digest of the weights is wanted.
    pub(crate) digest: bool,
    pub(crate) cache: CachePlan,
    /// `None`: nobody asks it anything but whether it works.
    pub(crate) policies: Option<Arc<PolicyHost>>,
    pub(crate) fakes: Fakes,
    pub(crate) log: LogHandle,
    /// Where it is to go if a device fails.
    pub(crate) standby: Option<Standby>,
    /// Held as long as the process lives.
    pub(crate) alive: Sender<Infallible>,
}

impl ProcessSetup {
    /// Of a process that tells whether it works.
    pub(crate) fn trial(job: Job) -> Self {
        Self {
            job,
            is_isolated: has_roles(),
            digest: false,
            cache: CachePlan::none(),
            policies: None,
            fakes: Arc::new(engines::fake_parts),
            log: LogHandle::silent(),
            standby: None,
            alive: bounded(0).0,
        }
    }
}

/// What computes for a model: what runs, and how another one is started after it.
pub(crate) struct EngineProcess {
    setup: ProcessSetup,
    /// With other sizes once a device has failed.
    job: Mutex<Job>,
    /// Who hears of the first load.
    sink: Mutex<ProgressSink>,
    running: Mutex<Option<Arc<Running>>>,
    /// What the first process told: the digest of the weights, if it was wanted, and what a tensor model takes and gives.
    first: OnceLock<(Option<String>, Option<Signature>)>,
    adapters: Mutex<Adapters>,
}

/// Adapters that somebody uses.
#[derive(Default)]
struct Adapters {
    files: Vec<(AdapterDigest, PathBuf)>,
    /// The process that has them.
    process: Weak<Running>,
}

/// A grammar that is compiled there.
#[derive(Debug)]
struct CompiledThere {
    process: Weak<Running>,
    digest: GrammarDigest,
    bytes: usize,
}

impl CompiledElsewhere for CompiledThere {
    fn is_there(&self) -> bool {
        self.process.upgrade().is_some_and(|process| !process.has_ended.load(Ordering::SeqCst))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for CompiledThere {
    fn drop(&mut self) {
        self.process.upgrade().inspect(|process| process.tell(Order::DropGrammar(self.digest)));
    }
}

/// An order on its way, with what travels along and who wants the answer.
struct Given {
    order: Order,
    with: Option<OwnedFd>,
    answer: Option<Sender<Result<Reply, Failure>>>,
}

/// A process that runs, or ran.
#[derive(Debug)]
pub(crate) struct Running {
    /// To the thread that sends them. The process ends when this is gone.
    orders: Sender<Given>,
    /// Who waits for an answer, by the number of the order.
    waiting: Mutex<HashMap<u64, Sender<Result<Reply, Failure>>>>,
    pid: Option<Pid>,
    /// Its number among those that have copies of policies.
    process: u64,
    /// Under a lock: a process that was waited for must not be killed.
    is_gone: Mutex<bool>,
    has_ended: AtomicBool,
    has_lost_device: AtomicBool,
    sha256: Option<String>,
    /// Of a tensor model.
    tensors: Option<TensorOutline>,
}

impl fmt::Debug for EngineProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineProcess").field("model", &self.config().id).finish_non_exhaustive()
    }
}

impl Running {
    /// Waits for the answer, and kills a process that does not even say that it hears, or that answers nothing for too long.
    ///
    /// # Errors
    /// The process is gone.
    fn ask(&self, order: Order, with: Option<OwnedFd>) -> io::Result<Result<Reply, Failure>> {
        let (answered, begun) = (self.give(order, with), Instant::now());
        loop {
            match answered.recv_timeout(PATIENCE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::from(io::ErrorKind::BrokenPipe)),
                Err(RecvTimeoutError::Timeout) => {
                    if begun.elapsed() > LOAD || self.give(Order::Hear, None).recv_timeout(PATIENCE).is_err() {
                        tracing::error!(
                            pid = self.pid(),
                            "a process of workers does not answer any more: it is killed"
                        );
                        self.kill();
                        return Err(io::Error::from(io::ErrorKind::TimedOut));
                    }
                }
            }
        }
    }

    /// Nobody answers where the process is gone.
    fn give(&self, order: Order, with: Option<OwnedFd>) -> Receiver<Result<Reply, Failure>> {
        let (answer, answered) = bounded(1);
        let _ = self.orders.send_timeout(Given { order, with, answer: Some(answer) }, PATIENCE);
        answered
    }

    /// What needs no answer. A process that is gone need not know, nor one that takes nothing any more: whoever asks it kills it.
    fn tell(&self, order: Order) {
        let _ = self.orders.try_send(Given { order, with: None, answer: None });
    }

    /// Ends the process at once.
    pub(crate) fn kill(&self) {
        let is_gone = lock(&self.is_gone);
        if let Some(pid) = self.pid.filter(|_| !*is_gone) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.pid.map(Pid::as_raw_pid)
    }

    pub(crate) fn process(&self) -> u64 {
        self.process
    }

    /// Nobody answers any more.
    fn end(&self, computes: Computes) {
        self.has_ended.store(true, Ordering::SeqCst);
        lock(&self.waiting).clear();
        let mut is_gone = lock(&self.is_gone);
        computes.end();
        *is_gone = true;
    }
}

impl EngineProcess {
    /// `sink` hears how far the first load is.
    pub(crate) fn new(setup: ProcessSetup, sink: ProgressSink) -> Arc<Self> {
        let (running, first, adapters) = (Mutex::default(), OnceLock::new(), Mutex::default());
        let job = Mutex::new(setup.job.clone());
        Arc::new(Self { setup, job, sink: Mutex::new(sink), running, first, adapters })
    }

    /// The digest of the weights, which are loaded unless they are, if it was wanted.
    ///
    /// # Errors
    /// The process cannot be started or load the model.
    pub(crate) fn sha256(&self) -> Result<Option<String>, ServerError> {
        Ok(self.running()?.sha256.clone())
    }

    /// Held as long as anything of it is in memory.
    pub(crate) fn alive(&self) -> Sender<Infallible> {
        self.setup.alive.clone()
    }

    fn config(&self) -> &ModelConfig {
        &self.setup.job.config
    }

    /// Opens a worker in the process, which is started unless it runs: our end of its socket, what it can hold, and what it is in.
    ///
    /// # Errors
    /// The process cannot be started or load the model, or has no room for the worker.
    pub(super) fn open(
        &self,
        worker: WorkerId,
        cores: &[CpuSet],
    ) -> Result<(UnixStream, Limits, Arc<Running>), ServerError> {
        loop {
            let running = self.running()?;
            let (ours, its) = UnixStream::pair().map_err(|error| ServerError::internal("make a socket", error))?;
            let order = Order::Open(worker, cores.iter().map(cores::processors).collect());
            match running.ask(order, Some(its.into())).map_err(|error| self.lost(&error))? {
                Ok(Reply::Opened(limits)) => return Ok((ours, limits, running)),
                // The trial made what one worker needs; devices have not always room for more, or others came meanwhile.
                Err(failure) if failure.lacks_context && self.is_on_devices() && self.setup.standby.is_some() => {
                    self.leave_devices(&failure.why)?;
                    let mut slot = lock(&self.running);
                    if slot.as_ref().is_some_and(|now| Arc::ptr_eq(now, &running)) {
                        *slot = None;
                    }
                    running.kill();
                }
                Err(failure) => return Err(failure.error(self.config())),
                Ok(other) => return Err(ServerError::internal("open a worker", anyhow::anyhow!("{other:?}"))),
            }
        }
    }

    /// Whether it works: opens a worker, loads its adapters, and ends. What a worker can hold, of a model that embeds.
    ///
    /// # Errors
    /// As [`EngineProcess::open`] and [`EngineProcess::load_adapter`].
    pub(crate) fn try_out(&self) -> Result<Option<EmbedderLimits>, ServerError> {
        let (_, limits, running) = self.open(WorkerId(0), &[])?;
        let adapters = self.config().adapter.iter();
        adapters.map(|adapter| self.load_adapter(&adapter.path)).try_for_each(|loaded| loaded.map(drop))?;
        running.kill();
        Ok(match limits {
            Limits::Embeds(limits) => Some(limits),
            Limits::Generates(_) | Limits::Predicts(_) => None,
        })
    }

    /// What the running process answers at once.
    pub(super) fn ask_now(&self, order: Order, patience: Duration) -> Option<Reply> {
        // Not under the lock that is held while one is started.
        let running = lock(&self.adapters).process.upgrade()?;
        let answer = running.give(order, None);
        // Whoever asks may be a thread that serves connections.
        block_in_place(|| answer.recv_timeout(patience)).ok()?.ok()
    }

    /// The digest of a tensor model, if it was wanted, and what else is known of it.
    ///
    /// # Errors
    /// The process cannot be started or load the model.
    pub(super) fn tensors(&self) -> Result<(Option<String>, TensorOutline), ServerError> {
        let running = self.running()?;
        let none = || ServerError::internal("load", anyhow::anyhow!("no tensor model"));
        Ok((running.sha256.clone(), running.tensors.clone().ok_or_else(none)?))
    }

    fn is_on_devices(&self) -> bool {
        lock(&self.job).sizes.offloaded.layers > 0
    }

    /// What is started from now on computes with the processor.
    fn leave_devices(&self, why: &str) -> Result<(), ServerError> {
        let mut job = lock(&self.job);
        if let (Some(standby), true) = (&self.setup.standby, job.sizes.offloaded.layers > 0) {
            *job = standby(why)?;
        }
        Ok(())
    }

    /// Loads an adapter for the workers: its digest, and its bytes.
    ///
    /// # Errors
    /// The file is no adapter of the model, or the process is gone.
    pub(crate) fn load_adapter(&self, path: &Path) -> Result<(AdapterDigest, u64), ServerError> {
        let running = self.running()?;
        match self.ask(&running, Order::LoadAdapter(path.to_owned()), opened(path))? {
            Reply::Adapter(digest, bytes) => {
                lock(&self.adapters).files.push((digest, path.to_owned()));
                Ok((digest, bytes))
            }
            other => Err(ServerError::internal("load an adapter", anyhow::anyhow!("{other:?}"))),
        }
    }

    /// Nobody uses an adapter any more.
    pub(crate) fn drop_adapter(&self, adapter: AdapterDigest) {
        let mut adapters = lock(&self.adapters);
        let one = adapters.files.iter().position(|(digest, _)| *digest == adapter);
        one.map(|one| adapters.files.swap_remove(one));
        adapters.process.upgrade().inspect(|process| process.tell(Order::DropAdapter(adapter)));
    }

    /// Has a grammar compiled for the workers, which have it as long as somebody has what this returns.
    ///
    /// # Errors
    /// It is refused, or the process is gone.
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<Box<dyn CompiledElsewhere>, GrammarError> {
        let busy = |error: ServerError| GrammarError::busy(error.to_string());
        let running = self.running().map_err(busy)?;
        let order = Order::Compile(Box::new(grammar.clone()));
        match self.ask(&running, order, None).map_err(busy)? {
            Reply::Compiled(bytes) => {
                Ok(Box::new(CompiledThere { process: Arc::downgrade(&running), digest: grammar.digest(), bytes }))
            }
            Reply::Refused(error) => Err(error),
            other => Err(GrammarError::busy(format!("{other:?}"))),
        }
    }

    fn ask(&self, running: &Running, order: Order, with: Option<OwnedFd>) -> Result<Reply, ServerError> {
        let answer = running.ask(order, with).map_err(|error| self.lost(&error))?;
        answer.map_err(|failure| failure.error(self.config()))
    }

    fn lost(&self, error: &io::Error) -> ServerError {
        let config = self.config();
        let path = config.file_name();
        let why = format!("bad model file {}: the process that computes for it is gone: {error}", path.display());
        ServerError::model(&config.id, &config.origins, "path", ModelProblem::said(why))
    }

    /// The process that runs, or a new one.
    fn running(&self) -> Result<Arc<Running>, ServerError> {
        let mut slot = lock(&self.running);
        if let Some(running) = slot.as_ref().filter(|running| !running.has_ended.load(Ordering::SeqCst)) {
            return Ok(running.clone());
        }
        if slot.as_ref().is_some_and(|lost| lost.has_lost_device.load(Ordering::SeqCst)) {
            self.leave_devices("a device failed")?;
        }
        let running = self.start()?;
        let signature = running.tensors.as_ref().map(|outline| outline.signature.clone());
        let told = (running.sha256.clone(), signature);
        if *self.first.get_or_init(|| told.clone()) != told {
            return Err(models::replaced(self.config()));
        }
        let files = lock(&self.adapters).files.clone();
        for (digest, path) in &files {
            match self.ask(&running, Order::LoadAdapter(path.clone()), opened(path)) {
                Ok(Reply::Adapter(found, _)) if found == *digest => {}
                other => {
                    tracing::error!(model = self.config().id, path = %path.display(), ?other, "an adapter is lost")
                }
            }
        }
        let mut adapters = lock(&self.adapters);
        adapters.process = Arc::downgrade(&running);
        // What nobody uses any more since it was loaded.
        let is_used = |digest| adapters.files.iter().any(|(used, _)| *used == digest);
        let unused = files.into_iter().filter(|(digest, _)| !is_used(*digest));
        unused.for_each(|(digest, _)| running.tell(Order::DropAdapter(digest)));
        drop(adapters);
        Ok(slot.insert(running).clone())
    }

    fn start(&self) -> Result<Arc<Running>, ServerError> {
        let ProcessSetup { is_isolated, digest, cache, policies, fakes, log, .. } = &self.setup;
        let job = lock(&self.job).clone();
        let (model, known) = (job.config.id.clone(), job.mark.clone());
        // Threads of this process call the policies that are here.
        let replicate = |error| ServerError::internal("tell a process of policies", error);
        let copied = policies.as_ref().filter(|_| *is_isolated);
        let mut feed = copied.map(|policies| policies.replicate()).transpose().map_err(replicate)?.flatten();
        let setup = Setup {
            job,
            digest: *digest,
            cache: cache.parts(),
            code_dir: feed.as_ref().and_then(|feed| feed.code_dir().map(Path::to_owned)),
            policies: feed.as_mut().and_then(Replication::update),
            log: log.format(),
        };
        let hooks = match policies {
            Some(policies) => Hooks::Host(policies.clone()),
            None => Hooks::Replica(Arc::new(PolicyReplica::new(None))),
        };
        let here = (!is_isolated).then(|| Surroundings { hooks, fakes: fakes.clone(), process: None });
        let keeper = Keeper {
            model: model.clone(),
            policies: policies.clone(),
            log: log.clone(),
            process: feed.as_ref().map_or(0, Replication::number),
            bar: LoadBar::new(&model, &std::mem::take(&mut *lock(&self.sink))),
        };
        let (started, result) = bounded(1);
        let alive = self.setup.alive.clone();
        // The system ends the process with this thread.
        let thread = Builder::new().name(format!("process-{}", keeper.model)).spawn(move || {
            let _alive = alive;
            keeper.keep(&setup, here, feed, &started);
        });
        thread.map_err(|error| ServerError::internal("start a thread", error))?;
        let lost = |_| self.lost(&io::Error::from(io::ErrorKind::BrokenPipe));
        let (running, mark) = result.recv().map_err(lost)?.map_err(|failure| failure.error(self.config()))?;
        // A file may be replaced after it was read.
        if known.is_some() && mark != known {
            return Err(models::replaced(self.config()));
        }
        Ok(running)
    }
}

/// For a process that may not open it. What is wrong with the file is told by who loads it.
fn opened(path: &Path) -> Option<OwnedFd> {
    File::open(path).ok().map(OwnedFd::from)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
