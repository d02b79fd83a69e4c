//! How far a pull is: on a progress bar where standard error is a terminal, in lines otherwise, and for those who ask over HTTP.
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::shown::on_one_line;
use camshaft_registry::{Event, Moved, Progress};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::progress::ProgressSink;

/// Between lines about the same file.
const EVERY: Duration = Duration::from_secs(10);

/// Where lines go.
pub(crate) enum Lines {
    /// The log of a server, and who wants to know it beside.
    Log(ProgressSink),
    /// Of a command.
    StandardError,
}

/// Tells of one pull, or of reading models again. The bar is gone from the terminal when it is dropped.
pub(crate) struct PullProgress {
    lines: Lines,
    bar: Option<ProgressBar>,
    /// Of which part the last line was, and when.
    told: Mutex<Option<(String, u32, Instant)>>,
}

impl PullProgress {
    pub(crate) fn new(lines: Lines) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{prefix} [{bar:40}] {bytes}/{total_bytes} {msg}";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        Self { lines, bar, told: Mutex::default() }
    }

    fn line(&self, text: &fmt::Arguments<'_>) {
        // What servers say is anybody's.
        let text = on_one_line(&text.to_string());
        match (&self.bar, &self.lines) {
            (Some(bar), Lines::StandardError) => bar.println(text),
            (None, Lines::StandardError) => {
                // Whoever does not read it does without.
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            (_, Lines::Log(_)) => tracing::info!("{text}"),
        }
    }

    fn moved(&self, moved: &Moved<'_>) {
        let Moved { file, part, parts, bytes, total, rate } = *moved;
        let per_cent = if total == 0 { 100 } else { (u128::from(bytes) * 100 / u128::from(total)) as u64 };
        if let Lines::Log(sink) = &self.lines {
            sink.tell("pulling", per_cent);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(bytes);
            bar.set_prefix(of_parts(file, part, parts));
            bar.set_message(if rate == 0 { String::new() } else { format!("{}/s", HumanBytes(rate)) });
            return;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_told =
            told.as_ref().is_some_and(|(of, number, at)| of == file && *number == part && at.elapsed() < EVERY);
        if !is_told || bytes == total {
            *told = Some((file.to_owned(), part, Instant::now()));
            let name = of_parts(file, part, parts);
            self.line(&format_args!("{name}: {bytes} of {total} bytes, {per_cent} %, {rate} bytes/s"));
        }
    }
}

fn of_parts(file: &str, part: u32, parts: u32) -> String {
    let file = on_one_line(file);
    if parts > 1 { format!("{file} ({part} of {parts})") } else { file }
}

impl Progress for PullProgress {
    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Moved(moved) => self.moved(moved),
            Event::Waiting { source } => {
                self.line(&format_args!("{source}: waiting for another process that pulls it"))
            }
            Event::Retry { why, pause, attempt } => {
                self.line(&format_args!("{why}: attempt {attempt} follows in {} ms", pause.as_millis()));
            }
            Event::Note(note) => self.line(&format_args!("{note}")),
            Event::Evicted { name, bytes } => {
                self.line(&format_args!("removed {name} ({bytes} bytes) from the cache of models to make room"));
            }
            _ => {}
        }
    }

    fn is_cancelled(&self) -> bool {
        match &self.lines {
            Lines::Log(sink) => sink.stop().load(Ordering::Relaxed),
            Lines::StandardError => false,
        }
    }
}

impl Drop for PullProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
