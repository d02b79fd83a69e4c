//! Listening sockets: accept connections up to a limit, make room among quiet ones, and wait for the busy ones on
//! shutdown.
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::activity::{Activity, ConnectionTimes};
use crate::config::Origin;
use crate::connection::{self, Served};
use crate::error::ServerError;

/// A connection that was quiet for this long may be closed to make room for another one.
const QUIET: Duration = Duration::from_secs(1);
/// One of so many connections is closed at once when there is no room, at least one.
const SHARE: usize = 128;

/// Limits of a listener's connections.
#[derive(Debug, Clone)]
pub(crate) struct ListenerAccess {
    pub(crate) connections: usize,
    pub(crate) times: ConnectionTimes,
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// Binds `address` now, so that an address in use is known before a model is loaded.
pub(crate) async fn bind(address: SocketAddr, origin: &Origin) -> Result<TcpListener, ServerError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServerError::Listen { address, source, origin: Box::new(origin.clone()) })
}

/// Accepts until `stop` turns true, then waits until all connections are done.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    access: ListenerAccess,
    mut stop: watch::Receiver<bool>,
) {
    let rooms = Rooms::new(access.connections);
    let served = Served { router, tls: access.tls.map(TlsAcceptor::from), stop: stop.clone() };
    loop {
        let (stream, peer, room) = tokio::select! {
            next = next(&listener, &rooms, access.times) => next,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        let served = served.clone();
        tokio::spawn(async move {
            connection::serve(stream, peer, served, room.activity.clone()).await;
            drop(room);
        });
    }
    drop(listener);
    rooms.all_left().await;
}

/// The next connection, once there is room for it.
async fn next(listener: &TcpListener, rooms: &Arc<Rooms>, times: ConnectionTimes) -> (TcpStream, SocketAddr, Room) {
    loop {
        match accept(listener).await {
            Ok((stream, peer)) => {
                let room = rooms.take(times).await;
                return (stream, peer, room);
            }
            Err(error) => {
                // No file descriptor is free, or a connection died in the backlog: neither ends the server.
                tracing::warn!(%error, "accept failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> std::io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Tokens are small: Nagle's algorithm would hold them back.
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

/// The connections of a listener.
#[derive(Debug)]
struct Rooms {
    limit: usize,
    free: Arc<Semaphore>,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    connections: HashMap<u64, Arc<Activity>>,
}

/// A connection's place among those of its listener.
#[derive(Debug)]
struct Room {
    rooms: Arc<Rooms>,
    number: u64,
    activity: Arc<Activity>,
    _permit: OwnedSemaphorePermit,
}

impl Rooms {
    fn new(limit: usize) -> Arc<Self> {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Arc::new(Self { limit, free: Arc::new(Semaphore::new(limit)), taken: Mutex::default() })
    }

    /// Waits for room. If there is none, the connections that have been quiet for longest are closed.
    async fn take(self: &Arc<Self>, times: ConnectionTimes) -> Room {
        let permit = loop {
            if let Ok(permit) = self.free.clone().try_acquire_owned() {
                break permit;
            }
            let wait = self.make_room();
            tokio::select! {
                permit = self.free.clone().acquire_owned() => if let Ok(permit) = permit { break permit },
                () = sleep(wait) => {}
            }
        };
        let activity = Activity::new(times);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.next;
        taken.next += 1;
        taken.connections.insert(number, activity.clone());
        Room { rooms: self.clone(), number, activity, _permit: permit }
    }

    /// Closes connections that are quiet, and says when to try again.
    fn make_room(&self) -> Duration {
        let (now, taken) = (Instant::now(), self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        let since = |activity: &Arc<Activity>| activity.quiet_since().map(|since| (since, activity.clone()));
        let mut quiet: Vec<_> = taken.connections.values().filter_map(since).collect();
        drop(taken);
        quiet.sort_by_key(|(since, _)| *since);
        let Some((first, _)) = quiet.first() else { return QUIET };
        let wait = (*first + QUIET).saturating_duration_since(now);
        let most = self.limit.div_ceil(SHARE);
        let enough = quiet.iter().take(most).take_while(|(since, _)| *since + QUIET <= now);
        enough.for_each(|(_, activity)| activity.make_room());
        wait.clamp(QUIET / 20, QUIET)
    }

    /// Waits until no connection is left.
    async fn all_left(&self) {
        let all = u32::try_from(self.limit).unwrap_or(u32::MAX);
        // Fails only when the semaphore is closed, which nobody does.
        let _ = self.free.acquire_many(all).await;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.rooms.taken.lock().unwrap_or_else(PoisonError::into_inner).connections.remove(&self.number);
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
