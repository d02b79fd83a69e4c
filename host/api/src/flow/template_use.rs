//! The use of a chat template: how many threads render with it, and whether it is stopped because one runs away.
use std::sync::Arc;

use camshaft_core::ids::TenantId;
use tokio::sync::oneshot;

use crate::flow::error::FlowError;
use crate::flow::turns::{Turn, Turns};

/// Threads that may render with one template at the same time, and so those that it may keep for ever. Others wait: tenants
/// take turns.
const THREADS: usize = 4;

#[derive(Debug)]
pub(crate) struct TemplateUse {
    model: String,
    turns: Arc<Turns>,
}

/// A thread that renders.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    template: &'a TemplateUse,
    turn: Option<Turn>,
}

impl TemplateUse {
    pub(crate) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), turns: Arc::new(Turns::new(THREADS, usize::MAX)) }
    }

    /// Has `wait` wait for a place of the tenant among the threads that render: those that have one render to the end, or run
    /// away and stop the template.
    ///
    /// # Errors
    /// 503: the template is stopped, or too many wait; and those of `wait`.
    pub(crate) fn enter(
        &self,
        tenant: &TenantId,
        wait: impl FnOnce(oneshot::Receiver<Turn>) -> Result<Turn, FlowError>,
    ) -> Result<Place<'_>, FlowError> {
        Ok(Place { template: self, turn: Some(wait(self.turns.ask(tenant, 0)?)?) })
    }

    /// Whoever waits, and whoever comes, renders nothing with it until the threads that render now have returned, if they ever
    /// do.
    pub(crate) fn stop(&self) {
        if self.turns.close() {
            tracing::error!(
                model = self.model,
                "the chat template takes too long for a chat: until that rendering ends, the model answers chats with \
                 503; completions go on"
            );
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.turn.take().is_some_and(Turn::give_back) {
            tracing::warn!(
                model = self.template.model,
                "the chat template's long rendering has ended: chats are answered again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Longer than anything takes that has to happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn enter<'a>(template: &'a TemplateUse, name: &str) -> Result<Place<'a>, FlowError> {
        let stopped = |_| FlowError::TemplateStopped;
        template.enter(&TenantId::from(name), |turn| turn.blocking_recv().map_err(stopped))
    }

    fn wait_for_waiting(template: &TemplateUse, count: usize) {
        let begun = Instant::now();
        while template.turns.waiting() < count {
            assert!(begun.elapsed() < PATIENCE, "{} wait", template.turns.waiting());
            std::thread::yield_now();
        }
    }

    #[test]
    fn as_many_threads_render_as_the_bound_and_the_next_one_waits_for_a_place() {
        let template = TemplateUse::new("a");
        let mut places: Vec<_> = (0..THREADS).map(|_| enter(&template, "a").unwrap()).collect();
        let (done, order) = crossbeam_channel::bounded(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let place = enter(&template, "a");
                done.send("entered").unwrap();
                drop(place);
            });
            wait_for_waiting(&template, 1);
            done.send("left").unwrap();
            places.pop();
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["left", "entered"]);
        assert_eq!(template.turns.taken(), THREADS - 1);
    }

    #[test]
    fn regression_a_tenant_waits_for_one_rendering_of_another_not_for_all() {
        let template = TemplateUse::new("a");
        let places: Vec<_> = (0..THREADS).map(|_| enter(&template, "a").unwrap()).collect();
        let (done, order) = crossbeam_channel::bounded(8);
        std::thread::scope(|scope| {
            for (at, name) in ["a", "a", "a", "b"].into_iter().enumerate() {
                let (template, done) = (&template, done.clone());
                scope.spawn(move || {
                    let place = enter(template, name).unwrap();
                    done.send((name, place)).unwrap();
                });
                wait_for_waiting(template, at + 1);
            }
            let mut places = places;
            let mut names = Vec::new();
            for _ in 0..4 {
                places.pop();
                let (name, place) = order.recv_timeout(PATIENCE).unwrap();
                names.push(name);
                // It renders on: each place that comes back is one of the first four.
                std::mem::forget(place);
            }
            assert_eq!(names, ["a", "b", "a", "a"]);
        });
    }

    #[test]
    fn regression_whoever_waits_for_a_template_that_is_stopped_is_told() {
        let template = TemplateUse::new("a");
        let mut places: Vec<_> = (0..THREADS).map(|_| enter(&template, "a").unwrap()).collect();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| matches!(enter(&template, "b"), Err(FlowError::TemplateStopped)));
            wait_for_waiting(&template, 1);
            template.stop();
            assert!(waits.join().unwrap());
        });
        let last = places.pop();
        drop(places);
        assert!(enter(&template, "a").is_err(), "one of them may be the one that runs away");
        drop(last);
        assert!(enter(&template, "a").is_ok(), "a rendering that was only long stops nobody for good");
    }
}
