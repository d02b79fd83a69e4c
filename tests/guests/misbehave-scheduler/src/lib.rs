//! Misbehaving guest for the scheduler hook: see `misbehave::Behaviour`.
//!
//! When it behaves, it is first come, first served.
#![forbid(unsafe_code)]

use camshaft_plugin::scheduler::{Actions, Book, Capacity, Checkpoint, Point, Policy};
use misbehave::{Answer, Behaviour, FULL_CHECKPOINT_BYTES, LARGE_CHECKPOINT_BYTES, LEAK_BYTES, Settings};

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
        self.ask(point);
        if self.behaviour == Behaviour::TellPool {
            point
                .arrived
                .ids
                .iter()
                .filter(|&&id| point.hint(id, "tell").is_some())
                .for_each(|&id| self.book.leave(id));
        }
        let mut actions = Actions::none();
        if self.behaviour == Behaviour::HoldForever {
            return actions;
        }
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

impl Misbehave {
    /// Asks the host for what a scheduler should not ask for.
    fn ask(&self, point: &Point<'_>) {
        let arrived = &point.arrived.ids;
        match self.behaviour {
            Behaviour::NeedsUnknown => drop(point.needs(&[u64::MAX])),
            Behaviour::NeedsMany => drop(point.needs(&vec![arrived.first().copied().unwrap_or_default(); 1_000_000])),
            Behaviour::AskForever => loop {
                drop((point.needs(arrived), point.cached(arrived), point.groups(arrived)));
            },
            Behaviour::RejectTwice => {
                (0..2).for_each(|_| point.reject(arrived, "as_asked", 0, "behave = reject-twice"));
            }
            Behaviour::RejectNonsense => point.reject(arrived, "As asked!", u64::MAX, "behave = reject-nonsense"),
            Behaviour::TellPool => {
                let told = |&&id: &&u64| point.hint(id, "tell").is_some();
                arrived.iter().filter(told).for_each(|&id| point.reject(&[id], "told", 2500, &said(point, id)));
            }
            Behaviour::WakeLoop => (0..10_000).for_each(|n| point.wake_at(n % 2)),
            _ => {}
        }
    }
}

/// What the host tells of a request, and of what has happened.
fn said(point: &Point<'_>, id: u64) -> String {
    let of = [id];
    let targets = (point.first_token_targets_ms(&of), point.per_token_targets_ms(&of));
    let request = format!(
        "needs {:?} cached {:?} blocks {} turns {:?} targets {targets:?} hint {:?} attribute {:?}",
        point.needs(&of),
        point.cached(&of),
        point.prefix_blocks(id).len(),
        point.turns(&of),
        point.hint(id, "tell"),
        point.attribute(id, "tier"),
    );
    let groups = point.groups(&point.arrived.ids);
    let alike = groups.iter().filter(|group| **group == groups[0] && **group != 0).count();
    format!(
        "{request}; {alike} alike; resumed {:?} finished {:?} failed {:?} cancelled {:?}",
        point.resumed(),
        point.finish_reasons(),
        point.failed(),
        point.cancel_reasons(),
    )
}

impl Checkpoint for Misbehave {
    fn save(&mut self) -> Vec<u8> {
        match self.behaviour {
            Behaviour::LargeCheckpoint => vec![7; LARGE_CHECKPOINT_BYTES],
            Behaviour::LeakCheckpoint => vec![7; LEAK_BYTES],
            Behaviour::LongCheckpoint => vec![7; FULL_CHECKPOINT_BYTES + 1],
            Behaviour::FullCheckpoint => vec![7; FULL_CHECKPOINT_BYTES],
            Behaviour::SpinAtSave => misbehave::spin(),
            _ => b"well".to_vec(),
        }
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        match self.behaviour {
            Behaviour::RefuseCheckpoint => Err("behave = refuse-checkpoint: as asked".to_owned()),
            Behaviour::TrapAtRestore => panic!("behave = trap-at-restore: as asked"),
            _ => Ok(()),
        }
    }
}

camshaft_plugin::export_scheduler!(Misbehave, checkpoint);
