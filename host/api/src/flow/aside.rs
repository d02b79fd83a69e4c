//! Reading a request on a thread that may block, watched from outside: a chat template may run for ever, and nothing can
//! stop it.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_core::ids::TenantId;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::template_use::TemplateUse;
use crate::flow::thread_time::{ThreadTime, Unknown};
use crate::flow::turns::Turn;

/// How often a reading is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A rendering that takes more CPU time than this runs away. A machine with other work, and a process that was stopped for a
/// while, find nothing wrong.
const RENDERING: Duration = Duration::from_secs(5);

/// Bodies up to this size are read on the task's own thread, unless a chat template takes long; longer ones on a thread that
/// may block.
pub(crate) const INLINE_BYTES: usize = 2 << 10;
/// Bodies up to this are read at once: even long conversations are shorter.
pub(crate) const PROMPT_BYTES: usize = 64 << 10;
/// Nice value of threads that read longer ones: about a quarter of a core where others want it.
const POLITE: i32 = 5;

/// What a reading shares with those who watch it.
#[derive(Debug)]
pub(crate) struct Aside {
    tenant: TenantId,
    /// Its thread lets everybody else go first.
    is_polite: bool,
    /// For a reading that is not aside at all, where whatever takes long delays other connections: the places for renderings
    /// there.
    inline: Option<Arc<Semaphore>>,
    /// `None` while the reading waits for something else.
    turn: Mutex<Option<Turn>>,
    /// The client has left, or was answered.
    abandoned: AtomicBool,
    rendering: Mutex<Option<Watched>>,
}

/// A rendering that runs.
#[derive(Debug)]
struct Watched {
    template: Arc<TemplateUse>,
    clock: Clock,
}

/// What a rendering takes.
#[derive(Debug)]
enum Clock {
    /// CPU time since the first look.
    Thread { time: ThreadTime, before: Option<Duration> },
    /// Where the system does not tell it, looks count.
    Looks(u32),
    #[cfg(test)]
    Told(Arc<Mutex<Duration>>),
}

/// Dropped when the rendering is done.
#[derive(Debug)]
pub(crate) struct Rendering<'a>(&'a Aside);

impl Default for Aside {
    /// A reading in nobody's turn.
    fn default() -> Self {
        Self::new(TenantId::from(""), None)
    }
}

impl Aside {
    fn new(tenant: TenantId, turn: Option<Turn>) -> Self {
        let is_polite = turn.as_ref().is_some_and(|turn| turn.bytes() > PROMPT_BYTES);
        let (abandoned, rendering) = (AtomicBool::new(false), Mutex::default());
        Self { tenant, is_polite, inline: None, turn: Mutex::new(turn), abandoned, rendering }
    }

    /// A reading on a thread that serves connections.
    pub(crate) fn inline(places: Arc<Semaphore>) -> Self {
        Self { inline: Some(places), ..Self::default() }
    }

    pub(crate) fn inline_places(&self) -> Option<&Semaphore> {
        self.inline.as_deref()
    }

    /// Whether others must not wait for its thread.
    pub(crate) fn is_polite(&self) -> bool {
        self.is_polite
    }

    pub(crate) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Waits for another turn on this thread. If that takes a while, others have the reading's own, and the reading goes on
    /// without one: whoever had to wait for a turn while he holds another would hold up those who have what he waits for.
    ///
    /// # Errors
    /// 503: there is none. The client has left.
    pub(crate) fn wait_for(&self, mut turn: oneshot::Receiver<Turn>) -> Result<Turn, FlowError> {
        if let Ok(turn) = turn.try_recv() {
            return Ok(turn);
        }
        let turn = self.resting(|| turn.blocking_recv()).map_err(|_| FlowError::TemplateStopped)?;
        if self.is_abandoned() { Err(FlowError::Cancelled) } else { Ok(turn) }
    }

    /// Waits on this thread while others have the reading's turn, if it gets to rest.
    pub(crate) fn resting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let own = self.turn().take();
        let _resting = match own.map(Turn::rest) {
            Some(Err(own)) => {
                *self.turn() = Some(own);
                None
            }
            rested => rested.and_then(Result::ok),
        };
        wait()
    }

    fn turn(&self) -> MutexGuard<'_, Option<Turn>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_turn(&self) {
        drop(self.turn().take());
    }

    /// Whether nobody waits for what is read.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// The same for those who ask all the time.
    pub(crate) fn abandoned(&self) -> &AtomicBool {
        &self.abandoned
    }

    /// A rendering begins on this thread; from now on it is watched.
    pub(crate) fn rendering(&self, template: &Arc<TemplateUse>) -> Rendering<'_> {
        self.rendering_by(template, Clock::of_this_thread())
    }

    fn rendering_by(&self, template: &Arc<TemplateUse>, clock: Clock) -> Rendering<'_> {
        *self.watched() = Some(Watched { template: template.clone(), clock });
        Rendering(self)
    }

    /// Looks at the rendering. If it runs away its template is stopped, and the answer is true.
    fn runs_away(&self) -> bool {
        let mut watched = self.watched();
        let Some(rendering) = watched.as_mut() else { return false };
        if rendering.clock.look() <= RENDERING {
            return false;
        }
        rendering.template.stop();
        true
    }

    fn watched(&self) -> MutexGuard<'_, Option<Watched>> {
        self.rendering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    fn of_this_thread() -> Self {
        Self::Thread { time: ThreadTime::of_this_thread(), before: None }
    }

    /// What it took up to this look.
    fn look(&mut self) -> Duration {
        match self {
            Self::Thread { time, before } => match (time.taken(), before) {
                (Ok(taken), Some(before)) => taken.saturating_sub(*before),
                (Ok(taken), before) => {
                    *before = Some(taken);
                    Duration::ZERO
                }
                (Err(Unknown::Untold), None) => {
                    *self = Self::Looks(1);
                    LOOK
                }
                // A thread that has ended renders no more, and the next look may find a file.
                (Err(_), _) => Duration::ZERO,
            },
            Self::Looks(looks) => {
                *looks += 1;
                LOOK * *looks
            }
            #[cfg(test)]
            Self::Told(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        }
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
    tenant: TenantId,
    turn: Turn,
    share: Share,
    read: impl FnOnce(&Aside) -> Result<T, FlowError> + Send + 'static,
) -> Result<(T, Share), FlowError> {
    let aside = Arc::new(Aside::new(tenant, Some(turn)));
    let reading = tokio::task::spawn_blocking({
        let aside = aside.clone();
        move || if aside.is_polite { politely(|| read(&aside)) } else { read(&aside) }
    });
    let mut watch = Watch { aside, running: Some((reading, share)) };
    watch.until_read_or_stopped().await
}

/// Watches a reading. Dropped while it runs, when the client leaves or the template is stopped, it goes on in a task of its
/// own.
struct Watch<T: Send + 'static> {
    aside: Arc<Aside>,
    running: Option<Running<T>>,
}

type Running<T> = (JoinHandle<Result<T, FlowError>>, Share);

impl<T: Send + 'static> Watch<T> {
    async fn until_read_or_stopped(&mut self) -> Result<(T, Share), FlowError> {
        loop {
            let Some((reading, _)) = &mut self.running else { return Err(FlowError::Cancelled) };
            match timeout(LOOK, reading).await {
                Ok(read) => {
                    self.aside.end_turn();
                    let (_, share) = self.running.take().ok_or(FlowError::Cancelled)?;
                    let read = read.map_err(|source| FlowError::Task { task: "reading a request", source })??;
                    return Ok((read, share));
                }
                Err(_) if self.aside.runs_away() => {
                    self.aside.end_turn();
                    return Err(FlowError::TemplateStopped);
                }
                Err(_) => {}
            }
        }
    }
}

impl<T: Send + 'static> Drop for Watch<T> {
    fn drop(&mut self) {
        self.aside.abandoned.store(true, Ordering::Relaxed);
        let Some((mut reading, share)) = self.running.take() else { return };
        let aside = self.aside.clone();
        let rest = async move {
            while timeout(LOOK, &mut reading).await.is_err() {
                if aside.runs_away() {
                    aside.end_turn();
                }
            }
            aside.end_turn();
            drop(share);
        };
        // There is none at the end of the process, and then nobody waits for the turn.
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
mod tests;
