//! How far a model is loaded: on a progress bar, and for those who ask over HTTP. Nothing is drawn unless standard error is a
//! terminal.
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use camshaft_api::Readiness;
use camshaft_engine::LoadProgress;
use indicatif::{ProgressBar, ProgressStyle};

/// The kind of what is loaded, see [`Readiness::set_loading`].
pub(crate) const MODELS: &str = "models";
/// Length of a bar: per cent.
const WHOLE: u64 = 100;

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

/// The bar of one model; gone from the terminal when dropped.
pub(crate) struct LoadBar(Arc<Told>);

struct Told {
    bar: ProgressBar,
    sink: ProgressSink,
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
        Self(Arc::new(Told { bar, sink: sink.clone() }))
    }

    /// Of a process that says how far it is to another one, which draws it.
    pub(crate) fn hidden(sink: &ProgressSink) -> Self {
        Self(Arc::new(Told { bar: ProgressBar::hidden(), sink: sink.clone() }))
    }

    /// Shows the progress of a stage that has just begun.
    pub(crate) fn stage(&self, stage: &'static str) -> LoadProgress {
        let told = self.0.clone();
        LoadProgress(Arc::new(move |part| {
            told.tell(stage, per_cent(part));
            if told.sink.stop().load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_tells_how_far_it_is() {
        let bar = LoadBar::new("m", &ProgressSink::default());
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
