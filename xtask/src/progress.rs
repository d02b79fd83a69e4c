//! Runs a build of cargo's and says every few seconds what it builds and how far it is, also where no terminal shows cargo's bar.
use std::io::{ErrorKind, IsTerminal, Read, read_to_string, stderr};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::command::{Failure, say, shown};

/// From one line on how far it is to the next.
const EVERY: Duration = Duration::from_secs(5);
/// What cargo said and was not looked at yet.
const PIECES: usize = 256;
/// Columns of cargo's bar: enough to name what two or more cores build.
const COLUMNS: &str = "160";
/// Of cargo's lines that say less than the progress does.
const NOISE: [&str; 5] =
    ["Compiling ", "Downloading ", "Downloaded ", "Adding ", "Blocking waiting for file lock on package cache"];

/// How far a build is, by cargo's own count of units.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    done: u32,
    all: u32,
    now: Vec<String>,
}

/// Runs `command`, a build of cargo's, and gives what it wrote to its standard output.
pub(crate) fn build(command: &mut Command) -> Result<String, Failure> {
    build_beside(command, &AtomicBool::new(false))
}

/// As [`build`], and says how far it is only once `other`, another build, does not run any more.
pub(crate) fn build_beside(command: &mut Command, other: &AtomicBool) -> Result<String, Failure> {
    let words = shown(command);
    let color = if stderr().is_terminal() { "always" } else { "never" };
    command.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", COLUMNS);
    command.env("CARGO_TERM_COLOR", color).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| Failure(format!("cannot run `{words}`: {error}")))?;
    let (send, pieces) = sync_channel(PIECES);
    let (told, said) = (child.stdout.take(), child.stderr.take());
    let told = std::thread::spawn(move || told.map_or(Ok(String::new()), read_to_string));
    std::thread::spawn(move || said.map(|said| split(said, &send)));
    let (begun, mut next) = (Instant::now(), Instant::now() + EVERY);
    let mut progress = None;
    loop {
        match pieces.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(piece) => match Progress::parse(&piece) {
                Some(now) => progress = Some(now),
                None if is_worth_saying(&piece) => say(&piece),
                None => {}
            },
            Err(RecvTimeoutError::Timeout) => {
                if let Some(progress) = &progress
                    && !other.load(Ordering::Relaxed)
                {
                    say(&progress.line(begun.elapsed()));
                }
                next = Instant::now() + EVERY;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    let told = told.join().map_err(|_| Failure(format!("what `{words}` wrote was not read")))??;
    if status.success() { Ok(told) } else { Err(Failure(format!("`{words}` failed: {status}"))) }
}

/// Sends what cargo writes, piece by piece: a line, or a state of its bar, which ends where it is written anew.
fn split(mut said: ChildStderr, send: &SyncSender<String>) {
    let (mut piece, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let read = match said.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for &byte in &bytes[..read] {
            if byte != b'\n' && byte != b'\r' {
                piece.push(byte);
            } else if send.send(String::from_utf8_lossy(&std::mem::take(&mut piece)).into_owned()).is_err() {
                return;
            }
        }
    }
    // Whoever listened may have gone.
    let _ = send.send(String::from_utf8_lossy(&piece).into_owned());
}

fn is_worth_saying(piece: &str) -> bool {
    let plain = plain(piece);
    let words = plain.trim();
    !words.is_empty() && !NOISE.iter().any(|noise| words.starts_with(noise))
}

/// Without the sequences that colour it.
fn plain(piece: &str) -> String {
    let mut plain = String::new();
    let mut characters = piece.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}

impl Progress {
    /// From a state of cargo's bar: `Building [==>   ] 3/10: one, two(build)...`.
    fn parse(piece: &str) -> Option<Self> {
        let plain = plain(piece);
        let (_, rest) = plain.trim().strip_prefix("Building [")?.split_once("] ")?;
        let (count, now) = rest.split_once(": ").unwrap_or((rest, ""));
        let (done, all) = count.trim_end_matches(':').split_once('/')?;
        let now = now.split(", ").map(|name| name.trim_end_matches('.').to_owned()).filter(|name| !name.is_empty());
        Some(Self { done: done.trim().parse().ok()?, all: all.trim().parse().ok()?, now: now.collect() })
    }

    fn line(&self, since: Duration) -> String {
        let (minutes, seconds) = (since.as_secs() / 60, since.as_secs() % 60);
        // Within one step of cargo's, for minutes.
        let now = self.now.join(", ").replace("llama-cpp-sys-2", "llama.cpp");
        format!("building: {} of {} done after {minutes}:{seconds:02}, now {now}", self.done, self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_bar_are_read_with_and_without_colours() {
        let expected =
            Progress { done: 3, all: 406, now: vec!["wasmtime".to_owned(), "llama-cpp-sys-2(build)".to_owned()] };
        let bar = "    Building [=>       ] 3/406: wasmtime, llama-cpp-sys-2(build)...          ";
        assert_eq!(Progress::parse(bar).unwrap(), expected);
        let coloured = bar.replace("Building", "\u{1b}[1m\u{1b}[36m    Building\u{1b}[0m");
        assert_eq!(Progress::parse(&coloured).unwrap(), expected);
        assert_eq!(Progress::parse("    Building [>  ] 0/7").unwrap(), Progress { done: 0, all: 7, now: Vec::new() });
        for line in ["   Compiling wasmtime v48.0.8", "warning: Building [=] is not a bar", ""] {
            assert_eq!(Progress::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_line_says_what_is_built_since_when() {
        let progress =
            Progress { done: 3, all: 406, now: vec!["wasmtime".to_owned(), "llama-cpp-sys-2(build)".to_owned()] };
        let line = progress.line(Duration::from_secs(65));
        assert_eq!(line, "building: 3 of 406 done after 1:05, now wasmtime, llama.cpp(build)");
    }

    #[test]
    fn only_what_the_progress_says_too_is_left_out() {
        assert!(!is_worth_saying("   Compiling wasmtime v48.0.8"));
        assert!(!is_worth_saying("\u{1b}[32m   Compiling\u{1b}[0m wasmtime v48.0.8"));
        assert!(!is_worth_saying("   "));
        assert!(is_worth_saying("error[E0308]: mismatched types"));
        assert!(is_worth_saying("    Finished `release` profile"));
    }
}
