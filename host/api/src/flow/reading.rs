//! Reading a request on a thread that may block, watched from outside: a chat template may run for ever, and nothing can stop it.
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_core::fair_queue::FairQueue;
use camshaft_core::ids::TenantId;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;

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

/// Bodies up to this are short: most conversations are.
pub(crate) const SHORT_BYTES: usize = 64 << 10;
/// Requests that may wait, of each length. Past it only a tenant of which none waits may still join; others get 503.
const WAITING: usize = 1024;

/// Who may read requests for a model: rendering and tokenizing occupy a core. Tenants take turns, so that nobody waits for all that
/// another tenant has sent; short bodies wait for no long one.
#[derive(Debug)]
pub(crate) struct ReadPermits {
    short: Arc<Turns>,
    long: Arc<Turns>,
}

/// As many permits as there were at first, and those who wait for one.
#[derive(Debug)]
struct Turns(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    waiting: FairQueue<TenantId, oneshot::Sender<ReadPermit>>,
}

/// A permit. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct ReadPermit(Option<Arc<Turns>>);

impl Default for ReadPermits {
    /// More than there are cores would only keep more threads, with what each keeps of memory. Long bodies leave half of the cores to
    /// the engine.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { short: Turns::new(cores.max(2)), long: Turns::new((cores / 2).max(1)) }
    }
}

impl ReadPermits {
    /// Waits for the tenant's turn at a body of `bytes`. Dropping the future gives up.
    ///
    /// # Errors
    /// 503 if too many requests wait.
    pub(crate) async fn take(&self, tenant: &TenantId, bytes: usize) -> Result<ReadPermit, FlowError> {
        let turns = if bytes <= SHORT_BYTES { &self.short } else { &self.long };
        // The sender is dropped only with the turns, and this request holds them.
        turns.ask(tenant)?.await.map_err(|_| FlowError::Overloaded)
    }
}

impl Turns {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free: permits, waiting: FairQueue::default() })))
    }

    fn ask(self: &Arc<Self>, tenant: &TenantId) -> Result<oneshot::Receiver<ReadPermit>, FlowError> {
        let mut state = self.state();
        if state.is_full_for(tenant) {
            // Some may have given up.
            state.waiting.retain(|waiting| !waiting.is_closed());
            if state.is_full_for(tenant) {
                return Err(FlowError::Overloaded);
            }
        }
        let (permit, receiver) = oneshot::channel();
        state.waiting.push(tenant.clone(), permit);
        self.pass_on(&mut state);
        Ok(receiver)
    }

    /// Gives what is free to those who wait, in order.
    fn pass_on(self: &Arc<Self>, state: &mut State) {
        while state.free > 0 {
            let Some(waiting) = state.waiting.pop() else { return };
            // Sent to one who has just given up, it must not pass itself on: the state is locked.
            match waiting.send(ReadPermit(Some(self.clone()))) {
                Ok(()) => state.free -= 1,
                Err(mut unsent) => unsent.0 = None,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A tenant that has filled the queue shuts out only itself.
    fn is_full_for(&self, tenant: &TenantId) -> bool {
        self.waiting.contains(tenant) && self.waiting.len() >= WAITING
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        let mut state = turns.state();
        state.free += 1;
        turns.pass_on(&mut state);
    }
}

#[cfg(test)]
mod reading_tests {
    use camshaft_core::ids::TenantId;

    use super::*;
    use crate::flow::budget::Budget;
    use crate::flow::reading::ReadPermits;

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

#[cfg(test)]
mod read_permits_tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::from(name)
    }

    async fn take(turns: &Arc<Turns>, name: &str) -> ReadPermit {
        turns.ask(&tenant(name)).unwrap().await.unwrap()
    }

    #[tokio::test]
    async fn regression_a_tenant_waits_for_one_request_of_another_not_for_all() {
        let turns = Turns::new(1);
        let first = take(&turns, "a").await;
        let (order, mut done) = tokio::sync::mpsc::channel(200);
        for name in std::iter::repeat_n("a", 100).chain(["b", "c"]) {
            let (turns, order) = (turns.clone(), order.clone());
            tokio::spawn(async move {
                let permit = take(&turns, name).await;
                order.send(name).await.unwrap();
                drop(permit);
            });
            tokio::task::yield_now().await;
        }
        drop((first, order));
        let mut names = Vec::new();
        while let Some(name) = done.recv().await {
            names.push(name);
        }
        assert_eq!(names.len(), 102);
        assert_eq!(names[..4], ["a", "b", "c", "a"]);
        assert_eq!(turns.state().free, 1);
    }

    #[tokio::test]
    async fn as_many_wait_as_the_bound_and_those_that_gave_up_make_room() {
        let turns = Turns::new(1);
        let held = take(&turns, "a").await;
        let wait = |name: &str| turns.ask(&tenant(name));
        let mut waiting: Vec<_> = (0..WAITING).map(|i| wait(["a", "b"][i % 2]).unwrap()).collect();
        assert!(matches!(wait("a"), Err(FlowError::Overloaded)));
        let mut last = wait("c").expect("a tenant of which none waits");
        assert!(matches!(wait("c"), Err(FlowError::Overloaded)));
        waiting.truncate(2);
        drop(wait("a").unwrap());
        // Whoever gave up is passed over.
        drop(waiting);
        drop(held);
        let permit = last.try_recv().unwrap();
        drop(permit);
        let state = turns.state();
        assert!(state.waiting.is_empty());
        assert_eq!(state.free, 1);
    }

    #[tokio::test]
    async fn regression_short_bodies_wait_for_no_long_one() {
        let permits = ReadPermits { short: Turns::new(1), long: Turns::new(1) };
        let long = permits.take(&tenant("a"), SHORT_BYTES + 1).await.unwrap();
        let mut next = permits.long.ask(&tenant("a")).unwrap();
        let short = permits.take(&tenant("a"), SHORT_BYTES).await.unwrap();
        assert!(next.try_recv().is_err());
        drop(long);
        assert!(next.try_recv().is_ok());
        drop(short);
    }
}
