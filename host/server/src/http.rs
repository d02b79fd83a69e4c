//! The connections of clients. Sockets come in, requests go out to a router. Each listener accepts up to its limit; where it is
//! full, whoever keeps it waiting for longest makes room.
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use rustix::io::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::config::Origin;
use crate::error::ServerError;

mod connection;
mod stream;

pub(crate) use connection::{ConnectionSetup, ConnectionState, ConnectionTimeouts, serve as serve_connection};

/// Connections that the system keeps until they are accepted, if it may keep so many.
const BACKLOG: u32 = 1024;
/// Of responses that the system keeps for a connection. It would keep some megabytes for a client that takes nothing.
const SEND_BYTES: usize = 256 << 10;
/// How often a full listener looks for a connection that may be closed.
const LOOK: Duration = Duration::from_millis(100);
/// From an accept that failed to the next one.
const AGAIN: Duration = Duration::from_millis(50);
/// How often it is said that no file is free.
const TELL: Duration = Duration::from_secs(60);

/// Binds `address` now, so that an address in use is known before a model is loaded.
pub(crate) fn bind(address: SocketAddr, origin: &Origin) -> Result<TcpListener, ServerError> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|source| ServerError::Listen { address, source, origin: Box::new(origin.clone()) })
}

/// What answers requests: one router while the server loads, another one from then on, also on connections that began before.
#[derive(Debug, Clone)]
pub(crate) struct RouterSwitch {
    loading: Router,
    loaded: Arc<OnceLock<Router>>,
}

impl RouterSwitch {
    pub(crate) fn new(loading: Router) -> Self {
        Self { loading, loaded: Arc::default() }
    }

    /// Has `loaded` answer all further requests. The first one stays.
    pub(crate) fn set_loaded(&self, loaded: Router) {
        let _ = self.loaded.set(loaded);
    }

    fn current(&self) -> Router {
        self.loaded.get().unwrap_or(&self.loading).clone()
    }
}

/// Who listens, and how many connections it may have. Each listener has places of its own, so that clients of the public one
/// cannot keep operators out.
#[derive(Debug, Clone)]
pub(crate) struct ListenerAccess {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    pub(crate) open: Arc<OpenConnections>,
}

/// Accepts until the server ends, then waits until all connections are done.
pub(crate) async fn serve(listener: TcpListener, access: ListenerAccess, setup: ConnectionSetup) {
    let limit = access.connections.min(Semaphore::MAX_PERMITS);
    let permits = Arc::new(Semaphore::new(limit));
    let mut stop = setup.stop.clone();
    loop {
        let accepted = async {
            let (stream, peer) = access.accept(&listener).await;
            (stream, peer, access.permit(&permits).await)
        };
        let (stream, peer, permit) = tokio::select! {
            accepted = accepted => accepted,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        let open = OpenConnection::new(&access);
        let setup = setup.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = connection::serve(stream, peer, setup, open.state.clone()) => {}
                () = open.state.closed() => tracing::debug!(%peer, "a connection is closed: others need its place"),
            }
            drop((open, permit));
        });
    }
    drop(listener);
    // Fails only when the semaphore is closed, which nobody does.
    let _ = permits.acquire_many(u32::try_from(limit).unwrap_or(u32::MAX)).await;
}

impl ListenerAccess {
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr) {
        loop {
            match accept(listener).await {
                Ok(accepted) => return accepted,
                Err(error) if has_no_file(&error) => {
                    self.open.close_longest_waiting(None);
                    if self.open.is_to_be_said() {
                        tracing::warn!(%error, "no file is free for a new connection: quiet connections make room");
                    }
                }
                // A connection died in the backlog, which does not end the server.
                Err(error) => tracing::warn!(%error, "accept failed"),
            }
            sleep(AGAIN).await;
        }
    }

    /// A place for a connection, which another one may have to make.
    async fn permit(&self, permits: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = permits.clone().try_acquire_owned() {
                return permit;
            }
            self.open.close_longest_waiting(Some(self.name));
            tokio::select! {
                permit = permits.clone().acquire_owned() => if let Ok(permit) = permit { return permit },
                () = sleep(LOOK) => {}
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Tokens are small: Nagle's algorithm would hold them back.
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_send_buffer_size(SEND_BYTES)?;
    Ok((stream, peer))
}

/// Whether the process, or the system, has as many files open as it may.
fn has_no_file(error: &io::Error) -> bool {
    let limits = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| limits.contains(&code))
}

/// The connections of all listeners, which share the files that the process may have open.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections {
    all: Mutex<Vec<(&'static str, Arc<ConnectionState>)>>,
    /// When it was last said that no file is free.
    said: Mutex<Option<Instant>>,
}

impl OpenConnections {
    /// Closes the connection on which a client has kept the server waiting for longest, of this listener or of any. Whoever asks
    /// comes last, however many are silent.
    fn close_longest_waiting(&self, listener: Option<&'static str>) {
        let mut all = self.all();
        let waiting = all.iter().enumerate().filter_map(|(at, (of, state))| {
            let since = state.waiting_since().filter(|_| listener.is_none_or(|listener| listener == *of))?;
            Some((since, at))
        });
        if let Some((_, at)) = waiting.min() {
            all.swap_remove(at).1.close();
        }
    }

    fn is_to_be_said(&self) -> bool {
        let (mut said, now) = (self.said.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let due = said.is_none_or(|said| now.duration_since(said) >= TELL);
        if due {
            *said = Some(now);
        }
        due
    }

    fn all(&self) -> MutexGuard<'_, Vec<(&'static str, Arc<ConnectionState>)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection among the open ones.
#[derive(Debug)]
struct OpenConnection {
    open: Arc<OpenConnections>,
    state: Arc<ConnectionState>,
}

impl OpenConnection {
    fn new(access: &ListenerAccess) -> Self {
        let state = ConnectionState::new();
        access.open.all().push((access.name, state.clone()));
        Self { open: access.open.clone(), state }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.all().retain(|(_, state)| !Arc::ptr_eq(state, &self.state));
    }
}

#[cfg(test)]
mod tests;
