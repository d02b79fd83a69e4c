//! The use of a chat template: how many threads render with it, and whether it is stopped because one runs away.
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::flow::error::FlowError;

/// Threads that may render with one template at the same time, and so those that it may keep for ever. Others wait.
const THREADS: usize = 4;

#[derive(Debug)]
pub(crate) struct TemplateUse {
    model: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    /// A rendering takes too long. The threads of then still run: nobody enters until all have returned.
    stopped: bool,
}

/// A thread that renders.
#[derive(Debug)]
pub(crate) struct Place<'a>(&'a TemplateUse);

impl TemplateUse {
    pub(crate) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for a place among the threads that render: those that have one render to the end, or run away and stop the
    /// template.
    ///
    /// # Errors
    /// 503: the template is stopped.
    pub(crate) fn enter(&self) -> Result<Place<'_>, FlowError> {
        let wait = |state: &mut State| state.threads >= THREADS && !state.stopped;
        let mut state = self.changed.wait_while(self.state(), wait).unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return Err(FlowError::TemplateStopped);
        }
        state.threads += 1;
        Ok(Place(self))
    }

    /// Whoever waits, and whoever comes, renders nothing with it until the threads that render now have returned, if they ever
    /// do.
    pub(crate) fn stop(&self) {
        let first = !std::mem::replace(&mut self.state().stopped, true);
        self.changed.notify_all();
        if first {
            tracing::error!(
                model = self.model,
                "the chat template takes too long for a chat: until that rendering ends, the model answers chats with \
                 503; completions go on"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.threads -= 1;
        if state.threads == 0 && std::mem::take(&mut state.stopped) {
            tracing::warn!(
                model = self.0.model,
                "the chat template's long rendering has ended: chats are answered again"
            );
        }
        drop(state);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn as_many_threads_render_as_the_bound_and_the_next_one_waits_for_a_place() {
        let template = TemplateUse::new("a");
        let mut places: Vec<_> = (0..THREADS).map(|_| template.enter().unwrap()).collect();
        let (done, order) = crossbeam_channel::bounded(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let place = template.enter();
                done.send("entered").unwrap();
                drop(place);
            });
            // Were there a place, it would most likely be taken by now.
            std::thread::yield_now();
            assert!(order.try_recv().is_err());
            done.send("left").unwrap();
            places.pop();
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["left", "entered"]);
        assert_eq!(template.state().threads, THREADS - 1);
    }

    #[test]
    fn regression_whoever_waits_for_a_template_that_is_stopped_is_told() {
        let template = Arc::new(TemplateUse::new("a"));
        let places: Vec<_> = (0..THREADS).map(|_| template.enter().unwrap()).collect();
        let waits = std::thread::spawn({
            let template = template.clone();
            move || matches!(template.enter(), Err(FlowError::TemplateStopped))
        });
        template.stop();
        assert!(waits.join().unwrap());
        let mut places = places;
        let last = places.pop();
        drop(places);
        assert!(template.enter().is_err(), "one of them may be the one that runs away");
        drop(last);
        assert!(template.enter().is_ok(), "a rendering that was only long stops nobody for good");
    }
}
