//! The server's side of a process that computes.
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::grammar::{Grammar, GrammarError};
use camshaft_core::ids::{AdapterDigest, GrammarDigest, WorkerId};
use camshaft_engine::ModelOutline;
use camshaft_policy::{PolicyHost, Replication};
use camshaft_process::{frames, spawn};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;

use super::{Failure, Order, ROLE, Reply, Setup, Told};
use crate::cache_plan::CachePlan;
use crate::config::ModelConfig;
use crate::cores;
use crate::environment;
use crate::error::{ModelProblem, ServerError};
use crate::logging::LogHandle;
use crate::models;
use crate::own_program::own_program;
use crate::progress::{LoadBar, ProgressSink};
use crate::weights::{Weights, WeightsSource};

/// How long an answer may take before the process is asked whether it still hears, and that one.
const PATIENCE: Duration = Duration::from_secs(30);

/// Orders that wait until the process takes them.
const ORDERS: usize = 4096;

/// What a process is started with, each time.
pub(crate) struct ProcessSetup {
    pub(crate) weights: Weights,
    /// Of what the server has; `None`: of a fake model.
    pub(crate) outline: Option<ModelOutline>,
    /// The digest of the weights is wanted.
    pub(crate) digest: bool,
    pub(crate) cache: CachePlan,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) log: LogHandle,
    pub(crate) sink: ProgressSink,
    /// Held as long as the process lives.
    pub(crate) alive: Sender<Infallible>,
}

/// The process that computes for a model: the one that runs, and how another one is started after it.
pub(crate) struct EngineProcess {
    setup: ProcessSetup,
    running: Mutex<Option<Arc<Running>>>,
    /// The digest of the weights that the first process told, if it did.
    sha256: OnceLock<Option<String>>,
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
pub(crate) struct CompiledThere {
    process: Weak<Running>,
    digest: GrammarDigest,
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
    sha256: Option<String>,
}

impl fmt::Debug for EngineProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineProcess").field("model", &self.config().id).finish_non_exhaustive()
    }
}

impl Running {
    /// Waits for the answer, and kills a process that does not even say that it hears.
    ///
    /// # Errors
    /// The process is gone.
    fn ask(&self, order: Order, with: Option<OwnedFd>) -> io::Result<Result<Reply, Failure>> {
        let answered = self.give(order, with);
        loop {
            match answered.recv_timeout(PATIENCE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::from(io::ErrorKind::BrokenPipe)),
                Err(RecvTimeoutError::Timeout) => {
                    if self.give(Order::Hear, None).recv_timeout(PATIENCE).is_err() {
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
    fn end(&self, child: &mut Child) {
        self.has_ended.store(true, Ordering::SeqCst);
        lock(&self.waiting).clear();
        let mut is_gone = lock(&self.is_gone);
        let _ = child.kill();
        let _ = child.wait();
        *is_gone = true;
    }
}

impl EngineProcess {
    pub(crate) fn new(setup: ProcessSetup) -> Arc<Self> {
        Arc::new(Self { setup, running: Mutex::default(), sha256: OnceLock::new(), adapters: Mutex::default() })
    }

    /// The digest of the weights, which are loaded unless they are, if it was wanted.
    ///
    /// # Errors
    /// The process cannot be started or load the model.
    pub(crate) fn sha256(&self) -> Result<Option<String>, ServerError> {
        Ok(self.running()?.sha256.clone())
    }

    fn config(&self) -> &ModelConfig {
        self.setup.weights.config()
    }

    /// Opens a worker in the process, which is started unless it runs: our end of its socket, what it can hold, and what it is in.
    ///
    /// # Errors
    /// The process cannot be started or load the model, or has no room for the worker.
    pub(crate) fn open(
        &self,
        worker: WorkerId,
        cores: &[CpuSet],
    ) -> Result<(UnixStream, EngineLimits, Arc<Running>), ServerError> {
        let running = self.running()?;
        let (ours, its) = UnixStream::pair().map_err(|error| ServerError::internal("make a socket", error))?;
        let cores = cores.iter().map(cores::processors).collect();
        match self.ask(&running, Order::Open(worker, cores), Some(its.into()))? {
            Reply::Opened(limits) => Ok((ours, limits, running)),
            other => Err(ServerError::internal("open a worker", anyhow::anyhow!("{other:?}"))),
        }
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
    pub(crate) fn compile(&self, grammar: &Grammar) -> Result<CompiledThere, GrammarError> {
        let busy = |error: ServerError| GrammarError::busy(error.to_string());
        let running = self.running().map_err(busy)?;
        let order = Order::Compile(Box::new(grammar.clone()));
        match self.ask(&running, order, None).map_err(busy)? {
            Reply::Refused(error) => Err(error),
            _ => Ok(CompiledThere { process: Arc::downgrade(&running), digest: grammar.digest() }),
        }
    }

    fn ask(&self, running: &Running, order: Order, with: Option<OwnedFd>) -> Result<Reply, ServerError> {
        let answer = running.ask(order, with).map_err(|error| self.lost(&error))?;
        answer.map_err(|failure| self.failed(failure))
    }

    fn lost(&self, error: &io::Error) -> ServerError {
        let why = format!("the process that computes for it is gone: {error}");
        self.failed(Failure { key: "path".to_owned(), why })
    }

    fn failed(&self, Failure { key, why }: Failure) -> ServerError {
        let config = self.config();
        ServerError::model(&config.id, &config.origins, &key, ModelProblem::Process(why))
    }

    /// The process that runs, or a new one.
    fn running(&self) -> Result<Arc<Running>, ServerError> {
        let mut slot = lock(&self.running);
        if let Some(running) = slot.as_ref().filter(|running| !running.has_ended.load(Ordering::SeqCst)) {
            return Ok(running.clone());
        }
        let running = self.start()?;
        if *self.sha256.get_or_init(|| running.sha256.clone()) != running.sha256 {
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
        let internal = |what, error: io::Error| ServerError::internal(what, error);
        let replicate = |error| ServerError::internal("tell a process of policies", error);
        let mut feed = self.setup.policies.replicate().map_err(replicate)?;
        let ProcessSetup { weights, outline, digest, cache, log, .. } = &self.setup;
        let setup = Setup {
            is_fake: matches!(weights.loaded.source, WeightsSource::Fake(_)),
            config: weights.config().clone(),
            sizes: weights.sizes.clone(),
            outline: outline.clone(),
            digest: *digest,
            cache: cache.parts(),
            code_dir: feed.as_ref().and_then(|feed| feed.code_dir().map(Path::to_owned)),
            policies: feed.as_mut().and_then(Replication::update),
            log: log.format(),
        };
        let program = own_program().map_err(|error| internal("find this program", error))?;
        let keeper = Keeper {
            model: weights.config().id.clone(),
            policies: self.setup.policies.clone(),
            log: log.clone(),
            process: feed.as_ref().map_or(0, Replication::number),
            bar: LoadBar::new(&weights.config().id, &self.setup.sink),
        };
        let (started, result) = bounded(1);
        let alive = self.setup.alive.clone();
        // The system ends the process with this thread.
        let thread = Builder::new().name(format!("process-{}", keeper.model)).spawn(move || {
            let _alive = alive;
            keeper.keep(&program, &setup, feed, &started);
        });
        thread.map_err(|error| internal("start a thread", error))?;
        let lost = |_| self.lost(&io::Error::from(io::ErrorKind::BrokenPipe));
        result.recv().map_err(lost)?.map_err(|failure| self.failed(failure))
    }
}

/// Who keeps a process: starts it, hears what it says, and waits for its end.
struct Keeper {
    model: String,
    policies: Arc<PolicyHost>,
    log: LogHandle,
    /// Its number among those that have copies of policies.
    process: u64,
    bar: LoadBar,
}

type Started = Sender<Result<Arc<Running>, Failure>>;

impl Keeper {
    fn keep(self, program: &Path, setup: &Setup, feed: Option<Replication>, started: &Started) {
        let failed = |error: io::Error| Failure { key: "path".to_owned(), why: format!("no process for it: {error}") };
        let (mut child, control) = match spawn(program, ROLE, &environment::missing()) {
            Ok(spawned) => spawned,
            // Whoever waits for it is told.
            Err(error) => return drop(started.send(Err(failed(error)))),
        };
        let introduced = self.introduce(&control, setup).unwrap_or_else(|error| Err(failed(error)));
        let begun = introduced.and_then(|sha256| {
            let (orders, given) = bounded(ORDERS);
            let running = Arc::new(Running {
                orders,
                waiting: Mutex::default(),
                process: self.process,
                pid: i32::try_from(child.id()).ok().and_then(Pid::from_raw),
                is_gone: Mutex::new(false),
                has_ended: AtomicBool::new(false),
                sha256,
            });
            let (said, weak) = (control.try_clone().map_err(failed)?, Arc::downgrade(&running));
            let send = move || send_orders(control, &given, &weak);
            Builder::new().name(format!("orders-{}", self.model)).spawn(send).map_err(failed)?;
            Ok((running, said))
        });
        let (running, mut said) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                let _ = child.kill();
                let _ = child.wait();
                return drop(started.send(Err(failure)));
            }
        };
        let (ends, ended) = bounded(0);
        let follower = self.log.follow({
            let running = Arc::downgrade(&running);
            move |directives| {
                running.upgrade().inspect(|running| running.tell(Order::Level(directives.to_owned())));
            }
        });
        if let Some(feed) = feed {
            let running = Arc::downgrade(&running);
            let tell = move || feed_policies(feed, &running, &ended);
            // Without it, policies stay as they are.
            if let Err(error) = Builder::new().name(format!("policies-{}", self.model)).spawn(tell) {
                tracing::error!(model = self.model, %error, "a process hears of no change of policies");
            }
        }
        let weak = Arc::downgrade(&running);
        // Whoever waits for it has it now, and the process ends when nobody has it any more.
        drop(started.send(Ok(running)));
        while let Ok(Some(told)) = frames::receive::<Told>(&mut said) {
            match told {
                Told::Reply(number, reply) => {
                    let asker = weak.upgrade().and_then(|running| lock(&running.waiting).remove(&number));
                    // Nobody may wait for it any more.
                    asker.map(|asker| asker.send(reply));
                }
                Told::Notes(notes) => self.policies.note(notes, self.process),
                Told::Loading(_) | Told::Loaded(_) => {}
            }
        }
        drop((ends, follower));
        match weak.upgrade() {
            Some(running) => running.end(&mut child),
            None => drop(child.wait()),
        }
        tracing::debug!(model = self.model, "the process that computed for the model has ended");
    }

    /// Tells the process what to load, and waits until it has.
    fn introduce(&self, mut control: &UnixStream, setup: &Setup) -> io::Result<Result<Option<String>, Failure>> {
        frames::send(&mut control, setup)?;
        loop {
            match frames::receive::<Told>(&mut control)? {
                Some(Told::Loading(per_cent)) => {
                    let camshaft_engine::LoadProgress(tell) = self.bar.stage("loading");
                    if tell(per_cent as f32 / 100.0).is_break() {
                        return Err(io::Error::other("loading it was stopped"));
                    }
                }
                Some(Told::Loaded(loaded)) => return Ok(loaded),
                Some(_) => {}
                None => return Err(io::Error::other("it ended while it loaded the model")),
            }
        }
    }
}

/// Sends orders in their turn, until nobody has the process any more or it is gone.
fn send_orders(mut control: UnixStream, given: &Receiver<Given>, running: &Weak<Running>) {
    for (number, Given { order, with, answer }) in (1..).zip(given) {
        if let (Some(answer), Some(running)) = (answer, running.upgrade()) {
            lock(&running.waiting).insert(number, answer);
            if running.has_ended.load(Ordering::SeqCst) {
                lock(&running.waiting).clear();
            }
        }
        let with: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
        if frames::send_with(&mut control, &order, &with).is_err() {
            break;
        }
    }
    // It ends when it has written what it has to write.
    let _ = control.shutdown(Shutdown::Write);
}

/// Tells a process of policies as they change, until it has ended.
fn feed_policies(mut feed: Replication, running: &Weak<Running>, ended: &Receiver<Infallible>) {
    while let Some(done) = feed.wait(ended) {
        if let (Some(update), Some(running)) = (feed.update(), running.upgrade())
            && running.ask(Order::Policies(Box::new(update)), None).is_err()
        {
            return;
        }
        drop(done);
    }
}

/// For a process that may not open it. What is wrong with the file is told by who loads it.
fn opened(path: &Path) -> Option<OwnedFd> {
    File::open(path).ok().map(OwnedFd::from)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
