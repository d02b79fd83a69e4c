//! The way to the process that reads.
use std::fmt;
use std::io::{self, PipeReader, Read};
use std::os::unix::net::UnixStream as Ends;
use std::pin::pin;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::grammar::{Grammar, GrammarSpec};
use camshaft_process::{Fate, Forks, NoFork, cpu_time, frames, make_polite, spawn, what_it_did};
use camshaft_reader::{Answer, Asker, Bound, Facts, Permit, ReadError, Reader, SHORT_BYTES, Stage, Task, Turns};
use crossbeam_channel::{Receiver, Sender};
use futures_util::future::BoxFuture;
use signal_hook::consts::{SIGKILL, SIGXCPU};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::child::{Answered, Purpose, Ready, Setup, Timed, stage_of};
use super::{ROLE, text_info};
use crate::environment;
use crate::error::Failure;
use crate::models::Outlines;
use crate::own_program::own_program;

/// CPU time of a task, and what each MiB of its body adds.
const SECONDS: u64 = 1;
const SECONDS_PER_MIB: usize = 2;
/// A task that is not given the CPU is given up, too: seconds for each second of CPU time of a long body, and for a short one.
const WALL: u32 = 8;
const SHORT_WALL: Duration = Duration::from_millis(2500);
/// Who has had so much CPU time by then is not only waiting for it.
const OWN_FAULT: Duration = Duration::from_millis(300);
/// Most short bodies are read within it. From then on engines come before it, as before what is polite from the start.
const PROMPT: Duration = Duration::from_millis(50);
/// A grammar has what is left of the first second of its fork, and waits for the CPU no longer than this.
const GRAMMAR_SECONDS: u64 = 0;
const GRAMMAR_WALL: Duration = Duration::from_secs(1);
/// What all of them need takes a second with a large vocabulary.
const READY_SECONDS: u64 = 20;
/// Memory of a task, and what each byte of its body adds: it is there several times, and each of its tokens takes some.
const MEMORY_BYTES: u64 = 1 << 30;
const MEMORY_PER_BYTE: u64 = 64;
/// The same of a grammar, its stack with it: whoever generates with it takes as much.
const GRAMMAR_BYTES: u64 = 384 << 20;
/// A vocabulary is loaded within it, and a fork made.
const LOAD: Duration = Duration::from_secs(120);
const FORK: Duration = Duration::from_secs(10);
/// Forks for short bodies that are there from the start.
const FRESH: usize = 2;
/// The process is started again this long after it was started, and each time after twice as long, up to the maximum, until it has
/// lasted.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// What is left of a pause is waited for up to this long; a longer one refuses whoever asks.
const PATIENCE: Duration = Duration::from_secs(1);
const LASTS: Duration = Duration::from_secs(10);
/// Bytes of what a fork has said.
const WORDS_BYTES: u64 = 64 << 10;
/// Times that a task is begun whose fork somebody else has killed.
const ATTEMPTS: usize = 3;

/// See the module.
#[derive(Debug)]
pub(crate) struct ReaderProcess {
    model: String,
    facts: Facts,
    turns: Turns,
    /// A fork has made ready what grammars need.
    has_grammars: AtomicBool,
    /// Forks that have nothing to do: the first ones since the start, so that short bodies are read where no file can be opened.
    idle: Mutex<Vec<NewFork>>,
    orders: Sender<Order>,
    /// Counts the processes. Forks of one that is gone are gone, too.
    generation: Arc<AtomicU64>,
}

/// What the thread is asked that has the process.
#[derive(Debug)]
enum Order {
    Fork(Purpose, Sender<Order>, oneshot::Sender<io::Result<NewFork>>),
    /// Has first forks find out what is known of the model, and makes some for those who come. With texts whose tokens are to be known.
    Describe(Vec<String>, Sender<Order>, Sender<io::Result<(Facts, Vec<NewFork>)>>),
    /// Kills a fork of a generation, and says how it ended.
    Bury(i32, u64, Option<oneshot::Sender<Fate>>),
}

/// A fork of the process that nobody speaks to. Dropped, it is killed: what it does, nobody waits for.
#[derive(Debug)]
struct NewFork {
    connection: Ends,
    /// Its standard error.
    words: PipeReader,
    grave: Grave,
}

/// What has to be done about a fork whatever becomes of it.
#[derive(Debug)]
struct Grave {
    pid: i32,
    generation: u64,
    orders: Sender<Order>,
    is_filled: bool,
}

/// The process, and who keeps it.
struct Keeper {
    model: String,
    setup: Setup,
    /// Of the vocabulary that it had first.
    vocabulary: Option<[u8; 32]>,
    running: Option<(Child, Forks)>,
    generation: Arc<AtomicU64>,
    /// When it was started last, and how long after that it may be started again.
    begun: Option<Instant>,
    pause: Duration,
}

/// A process that has loaded a model's vocabulary, and that nobody asks yet.
#[derive(Debug)]
pub(super) struct NewReader {
    model: String,
    orders: Sender<Order>,
    generation: Arc<AtomicU64>,
}

impl NewReader {
    /// Starts the process, and has it say what the model's file says; nothing, of a fake model.
    ///
    /// # Errors
    /// It cannot be started, or does not load the file.
    pub(super) fn start(setup: Setup) -> Result<(Self, Option<Outlines>), Failure> {
        #[expect(clippy::disallowed_methods, reason = "each fork is ordered under a permit, and buried once")]
        let (orders, received) = crossbeam_channel::unbounded();
        let (told, outlines) = crossbeam_channel::bounded(1);
        let (generation, model) = (Arc::new(AtomicU64::new(0)), setup.config.id.clone());
        let mut keeper = Keeper {
            model: model.clone(),
            setup,
            vocabulary: None,
            running: None,
            generation: generation.clone(),
            begun: None,
            pause: MIN_PAUSE,
        };
        // The process ends with the thread that started it.
        let thread = std::thread::Builder::new().name(format!("reader-{model}")).spawn(move || {
            let started = keeper.start();
            let serves = started.is_ok();
            // Whoever started it waits for this.
            let _ = told.send(started);
            if serves {
                keeper.keep(&received);
            }
            keeper.end();
        });
        thread.map_err(|error| Failure::internal(&error))?;
        let outlines = outlines.recv().map_err(|error| Failure::internal(&error))??;
        Ok((Self { model, orders, generation }, outlines))
    }
}

impl ReaderProcess {
    /// Has a process that has loaded the vocabulary say what else it knows. `markers`: texts whose tokens are to be known.
    ///
    /// # Errors
    /// It cannot read the markers.
    pub(super) fn of(NewReader { model, orders, generation }: &NewReader, markers: Vec<String>) -> io::Result<Self> {
        let (reply, described) = crossbeam_channel::bounded(1);
        orders.send(Order::Describe(markers, orders.clone(), reply)).map_err(io::Error::other)?;
        let (facts, fresh) = described.recv().map_err(io::Error::other)??;
        let (turns, idle, has_grammars) = (Turns::default(), Mutex::new(fresh), AtomicBool::new(false));
        let (model, orders, generation) = (model.clone(), orders.clone(), generation.clone());
        Ok(Self { model, facts, turns, has_grammars, idle, orders, generation })
    }

    async fn do_task(&self, asker: Asker<'_>, task: Task) -> Result<Answer, ReadError> {
        if matches!(task, Task::Grammar(_)) {
            self.make_ready().await?;
            let purpose = Purpose { has_grammars: true, memory_bytes: GRAMMAR_BYTES, ..self.short() };
            return self
                .attempts(&Timed { seconds: GRAMMAR_SECONDS, task: &task }, (purpose, GRAMMAR_WALL), false)
                .await;
        }
        let _permit: Permit = self.turns.take(asker).await?;
        let seconds = SECONDS + (asker.bytes.saturating_mul(SECONDS_PER_MIB) >> 20) as u64;
        let is_long = asker.bytes > SHORT_BYTES;
        let wall = if is_long { Duration::from_secs(seconds) * WALL } else { SHORT_WALL };
        let memory = MEMORY_BYTES.saturating_add((asker.bytes as u64).saturating_mul(MEMORY_PER_BYTE));
        let purpose = if is_long { Purpose { memory_bytes: memory, ..self.short() } } else { self.short() };
        self.attempts(&Timed { seconds, task: &task }, (purpose, wall), !is_long).await
    }

    /// Finds out, with a grammar of nobody's, whether the vocabulary can be constrained: then it is made ready where all forks have it.
    async fn make_ready(&self) -> Result<(), ReadError> {
        if self.has_grammars.load(Ordering::Relaxed) {
            return Ok(());
        }
        let grammar = Grammar::new(GrammarSpec::Choice { texts: vec!["a".to_owned()] });
        let (seconds, task) = (READY_SECONDS, Task::Grammar(Box::new(grammar)));
        let within = (self.short(), Duration::from_secs(seconds));
        let tried = self.attempts(&Timed { seconds, task: &task }, within, false).await;
        // Whether the vocabulary can write that grammar is another question.
        if let Ok(_) | Err(ReadError::Grammar(_)) = tried {
            self.has_grammars.store(true, Ordering::Relaxed);
            return Ok(());
        }
        tried.map(drop)
    }

    /// Has a fork do a task; another one, where somebody else has killed it. `is_short`: it begins as urgent as engines.
    async fn attempts(
        &self,
        task: &Timed<&Task>,
        (purpose, wall): (Purpose, Duration),
        is_short: bool,
    ) -> Result<Answer, ReadError> {
        let frame = frames::encode(task).map_err(lost)?;
        let mut killed = String::new();
        for _ in 0..ATTEMPTS {
            let fork = match if is_short { self.take_idle() } else { None } {
                Some(fork) => fork,
                None => self.fork(purpose).await?,
            };
            let NewFork { connection, words, grave } = fork;
            let mut connection = UnixStream::from_std(connection).map_err(lost)?;
            let Some((body, was_prompt)) = exchange(&mut connection, &frame, grave.pid, (is_short, wall)).await else {
                let is_own_fault = wall <= SHORT_WALL && cpu_time(grave.pid) >= Some(OWN_FAULT);
                let bound = if is_own_fault { Bound::Time } else { Bound::Wait };
                let (stage, _) = grave.bury(words).await;
                return Err(self.ended(stage.unwrap_or(Stage::Vocabulary), bound));
            };
            let answer = match body {
                Ok(body) => decode(body).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(Answered { answer, is_worn }) => {
                    if was_prompt && !is_worn {
                        let connection = connection.into_std().map_err(lost)?;
                        self.idle().push(NewFork { connection, words, grave });
                    }
                    return answer;
                }
                Err(error) => match grave.bury(words).await {
                    (Some(stage), Some(bound)) => return Err(self.ended(stage, bound)),
                    _ => killed = error.to_string(),
                },
            }
        }
        Err(ReadError::Lost(killed))
    }

    fn ended(&self, stage: Stage, bound: Bound) -> ReadError {
        tracing::warn!(model = self.model, %stage, ?bound, "reading a request was ended");
        ReadError::Ended(stage, bound)
    }

    async fn fork(&self, purpose: Purpose) -> Result<NewFork, ReadError> {
        let (reply, forked) = oneshot::channel();
        self.orders.send(Order::Fork(purpose, self.orders.clone(), reply)).map_err(lost)?;
        forked.await.map_err(lost)?.map_err(lost)
    }

    /// One of the process that runs.
    fn take_idle(&self) -> Option<NewFork> {
        let generation = self.generation.load(Ordering::Relaxed);
        let mut idle = self.idle();
        idle.retain(|fork| fork.grave.generation == generation);
        idle.pop()
    }

    /// What a fork for short bodies is for.
    fn short(&self) -> Purpose {
        short(self.facts.template.is_ok())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<NewFork>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader for ReaderProcess {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn read<'a>(&'a self, asker: Asker<'a>, task: Task) -> BoxFuture<'a, Result<Answer, ReadError>> {
        Box::pin(self.do_task(asker, task))
    }
}

/// What a fork answers, and whether it did at once. `None`: not in time.
async fn exchange(
    connection: &mut UnixStream,
    frame: &[u8],
    fork: i32,
    (is_short, wall): (bool, Duration),
) -> Option<(io::Result<Vec<u8>>, bool)> {
    let mut exchange = pin!(frames::exchange(connection, frame));
    if is_short && let Ok(answered) = timeout(PROMPT, &mut exchange).await {
        return Some((answered, true));
    }
    make_polite(fork);
    Some((timeout(wall, exchange).await.ok()?, false))
}

/// A long answer where that delays no connection.
async fn decode(body: Vec<u8>) -> io::Result<Answered> {
    if body.len() <= SHORT_BYTES {
        return frames::decode(&body);
    }
    tokio::task::spawn_blocking(move || frames::decode(&body)).await?
}

impl Grave {
    /// What the fork was reading, and what it ran into unless somebody has killed it.
    async fn bury(mut self, mut words: PipeReader) -> (Option<Stage>, Option<Bound>) {
        let name = what_it_did(self.pid);
        self.is_filled = true;
        let (reply, buried) = oneshot::channel();
        // Without the thread it was killed with its parent.
        let sent = self.orders.send(Order::Bury(self.pid, self.generation, Some(reply)));
        let fate = if sent.is_ok() { buried.await.ok() } else { None };
        (name.and_then(|name| stage_of(&name)), fate.and_then(|fate| bound(fate, &words_of(&mut words))))
    }
}

impl Drop for Grave {
    fn drop(&mut self) {
        if !self.is_filled {
            // Without the thread it was killed with its parent.
            let _ = self.orders.send(Order::Bury(self.pid, self.generation, None));
        }
    }
}

fn short(has_template: bool) -> Purpose {
    Purpose { has_template, has_grammars: false, memory_bytes: MEMORY_BYTES }
}

fn lost(error: impl fmt::Display) -> ReadError {
    ReadError::Lost(error.to_string())
}

/// What a fork has said.
fn words_of(words: &mut PipeReader) -> String {
    let mut said = Vec::new();
    // It ends where there is no more at the moment.
    let _ = words.take(WORDS_BYTES).read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// What a process ran into that ended so. `None`: it was killed.
fn bound(fate: Fate, words: &str) -> Option<Bound> {
    let out_of_memory = ["memory allocation", "bad_alloc", "unable to allocate", "out of memory"];
    match fate.signal {
        Some(SIGKILL) => None,
        Some(SIGXCPU) => Some(Bound::Time),
        _ if out_of_memory.iter().any(|sign| words.contains(sign)) => Some(Bound::Memory),
        Some(signal) => Some(Bound::Crash(format!("signal {signal}"))),
        None => Some(Bound::Crash("it exited".to_owned())),
    }
}

impl Keeper {
    /// A template that ends the fork that tries it leaves the model without chats.
    fn describe(&mut self, markers: Vec<String>, orders: &Sender<Order>) -> io::Result<(Facts, Vec<NewFork>)> {
        self.run()?;
        let read = match self.ask(&Facts::of_markers(&markers), orders)? {
            Ok(Answer::Texts(read)) => read,
            other => return Err(io::Error::other(format!("the vocabulary cannot be read: {other:?}"))),
        };
        let template = match self.ask(&Task::Describe, orders)? {
            Ok(Answer::Template(traits)) => Ok(traits),
            Ok(_) => Err("it answered something else".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let purpose = short(template.is_ok());
        let fresh = (0..FRESH).map(|_| self.fork(purpose, orders)).collect::<io::Result<_>>()?;
        Ok((Facts::new(markers, read, template), fresh))
    }

    /// Has a fork of its own do a task, another time where somebody kills it.
    ///
    /// # Errors
    /// Somebody has killed them, or they were not given the processor.
    fn ask(&mut self, task: &Task, orders: &Sender<Order>) -> io::Result<Result<Answer, ReadError>> {
        let mut why = io::Error::from(io::ErrorKind::NotConnected);
        for _ in 0..ATTEMPTS {
            let NewFork { mut connection, mut words, mut grave } = self.fork(short(false), orders)?;
            connection.set_nonblocking(false)?;
            connection.set_read_timeout(Some(Duration::from_secs(SECONDS) * WALL))?;
            let asked = frames::send(&mut connection, &Timed { seconds: SECONDS, task });
            let answer = asked.and_then(|()| frames::receive::<Answered>(&mut connection));
            let name = what_it_did(grave.pid);
            grave.is_filled = true;
            let fate = self.bury(grave.pid, grave.generation);
            match answer {
                Ok(Some(Answered { answer, .. })) => return Ok(answer),
                Ok(None) => {}
                Err(error) => why = error,
            }
            if let Some(bound) = bound(fate, &words_of(&mut words)) {
                let stage = name.and_then(|name| stage_of(&name)).unwrap_or(Stage::Vocabulary);
                return Ok(Err(ReadError::Ended(stage, bound)));
            }
        }
        Err(why)
    }

    fn keep(&mut self, orders: &Receiver<Order>) {
        for order in orders {
            match order {
                Order::Fork(purpose, orders, reply) => {
                    let forked = self.run().and_then(|()| self.fork(purpose, &orders));
                    // Where nobody waits for it any more, it is dropped and killed.
                    let _ = reply.send(forked);
                }
                Order::Describe(markers, orders, reply) => {
                    let described = self.describe(markers, &orders);
                    // It lives as long as somebody else has one.
                    drop(orders);
                    // Whoever asked may be gone.
                    let _ = reply.send(described);
                }
                Order::Bury(pid, generation, reply) => {
                    let fate = self.bury(pid, generation);
                    reply.map(|reply| reply.send(fate));
                }
            }
        }
    }

    fn fork(&mut self, purpose: Purpose, orders: &Sender<Order>) -> io::Result<NewFork> {
        let (_, forks) = self.running.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        match forks.fork(&purpose) {
            Ok((pid, connection, words)) => {
                let generation = self.generation.load(Ordering::Relaxed);
                let grave = Grave { pid, generation, orders: orders.clone(), is_filled: false };
                connection.set_nonblocking(true)?;
                Ok(NewFork { connection, words, grave })
            }
            Err(NoFork::Gone(error)) => {
                tracing::error!(model = self.model, %error, "the process that reads for the model is gone");
                self.end();
                Err(error)
            }
            Err(NoFork::Refused(error)) => {
                tracing::error!(model = self.model, %error, "no process can read for the model at the moment");
                Err(error)
            }
        }
    }

    /// How a fork ended. Those of a process that is gone were killed with it.
    fn bury(&mut self, pid: i32, generation: u64) -> Fate {
        let killed = Fate { signal: Some(SIGKILL) };
        if generation != self.generation.load(Ordering::Relaxed) {
            return killed;
        }
        let Some((_, forks)) = self.running.as_mut() else { return killed };
        forks.bury(pid).unwrap_or_else(|_| {
            self.end();
            killed
        })
    }

    /// Starts the process unless it runs, and not too soon after it was started before.
    fn run(&mut self) -> io::Result<()> {
        let lived = self.begun.map(|begun| begun.elapsed());
        if let Some((child, _)) = self.running.as_mut() {
            if matches!(child.try_wait(), Ok(None)) {
                if lived.is_some_and(|lived| lived > LASTS) {
                    self.pause = MIN_PAUSE;
                }
                return Ok(());
            }
            self.end();
        }
        let rest = lived.map_or(Duration::ZERO, |lived| self.pause.saturating_sub(lived));
        if rest > PATIENCE {
            return Err(io::Error::other("the process that reads ended, and was started again a moment ago"));
        }
        std::thread::sleep(rest);
        let started = self.start();
        if let Err(error) = &started {
            tracing::error!(model = self.model, error = error.why, "nobody can read for the model");
        }
        started.map(drop).map_err(|error| io::Error::other(error.why))
    }

    /// Starts the process, and has it say what it has loaded.
    fn start(&mut self) -> Result<Option<Outlines>, Failure> {
        self.begun = Some(Instant::now());
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        let internal = |error: io::Error| Failure::internal(&error);
        let (mut child, control) =
            own_program().and_then(|program| spawn(&program, ROLE, &environment::missing())).map_err(internal)?;
        match self.introduce(&control) {
            Ok(Ok(outlines)) => {
                self.running = Some((child, Forks::new(control)));
                Ok(outlines)
            }
            Ok(Err(failure)) => {
                let _ = child.wait();
                Err(failure)
            }
            Err(error) => Err(Failure::of_process(&self.setup.config, "reads", child, &error)),
        }
    }

    /// Tells the process what to load, and waits until it has.
    fn introduce(&mut self, mut control: &Ends) -> io::Result<Result<Option<Outlines>, Failure>> {
        let begun = Instant::now();
        control.set_read_timeout(Some(LOAD))?;
        frames::send(&mut control, &self.setup)?;
        let Ready { outlines, confined: (files, calls) } = match frames::receive(&mut control)? {
            Some(Ok(ready)) => ready,
            Some(Err(failure)) => return Ok(Err(failure)),
            None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        };
        let vocabulary = text_info(outlines.as_ref(), &self.setup).vocabulary.digest();
        if *self.vocabulary.get_or_insert(vocabulary) != vocabulary {
            return Err(io::Error::other("the model's file has another vocabulary than when it was loaded"));
        }
        let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let model = &self.model;
        tracing::info!(model, millis, landlock = files, seccomp = calls, "a process reads for the model");
        self.generation.fetch_add(1, Ordering::Relaxed);
        control.set_read_timeout(Some(FORK))?;
        Ok(Ok(outlines))
    }

    fn end(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            // It has ended, or must. Its forks are of no generation from now on.
            let _ = child.kill();
            let _ = child.wait();
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }
}
