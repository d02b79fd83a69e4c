//! Misbehaviours, chosen by the setting `behave`. Shared by the guests, one for each hook.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use camshaft_plugin::{crypto, log, metrics, random, state};
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(default)]
    pub behave: Behaviour,
    /// Allows the host to use an instance for several requests.
    #[serde(default)]
    pub reuse: bool,
}

/// What the guest does when it is asked for an answer; names with `at-start` apply when it is configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behaviour {
    /// Behaves like an ordinary policy.
    #[default]
    Well,
    /// Never returns.
    Spin,
    /// Has the host verify signatures, for ever.
    Verify,
    /// Panics.
    Trap,
    /// Panics at the ninth call of an instance, and at each one after it.
    TrapLater,
    /// Grows its memory without bound.
    Allocate,
    /// Overflows its stack.
    Recurse,
    /// Returns an answer that the hook does not allow.
    Nonsense,
    /// Blocks in the host for an hour.
    Sleep,
    /// Writes 10,000 log lines, then answers normally.
    FloodLog,
    /// Counts under 1,000 names, and with 1,000 label sets under one, then answers normally.
    FloodMetrics,
    /// Fills its state with keys and bytes, far past the bounds, then answers normally.
    FillState,
    /// A sampler that looks tokens up for ever, each time by another text.
    QueryVocabulary,
    /// Panics when it is configured.
    TrapAtStart,
    /// Loops forever in `configure`.
    SpinAtStart,
    /// Rejects its settings.
    RefuseSettings,
    /// Draws a random number when it is configured.
    DrawAtStart,
    /// Reads the WASI clock when it is configured.
    ReadClockAtStart,
    /// Writes to standard error when it is configured.
    PrintAtStart,
    /// Counts in the metric `starts` how often it is configured.
    CountStarts,
    /// Says what its context tells, in a refusal or a rejection (a sampler: in the log).
    Tell,
    /// Returns a 32 MiB answer.
    Leak,
    /// Fills a large static; panics if an earlier call had already written to it.
    Remember,
    /// A scheduler that rejects requests with the hint `tell`, and says in the message what it was told.
    TellPool,
    /// A scheduler that asks about a request which does not exist.
    NeedsUnknown,
    /// A scheduler that asks about a million requests at once.
    NeedsMany,
    /// A scheduler that asks about all requests for ever.
    AskForever,
    /// A scheduler that rejects a request twice.
    RejectTwice,
    /// A scheduler that rejects with a code that no client could use.
    RejectNonsense,
    /// A scheduler that always asks to be called at once, over and over.
    WakeLoop,
    /// A scheduler that leaves 64 MiB to the next instance.
    LargeCheckpoint,
    /// A scheduler that leaves as many bytes as the largest answer.
    LeakCheckpoint,
    /// A scheduler that leaves one byte more than it may.
    LongCheckpoint,
    /// A scheduler that leaves as many bytes as it may.
    FullCheckpoint,
    /// A scheduler that saves for ever.
    SpinAtSave,
    /// A scheduler that refuses what the last instance left.
    RefuseCheckpoint,
    /// A scheduler that panics over what the last instance left.
    TrapAtRestore,
    /// A filter that never lets anything go out; a scheduler that dispatches nothing.
    HoldForever,
    /// A filter that takes back whatever is drawn.
    RewindForever,
    /// A filter that divides a character.
    SplitCharacter,
}

/// Which answer to give after misbehaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Well,
    Nonsense,
    Leak,
    Tell,
}

/// Size of an oversized answer, in bytes.
pub const LEAK_BYTES: usize = 32 << 20;

/// Size of the largest checkpoint, in bytes.
pub const LARGE_CHECKPOINT_BYTES: usize = 64 << 20;

/// What a checkpoint may have, in bytes.
pub const FULL_CHECKPOINT_BYTES: usize = 1 << 20;

impl Behaviour {
    /// Acts out the behaviour in `configure`.
    ///
    /// # Errors
    /// `refuse-settings`.
    pub fn at_start(self) -> Result<Self, String> {
        match self {
            Behaviour::TrapAtStart => panic!("behave = trap-at-start: as asked"),
            Behaviour::SpinAtStart => spin(),
            Behaviour::RefuseSettings => Err("behave = refuse-settings: as asked".to_owned()),
            Behaviour::DrawAtStart => {
                black_box(random::number());
                Ok(self)
            }
            Behaviour::PrintAtStart => {
                eprintln!("behave = print-at-start: as asked");
                Ok(self)
            }
            Behaviour::CountStarts => {
                metrics::count("starts", 1, &[]);
                Ok(self)
            }
            Behaviour::ReadClockAtStart => {
                black_box(std::time::SystemTime::now());
                Ok(self)
            }
            _ => Ok(self),
        }
    }

    /// Acts out the behaviour when asked for an answer. If it returns, it says which answer to give.
    pub fn when_asked(self) -> Answer {
        match self {
            Behaviour::Spin => spin(),
            Behaviour::Verify => verify(),
            Behaviour::Trap => panic!("behave = trap: as asked"),
            Behaviour::TrapLater => {
                let asked = ASKED.fetch_add(1, Ordering::Relaxed);
                assert!(asked < WELL_CALLS, "behave = trap-later: as asked");
            }
            Behaviour::Allocate => allocate(),
            Behaviour::Recurse => {
                black_box(recurse(black_box(0)));
            }
            Behaviour::Remember => remember(),
            Behaviour::Sleep => std::thread::sleep(Duration::from_secs(3600)),
            Behaviour::FloodLog => (0..10_000).for_each(|line| log::info(&format!("line {line}"))),
            Behaviour::FloodMetrics => flood_metrics(),
            Behaviour::FillState => fill_state(),
            Behaviour::Nonsense => return Answer::Nonsense,
            Behaviour::Leak => return Answer::Leak,
            Behaviour::Tell => return Answer::Tell,
            _ => {}
        }
        Answer::Well
    }
}

/// Calls of this instance.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// Calls before an instance misbehaves that does so later.
const WELL_CALLS: u32 = 8;

/// Larger than the part of a guest's memory that the host keeps between calls.
static MARKS: [AtomicU8; 1 << 20] = [const { AtomicU8::new(0) }; 1 << 20];

fn remember() {
    let marked = MARKS.iter().filter(|mark| mark.swap(0xab, Ordering::Relaxed) != 0).count();
    assert!(marked == 0, "{marked} bytes are left of an earlier call");
}

/// Never returns.
pub fn spin() -> ! {
    loop {
        black_box(());
    }
}

fn verify() -> ! {
    let (number, data) = ([0xff; 1024], vec![7; 1 << 20]);
    loop {
        let _ = black_box(crypto::verify_rsa("PS512", &number, &[3], &data, &number));
    }
}

fn flood_metrics() {
    for number in 0..1000 {
        metrics::count(&format!("name_{number}"), 1, &[]);
        metrics::gauge("sets", 1.0, &[("set", &number.to_string())]);
    }
}

fn fill_state() {
    // 2 MiB in large values, then keys without one.
    let value = vec![7; 64 << 10];
    let stored = (0..32).filter(|number| state::set(&format!("large {number}"), &value, None).is_ok()).count();
    assert!(stored < 32, "the store has no bound on bytes");
    (0..32).for_each(|number| drop(state::delete(&format!("large {number}"))));
    let stored = (0..5000).filter(|number| state::set(&format!("key {number}"), &[], None).is_ok()).count();
    assert!((1..5000).contains(&stored), "the store has no bound on keys, or took none: {stored}");
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
    // The array and the sum stop the compiler from turning the recursion into a loop.
    let frame = black_box([depth; 64]);
    recurse(depth + 1) + frame[63]
}
