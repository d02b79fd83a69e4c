//! `camshaft serve`: loads everything, starts the threads, listens, and ends in good order.
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use camshaft_api::{AdminAccess, Api, Control, PublicAccess, Readiness};
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::config::{Config, Origins, Sources};
use crate::error::ServerError;
use crate::http::{self, ConnectionSetup, ConnectionTimeouts, ListenerAccess, OpenConnections, RouterSwitch};
use crate::load::{Addresses, Load, LoadedConfig};
use crate::logging;
use crate::open_files;
use crate::preflight::{self, Checked};
use crate::shutdown::{InFlight, Listener, Times};
use crate::signals::{Signals, Wish};
use crate::supervisor::Supervisor;
use crate::tls::Certificate;
use crate::weights::Engines;

/// Serves until SIGTERM or SIGINT. Threads that do not end are left behind: leave the process without running destructors
/// under them.
pub(crate) fn run(sources: Sources, engines: Engines) -> Result<(), ServerError> {
    let snapshot = sources.snapshot()?;
    let config = &snapshot.config;
    open_files::raise();
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    // The runtime panics, or waits for ever, where it gets no threads.
    threads_can_start(threads + SPARE_THREADS)
        .map_err(|error| ServerError::internal("start the threads of the runtime", error))?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(threads).thread_keep_alive(THREAD_KEPT).enable_all().build();
    let runtime = runtime.map_err(|error| ServerError::internal("start the runtime", error))?;
    camshaft_process::give_back_memory().map_err(|error| ServerError::internal("start a thread", error))?;
    let log = {
        let _exports_run_here = runtime.enter();
        logging::start(config, logging::exporter(config)?)?
    };
    if !sources.ignored().is_empty() {
        let variables = sources.ignored().join(" ");
        tracing::info!(variables, "environment variables that Kubernetes sets for a Service are ignored");
    }
    let load = Load {
        snapshot,
        sources,
        engines,
        log: log.clone(),
        supervisor: Arc::new(Supervisor::new()),
        readiness: Arc::new(Readiness::new()),
        certificate: None,
        access: Arc::default(),
    };
    let ended = runtime.block_on(serve(load));
    log.flush();
    // Tasks that outlived the drain time are not waited for.
    runtime.shutdown_background();
    ended
}

/// How long threads for what blocks are kept: each keeps the memory that it read a body with.
const THREAD_KEPT: Duration = Duration::from_secs(2);
/// Threads beside those of the runtime's workers that a server starts before it has anything to serve: of the log, for
/// what blocks, for policies, for memory.
const SPARE_THREADS: usize = 5;

/// Whether `count` threads can run at once.
///
/// # Errors
/// Why the system starts no more.
fn threads_can_start(count: usize) -> io::Result<()> {
    let (go_on, waits) = crossbeam_channel::bounded::<Infallible>(0);
    let start = |_| {
        let waits = waits.clone();
        // Nothing is sent: it ends when the sender is gone.
        let wait = move || {
            let _ = waits.recv();
        };
        thread::Builder::new().name("trial".to_owned()).spawn(wait)
    };
    let (started, failed): (Vec<_>, Vec<_>) = (0..count).map(start).partition(Result::is_ok);
    drop(go_on);
    for thread in started.into_iter().flatten() {
        // It does nothing that could panic.
        let _ = thread.join();
    }
    failed.into_iter().find_map(Result::err).map_or(Ok(()), Err)
}

async fn serve(mut load: Load) -> Result<(), ServerError> {
    let (config, supervisor) = (load.snapshot.config.clone(), load.supervisor.clone());
    // First of all, so that a signal during the load is not lost.
    let mut signals = Signals::new()?;
    let checked = preflight::check(&config)?;
    let (public, admin, at) = bind(&checked, &config.origins)?;
    let access = Arc::new(AdminAccess::new(config.fixed.admin.listen.host_name().map(str::to_owned)));
    checked.token.iter().for_each(|token| access.set_token(token.clone()));
    load.certificate = checked.tls.clone();
    load.access = access.clone();
    // Probes are answered while it loads.
    let open = open(&config, (public, admin), checked.tls.as_ref(), &load.readiness)?;
    let loading = tokio::task::spawn_blocking(move || load.run(at));
    let loaded = tokio::select! {
        loaded = loading => loaded.map_err(|error| ServerError::internal("load", error))??,
        () = signals.end() => return Ok(()),
    };
    // Until it ends, nobody evicts what it serves.
    let LoadedConfig { api, policies, live } = loaded;

    let tls = checked.tls;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut announcement = format!("listening on {scheme}://{}\n", at.public);
    if let Some(address) = at.admin {
        announcement.push_str(&format!("admin on http://{address}\n"));
    }
    let (public, admin) = open.answer_all(&config, &api, &access);
    let running = InFlight { api: api.clone(), policies, supervisor: supervisor.clone(), public, admin };
    api.readiness.set_ready();
    tokio::spawn(live.clone().watch());
    if let Some(certificate) = tls {
        tokio::spawn(certificate.watch());
    }
    tell("the line on standard output", move || announce(&announcement)).await;
    notify(NotifyState::Ready).await;

    let reload = {
        let live = live.clone();
        // A file that cannot be read now is said so by `reload` itself.
        move || drop(live.reload())
    };
    let end = wait_for_the_end(async || signals.next().await, reload, &supervisor).await;
    if let Err(error) = &end {
        api.readiness.set_failed(error.to_string());
    }
    let Times { grace, drain } = live.shutdown();
    let grace = match end {
        Ok(Wish::Terminate) => grace,
        // Nobody has to notice first: somebody waits at a terminal, or streams are lost already.
        _ => Duration::ZERO,
    };
    let (grace_s, drain_s) = (grace.as_secs_f64(), drain.as_secs_f64());
    tracing::info!(grace_s, drain_s, "draining: running streams finish, new requests are refused");
    notify(NotifyState::Stopping).await;
    running.shut_down(Times { grace, drain }).await;
    end.map(drop)
}

/// The listeners, which accept connections already.
struct OpenListeners {
    routers: (RouterSwitch, RouterSwitch),
    listeners: (Listener, Option<Listener>),
}

/// Begins to accept connections, and answers that the server is loading.
fn open(
    config: &Config,
    (public, admin): (TcpListener, Option<TcpListener>),
    tls: Option<&Arc<Certificate>>,
    readiness: &Arc<Readiness>,
) -> Result<OpenListeners, ServerError> {
    let acceptor = tls.map(|certificate| certificate.acceptor()).transpose()?;
    let limits = config.fixed.limits.clone();
    let (header, idle, write) = (limits.header_timeout.0, limits.idle_timeout.0, limits.slow_reader.0);
    let timeouts = ConnectionTimeouts { header, idle, write };
    let places = open_files::places(config, open_files::bound());
    if let Some(fewer) = places.fewer(config) {
        tracing::warn!("{fewer}");
    }
    let open: Arc<OpenConnections> = Arc::default();
    let access = |name, connections| ListenerAccess { name, connections, open: open.clone() };
    let routers = |origins: &[String]| RouterSwitch::new(camshaft_api::loading_router(readiness.clone(), origins));
    let routers = (routers(&config.fixed.cors.origins), routers(&[]));
    let listen = |listener, access, routers: &RouterSwitch, tls: Option<TlsAcceptor>| {
        let routers = routers.clone();
        Listener::spawn(move |stop| http::serve(listener, access, ConnectionSetup { routers, tls, timeouts, stop }))
    };
    let public = listen(public, access("public", places.public), &routers.0, acceptor.map(TlsAcceptor::from));
    let admin = admin.map(|admin| listen(admin, access("admin", places.admin), &routers.1, None));
    Ok(OpenListeners { routers, listeners: (public, admin) })
}

impl OpenListeners {
    /// Answers every request from now on.
    fn answer_all(self, config: &Config, api: &Arc<Api>, access: &Arc<AdminAccess>) -> (Listener, Option<Listener>) {
        let host = config.fixed.listen.host_name().map(str::to_owned);
        let origins = PublicAccess { host, cors_origins: config.fixed.cors.origins.clone() };
        self.routers.0.set_loaded(camshaft_api::public_router(api.clone(), origins));
        self.routers.1.set_loaded(camshaft_api::admin_router(api.clone(), access.clone()));
        self.listeners
    }
}

/// Binds both listeners.
fn bind(checked: &Checked, origins: &Origins) -> Result<(TcpListener, Option<TcpListener>, Addresses), ServerError> {
    let address = |of: &TcpListener| of.local_addr().map_err(|error| ServerError::internal("read the address", error));
    let public = http::bind(checked.listen, &origins.at("listen"))?;
    let admin = match checked.admin_listen {
        Some(address) => Some(http::bind(address, &origins.at("admin.listen"))?),
        None => None,
    };
    let at = Addresses { public: address(&public)?, admin: admin.as_ref().map(address).transpose()? };
    Ok((public, admin, at))
}

/// The signal that ended the server, or an error that names the thread without which it cannot go on. A reload may take
/// minutes, and neither waits for it.
async fn wait_for_the_end(
    mut next: impl AsyncFnMut() -> Wish,
    reload: impl Fn() + Clone + Send + 'static,
    supervisor: &Supervisor,
) -> Result<Wish, ServerError> {
    let asked = Arc::new(Notify::new());
    tokio::spawn(reload_when_asked(asked.clone(), reload));
    loop {
        let wish = tokio::select! {
            wish = next() => wish,
            thread = supervisor.failed() => {
                return Err(ServerError::internal("serve", anyhow::anyhow!("the thread {thread} panicked")));
            }
        };
        match wish {
            Wish::Reload => asked.notify_one(),
            Wish::Terminate | Wish::Interrupt => return Ok(wish),
        }
    }
}

/// Reloads whenever somebody asks; once more for all who ask meanwhile. Never ends.
async fn reload_when_asked(asked: Arc<Notify>, reload: impl Fn() + Clone + Send + 'static) {
    loop {
        asked.notified().await;
        // A panic ends this reload only; it was logged.
        let _ = tokio::task::spawn_blocking(reload.clone()).await;
    }
}

/// The lines on standard output that scripts wait for.
fn announce(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Tells the service manager, if there is one that asked to be told.
async fn notify(state: NotifyState<'static>) {
    tell("the service manager", move || sd_notify::notify(&[state])).await;
}

/// Tells somebody outside how far the server is. Whoever does not read, or is gone, holds nothing up.
async fn tell(whom: &'static str, telling: impl FnOnce() -> std::io::Result<()> + Send + 'static) {
    const TELLING: Duration = Duration::from_secs(1);
    match tokio::time::timeout(TELLING, tokio::task::spawn_blocking(telling)).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "{whom} could not be told how far the server is"),
        Ok(Err(error)) => tracing::warn!(%error, "{whom} could not be told how far the server is"),
        Err(_) => tracing::warn!("{whom} is not read: whoever waits for it does not know how far the server is"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Longer than anything takes that has to happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn regression_a_reload_that_takes_long_holds_up_no_signal() {
        let ((signal, mut signals), (begun, mut begins)) = (mpsc::channel(8), mpsc::channel(8));
        let (go_on, hangs) = crossbeam_channel::bounded::<()>(0);
        let reload = move || {
            begun.blocking_send(()).unwrap();
            // Until the test lets it, or ends.
            let _ = hangs.recv();
        };
        let supervisor = Supervisor::new();
        let ask = async {
            signal.send(Wish::Reload).await.unwrap();
            begins.recv().await.unwrap();
            signal.send(Wish::Reload).await.unwrap();
            signal.send(Wish::Terminate).await.unwrap();
        };
        let end = wait_for_the_end(async || signals.recv().await.unwrap(), reload, &supervisor);
        let (end, ()) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(end, ask) }).await.expect("it hears SIGTERM");
        assert_eq!(end.unwrap(), Wish::Terminate);
        go_on.send(()).unwrap();
        begins.recv().await.expect("who asked meanwhile gets another one");
    }
}
