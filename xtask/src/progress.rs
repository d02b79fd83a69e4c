//! Runs a build of cargo's and says every few seconds what it builds and how far it is, also where no terminal shows cargo's bar.
use std::io::{ErrorKind, IsTerminal, Read, read_to_string, stderr};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::command::{Failure, portable_target, say, shown, target};

/// From one line on how far it is to the next.
const EVERY: Duration = Duration::from_secs(5);
/// What cargo said and was not looked at yet.
const PIECES: usize = 256;
/// The package that compiles llama.cpp, for minutes, within one step of cargo's.
const LLAMA: &str = "llama-cpp-sys-2";
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
                    say(&progress.line(begun.elapsed(), llama_files()));
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

    /// `files`: how many of llama.cpp's are compiled, and of how many.
    fn line(&self, since: Duration, files: Option<(usize, usize)>) -> String {
        let now = self.now.iter().map(|name| match files {
            Some((done, all)) if name.starts_with(LLAMA) => format!("llama.cpp ({done} of {all} files)"),
            _ => name.clone(),
        });
        let (minutes, seconds) = (since.as_secs() / 60, since.as_secs() % 60);
        let now = now.collect::<Vec<_>>().join(", ");
        format!("building: {} of {} done after {minutes}:{seconds:02}, now {now}", self.done, self.all)
    }
}

/// How many of llama.cpp's files are compiled, and of how many, where cmake is at work.
fn llama_files() -> Option<(usize, usize)> {
    let builds = [target(), portable_target()].into_iter().flat_map(|target| entries(&target.join("release/build")));
    let ours = builds.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(LLAMA)));
    let places = ours.map(|path| path.join("out/build")).filter(|path| path.is_dir());
    // Others lie there from before.
    let place = places.max_by_key(|place| std::fs::metadata(place).and_then(|meta| meta.modified()).ok())?;
    let (mut done, mut all, mut folders) = (0, 0, vec![place]);
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "o") {
                done += 1;
            } else if path.file_name().is_some_and(|name| name == "DependInfo.cmake") {
                // A line for each file, with the compiler that depends on others by its own word.
                let told = std::fs::read_to_string(path).unwrap_or_default();
                all += told.lines().filter(|line| line.contains(".o\" \"gcc\"")).count();
            }
        }
    }
    (all > 0).then_some((done, all))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_bar_are_read_with_and_without_colours() {
        let expected = Progress { done: 3, all: 406, now: vec!["wasmtime".to_owned(), format!("{LLAMA}(build)")] };
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
    fn a_line_says_how_far_llama_cpp_is() {
        let progress = Progress { done: 3, all: 406, now: vec!["wasmtime".to_owned(), format!("{LLAMA}(build)")] };
        let line = progress.line(Duration::from_secs(65), Some((20, 71)));
        assert_eq!(line, "building: 3 of 406 done after 1:05, now wasmtime, llama.cpp (20 of 71 files)");
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
