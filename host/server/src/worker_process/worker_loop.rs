//! The loop of a worker that generates: commands come in, steps are computed, and what happened goes out.
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camshaft_core::engine::Engine;
use camshaft_core::engine_loop::EngineLoop;
use camshaft_core::message::{Event, Events};
use camshaft_core::report::Report;
use camshaft_core::worker::Step;
use camshaft_process::frames::{self, Incoming, Received};

use super::child::Hooks;
use super::{FromWorker, HEARTBEAT, ToWorker};
use crate::cores::Team;

/// One worker and its connection. After a panic the connection is closed first: the engine's cache may take seconds.
pub(super) struct WorkerLoop<E> {
    pub(super) out: Out,
    pub(super) incoming: Incoming,
    pub(super) engine: EngineLoop<E>,
    pub(super) threads: u32,
    /// Whether a processor is left beside those that compute.
    pub(super) spare: Arc<AtomicBool>,
    pub(super) team: Team,
}

impl<E: Engine> WorkerLoop<E> {
    /// Runs until the server is gone, or wants nothing more. What its end is to be told with: it is dropped by then.
    pub(super) fn run(mut self) -> Out {
        let begun = Instant::now();
        while self.take_messages() {
            self.engine.set_threads(self.threads);
            let now = begun.elapsed();
            let step = || self.engine.step(now, &mut self.out);
            self.team.step(self.threads, step, |step| matches!(step, Step::Decoded { .. }));
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
pub(super) struct Out {
    connection: UnixStream,
    hooks: Hooks,
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
    pub(super) fn new(connection: UnixStream, hooks: Hooks) -> Self {
        let (events, heard, took, may_take_longer) = (Vec::new(), 0, Duration::ZERO, false);
        let told = (Instant::now(), false, 0);
        Self { connection, hooks, events, heard, took, may_take_longer, told, is_last: false, is_broken: false }
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
            notes: self.hooks.take_notes(false),
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

    pub(super) fn end(&mut self) {
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
