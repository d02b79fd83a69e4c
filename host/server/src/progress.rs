//! A progress bar while a model loads. Nothing is drawn unless standard error is a terminal.
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camshaft_engine::LoadProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// Length of a bar: per cent.
const WHOLE: u64 = 100;

/// The bar of one model; gone from the terminal when dropped.
#[derive(Debug)]
pub(crate) struct LoadBar(ProgressBar);

impl LoadBar {
    pub(crate) fn new(model: &str) -> Self {
        let bar = ProgressBar::new(WHOLE).with_prefix(model.to_owned());
        let style = ProgressStyle::with_template("model {prefix}: {msg:8} [{bar:40}] {percent:>3} %");
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// Shows the progress of a stage that has just begun.
    pub(crate) fn stage(&self, what: &'static str) -> LoadProgress {
        let bar = self.0.clone();
        LoadProgress(Arc::new(move |part| {
            bar.set_message(what);
            bar.set_position(per_cent(part));
        }))
    }

    /// Shows the progress that [`tell_parent`] reports from the process that loads the file first, until it ends.
    pub(crate) fn follow(&self, said: Option<impl Read>) {
        let Some(said) = said else { return };
        self.0.set_message("checking");
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if let Ok(position) = line.parse::<u64>() {
                self.0.set_position(position.min(WHOLE));
            }
        }
    }
}

impl Drop for LoadBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn per_cent(part: f32) -> u64 {
    (part.clamp(0.0, 1.0) * WHOLE as f32) as u64
}

/// Writes a line to standard output for each per cent that is done.
pub(crate) fn tell_parent() -> LoadProgress {
    let told = AtomicU64::new(0);
    LoadProgress(Arc::new(move |part| {
        let now = per_cent(part);
        if told.swap(now, Ordering::Relaxed) < now {
            // The parent may be gone; then nobody needs it.
            let _ = writeln!(std::io::stdout(), "{now}");
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_the_other_process_says_and_nothing_else() {
        let bar = LoadBar::new("m");
        bar.follow(Some("1\n37\nnot a number\n".as_bytes()));
        assert_eq!((bar.0.position(), bar.0.message().as_str()), (37, "checking"));
        bar.follow(Some("4000\n".as_bytes()));
        assert_eq!(bar.0.position(), WHOLE);
        bar.follow(None::<&[u8]>);
        let LoadProgress(tell) = bar.stage("loading");
        tell(0.5);
        assert_eq!((bar.0.position(), bar.0.message().as_str()), (50, "loading"));
        tell(f32::NAN);
        assert_eq!(bar.0.position(), 0);
    }
}
