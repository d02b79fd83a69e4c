//! Misbehaving guest for the scheduler hook: see `misbehave::Behaviour`.
//!
//! When it behaves, it is first come, first served.
#![forbid(unsafe_code)]

use camshaft_plugin::scheduler::{Actions, Book, Capacity, Point, Policy};
use misbehave::{Answer, Behaviour, LEAK_BYTES, Settings};

/// The guest.
#[derive(Debug)]
pub struct Misbehave {
    behaviour: Behaviour,
    book: Book<u64>,
}

impl Policy for Misbehave {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self { behaviour: settings.behave.at_start()?, book: Book::new(|request| request.arrived_ms) })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        let mut actions = Actions::none();
        match self.behaviour.when_asked() {
            Answer::Well => {
                let mut capacity = Capacity::of(&point.workers);
                while let Some(request) = self.book.first() {
                    let Some(worker) = capacity.place(request) else { break };
                    let id = request.id;
                    self.book.leave(id);
                    actions.dispatch(id, worker);
                }
            }
            Answer::Tell => {
                for request in point.arrivals() {
                    self.book.leave(request.id);
                    let told = format!("{} {} {}", point.model(), request.tenant, point.tenant(request.tenant));
                    actions.reject(request.id, told);
                }
            }
            Answer::Nonsense => actions.dispatch(u64::MAX, u32::MAX),
            Answer::Leak => actions.dispatch_ids = vec![u64::MAX; LEAK_BYTES / size_of::<u64>()],
        }
        actions
    }
}

camshaft_plugin::export_scheduler!(Misbehave);
