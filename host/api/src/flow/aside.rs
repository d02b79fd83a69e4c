//! Reading a request on a thread that may block, watched from outside: a chat template may run for ever, and nothing can
//! stop it.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::template_use::TemplateUse;
use crate::flow::turns::Turn;

/// How often a reading is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A rendering that is seen at more looks than this runs away. Looks are counted, and not time, so that a process that was
/// stopped for a while finds nothing wrong.
const LOOKS: u32 = 50;

/// What a reading shares with those who watch it.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// The client has left, or was answered.
    abandoned: AtomicBool,
    rendering: Mutex<Option<Watched>>,
}

/// A rendering that runs.
#[derive(Debug)]
struct Watched {
    template: Arc<TemplateUse>,
    looks: u32,
}

/// Dropped when the rendering is done.
#[derive(Debug)]
pub(crate) struct Rendering<'a>(&'a Aside);

impl Aside {
    /// Whether nobody waits for what is read.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The same for those who ask all the time.
    pub(crate) fn abandoned(&self) -> &AtomicBool {
        &self.abandoned
    }

    /// A rendering begins; from now on it is watched.
    pub(crate) fn rendering(&self, template: &Arc<TemplateUse>) -> Rendering<'_> {
        *self.watched() = Some(Watched { template: template.clone(), looks: 0 });
        Rendering(self)
    }

    /// Looks at the rendering. If it runs away its template is stopped, and the answer is true.
    fn runs_away(&self) -> bool {
        let mut watched = self.watched();
        let Some(rendering) = watched.as_mut() else { return false };
        rendering.looks += 1;
        if rendering.looks <= LOOKS {
            return false;
        }
        rendering.template.stop();
        true
    }

    fn watched(&self) -> MutexGuard<'_, Option<Watched>> {
        self.rendering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Rendering<'_> {
    fn drop(&mut self) {
        *self.0.watched() = None;
    }
}

/// Runs `read` on a thread that may block, in the turn. The share comes back with what was read. If the client leaves,
/// `read` stops at its next check; it is watched, and has its turn and its share, until then.
///
/// # Errors
/// Those of `read`; 503 if a template runs away. The turn passes on at once then, while the thread keeps the share for as
/// long as it runs.
pub(crate) async fn run<T: Send + 'static>(
    turn: Turn,
    share: Share,
    read: impl FnOnce(&Aside) -> Result<T, FlowError> + Send + 'static,
) -> Result<(T, Share), FlowError> {
    let aside = Arc::new(Aside::default());
    let _client = Client(aside.clone());
    let reading = tokio::task::spawn_blocking({
        let aside = aside.clone();
        move || read(&aside)
    });
    let (answer, answered) = oneshot::channel();
    tokio::spawn(watch(reading, aside, turn, share, answer));
    // Only the end of the runtime ends the watch before it has answered.
    answered.await.unwrap_or(Err(FlowError::Cancelled))
}

async fn watch<T>(
    mut reading: JoinHandle<Result<T, FlowError>>,
    aside: Arc<Aside>,
    turn: Turn,
    share: Share,
    answer: oneshot::Sender<Result<(T, Share), FlowError>>,
) {
    // Nobody takes the answer where the client has left.
    loop {
        match timeout(LOOK, &mut reading).await {
            Ok(Ok(read)) => {
                drop(turn);
                let _ = answer.send(read.map(|read| (read, share)));
                return;
            }
            Ok(Err(source)) => {
                let _ = answer.send(Err(FlowError::Task { task: "reading a request", source }));
                return;
            }
            Err(_) if aside.runs_away() => break,
            Err(_) => {}
        }
    }
    drop(turn);
    let _ = answer.send(Err(FlowError::TemplateStopped));
    // It may end after all.
    let _ = reading.await;
    drop(share);
}

/// Dropped with the request's future: when it is done, and when its client leaves.
struct Client(Arc<Aside>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
