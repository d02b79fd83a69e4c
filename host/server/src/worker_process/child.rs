//! The process that computes.
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Engine, EngineLimits, ModelKind};
use camshaft_core::engine_loop::EngineLoop;
use camshaft_core::grammar::{GrammarStore, InUse, MaskThread};
use camshaft_core::ids::{GrammarDigest, WorkerId};
use camshaft_core::message::{Event, Events};
use camshaft_core::report::Report;
use camshaft_core::threads::Spawner;
use camshaft_core::worker::{Speculation, Worker, WorkerOptions};
use camshaft_engine::{LoadOptions, LoadedAdapter, LoadedModel, Placement};
use camshaft_policy::{PolicyReplica, ReplicaUpdate};
use camshaft_process::frames::{self, Incoming, Received};
use camshaft_process::{confine_calls, confine_files, control, make_expendable, say};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Failure, FromWorker, HEARTBEAT, Order, Reply, Setup, ToWorker, Told};
use crate::cache_plan::{CacheOwner, CachePlan};
use crate::cores::{self, Team};
use crate::error::ServerError;
use crate::logging::{self, LogHandle};
use crate::models;
use crate::progress::ProgressSink;
use crate::weights;

/// How often it is looked at what happened to policies that no worker has told.
const LOOK: Duration = Duration::from_millis(50);
/// Steps from one look at whether the threads that compute are still the same to the next.
const LOOK_AT_TEAM: u32 = 64;
/// How long workers have to end, once the server is gone.
const END: Duration = Duration::from_secs(20);

/// What workers are made of.
enum Source {
    Fake(EngineLimits),
    Llama { model: Arc<LoadedModel>, draft: Option<Arc<LoadedModel>> },
}

/// All that the process has.
struct Process {
    setup: Setup,
    source: Source,
    grammars: Arc<GrammarStore>,
    policies: Arc<PolicyReplica>,
    /// One for each who uses it.
    adapters: Mutex<Vec<Arc<LoadedAdapter>>>,
    /// Grammars, the same.
    compiled: Mutex<Vec<(GrammarDigest, InUse)>>,
    control: Mutex<UnixStream>,
    /// Who tells what no worker tells is there.
    clerk: Once,
    log: LogHandle,
}

impl Source {
    fn sha256(&self) -> Option<String> {
        match self {
            Self::Fake(_) => None,
            Self::Llama { model, .. } => model.info().sha256.clone(),
        }
    }
}

/// What the process does until its server is gone, or wants it no more.
pub(crate) fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the process of a model's workers ends");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let mut orders = control()?;
    say(super::ROLE);
    make_expendable()?;
    let Some(setup) = frames::receive::<Setup>(&mut orders)? else { return Ok(()) };
    // Before there are other threads, which would not be held to it.
    let has_files = confine_files(&readable(&setup), &writable(&setup));
    let log = logging::start_lines(&setup.log).map_err(io::Error::other)?;
    let mut told = orders.try_clone()?;
    let loaded = load(&setup, told.try_clone()?);
    let has_calls = confine_calls();
    let (source, grammars) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return frames::send(&mut told, &Told::Loaded(Err(failure(&error)))),
    };
    tracing::info!(
        model = setup.config.id,
        seccomp = has_calls,
        landlock = has_files,
        "a process computes for the model"
    );
    let mut setup = setup;
    let policies = Arc::new(PolicyReplica::new(setup.code_dir.as_deref()));
    let update = setup.policies.take();
    let (control, adapters, compiled, clerk) = (Mutex::new(told), Mutex::default(), Mutex::default(), Once::new());
    let process = Arc::new(Process { setup, source, grammars, policies, adapters, compiled, control, clerk, log });
    if let Some(update) = update {
        process.take_policies(update).map_err(io::Error::other)?;
    }
    process.tell(&Told::Loaded(Ok(process.source.sha256())))?;
    let mut workers = Vec::new();
    let mut number = 0;
    while let Some((order, descriptors)) = frames::receive_with::<Order>(&mut orders)? {
        number += 1;
        match order {
            Order::Open(worker, cores) => {
                let Some(connection) = descriptors.into_iter().next() else { continue };
                workers.push(process.open(number, worker, cores, connection)?);
            }
            // It takes its time, and others need not wait for it.
            Order::LoadAdapter(path) => {
                let process = process.clone();
                let file = descriptors.into_iter().next().map(File::from);
                let load = move || {
                    let loaded = process.load_adapter(&path, file);
                    // Without the server the process ends.
                    let _ = process.tell(&Told::Reply(number, loaded));
                };
                Builder::new().name("adapter".to_owned()).spawn(load)?;
            }
            Order::DropAdapter(adapter) => {
                let mut adapters = process.adapters();
                let one = adapters.iter().position(|loaded| loaded.digest() == adapter);
                one.map(|one| adapters.swap_remove(one));
                drop(adapters);
                process.done(number)?;
            }
            Order::Compile(grammar) => {
                let process = process.clone();
                let compile = move || {
                    let reply = match process.grammars.compile(&grammar) {
                        Ok(compiled) => {
                            process.in_use().push((grammar.digest(), compiled));
                            Reply::Done
                        }
                        Err(error) => Reply::Refused(error),
                    };
                    // Without the server the process ends.
                    let _ = process.tell(&Told::Reply(number, Ok(reply)));
                };
                Builder::new().name("grammar".to_owned()).spawn(compile)?;
            }
            Order::DropGrammar(grammar) => {
                let mut in_use = process.in_use();
                let one = in_use.iter().position(|(digest, _)| *digest == grammar);
                one.map(|one| in_use.swap_remove(one));
                drop(in_use);
                process.done(number)?;
            }
            Order::Policies(update) => {
                if let Err(error) = process.take_policies(*update) {
                    tracing::error!(%error, "policies cannot be had in the process that runs them");
                }
                process.done(number)?;
            }
            Order::Hear => process.done(number)?,
            Order::Level(directives) => {
                if let Err(error) = process.log.set_directives(&directives) {
                    tracing::warn!(%error, "the log level stays as it was");
                }
                process.done(number)?;
            }
        }
    }
    // Their sockets are closed, too, or the server wants nothing more of them.
    let deadline = Instant::now() + END;
    while workers.iter().any(|worker: &JoinHandle<()>| !worker.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    process.log.flush();
    // Without static destructors: threads of libraries may still use what they destroy.
    signal_hook::low_level::exit(0);
}

/// What the process reads: its files, those beside them (parts, and what links lead to), the code of policies, the system.
fn readable(setup: &Setup) -> Vec<PathBuf> {
    const SYSTEM: [&str; 7] = ["/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/etc/ld.so.cache"];
    let config = &setup.config;
    let files =
        [Some(config.file_name()), config.draft_model.clone(), config.lora.clone(), std::env::current_exe().ok()];
    let adapters = config.adapter.iter().map(|adapter| adapter.path.clone());
    // Models that are built in have no file.
    let files = files.into_iter().flatten().chain(adapters).filter(|file| file.exists());
    let files = files.flat_map(|file| [file.canonicalize().ok(), Some(file)]);
    let beside = |file: PathBuf| {
        let dir = file.parent().map(Path::to_owned)?;
        Some(if dir.as_os_str().is_empty() { ".".into() } else { dir })
    };
    let dirs = files.flatten().filter_map(beside).chain(setup.code_dir.clone());
    dirs.chain(SYSTEM.map(PathBuf::from)).collect()
}

/// Its part of the cache on disk, and the names of its threads.
fn writable(setup: &Setup) -> Vec<PathBuf> {
    let dir = setup.cache.dir();
    // What cannot be made now cannot be used later, which is said then.
    let dir = dir.inspect(|dir| _ = DirBuilder::new().recursive(true).mode(0o700).create(dir)).map(Path::to_owned);
    dir.into_iter().chain([PathBuf::from("/proc/self/task")]).collect()
}

/// A copy of a file without a path.
fn in_memory(mut file: File) -> io::Result<File> {
    let mut copy = File::from(memfd_create("adapter", MemfdFlags::CLOEXEC)?);
    io::copy(&mut file, &mut copy)?;
    Ok(copy)
}

/// What can be made workers of, and what is compiled for its vocabulary.
fn load(setup: &Setup, mut told: UnixStream) -> Result<(Source, Arc<GrammarStore>), ServerError> {
    let Setup { config, sizes, .. } = setup;
    if setup.is_fake {
        let info = weights::fake_info(ModelKind::Generate);
        let limits = weights::fake_limits(sizes);
        return Ok((Source::Fake(limits), Arc::new(GrammarStore::new(info.vocabulary))));
    }
    camshaft_engine::use_numa(config.numa.wanted());
    let last = Mutex::new(u64::MAX);
    let sink = ProgressSink::new({
        let told = Mutex::new(told.try_clone().map_err(|error| ServerError::internal("tell of a load", error))?);
        move |_, per_cent| {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut *last, per_cent) != per_cent {
                // Without the server the process ends.
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = frames::send(&mut *told, &Told::Loading(per_cent));
            }
        }
    });
    let model = models::load_again(config, setup.digest, Placement::Host, &sink)?;
    let _ = frames::send(&mut told, &Told::Loading(100));
    if setup.outline.as_ref() != Some(&model.outline()) {
        return Err(models::replaced(config));
    }
    let draft = config.draft_model.as_ref().map(|path| {
        let (kind, copy) = (Some(ModelKind::Generate), !config.mmap);
        let draft = LoadedModel::from_file(path, &LoadOptions { kind, copy, ..LoadOptions::default() });
        draft.map_err(|error| models::from_engine(config, error))
    });
    let grammars = Arc::new(GrammarStore::new(model.info().vocabulary.clone()));
    Ok((Source::Llama { model, draft: draft.transpose()? }, grammars))
}

/// What the server says instead.
fn failure(error: &ServerError) -> Failure {
    match error {
        ServerError::Model(model) => Failure { key: model.key().to_owned(), why: model.source.to_string() },
        error => Failure { key: "path".to_owned(), why: error.to_string() },
    }
}

impl Process {
    fn tell(&self, told: &Told) -> io::Result<()> {
        frames::send(&mut *self.control.lock().unwrap_or_else(PoisonError::into_inner), told)
    }

    fn done(&self, number: u64) -> io::Result<()> {
        self.tell(&Told::Reply(number, Ok(Reply::Done)))
    }

    fn adapters(&self) -> MutexGuard<'_, Vec<Arc<LoadedAdapter>>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_use(&self) -> MutexGuard<'_, Vec<(GrammarDigest, InUse)>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_adapter(&self, path: &Path, file: Option<File>) -> Result<Reply, Failure> {
        let internal = |error| failure(&ServerError::internal("load an adapter", error));
        let Source::Llama { model, .. } = &self.source else {
            return Err(internal(anyhow::anyhow!("the model has none")));
        };
        // One that was configured since lies where this process may read nothing.
        let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let copy = file.filter(|_| File::open(path).is_err_and(|error| is_closed(&error))).map(in_memory).transpose();
        let copy = copy.map_err(|error| internal(error.into()))?;
        let copied = copy.as_ref().map(|copy| format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let loaded = model.load_adapter(copied.as_ref().map_or(path, Path::new)).map_err(|error| {
            let Failure { key, why } = failure(&models::from_engine(&self.setup.config, error));
            // Whoever configured it knows it by its own path.
            let shown = |copied: &String| why.replace(copied.as_str(), &path.display().to_string());
            Failure { why: copied.as_ref().map(shown).unwrap_or(why), key }
        })?;
        let (digest, bytes) = (loaded.digest(), loaded.bytes());
        self.adapters().push(loaded);
        Ok(Reply::Adapter(digest, bytes))
    }

    fn take_policies(self: &Arc<Self>, update: ReplicaUpdate) -> Result<(), anyhow::Error> {
        self.policies.apply(update)?;
        let (clerk, mut started) = (self.clone(), Ok(()));
        self.clerk.call_once(|| {
            let look = move || clerk.look_after_notes();
            started = Builder::new().name("clerk".to_owned()).spawn(look).map(drop);
        });
        Ok(started?)
    }

    /// Tells what no worker has told: what happened between steps, and changes of state in their order.
    fn look_after_notes(&self) {
        loop {
            std::thread::sleep(LOOK);
            let notes = self.policies.take_notes(true);
            if !notes.is_empty() && self.tell(&Told::Notes(notes)).is_err() {
                return;
            }
        }
    }

    /// Starts the thread of a worker, which says when it is ready.
    fn open(
        self: &Arc<Self>,
        number: u64,
        id: WorkerId,
        cores: Vec<Vec<usize>>,
        connection: OwnedFd,
    ) -> io::Result<JoinHandle<()>> {
        let process = self.clone();
        let connection = UnixStream::from(connection);
        Builder::new().name(format!("worker-{id}")).spawn(move || {
            let threads = Threads::default();
            let failed = match &process.source {
                Source::Fake(limits) => {
                    let engine = weights::fake_engine(*limits, id);
                    let cache = PrefixCache::new(process.setup.cache.ram_bytes);
                    process.work((number, id), (engine, cache, None), &threads, (cores, connection))
                }
                Source::Llama { model, draft } => process
                    .made(id, model, draft.as_ref(), &threads)
                    .and_then(|made| process.work((number, id), made, &threads, (cores, connection))),
            };
            threads.join();
            if let Err(error) = failed {
                // Without the server the process ends.
                let _ = process.tell(&Told::Reply(number, Err(failure(&error))));
            }
        })
    }

    fn made(
        &self,
        id: WorkerId,
        model: &Arc<LoadedModel>,
        draft: Option<&Arc<LoadedModel>>,
        threads: &Threads,
    ) -> Result<(impl Engine + use<>, PrefixCache, Option<Speculation>), ServerError> {
        let Setup { config, sizes, cache, .. } = &self.setup;
        let options = weights::engine_options(config, sizes);
        let engine = weights::engine(config, model, &options)?;
        let speculation = weights::speculation(config, draft, &options)?;
        let owner = CacheOwner { id: &config.id, model, options: &options, worker: id };
        let cache = CachePlan::of_parts(cache.clone()).on(threads.spawner()).open(&owner);
        Ok((engine, cache, speculation))
    }

    /// Runs a worker to its end.
    fn work<E: Engine>(
        &self,
        (number, id): (u64, WorkerId),
        (engine, cache, speculation): (E, PrefixCache, Option<Speculation>),
        threads: &Threads,
        (cores, connection): (Vec<Vec<usize>>, UnixStream),
    ) -> Result<(), ServerError> {
        let spare = Arc::new(AtomicBool::new(true));
        let has_spare = spare.clone();
        let worker = Worker::new(WorkerOptions {
            id,
            limits: engine.limits(),
            vocabulary: self.grammars.vocabulary().clone(),
            samplers: self.policies.clone(),
            filters: self.policies.clone(),
            cache,
            step_target: self.setup.config.step_target(),
            grammars: self.grammars.clone(),
            masks: Some(MaskThread::new(threads.spawner(), Box::new(move || has_spare.load(Ordering::Relaxed)))),
            speculation,
        });
        let mut engine = EngineLoop::new(engine, worker);
        let cores: Vec<_> = cores.iter().map(|core| cores::set(core)).collect();
        let (warm, team) = Team::keep(&cores, || engine.warm_up());
        if let Err(error) = warm {
            tracing::warn!(%error, worker = %id, "the engine could not decode a first token");
        }
        let internal = |error: io::Error| ServerError::internal("open a worker", error);
        self.tell(&Told::Reply(number, Ok(Reply::Opened(engine.limits())))).map_err(internal)?;
        let incoming = Incoming::new(connection.try_clone().map_err(internal)?);
        let out = Out::new(connection, self.policies.clone());
        let mut out = WorkerLoop { engine, incoming, out, threads: self.setup.sizes.threads, spare, team }.run();
        // The disk tier of its cache writes what is queued, for seconds perhaps; only then it has ended.
        threads.join();
        out.end();
        Ok(())
    }
}

/// Threads that are joined, of one worker.
#[derive(Default)]
struct Threads(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Threads {
    fn spawner(&self) -> Spawner {
        let threads = self.0.clone();
        Spawner::new(move |name, body| {
            let thread = Builder::new().name(name.to_owned()).spawn(body)?;
            threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
            Ok(())
        })
    }

    fn join(&self) {
        let threads = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // What a panic was about is logged where it happens.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// One worker and its connection.
struct WorkerLoop<E> {
    engine: EngineLoop<E>,
    incoming: Incoming,
    out: Out,
    threads: u32,
    spare: Arc<AtomicBool>,
    team: Option<Team>,
}

impl<E: Engine> WorkerLoop<E> {
    /// Runs until the server is gone, or wants nothing more. What its end is to be told with: it is dropped by then.
    fn run(mut self) -> Out {
        let (begun, mut steps) = (Instant::now(), 0u32);
        while self.take_messages() {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(LOOK_AT_TEAM) {
                self.team = self.team.take().and_then(Team::checked);
            }
            self.engine.set_threads(self.threads);
            let now = begun.elapsed();
            self.engine.step(now, &mut self.out);
            self.out.took = begun.elapsed().saturating_sub(now);
            self.out.may_take_longer = self.engine.worker().may_take_longer();
            let report = self.engine.report();
            self.out.tell(report, false);
        }
        self.out
    }

    /// Takes in all messages that have come; waits for one only if there is nothing else to do. False when all is over.
    fn take_messages(&mut self) -> bool {
        loop {
            if self.out.is_broken {
                return false;
            }
            let is_idle = self.engine.worker().is_idle();
            let mut received = self.incoming.next(Some(Duration::ZERO));
            if is_idle && matches!(received, Ok(Received::Nothing)) {
                let report = self.engine.report();
                self.out.tell(report, true);
                if self.out.is_last {
                    return false;
                }
                received = self.incoming.next(None);
            }
            match received {
                Ok(Received::Message(message)) => {
                    self.out.heard += 1;
                    match message {
                        ToWorker::Command(command) => self.engine.handle(command, &mut self.out),
                        ToWorker::Threads(threads, spare) => {
                            self.threads = threads;
                            self.spare.store(spare, Ordering::Relaxed);
                        }
                        ToWorker::NoMore => self.out.is_last = true,
                        ToWorker::Stop => return false,
                    }
                }
                Ok(Received::Nothing) => return true,
                // The server is gone.
                Ok(Received::Closed) => return false,
                Err(error) => {
                    tracing::error!(%error, "what the server says cannot be read");
                    return false;
                }
            }
        }
    }
}

/// What goes to the server.
struct Out {
    connection: UnixStream,
    policies: Arc<PolicyReplica>,
    events: Vec<Event>,
    heard: u64,
    took: Duration,
    may_take_longer: bool,
    /// What was told last.
    told: (Instant, bool, u64),
    /// Nothing more comes.
    is_last: bool,
    is_broken: bool,
}

impl Out {
    fn new(connection: UnixStream, policies: Arc<PolicyReplica>) -> Self {
        let (events, heard, took, may_take_longer) = (Vec::new(), 0, Duration::ZERO, false);
        let told = (Instant::now(), false, 0);
        Self { connection, policies, events, heard, took, may_take_longer, told, is_last: false, is_broken: false }
    }

    /// A step is over, or there is nothing to do: tells what there is to tell, or, after a while, that it goes on.
    fn tell(&mut self, report: Option<Report>, is_idle: bool) {
        let (last, was_idle, had_heard) = self.told;
        let is_news = report.is_some() || !self.events.is_empty() || is_idle != was_idle;
        let is_due = self.heard != had_heard && is_idle || last.elapsed() >= HEARTBEAT && !is_idle;
        if is_news || is_due {
            self.send(report, is_idle, false);
        }
    }

    fn send(&mut self, report: Option<Report>, is_idle: bool, has_ended: bool) {
        let message = FromWorker {
            notes: self.policies.take_notes(false),
            events: std::mem::take(&mut self.events),
            report: report.map(Box::new),
            heard: self.heard,
            is_idle,
            may_take_longer: self.may_take_longer,
            took: self.took,
            has_ended,
        };
        self.told = (Instant::now(), is_idle, self.heard);
        // The server reads whatever comes; without it there is nobody to compute for.
        self.is_broken |= frames::send(&mut self.connection, &message).is_err();
    }

    fn end(&mut self) {
        self.send(None, true, true);
    }
}

impl Events for Out {
    fn push(&mut self, event: Event) {
        if event.is_for_client() {
            self.events.push(event);
        }
    }

    fn flush(&mut self) {
        if !self.events.is_empty() {
            self.send(None, false, false);
        }
    }
}
