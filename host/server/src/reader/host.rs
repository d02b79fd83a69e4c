//! The way to the process that reads.
use std::fmt;
use std::io::{self, PipeReader, Read};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_process::{Fate, Forks, frames, spawn, what_it_did};
use camshaft_reader::{Answer, Asker, Bound, Facts, Permit, ReadError, Reader, SHORT_BYTES, Stage, Task, Turns};
use crossbeam_channel::{Receiver, Sender};
use futures_util::future::BoxFuture;
use signal_hook::consts::{SIGKILL, SIGXCPU};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::ROLE;
use super::child::{Purpose, Ready, Setup, Timed, stage_of};
use super::grammars::{GrammarTurns, Turn};
use crate::own_program::own_program;

/// CPU time of a task, and what each MiB of its body adds.
const SECONDS: u64 = 1;
const SECONDS_PER_MIB: usize = 2;
/// Memory of a task, and what each byte of its body adds: it is there several times, and each of its tokens takes some.
const MEMORY_BYTES: u64 = 1 << 30;
const MEMORY_PER_BYTE: u64 = 64;
/// The same of a grammar, its stack with it: whoever generates with it takes as much.
const GRAMMAR_BYTES: u64 = 384 << 20;
/// A task that is not given the CPU is given up, too: seconds for each second of CPU time.
const WALL: u32 = 8;
/// The same of a grammar.
const GRAMMAR_WALL: Duration = Duration::from_millis(1500);
/// A vocabulary is loaded within it.
const LOAD: Duration = Duration::from_secs(120);
/// Orders that wait for the thread that has the process.
const ORDERS: usize = 1024;
/// Forks for short bodies that are there from the start.
const FRESH: usize = 2;
/// Pauses between attempts to start the process again: each is twice as long, up to the maximum.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Bytes of what a fork said last.
const WORDS_BYTES: u64 = 16 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct ReaderProcess {
    facts: Facts,
    turns: Turns,
    grammars: Arc<GrammarTurns>,
    /// Forks that have nothing to do: the first ones since the start, so that short bodies are read where no file can be opened.
    idle: Mutex<Idle>,
    orders: Sender<Order>,
    has_template: bool,
}

#[derive(Debug, Default)]
struct Idle {
    fresh: Vec<NewFork>,
    used: Vec<Fork>,
}

/// What the thread is asked that has the process.
#[derive(Debug)]
enum Order {
    Fork(Purpose, oneshot::Sender<io::Result<NewFork>>),
    /// Kills a fork, and says how it ended.
    Bury(i32, Option<oneshot::Sender<Fate>>),
}

type NewFork = (i32, std::os::unix::net::UnixStream, PipeReader);

/// A fork of the process. Dropped, it is killed: what it does, nobody waits for.
#[derive(Debug)]
struct Fork {
    pid: i32,
    connection: UnixStream,
    /// Its standard error.
    words: PipeReader,
    orders: Sender<Order>,
    is_buried: bool,
}

/// The process, and who keeps it.
struct Keeper {
    model: String,
    setup: Setup,
    /// Of the vocabulary that this server has.
    vocabulary: [u8; 32],
    running: Option<(Child, Forks)>,
    pause: Duration,
    not_before: Option<Instant>,
}

impl ReaderProcess {
    /// Starts the process, and has it say what it knows of the model. `markers`: texts whose tokens are to be known. `vocabulary`: the
    /// digest of the one that is here.
    ///
    /// # Errors
    /// It cannot be started, or has loaded another vocabulary.
    pub(super) fn start(model: &str, setup: Setup, markers: Vec<String>, vocabulary: [u8; 32]) -> io::Result<Self> {
        let (orders, received) = crossbeam_channel::bounded(ORDERS);
        let (told, facts) = crossbeam_channel::bounded(1);
        let mut keeper =
            Keeper { model: model.to_owned(), setup, vocabulary, running: None, pause: MIN_PAUSE, not_before: None };
        // The process ends with the thread that started it.
        std::thread::Builder::new().name(format!("reader-{model}")).spawn(move || {
            let described = keeper.describe(markers).and_then(|facts| {
                let purpose = short(matches!(facts.template, Some(Ok(_))));
                let fresh = (0..FRESH).map(|_| keeper.fork(purpose)).collect::<io::Result<_>>()?;
                Ok((facts, fresh))
            });
            let serves = described.is_ok();
            // Whoever started it waits for this.
            let _ = told.send(described);
            if serves {
                keeper.keep(&received);
            }
            keeper.end();
        })?;
        let (facts, fresh) = facts.recv().map_err(io::Error::other)??;
        let has_template = matches!(facts.template, Some(Ok(_)));
        let (turns, grammars) = (Turns::default(), GrammarTurns::new());
        let idle = Mutex::new(Idle { fresh, used: Vec::new() });
        Ok(Self { facts, turns, grammars, idle, orders, has_template })
    }

    async fn do_task(&self, asker: Asker<'_>, task: Task) -> Result<Answer, ReadError> {
        let compiles = matches!(task, Task::Grammar(_));
        let is_long = asker.bytes > SHORT_BYTES;
        let _turn: (Option<Turn>, Option<Permit>) = match compiles {
            true => (Some(self.grammars.take(asker.tenant).await?), None),
            false => (None, Some(self.turns.take(asker).await?)),
        };
        let seconds = SECONDS + if compiles { 0 } else { (asker.bytes.saturating_mul(SECONDS_PER_MIB) >> 20) as u64 };
        let wall = if compiles { GRAMMAR_WALL } else { Duration::from_secs(seconds) * WALL };
        let timed = Timed { seconds, task: &task };
        // A fork that grew is not kept.
        let is_kept = !compiles && !is_long;
        let long = MEMORY_BYTES.saturating_add((asker.bytes as u64).saturating_mul(MEMORY_PER_BYTE));
        let memory_bytes = if compiles { GRAMMAR_BYTES } else { long };
        let purpose = match is_kept {
            true => short(self.has_template),
            false => Purpose { compiles, is_polite: true, memory_bytes, ..short(self.has_template) },
        };
        for attempt in 0.. {
            let mut fork = match if is_kept { self.take_idle()? } else { None } {
                Some(fork) => fork,
                None => self.fork(purpose).await?,
            };
            let error = match timeout(wall, frames::ask(&mut fork.connection, &timed)).await {
                Ok(Ok(answer)) => {
                    if is_kept {
                        self.idle().used.push(fork);
                    }
                    return answer;
                }
                Ok(Err(error)) => Some(error),
                Err(_) => None,
            };
            let is_late = error.is_none();
            match fork.bury().await {
                // Somebody else has killed it, or all of them: it may be tried again.
                Some((_, None)) | None if attempt == 0 && !is_late => {}
                Some((stage, Some(bound))) => return Err(ReadError::Ended(stage, bound)),
                Some((stage, None)) if is_late => return Err(ReadError::Ended(stage, Bound::Time)),
                _ => return Err(ReadError::Lost(error.map_or_else(String::new, |error| error.to_string()))),
            }
        }
        Err(ReadError::Lost(String::new()))
    }

    async fn fork(&self, purpose: Purpose) -> Result<Fork, ReadError> {
        let (reply, forked) = oneshot::channel();
        self.orders.try_send(Order::Fork(purpose, reply)).map_err(lost)?;
        Fork::new(forked.await.map_err(lost)?.map_err(lost)?, self.orders.clone()).map_err(lost)
    }

    fn take_idle(&self) -> Result<Option<Fork>, ReadError> {
        let fresh = {
            let mut idle = self.idle();
            if let Some(used) = idle.used.pop() {
                return Ok(Some(used));
            }
            idle.fresh.pop()
        };
        fresh.map(|fresh| Fork::new(fresh, self.orders.clone())).transpose().map_err(lost)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
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

impl Fork {
    fn new((pid, connection, words): NewFork, orders: Sender<Order>) -> io::Result<Self> {
        connection.set_nonblocking(true)?;
        Ok(Self { pid, connection: UnixStream::from_std(connection)?, words, orders, is_buried: false })
    }

    /// What it was reading, and what it ran into unless it was killed by somebody; `None` if nobody knows.
    async fn bury(mut self) -> Option<(Stage, Option<Bound>)> {
        self.is_buried = true;
        let name = what_it_did(self.pid);
        let (reply, buried) = oneshot::channel();
        self.orders.try_send(Order::Bury(self.pid, Some(reply))).ok()?;
        let fate = buried.await.ok()?;
        Some((stage_of(&name?)?, bound(fate, &words_of(&mut self.words))))
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        if !self.is_buried {
            // Without its keeper it has ended. Where too many orders wait, it ends when it is done, or at its bound.
            let _ = self.orders.try_send(Order::Bury(self.pid, None));
        }
    }
}

/// What a fork for short bodies is for.
fn short(has_template: bool) -> Purpose {
    Purpose { has_template, compiles: false, is_polite: false, memory_bytes: MEMORY_BYTES }
}

fn lost(error: impl fmt::Display) -> ReadError {
    ReadError::Lost(error.to_string())
}

/// What a fork said last.
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
    /// Has a first fork find out what is known of the model. One that ends there leaves the model without chats.
    fn describe(&mut self, markers: Vec<String>) -> io::Result<Facts> {
        self.run()?;
        let (pid, mut connection, mut words) = self.fork(short(false))?;
        connection.set_read_timeout(Some(Duration::from_secs(SECONDS) * WALL))?;
        let task = Task::Describe { markers };
        let asked = frames::send(&mut connection, &Timed { seconds: SECONDS, task: &task });
        let answer = asked.and_then(|()| frames::receive::<Result<Answer, ReadError>>(&mut connection));
        let name = what_it_did(pid);
        let fate = self.bury(pid);
        let why = match answer {
            Ok(Some(Ok(Answer::Facts(facts)))) => return Ok(facts),
            Ok(Some(Err(error))) => error.to_string(),
            _ => {
                let stage = name.and_then(|name| stage_of(&name)).unwrap_or(Stage::Vocabulary);
                let bound = bound(fate, &words_of(&mut words)).unwrap_or(Bound::Time);
                ReadError::Ended(stage, bound).to_string()
            }
        };
        Ok(Facts { template: Some(Err(why)), markers: Vec::new() })
    }

    fn keep(&mut self, orders: &Receiver<Order>) {
        for order in orders {
            match order {
                Order::Fork(purpose, reply) => {
                    let forked = self.run().and_then(|()| self.fork(purpose));
                    if let Err(error) = &forked {
                        tracing::error!(model = self.model, %error, "nobody can read for the model");
                        self.lose();
                    } else {
                        self.pause = MIN_PAUSE;
                    }
                    if let Err(Ok((pid, ..))) = reply.send(forked) {
                        // Nobody waits for it any more.
                        self.bury(pid);
                    }
                }
                Order::Bury(pid, reply) => {
                    let fate = self.bury(pid);
                    reply.map(|reply| reply.send(fate));
                }
            }
        }
    }

    fn fork(&mut self, purpose: Purpose) -> io::Result<NewFork> {
        let (_, forks) = self.running.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        forks.fork(&purpose)
    }

    /// How a fork ended. Those of a process that is gone were killed with it.
    fn bury(&mut self, pid: i32) -> Fate {
        let buried = self.running.as_mut().map(|(_, forks)| forks.bury(pid));
        buried.and_then(Result::ok).unwrap_or(Fate { signal: Some(SIGKILL) })
    }

    /// Starts the process unless it runs, and not too soon after it was lost.
    fn run(&mut self) -> io::Result<()> {
        let ended = self.running.as_mut().is_some_and(|(child, _)| !matches!(child.try_wait(), Ok(None)));
        if ended {
            self.lose();
        }
        if self.running.is_some() {
            return Ok(());
        }
        if self.not_before.is_some_and(|then| Instant::now() < then) {
            return Err(io::Error::other("it was started lately, and ended"));
        }
        let (mut child, mut control) = spawn(&own_program()?, ROLE)?;
        let begun = Instant::now();
        control.set_read_timeout(Some(LOAD))?;
        let asked = frames::send(&mut control, &self.setup);
        let ready = asked.and_then(|()| frames::receive::<Result<Ready, String>>(&mut control));
        let why = match ready {
            Ok(Some(Ok(Ready { vocabulary, confined: (files, calls) }))) if vocabulary == self.vocabulary => {
                let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                let model = &self.model;
                tracing::info!(
                    model,
                    millis,
                    pid = child.id(),
                    landlock = files,
                    seccomp = calls,
                    "a process reads for the model"
                );
                control.set_read_timeout(None)?;
                self.running = Some((child, Forks::new(control)));
                return Ok(());
            }
            Ok(Some(Ok(_))) => "the model's file has another vocabulary than when it was loaded".to_owned(),
            Ok(Some(Err(why))) => why,
            Ok(None) => "the process that reads ended while it loaded the vocabulary".to_owned(),
            Err(error) => format!("the process that reads does not load the vocabulary: {error}"),
        };
        let _ = child.kill();
        let _ = child.wait();
        self.lose();
        Err(io::Error::other(why))
    }

    /// The process is gone: the next attempt waits for longer.
    fn lose(&mut self) {
        self.end();
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }

    fn end(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            // It has ended, or must.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
