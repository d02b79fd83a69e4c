//! One engine with its worker: commands in, events for clients and reports for the pool out.
//!
//! It knows neither clients nor threads, and what goes in and out can be serialized. A thread of the server runs it beside
//! the delivery to clients; another process could run it as well.
use std::time::Duration;

use crate::engine::{Engine, EngineError, EngineLimits};
use crate::message::{Command, Event, Events};
use crate::report::{Report, Reporter};
use crate::worker::{Step, Worker};

/// See the module.
#[derive(Debug)]
pub struct EngineLoop<E> {
    engine: E,
    worker: Worker,
    reporter: Reporter,
}

impl<E: Engine> EngineLoop<E> {
    pub fn new(engine: E, worker: Worker) -> Self {
        Self { engine, worker, reporter: Reporter::default() }
    }

    pub fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Has the engine made ready on the calling thread, before anything is asked of it.
    ///
    /// # Errors
    /// The engine cannot decode.
    pub fn warm_up(&mut self) -> Result<(), EngineError> {
        self.engine.warm_up()
    }

    /// As [`Engine::set_threads`].
    pub fn set_threads(&mut self, threads: u32) {
        self.engine.set_threads(threads);
    }

    /// Carries out a command.
    pub fn handle(&mut self, command: Command, events: &mut impl Events) {
        let mut events = Noted { reporter: &mut self.reporter, events };
        self.worker.handle(command, &mut self.engine, &mut events);
        events.flush();
    }

    /// Decodes one batch. `now` counts from the start of the loop.
    pub fn step(&mut self, now: Duration, events: &mut impl Events) -> Step {
        let mut events = Noted { reporter: &mut self.reporter, events };
        let step = self.worker.step(now, &mut self.engine, &mut events);
        events.flush();
        if let Step::Decoded { tokens } = step {
            self.reporter.decoded(tokens, now);
        }
        step
    }

    /// What the pool has to hear now, if anything: the events since the last report with the facts that hold after them.
    pub fn report(&mut self) -> Option<Report> {
        self.reporter.take(&mut self.worker)
    }
}

/// Passes events on to the clients and keeps those for the next report.
struct Noted<'a, T> {
    reporter: &'a mut Reporter,
    events: &'a mut T,
}

impl<T: Events> Events for Noted<'_, T> {
    fn push(&mut self, event: Event) {
        self.reporter.note(&event);
        self.events.push(event);
    }

    fn flush(&mut self) {
        self.events.flush();
    }
}
