//! Reading a request on a thread that may block, watched from outside: a chat template may run for ever, and nothing can stop it.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::read_permits::{ReadPermit, SHORT_BYTES};

/// How often a reading is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A rendering that is found running so often runs away. Looks count, and no clock: a process that was stopped for a while finds
/// nothing wrong.
const LOOKS: u32 = if cfg!(test) { 5 } else { 100 };
/// Nice value of threads that read long bodies: about a quarter of a core where others want it.
const POLITE: i32 = 5;

/// What a reading shares with those who watch it.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The client has left, or was answered.
    abandoned: AtomicBool,
    /// The template of a rendering that runs; taken by whoever gives it up.
    rendering: Mutex<Option<Arc<TemplateHealth>>>,
}

/// Whether a model's chat template may be used.
#[derive(Debug)]
pub(crate) struct TemplateHealth {
    model: String,
    /// Renderings that were given up and go on.
    stuck: AtomicUsize,
}

/// A rendering that runs. Dropped when it is done.
struct Rendering<'a> {
    reading: &'a Reading,
    template: Arc<TemplateHealth>,
}

impl Reading {
    /// Whether nobody waits for what is read.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The same for those who ask all the time.
    pub(crate) fn abandoned(&self) -> &AtomicBool {
        &self.abandoned
    }

    /// Renders on this thread, watched.
    ///
    /// # Errors
    /// 503: a rendering with the template goes on that was given up.
    pub(crate) fn render<T>(&self, template: &Arc<TemplateHealth>, render: impl FnOnce() -> T) -> Result<T, FlowError> {
        if template.stuck.load(Ordering::Relaxed) > 0 {
            return Err(FlowError::TemplateStopped);
        }
        *self.rendering() = Some(template.clone());
        let _rendering = Rendering { reading: self, template: template.clone() };
        Ok(render())
    }

    fn rendering(&self) -> MutexGuard<'_, Option<Arc<TemplateHealth>>> {
        self.rendering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the rendering, which was found running `looks` times. If it runs away, its template is given up.
    fn runs_away(&self, looks: &mut u32) -> bool {
        let mut rendering = self.rendering();
        *looks = if rendering.is_some() { *looks + 1 } else { 0 };
        let Some(template) = rendering.take_if(|_| *looks >= LOOKS) else { return false };
        template.give_up();
        true
    }
}

impl TemplateHealth {
    pub(crate) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), stuck: AtomicUsize::new(0) }
    }

    fn give_up(&self) {
        if self.stuck.fetch_add(1, Ordering::Relaxed) == 0 {
            let model = &self.model;
            tracing::error!(
                model,
                "the chat template takes too long for a chat: until that rendering ends, the model answers chats with \
                 503; completions go on"
            );
        }
    }

    fn come_back(&self) {
        if self.stuck.fetch_sub(1, Ordering::Relaxed) == 1 {
            let model = &self.model;
            tracing::warn!(model, "the chat template's long rendering has ended: chats are answered again");
        }
    }
}

impl Drop for Rendering<'_> {
    fn drop(&mut self) {
        if self.reading.rendering().take().is_none() {
            self.template.come_back();
        }
    }
}

/// Runs `read` on a thread that may block, under the permit. The share comes back with what was read. If the client leaves,
/// `read` stops at its next check; it is watched, and has its permit and its share, until then. `bytes`: of the body.
///
/// # Errors
/// Those of `read`; 503 if a template runs away. The permit passes on within a look then, while the thread keeps the share for
/// as long as it runs.
pub(crate) async fn run<T: Send + 'static>(
    permit: ReadPermit,
    share: Share,
    bytes: usize,
    read: impl FnOnce(&Reading) -> Result<T, FlowError> + Send + 'static,
) -> Result<(T, Share), FlowError> {
    let reading = Arc::new(Reading::default());
    let running = tokio::task::spawn_blocking({
        let reading = reading.clone();
        move || if bytes > SHORT_BYTES { politely(|| read(&reading)) } else { read(&reading) }
    });
    let mut watch = Watch { reading, looks: 0, running: Some(Running { task: running, permit, share }) };
    watch.until_read().await
}

/// Watches a reading. Dropped while it runs, when the client leaves or the template is given up, it goes on in a task of its
/// own.
struct Watch<T: Send + 'static> {
    reading: Arc<Reading>,
    looks: u32,
    running: Option<Running<T>>,
}

struct Running<T> {
    task: JoinHandle<Result<T, FlowError>>,
    permit: ReadPermit,
    share: Share,
}

impl<T: Send + 'static> Watch<T> {
    async fn until_read(&mut self) -> Result<(T, Share), FlowError> {
        loop {
            let Some(Running { task, .. }) = &mut self.running else { return Err(FlowError::Cancelled) };
            match timeout(LOOK, task).await {
                Ok(read) => {
                    let Running { share, .. } = self.running.take().ok_or(FlowError::Cancelled)?;
                    let read = read.map_err(|source| FlowError::Task { task: "reading a request", source })??;
                    return Ok((read, share));
                }
                Err(_) if self.reading.runs_away(&mut self.looks) => return Err(FlowError::TemplateStopped),
                Err(_) => {}
            }
        }
    }
}

impl<T: Send + 'static> Drop for Watch<T> {
    fn drop(&mut self) {
        self.reading.abandoned.store(true, Ordering::Relaxed);
        let Some(Running { mut task, permit, share }) = self.running.take() else { return };
        let (reading, mut looks) = (self.reading.clone(), self.looks);
        let rest = async move {
            let mut permit = Some(permit);
            while timeout(LOOK, &mut task).await.is_err() {
                // From then on others are read, whatever the thread does.
                if looks >= LOOKS || reading.runs_away(&mut looks) {
                    permit = None;
                }
            }
            drop((permit, share));
        };
        // There is none at the end of the process, and then nobody waits for the permit.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(rest);
        }
    }
}

/// Reads on a thread of its own that lets everybody else go first: engines compute on the same cores.
fn politely<T: Send>(read: impl FnOnce() -> Result<T, FlowError> + Send) -> Result<T, FlowError> {
    std::thread::scope(|scope| {
        let polite = move || {
            let nice = getpriority_process(None).map_or(POLITE, |nice| nice.max(POLITE));
            // Where the system refuses, it reads as others do.
            let _ = setpriority_process(None, nice);
            read()
        };
        let thread = std::thread::Builder::new().name("long-body".to_owned()).spawn_scoped(scope, polite);
        let thread = thread.map_err(|_| FlowError::Overloaded)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use camshaft_core::ids::TenantId;

    use super::*;
    use crate::flow::budget::Budget;
    use crate::flow::read_permits::ReadPermits;

    const BODY: usize = 1 << 10;

    struct Held {
        budget: Arc<Budget>,
        template: Arc<TemplateHealth>,
        task: JoinHandle<Result<((), Share), FlowError>>,
        /// Dropped, the rendering ends.
        hold: crossbeam_channel::Sender<()>,
    }

    /// A reading that renders for as long as the test wants it to.
    async fn rendering() -> Held {
        let (budget, permits) = (Budget::new(1000), ReadPermits::default());
        let (template, tenant) = (Arc::new(TemplateHealth::new("a")), TenantId::from("t"));
        let mut share = budget.share(&tenant);
        share.grow(400).unwrap();
        let permit = permits.take(&tenant, BODY).await.unwrap();
        let (hold, held) = crossbeam_channel::bounded::<()>(0);
        let (begun, mut begins) = tokio::sync::mpsc::channel(1);
        let used = template.clone();
        let task = tokio::spawn(run(permit, share, BODY, move |reading| {
            reading.render(&used, || {
                begun.try_send(()).unwrap();
                let _ = held.recv();
            })
        }));
        begins.recv().await.unwrap();
        Held { budget, template, task, hold }
    }

    async fn until(what: &str, happened: impl Fn() -> bool) {
        for _ in 0..6000 {
            if happened() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: not so");
    }

    #[tokio::test]
    async fn a_rendering_that_ends_gives_its_share_back() {
        let held = rendering().await;
        drop(held.hold);
        let ((), share) = held.task.await.unwrap().unwrap();
        assert_eq!(share.bytes(), 400);
        assert!(Reading::default().render(&held.template, || ()).is_ok());
    }

    #[tokio::test]
    async fn a_rendering_that_runs_away_is_answered_and_its_template_refused_until_it_ends() {
        let held = rendering().await;
        let answered = held.task.await.unwrap();
        assert!(matches!(answered, Err(FlowError::TemplateStopped)));
        let used = || Reading::default().render(&held.template, || ());
        assert!(matches!(used(), Err(FlowError::TemplateStopped)));
        assert!(held.budget.share(&TenantId::from("t")).grow(400).is_err(), "the thread keeps its share");
        drop(held.hold);
        until("its thread has ended", || used().is_ok()).await;
        until("its share is back", || held.budget.share(&TenantId::from("t")).grow(400).is_ok()).await;
    }

    #[tokio::test]
    async fn whoever_leaves_is_watched_no_less() {
        let held = rendering().await;
        held.task.abort();
        let used = || Reading::default().render(&held.template, || ());
        until("the template is given up", || matches!(used(), Err(FlowError::TemplateStopped))).await;
        drop(held.hold);
        until("its thread has ended", || used().is_ok()).await;
    }
}
