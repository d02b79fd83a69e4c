//! How far a model is loaded: on a progress bar, and for those who ask over HTTP. Nothing is drawn unless standard error is a
//! terminal.
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use camshaft_api::Readiness;
use camshaft_engine::LoadProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// The kind of what is loaded, see [`Readiness::set_loading`].
pub(crate) const MODELS: &str = "models";
/// Length of a bar: per cent.
const WHOLE: u64 = 100;
/// Begins a line that says which file comes next.
const FILE: &str = "file ";

/// Hears how far a model is: of each stage, per cent.
type Tell = Arc<dyn Fn(&'static str, u64) + Send + Sync>;

/// Who follows the load of a model: hears how far it is, and may stop it. By default nobody.
#[derive(Clone, Default)]
pub(crate) struct ProgressSink {
    tell: Option<Tell>,
    stop: Arc<AtomicBool>,
}

impl ProgressSink {
    pub(crate) fn new(tell: impl Fn(&'static str, u64) + Send + Sync + 'static) -> Self {
        Self { tell: Some(Arc::new(tell)), stop: Arc::default() }
    }

    /// The same, of a load that ends where `stop` becomes true.
    pub(crate) fn until(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// Those who ask the server how far it is while it begins.
    pub(crate) fn of(readiness: &Arc<Readiness>) -> Self {
        let readiness = readiness.clone();
        // Who may know which models there are is not known yet.
        Self::new(move |stage, per_cent| {
            readiness.set_loading(MODELS, Some(format!("{stage} one of them, {per_cent} %")));
        })
    }

    pub(crate) fn tell(&self, stage: &'static str, per_cent: u64) {
        if let Some(tell) = &self.tell {
            tell(stage, per_cent);
        }
    }

    /// Becomes true where the load is to end.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }
}

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressSink").finish_non_exhaustive()
    }
}

/// The bar of one model; gone from the terminal when dropped.
#[derive(Debug)]
pub(crate) struct LoadBar(Arc<Told>);

#[derive(Debug)]
struct Told {
    bar: ProgressBar,
    sink: ProgressSink,
    /// Which of its files the process is at that loads them first.
    file: AtomicUsize,
}

impl Told {
    fn tell(&self, stage: &'static str, per_cent: u64) {
        self.bar.set_message(stage);
        self.bar.set_position(per_cent);
        self.sink.tell(stage, per_cent);
    }
}

impl LoadBar {
    pub(crate) fn new(model: &str, sink: &ProgressSink) -> Self {
        let bar = ProgressBar::new(WHOLE).with_prefix(model.to_owned());
        let style = ProgressStyle::with_template("model {prefix}: {msg:8} [{bar:40}] {percent:>3} %");
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(Arc::new(Told { bar, sink: sink.clone(), file: AtomicUsize::new(0) }))
    }

    /// Becomes true where the load is to end.
    pub(crate) fn stop(&self) -> &AtomicBool {
        self.0.sink.stop()
    }

    /// Shows the progress of a stage that has just begun.
    pub(crate) fn stage(&self, stage: &'static str) -> LoadProgress {
        let told = self.0.clone();
        LoadProgress(Arc::new(move |part| {
            told.tell(stage, per_cent(part));
            if told.sink.stop().load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }))
    }

    /// Shows the progress that [`tell_parent`] reports from the process that loads the file first, until it ends.
    pub(crate) fn follow(&self, said: Option<impl Read>) {
        let Some(said) = said else { return };
        self.0.tell("checking", 0);
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if let Ok(per_cent) = line.parse::<u64>() {
                self.0.tell("checking", per_cent.min(WHOLE));
            } else if let Some(file) = line.strip_prefix(FILE).and_then(|file| file.parse().ok()) {
                self.0.file.store(file, Ordering::Relaxed);
            }
        }
    }

    /// Which of its files the process was at that [`LoadBar::follow`] followed: the model's has the number 0.
    pub(crate) fn file(&self) -> usize {
        self.0.file.load(Ordering::Relaxed)
    }
}

impl Drop for LoadBar {
    fn drop(&mut self) {
        self.0.bar.finish_and_clear();
    }
}

fn per_cent(part: f32) -> u64 {
    (part.clamp(0.0, 1.0) * WHOLE as f32) as u64
}

/// Writes a line to standard output that says which file comes next.
pub(crate) fn tell_file(number: usize) {
    // The parent may be gone; then nobody needs it.
    let _ = writeln!(std::io::stdout(), "{FILE}{number}");
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
        ControlFlow::Continue(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_the_other_process_says_and_nothing_else() {
        let bar = LoadBar::new("m", &ProgressSink::default());
        bar.follow(Some("1\n37\nnot a number\n".as_bytes()));
        assert_eq!((bar.0.bar.position(), bar.0.bar.message().as_str()), (37, "checking"));
        bar.follow(Some("4000\n".as_bytes()));
        assert_eq!(bar.0.bar.position(), WHOLE);
        bar.follow(None::<&[u8]>);
        let LoadProgress(tell) = bar.stage("loading");
        assert_eq!(tell(0.5), ControlFlow::Continue(()));
        assert_eq!((bar.0.bar.position(), bar.0.bar.message().as_str()), (50, "loading"));
        assert_eq!(tell(f32::NAN), ControlFlow::Continue(()));
        assert_eq!(bar.0.bar.position(), 0);
    }

    #[test]
    fn a_load_that_is_stopped_goes_no_further() {
        let stop = Arc::new(AtomicBool::new(false));
        let bar = LoadBar::new("m", &ProgressSink::default().until(stop.clone()));
        let LoadProgress(tell) = bar.stage("loading");
        assert_eq!(tell(0.5), ControlFlow::Continue(()));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(tell(0.6), ControlFlow::Break(()));
    }
}
