//! What computes: the process, or the threads of this one.
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use camshaft_core::cache::PrefixCache;
use camshaft_core::embed::Embedder;
use camshaft_core::embed::fake::FakeEmbedder;
use camshaft_core::engine::{Engine, EngineLimits, ModelKind};
use camshaft_core::engine_loop::EngineLoop;
use camshaft_core::fake::FakeEngine;
use camshaft_core::filter::FilterHook;
use camshaft_core::grammar::{Grammar, GrammarStore, InUse};
use camshaft_core::ids::{GrammarDigest, WorkerId};
use camshaft_core::jobs::BatchModel;
use camshaft_core::policy::SamplerHook;
use camshaft_core::threads::Spawner;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_core::worker::{MaskThreads, Speculation, Worker, WorkerOptions};
use camshaft_engine::{LoadProgress, LoadedAdapter, LoadedModel, Placement};
use camshaft_policy::{Noted, PolicyHost, PolicyReplica, ReplicaUpdate};
use camshaft_process::frames::{self, Incoming};
use camshaft_process::{confine_calls, confine_files, control, give_back_memory, make_expendable, make_polite, say};
use camshaft_tensor::{Predictor, TensorModel};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::worker_loop::{Out, WorkerLoop};
use super::{Batch, Job, Limits, Loaded, Order, Reply, Setup, Shapes, Told};
use crate::cache_plan::{CacheOwner, CachePlan};
use crate::cores::{self, Team};
use crate::error::{Failure, ServerError};
use crate::logging::{self, LogHandle};
use crate::progress::{LoadBar, ProgressSink};
use crate::{engines, models};

/// How often it is looked at what happened to policies that no worker has told.
const LOOK: Duration = Duration::from_millis(50);
/// How long workers have to end, once the server is gone.
const END: Duration = Duration::from_secs(20);

/// Makes the engine of a worker of a fake model, and its cache of so many bytes.
pub(crate) type Fakes =
    Arc<dyn Fn(EngineLimits, WorkerId, u64) -> Result<(FakeEngine, PrefixCache), ServerError> + Send + Sync>;

/// The policies that workers call.
#[derive(Clone)]
pub(super) enum Hooks {
    /// Those of the server, in whose process this is.
    Host(Arc<PolicyHost>),
    Replica(Arc<PolicyReplica>),
}

/// What is computed with, where it is computed.
pub(super) struct Surroundings {
    pub(super) hooks: Hooks,
    pub(super) fakes: Fakes,
    /// `None`: in the server's process.
    pub(super) process: Option<OwnProcess>,
}

/// A process that only computes.
pub(super) struct OwnProcess {
    log: LogHandle,
    /// It opens its own files only.
    has_landlock: bool,
}

/// What workers are made of.
enum Source {
    Fake(EngineLimits),
    Llama { model: Arc<LoadedModel>, draft: Option<Arc<LoadedModel>> },
    Tensors { model: Arc<TensorModel>, sha256: Option<String> },
}

/// All that there is for the workers of a model.
struct Process {
    setup: Setup,
    around: Surroundings,
    source: Source,
    grammars: Arc<GrammarStore>,
    /// One for each who uses it.
    adapters: Mutex<Vec<Arc<LoadedAdapter>>>,
    /// Grammars, the same.
    compiled: Mutex<Vec<(GrammarDigest, InUse)>>,
    control: Mutex<UnixStream>,
    /// Who tells what no worker tells is there.
    clerk: Once,
}

impl Hooks {
    fn samplers(&self) -> Arc<dyn SamplerHook> {
        match self {
            Self::Host(policies) => policies.clone(),
            Self::Replica(policies) => policies.clone(),
        }
    }

    fn filters(&self) -> Arc<dyn FilterHook> {
        match self {
            Self::Host(policies) => policies.clone(),
            Self::Replica(policies) => policies.clone(),
        }
    }

    /// What happened that the server has to count; its own policies count for themselves.
    pub(super) fn take_notes(&self, alone: bool) -> Noted {
        match self {
            Self::Replica(policies) => policies.take_notes(alone),
            Self::Host(_) => Noted::default(),
        }
    }
}

impl Source {
    fn loaded(&self) -> Loaded {
        let (mark, sha256, tensors) = match self {
            Self::Fake(_) => (None, None, None),
            Self::Llama { model, .. } => (Some(model.outline().mark()), model.info().sha256.clone(), None),
            Self::Tensors { model, sha256 } => (None, sha256.clone(), Some(Box::new(model.outline()))),
        };
        Loaded { mark, sha256, tensors }
    }

    fn has_lost_device(&self) -> bool {
        matches!(self, Self::Llama { model, .. } if model.is_lost())
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// What the process does until its server is gone, or wants it no more.
pub(crate) fn run() -> ExitCode {
    match run_process() {
        // Without static destructors: threads of libraries may still use what they destroy.
        Ok(()) => signal_hook::low_level::exit(0),
        Err(error) => {
            tracing::error!(%error, "the process of a model's workers ends");
            ExitCode::FAILURE
        }
    }
}

fn run_process() -> io::Result<()> {
    let mut orders = control()?;
    say(super::ROLE);
    make_expendable()?;
    let Some(setup) = frames::receive::<Setup>(&mut orders)? else { return Ok(()) };
    // Before there are other threads, which would not be held to it. What drivers of devices open, nobody knows.
    let has_landlock = !setup.is_on_devices() && confine_files(&readable(&setup), writable(&setup).as_slice());
    let log = logging::start_lines(&setup.log).map_err(io::Error::other)?;
    give_back_memory()?;
    let hooks = Hooks::Replica(Arc::new(PolicyReplica::new(setup.code_dir.as_deref())));
    let process = Some(OwnProcess { log: log.clone(), has_landlock });
    let done = serve(orders, setup, Surroundings { hooks, fakes: Arc::new(engines::fake_parts), process });
    log.flush();
    done
}

/// The same on threads of the server.
///
/// # Errors
/// Something failed that is needed.
pub(super) fn run_here(mut orders: UnixStream, around: Surroundings) -> io::Result<()> {
    let Some(setup) = frames::receive::<Setup>(&mut orders)? else { return Ok(()) };
    serve(orders, setup, around)
}

fn serve(mut orders: UnixStream, mut setup: Setup, around: Surroundings) -> io::Result<()> {
    let mut told = orders.try_clone()?;
    let loaded = load(&setup, told.try_clone()?);
    let (source, grammars) = match loaded {
        Ok((source, vocabulary)) => (source, Arc::new(GrammarStore::of_worker(vocabulary))),
        Err(error) => return frames::send(&mut told, &Told::Loaded(Err(Failure::of(&error)))),
    };
    if let Some(OwnProcess { has_landlock, .. }) = around.process {
        let seccomp = !setup.is_on_devices() && confine_calls();
        let model = &setup.job.config.id;
        tracing::info!(model, seccomp, landlock = has_landlock, "a process computes for the model");
    }
    let update = setup.policies.take();
    let (control, adapters, compiled, clerk) = (Mutex::new(told), Mutex::default(), Mutex::default(), Once::new());
    let process = Arc::new(Process { setup, around, source, grammars, adapters, compiled, control, clerk });
    if let Some(update) = update {
        process.take_policies(update).map_err(io::Error::other)?;
    }
    process.tell(&Told::Loaded(Ok(process.source.loaded())))?;
    let mut workers = BTreeMap::new();
    let mut number = 0;
    while let Some((order, descriptors)) = frames::receive_with::<Order>(&mut orders)? {
        number += 1;
        let reply = match order {
            Order::Open(worker, cores) => {
                let Some(connection) = descriptors.into_iter().next() else { continue };
                // The directory of its cache is free when the one before it has ended.
                let before = workers.remove(&worker);
                workers.insert(worker, process.open(number, worker, before, (cores, connection.into()))?);
                continue;
            }
            // It takes its time, and others need not wait for it.
            Order::LoadAdapter(path) => {
                let file = descriptors.into_iter().next().map(File::from);
                process.reply_apart("adapter", number, move |process| process.load_adapter(&path, file))?;
                continue;
            }
            Order::Compile(grammar) => {
                process.reply_apart("grammar", number, move |process| Ok(process.compile(&grammar)))?;
                continue;
            }
            Order::Shapes(shapes) => process.shapes(&shapes),
            Order::Memory(workers, rows) => process.memory(workers, rows),
            Order::DropAdapter(adapter) => drop_one(&process.adapters, |loaded| loaded.digest() == adapter),
            Order::DropGrammar(grammar) => drop_one(&process.compiled, |(digest, _)| *digest == grammar),
            Order::Policies(update) => {
                if let Err(error) = process.take_policies(*update) {
                    tracing::error!(%error, "policies cannot be had in the process that runs them");
                }
                Ok(Reply::Done)
            }
            Order::Hear => Ok(Reply::Done),
            Order::Level(directives) => {
                let log = process.around.process.as_ref().map(|process| &process.log);
                if let Some(Err(error)) = log.map(|log| log.set_directives(&directives)) {
                    tracing::warn!(%error, "the log level stays as it was");
                }
                Ok(Reply::Done)
            }
        };
        process.tell(&Told::Reply(number, reply))?;
    }
    // Their sockets are closed, too, or the server wants nothing more of them. What waits for a device that is lost waits for ever.
    let deadline = Instant::now() + END;
    let runs = |workers: &BTreeMap<_, JoinHandle<()>>| workers.values().any(|worker| !worker.is_finished());
    while !process.source.has_lost_device() && runs(&workers) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Setup {
    fn is_on_devices(&self) -> bool {
        matches!(self.job.placement, Placement::Devices(_))
    }
}

/// What the process reads: its files, those beside them (parts, and what links lead to), the code of policies, the system.
fn readable(setup: &Setup) -> Vec<PathBuf> {
    const SYSTEM: [&str; 7] = ["/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/etc/ld.so.cache"];
    let config = &setup.job.config;
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

/// Its part of the cache on disk.
fn writable(setup: &Setup) -> Option<PathBuf> {
    let dir = setup.cache.dir();
    // What cannot be made now cannot be used later, which is said then.
    dir.inspect(|dir| _ = DirBuilder::new().recursive(true).mode(0o700).create(dir)).map(Path::to_owned)
}

/// A copy of a file without a path.
fn in_memory(mut file: File) -> io::Result<File> {
    let mut copy = File::from(memfd_create("adapter", MemfdFlags::CLOEXEC)?);
    io::copy(&mut file, &mut copy)?;
    Ok(copy)
}

/// What can be made workers of, and its vocabulary.
fn load(setup: &Setup, told: UnixStream) -> Result<(Source, Arc<Vocabulary>), ServerError> {
    let Job { is_fake, kind, config, sizes, placement, .. } = &setup.job;
    if *is_fake {
        return Ok((Source::Fake(engines::fake_limits(sizes)), engines::fake_info(*kind).vocabulary));
    }
    if *kind == ModelKind::Predict {
        let (model, sha256) = models::load_tensors(config)?;
        let no_words = Vocabulary::new(std::iter::empty::<&[u8]>(), Vec::new());
        return Ok((Source::Tensors { model: Arc::new(model), sha256 }, no_words.into()));
    }
    camshaft_engine::use_numa(config.numa.wanted());
    let (last, told) = (Mutex::new(u64::MAX), Mutex::new(told));
    let sink = ProgressSink::new(move |_, per_cent| {
        if std::mem::replace(&mut *lock(&last), per_cent) != per_cent {
            // Without the server the process ends.
            let _ = frames::send(&mut *lock(&told), &Told::Loading(per_cent));
        }
    });
    let bar = LoadBar::hidden(&sink);
    let model = models::load(config, setup.digest, placement.clone(), &bar)?;
    let LoadProgress(tell) = bar.stage("loading");
    let _ = tell(1.0);
    let draft = config.draft_model.as_ref();
    let draft = draft.map(|path| models::load_draft(config, path, Placement::Host)).transpose()?;
    let vocabulary = model.info().vocabulary.clone();
    Ok((Source::Llama { model, draft }, vocabulary))
}

impl Process {
    fn tell(&self, told: &Told) -> io::Result<()> {
        frames::send(&mut *lock(&self.control), told)
    }

    /// Does what takes its time on a thread of its own.
    fn reply_apart(
        self: &Arc<Self>,
        name: &str,
        number: u64,
        act: impl FnOnce(&Self) -> Result<Reply, Failure> + Send + 'static,
    ) -> io::Result<()> {
        let process = self.clone();
        // Without the server the process ends.
        let act = move || drop(process.tell(&Told::Reply(number, act(&process))));
        Builder::new().name(name.to_owned()).spawn(act).map(drop)
    }

    fn compile(&self, grammar: &Grammar) -> Reply {
        // What is generated comes first.
        make_polite(0);
        match self.grammars.compile(grammar) {
            Ok(compiled) => {
                let bytes = compiled.bytes;
                lock(&self.compiled).push((grammar.digest(), compiled));
                Reply::Compiled(bytes)
            }
            Err(error) => Reply::Refused(error),
        }
    }

    fn load_adapter(&self, path: &Path, file: Option<File>) -> Result<Reply, Failure> {
        let internal = |error| Failure::of(&ServerError::internal("load an adapter", error));
        let Source::Llama { model, .. } = &self.source else {
            return Err(internal(anyhow::anyhow!("the model has none")));
        };
        // One that was configured since lies where this process may read nothing.
        let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let copy = file.filter(|_| File::open(path).is_err_and(|error| is_closed(&error))).map(in_memory).transpose();
        let copy = copy.map_err(|error| internal(error.into()))?;
        let copied = copy.as_ref().map(|copy| format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let loaded = model.load_adapter(copied.as_ref().map_or(path, Path::new)).map_err(|error| {
            let mut failure = Failure::of(&models::from_engine(&self.setup.job.config, error));
            if let Some(copied) = &copied {
                // Whoever configured it knows it by its own path.
                failure.why = failure.why.replace(copied.as_str(), &path.display().to_string());
            }
            failure
        })?;
        let (digest, bytes) = (loaded.digest(), loaded.bytes());
        lock(&self.adapters).push(loaded);
        Ok(Reply::Adapter(digest, bytes))
    }

    fn tensors(&self) -> Result<&Arc<TensorModel>, Failure> {
        match &self.source {
            Source::Tensors { model, .. } => Ok(model),
            Source::Fake(_) | Source::Llama { .. } => Err(Failure::internal(&"the model computes no tensors")),
        }
    }

    fn shapes(&self, shapes: &[Vec<usize>]) -> Result<Reply, Failure> {
        let model = self.tensors()?;
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let (bytes, outputs) = (model.run_bytes(&shapes), model.output_shapes(&shapes));
        Ok(Reply::Shapes(Shapes { bytes, outputs, fallback: model.fallback().map(Into::into) }))
    }

    fn memory(&self, workers: u32, rows: u32) -> Result<Reply, Failure> {
        Ok(Reply::Memory(self.tensors()?.memory_bytes(workers, rows)))
    }

    fn take_policies(self: &Arc<Self>, update: ReplicaUpdate) -> Result<(), anyhow::Error> {
        let Hooks::Replica(policies) = &self.around.hooks else { return Ok(()) };
        policies.apply(update)?;
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
            let notes = self.around.hooks.take_notes(true);
            if !notes.is_empty() && self.tell(&Told::Notes(notes)).is_err() {
                return;
            }
        }
    }

    /// Starts the thread of a worker, which says when it is ready. `before`: the one whose place it takes.
    fn open(
        self: &Arc<Self>,
        number: u64,
        id: WorkerId,
        before: Option<JoinHandle<()>>,
        way: (Vec<Vec<usize>>, UnixStream),
    ) -> io::Result<JoinHandle<()>> {
        let process = self.clone();
        Builder::new().name(format!("worker-{id}")).spawn(move || {
            if let Some(before) = before {
                // What its panic was about is logged.
                let _ = before.join();
            }
            // A panic ends this worker, and nothing else.
            let ended = catch_unwind(AssertUnwindSafe(|| process.run(number, id, way)));
            if let Ok(Err(error)) = &ended {
                // Without the server the process ends.
                let _ = process.tell(&Told::Reply(number, Err(Failure::of(error))));
            }
            if process.source.has_lost_device() {
                let _ = process.tell(&Told::DeviceLost);
                // No order comes any more.
                let _ = lock(&process.control).shutdown(Shutdown::Read);
            }
        })
    }

    /// Makes a worker, and runs it to its end.
    fn run(&self, number: u64, id: WorkerId, way: (Vec<Vec<usize>>, UnixStream)) -> Result<(), ServerError> {
        let Setup { job: Job { kind, config, sizes, .. }, cache, .. } = &self.setup;
        let threads = Threads::default();
        match (&self.source, kind) {
            (Source::Fake(_), ModelKind::Embed) => {
                let embedder = FakeEmbedder::new(engines::fake_embedder_limits(sizes));
                self.compute(number, Limits::Embeds(embedder.limits()), embedder, way.1)
            }
            (Source::Tensors { model, .. }, _) => {
                let predictor = Predictor::new(model.clone());
                self.compute(number, Limits::Predicts(predictor.batch()), predictor, way.1)
            }
            (Source::Fake(limits), _) => {
                let (engine, cache) = (self.around.fakes)(*limits, id, cache.ram_bytes)?;
                self.generate((number, id), (engine, cache, None), &threads, way)
            }
            (Source::Llama { model, .. }, ModelKind::Embed) => {
                let mut embedder = engines::embedder(config, model, sizes)?;
                if model.is_on_devices() {
                    engines::exercise_embedder(&mut embedder).map_err(|why| engines::does_not_work(config, why))?;
                }
                self.compute(number, Limits::Embeds(embedder.limits()), embedder, way.1)
            }
            (Source::Llama { model, draft }, _) => {
                let options = engines::engine_options(config, sizes);
                let mut engine = engines::engine(config, model, &options)?;
                if model.is_on_devices() {
                    engines::exercise(&mut engine).map_err(|why| engines::does_not_work(config, why))?;
                }
                let speculation = engines::speculation(config, draft.as_ref(), &options)?;
                let owner = CacheOwner { id: &config.id, model, options: &options, worker: id };
                let cache = CachePlan::of_parts(cache.clone()).on(threads.spawner()).open(&owner);
                self.generate((number, id), (engine, cache, speculation), &threads, way)
            }
        }
    }

    /// Runs a worker that computes batches.
    fn compute<M>(
        &self,
        number: u64,
        limits: Limits,
        mut model: M,
        mut connection: UnixStream,
    ) -> Result<(), ServerError>
    where
        M: BatchModel<Input: DeserializeOwned, Output: Serialize>,
    {
        if let Err(error) = model.warm_up() {
            tracing::warn!(%error, "the model could not compute a first input");
        }
        let internal = |error: io::Error| ServerError::internal("open a worker", error);
        self.tell(&Told::Reply(number, Ok(Reply::Opened(limits)))).map_err(internal)?;
        // The server is gone, or wants no more, where it ends.
        while let Ok(Some(Batch { threads, inputs })) = frames::receive::<Batch<Vec<M::Input>>>(&mut connection) {
            model.set_threads(threads);
            if frames::send(&mut connection, &model.compute(&inputs)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Runs a worker that generates.
    fn generate<E: Engine>(
        &self,
        (number, id): (u64, WorkerId),
        (engine, cache, speculation): (E, PrefixCache, Option<Speculation>),
        threads: &Threads,
        (cores, connection): (Vec<Vec<usize>>, UnixStream),
    ) -> Result<(), ServerError> {
        let spare = Arc::new(AtomicBool::new(true));
        let has_spare = spare.clone();
        let is_room = move || has_spare.load(Ordering::Relaxed);
        let hooks = self.around.hooks.clone();
        let worker = Worker::new(WorkerOptions {
            id,
            limits: engine.limits(),
            vocabulary: self.grammars.vocabulary().clone(),
            samplers: hooks.samplers(),
            filters: hooks.filters(),
            cache,
            step_target: self.setup.job.config.step_target(),
            grammars: self.grammars.clone(),
            masks: Some(MaskThreads::new(threads.spawner(), threads.polite(), Box::new(is_room))),
            speculation,
        });
        let mut engine = EngineLoop::new(engine, worker);
        let all = self.setup.job.sizes.threads;
        let mut team = Team::new(cores.iter().map(|core| cores::set(core)).collect());
        if let Err(error) = team.step(all, || engine.warm_up(), |_| true) {
            tracing::warn!(%error, worker = %id, "the engine could not decode a first token");
        }
        let internal = |error: io::Error| ServerError::internal("open a worker", error);
        let opened = Reply::Opened(Limits::Generates(engine.limits()));
        self.tell(&Told::Reply(number, Ok(opened))).map_err(internal)?;
        let incoming = Incoming::new(connection.try_clone().map_err(internal)?);
        let out = Out::new(connection, hooks);
        let mut out = WorkerLoop { out, incoming, engine, threads: all, spare, team }.run();
        // The disk tier of its cache writes what is queued, for seconds perhaps; only then it has ended.
        threads.join();
        out.end();
        Ok(())
    }
}

/// Threads of one worker, which are joined where it ends.
#[derive(Default)]
struct Threads(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Threads {
    fn spawner(&self) -> Spawner {
        // The worker that starts one may be kept on a core by then.
        let (threads, everywhere) = (self.0.clone(), sched_getaffinity(None));
        Spawner::new(move |name, body| {
            let body = move || {
                let _ = everywhere.and_then(|everywhere| sched_setaffinity(None, &everywhere));
                body();
            };
            let thread = Builder::new().name(name.to_owned()).spawn(body)?;
            lock(&threads).push(thread);
            Ok(())
        })
    }

    /// Of those that come after whatever computes.
    fn polite(&self) -> Spawner {
        let threads = self.spawner();
        Spawner::new(move |name, body| {
            let politely = || {
                make_polite(0);
                body();
            };
            threads.spawn(name, Box::new(politely))
        })
    }

    fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.0));
        // What a panic was about is logged where it happens.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}

/// Drops one that is meant: there may be several of the same.
fn drop_one<T>(all: &Mutex<Vec<T>>, is_it: impl FnMut(&T) -> bool) -> Result<Reply, Failure> {
    let mut all = lock(all);
    let one = all.iter().position(is_it);
    one.map(|one| all.swap_remove(one));
    Ok(Reply::Done)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
