//! The use of a chat template: how many threads render with it, and whether it is stopped because one runs away.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camshaft_core::ids::TenantId;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Semaphore, oneshot};

use crate::flow::error::FlowError;
use crate::flow::turns::{Turn, Turns};

/// Places that polite threads never take. With those of [`POLITE`], as many threads may render with one template at the same
/// time, and a template that runs away keeps no more. Others wait, and tenants take turns.
const THREADS: usize = 4;
/// Places that any thread may take. Polite ones let everybody else go first and so hold a place for longer.
const POLITE: usize = 2;
/// CPU time of a rendering. Past it the template is not used on threads that serve connections any more: the instructions
/// there are few, but what one of them takes is not bounded.
const INLINE: Duration = Duration::from_millis(50);

/// Renderings at a time on the threads that serve connections: whatever one takes, the other threads go on.
pub(crate) const INLINE_PLACES: usize = 1;

#[derive(Debug)]
pub(crate) struct TemplateUse {
    model: String,
    turns: Arc<Turns>,
    /// What a polite thread takes before one of `turns`.
    polite: Arc<Turns>,
    /// Whether a rendering took longer than [`INLINE`] on a thread that serves connections.
    is_slow: AtomicBool,
}

/// A thread that renders.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    template: &'a TemplateUse,
    turn: Option<Turn>,
    polite: Option<Turn>,
}

impl TemplateUse {
    pub(crate) fn new(model: &str) -> Self {
        let [turns, polite] = [THREADS + POLITE, POLITE].map(|most| Arc::new(Turns::new(most, usize::MAX)));
        Self { model: model.to_owned(), turns, polite, is_slow: AtomicBool::new(false) }
    }

    /// Renders on this thread, which others wait for, unless that once took long, or as many of these threads render already
    /// as may.
    ///
    /// # Errors
    /// 503: the template is stopped. [`FlowError::NotInline`] if it may not.
    pub(crate) fn render_inline<T>(&self, places: &Semaphore, render: impl FnOnce() -> T) -> Result<T, FlowError> {
        if self.turns.is_closed() {
            return Err(FlowError::TemplateStopped);
        }
        if self.is_slow.load(Ordering::Relaxed) {
            return Err(FlowError::NotInline);
        }
        let Ok(_place) = places.try_acquire() else { return Err(FlowError::NotInline) };
        let begun = thread_time();
        let rendered = render();
        self.took(thread_time().saturating_sub(begun));
        Ok(rendered)
    }

    /// A rendering took so long on a thread that serves connections.
    fn took(&self, time: Duration) {
        if time > INLINE && !self.is_slow.swap(true, Ordering::Relaxed) {
            let (model, millis) = (&self.model, time.as_millis() as u64);
            tracing::warn!(
                model,
                millis,
                "the chat template took long for a short chat: later ones wait for their turns"
            );
        }
    }

    /// Takes a place of the tenant among the threads that render. `wait` waits until there is one: each holder renders to the
    /// end, or runs away and the template is stopped.
    ///
    /// # Errors
    /// 503: the template is stopped, or too many wait; and those of `wait`.
    pub(crate) fn enter(
        &self,
        tenant: &TenantId,
        is_polite: bool,
        mut wait: impl FnMut(oneshot::Receiver<Turn>) -> Result<Turn, FlowError>,
    ) -> Result<Place<'_>, FlowError> {
        let mut take = |turns: &Arc<Turns>| wait(turns.ask(tenant, 0)?);
        let polite = if is_polite { Some(take(&self.polite)?) } else { None };
        Ok(Place { template: self, turn: Some(take(&self.turns)?), polite })
    }

    /// Refuses the template to those who wait and those who come until the threads that render now have returned, if they
    /// ever do.
    pub(crate) fn stop(&self) {
        self.polite.close();
        if self.turns.close() {
            tracing::error!(
                model = self.model,
                "the chat template takes too long for a chat: until that rendering ends, the model answers chats with \
                 503; completions go on"
            );
        }
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        drop(self.polite.take());
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
    use std::time::Instant;

    use super::*;

    /// Longer than anything takes that has to happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn enter<'a>(template: &'a TemplateUse, name: &str) -> Result<Place<'a>, FlowError> {
        let stopped = |_| FlowError::TemplateStopped;
        template.enter(&TenantId::from(name), false, |turn| turn.blocking_recv().map_err(stopped))
    }

    /// A place that is free now, for a thread that is polite or not.
    fn enter_now(template: &TemplateUse, is_polite: bool) -> Option<Place<'_>> {
        let none = |_| FlowError::TemplateStopped;
        template.enter(&TenantId::from("a"), is_polite, |mut turn| turn.try_recv().map_err(none)).ok()
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
        let mut places: Vec<_> = (0..THREADS + POLITE).map(|_| enter(&template, "a").unwrap()).collect();
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
        assert_eq!(template.turns.taken(), THREADS + POLITE - 1);
    }

    #[test]
    fn regression_a_tenant_waits_for_one_rendering_of_another_not_for_all() {
        let template = TemplateUse::new("a");
        let places: Vec<_> = (0..THREADS + POLITE).map(|_| enter(&template, "a").unwrap()).collect();
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
        let mut places: Vec<_> = (0..THREADS + POLITE).map(|_| enter(&template, "a").unwrap()).collect();
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

    #[test]
    fn regression_a_template_that_took_long_is_rendered_inline_no_more() {
        let template = TemplateUse::new("a");
        template.took(INLINE);
        let places = Semaphore::new(1);
        assert!(template.render_inline(&places, || ()).is_ok(), "at the bound");
        template.took(INLINE + Duration::from_nanos(1));
        let again = template.render_inline(&places, || panic!("it would delay others"));
        assert!(matches!(again, Err::<(), _>(FlowError::NotInline)), "one past it");
        let template = TemplateUse::new("b");
        let works = || {
            let end = thread_time() + INLINE;
            while thread_time() <= end {}
        };
        template.render_inline(&places, || std::thread::sleep(2 * INLINE)).unwrap();
        assert!(!template.is_slow.load(Ordering::Relaxed), "it waited for the system");
        template.render_inline(&places, works).unwrap();
        assert!(template.is_slow.load(Ordering::Relaxed));
    }

    #[test]
    fn a_template_that_is_stopped_is_not_rendered_inline() {
        let template = TemplateUse::new("a");
        let (runs_away, places) = (enter(&template, "a").unwrap(), Semaphore::new(1));
        template.stop();
        assert!(matches!(template.render_inline(&places, || ()), Err(FlowError::TemplateStopped)));
        drop(runs_away);
        template.render_inline(&places, || ()).unwrap();
    }

    #[test]
    fn regression_renderings_leave_threads_to_those_who_wait() {
        let (template, places) = (TemplateUse::new("a"), Semaphore::new(INLINE_PLACES));
        let second = || template.render_inline(&places, || ()).is_ok();
        assert!(!template.render_inline(&places, second).unwrap(), "one renders");
        assert!(second());
    }

    #[test]
    fn regression_polite_threads_leave_places_for_the_others() {
        let template = TemplateUse::new("a");
        let enter = |is_polite| enter_now(&template, is_polite);
        let polite: Vec<_> = (0..POLITE).map(|_| enter(true).expect("at the bound")).collect();
        assert!(enter(true).is_none(), "one past it");
        let others: Vec<_> = (0..THREADS).map(|_| enter(false).expect("a place besides the polite ones")).collect();
        assert!(enter(false).is_none());
        drop(polite);
        let more: Vec<_> = (0..POLITE).map(|_| enter(false).expect("one that no polite thread has")).collect();
        assert!(enter(true).is_none(), "polite threads wait for the others");
        drop((others, more));
        assert_eq!((template.turns.taken(), template.polite.taken()), (0, 0));
    }

    #[test]
    fn a_stopped_template_tells_polite_threads_and_opens_for_them_again() {
        for is_polite in [false, true] {
            let template = TemplateUse::new("a");
            let runs_away = enter_now(&template, is_polite).unwrap();
            template.stop();
            assert!(enter_now(&template, true).is_none() && enter_now(&template, false).is_none());
            drop(runs_away);
            assert!(enter_now(&template, true).is_some() && enter_now(&template, false).is_some());
        }
    }
}
