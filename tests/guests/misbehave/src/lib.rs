//! Ways for a guest to go wrong, chosen by the setting `behave`. Shared by one guest for each hook.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use camshaft_plugin::log;
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(default)]
    pub behave: Behaviour,
}

/// What the guest does. Unless the name says `at-start`, when it is asked for an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behaviour {
    /// Answers as a plain policy would.
    #[default]
    Well,
    /// Never returns.
    Spin,
    /// Panics.
    Trap,
    /// Grows its memory without end.
    Allocate,
    /// Overflows its stack.
    Recurse,
    /// Answers something that the hook does not allow.
    Nonsense,
    /// Waits for an hour in the host.
    Sleep,
    /// Writes 10 000 log lines, then answers well.
    FloodLog,
    /// Panics when it is configured.
    TrapAtStart,
    /// Never returns from being configured.
    SpinAtStart,
    /// Refuses its settings.
    RefuseSettings,
    /// Answers with 32 MiB.
    Leak,
    /// Writes to all of a large static; panics where an earlier call did.
    Remember,
}

/// Which kind of answer is left to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Well,
    Nonsense,
    Leak,
}

/// Bytes of a leaking answer.
pub const LEAK_BYTES: usize = 32 << 20;

impl Behaviour {
    /// What happens in `configure`.
    ///
    /// # Errors
    /// `refuse-settings`.
    pub fn at_start(self) -> Result<Self, String> {
        match self {
            Behaviour::TrapAtStart => panic!("behave = trap-at-start: as asked"),
            Behaviour::SpinAtStart => spin(),
            Behaviour::RefuseSettings => Err("behave = refuse-settings: as asked".to_owned()),
            _ => Ok(self),
        }
    }

    /// What happens when an answer is wanted, and the answer to give if that point is reached.
    pub fn when_asked(self) -> Answer {
        match self {
            Behaviour::Spin => spin(),
            Behaviour::Trap => panic!("behave = trap: as asked"),
            Behaviour::Allocate => allocate(),
            Behaviour::Recurse => {
                black_box(recurse(black_box(0)));
            }
            Behaviour::Remember => remember(),
            Behaviour::Sleep => std::thread::sleep(Duration::from_secs(3600)),
            Behaviour::FloodLog => (0..10_000).for_each(|line| log::info(&format!("line {line}"))),
            Behaviour::Nonsense => return Answer::Nonsense,
            Behaviour::Leak => return Answer::Leak,
            _ => {}
        }
        Answer::Well
    }
}

/// More than the host keeps of a memory between two calls.
static MARKS: [AtomicU8; 1 << 20] = [const { AtomicU8::new(0) }; 1 << 20];

fn remember() {
    let marked = MARKS.iter().filter(|mark| mark.swap(0xab, Ordering::Relaxed) != 0).count();
    assert!(marked == 0, "{marked} bytes are left of an earlier call");
}

fn spin() -> ! {
    loop {
        black_box(());
    }
}

fn allocate() -> ! {
    let mut held = Vec::new();
    loop {
        held.push(vec![1u8; 1 << 20]);
        black_box(&held);
    }
}

#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    // The array and the sum keep the compiler from making a loop of it.
    let frame = black_box([depth; 64]);
    recurse(depth + 1) + frame[63]
}
