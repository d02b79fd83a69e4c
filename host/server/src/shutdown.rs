//! The way from serving to the end: drain, close the listeners, end the threads.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::Api;
use camshaft_policy::PolicyHost;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout_at};

use crate::supervisor::Supervisor;

/// After streams were cut: how long they have to write their last frame.
const LAST_FRAMES: Duration = Duration::from_millis(500);
/// How long each stage of threads has to end. A disk tier may take 15 s of it to write what is queued.
pub(crate) const THREADS_END: Duration = Duration::from_secs(20);

/// How long the parts of a shutdown may take, from the signal on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// The listeners stay open for at least so long, so that load balancers notice.
    pub(crate) grace: Duration,
    /// Streams may go on for so long.
    pub(crate) drain: Duration,
}

/// A listener that accepts until it is told to stop.
#[derive(Debug)]
pub(crate) struct Listener {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(watch::Receiver<bool>) -> F,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(serve(stopped)) }
    }

    /// Accepts nothing more, and waits for its connections until `deadline`.
    async fn close(self, deadline: tokio::time::Instant) {
        // Nobody listens for it where the task has ended.
        let _ = self.stop.send(true);
        if timeout_at(deadline, self.task).await.is_err() {
            tracing::debug!("connections are left behind");
        }
    }
}

/// What a server consists of that has to end.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) api: Arc<Api>,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) public: Listener,
    pub(crate) admin: Option<Listener>,
}

impl InFlight {
    /// Refuses new requests, waits for the ones in flight, and ends everything. The admin listener goes last.
    pub(crate) async fn shut_down(self, times: Times) {
        let begun = tokio::time::Instant::now();
        let drained_at = begun + times.drain;
        self.api.readiness.set_draining();
        let in_flight = async {
            tokio::select! {
                () = self.api.readiness.idle() => drained_at,
                () = sleep_until(drained_at) => {
                    tracing::warn!("the drain time has passed: the remaining streams are cut");
                    self.api.cut_streams();
                    begun
                }
            }
        };
        // Until both are over new requests are answered: with 503 and `draining`.
        let (deadline, ()) = tokio::join!(in_flight, sleep(times.grace));
        // A response that is complete may still be on its way to a slow reader.
        self.public.close(deadline.max(tokio::time::Instant::now() + LAST_FRAMES)).await;
        let (supervisor, policies) = (self.supervisor, self.policies);
        let _ = tokio::task::spawn_blocking(move || end_threads(&supervisor, &policies)).await;
        if let Some(admin) = self.admin {
            admin.close(tokio::time::Instant::now() + LAST_FRAMES).await;
        }
    }
}

/// Ends all threads, and then the clock of the policies: as long as a guest runs its deadline must pass.
fn end_threads(supervisor: &Supervisor, policies: &PolicyHost) {
    let begun = Instant::now();
    if !supervisor.end(THREADS_END) {
        tracing::warn!(seconds = begun.elapsed().as_secs(), "threads that do not end are left behind");
        return;
    }
    policies.stop();
}
