//! Listening sockets: accept connections up to a limit, make room among quiet ones, and wait for the busy ones on
//! shutdown.
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::activity::{Activity, Claim, ConnectionTimes};
use crate::config::Origin;
use crate::connection::{self, Served};
use crate::crowd;
use crate::door::Door;
use crate::error::ServerError;
use crate::held::{self, Held};

/// Connections that the system keeps until they are accepted, if it may keep so many.
const BACKLOG: u32 = 1024;
/// How often a full listener looks whether a connection could make room.
const LOOK: Duration = Duration::from_secs(1);
/// What all connections may hold of requests and responses. Past it those that hold the most are cut.
const HELD_BYTES: usize = 256 << 20;
/// In which a connection that was cut has ended, unless the machine is busy.
const ENDING: Duration = Duration::from_millis(10);
/// Of responses that the system keeps for a connection.
const SEND_BYTES: usize = 256 << 10;
/// Where there is no room, this part of the connections is closed at once (one in 128), at least one.
const SHARE: usize = 128;
/// How often it is said that no file is free.
const TELL: Duration = Duration::from_secs(60);
/// From an accept that failed to the next one.
const AGAIN: Duration = Duration::from_millis(50);

/// Limits of a listener's connections.
#[derive(Debug, Clone)]
pub(crate) struct ListenerAccess {
    pub(crate) connections: usize,
    pub(crate) times: ConnectionTimes,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) crowd: Arc<Crowd>,
}

/// The connections of all listeners. They share the files that the process may have open.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    all: Mutex<Vec<Arc<Rooms>>>,
    /// When it was last said that no file is free.
    told: Mutex<Option<Instant>>,
}

impl Crowd {
    fn join(&self, rooms: Arc<Rooms>) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(rooms);
    }

    /// Whether it is to be said that no file is free: now and then.
    fn tells(&self) -> bool {
        let (mut told, now) = (self.told.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let due = told.is_none_or(|told| now.duration_since(told) >= TELL);
        if due {
            *told = Some(now);
        }
        due
    }

    /// Closes connections of the listener that has the most of them, or of the next one that has some which may go.
    fn make_room(&self) {
        let mut all: Vec<_> = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if all.iter().any(|rooms| rooms.is_ending_some()) {
            return;
        }
        all.sort_by_cached_key(|rooms| Reverse(rooms.connections().count()));
        let _closes = all.iter().any(|rooms| rooms.make_room().closed > 0);
    }
}

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

/// Accepts until `stop` turns true, then waits until all connections are done.
pub(crate) async fn serve(listener: TcpListener, door: Door, access: ListenerAccess, mut stop: watch::Receiver<bool>) {
    let rooms = Rooms::new(access.connections);
    access.crowd.join(rooms.clone());
    let relieving = tokio::spawn({
        let rooms = rooms.clone();
        async move {
            loop {
                rooms.held.exceeded().await;
                rooms.relieve(HELD_BYTES);
                // Whatever was cut needs a moment to end.
                sleep(LOOK / 100).await;
            }
        }
    });
    let served = Served { door, tls: access.tls.clone().map(TlsAcceptor::from), stop: stop.clone() };
    loop {
        let (stream, peer, room) = tokio::select! {
            next = next(&listener, &rooms, &access) => next,
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
    relieving.abort();
}

/// The next connection, once there is room for it.
async fn next(listener: &TcpListener, rooms: &Arc<Rooms>, access: &ListenerAccess) -> (TcpStream, SocketAddr, Room) {
    loop {
        match accept(listener).await {
            Ok((stream, peer)) => {
                let room = rooms.take(access.times).await;
                return (stream, peer, room);
            }
            Err(error) if has_no_file(&error) => {
                // Whoever waits in the backlog gets the file of a connection that is missed less.
                access.crowd.make_room();
                if access.crowd.tells() {
                    tracing::warn!(%error, "no file is free for a new connection: quiet connections make room");
                }
                sleep(AGAIN).await;
            }
            Err(error) => {
                // A connection died in the backlog, which does not end the server.
                tracing::warn!(%error, "accept failed");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Whether the process, or the system, has as many files open as it may.
fn has_no_file(error: &io::Error) -> bool {
    let limits = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| limits.contains(&code))
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Tokens are small: Nagle's algorithm would hold them back.
    stream.set_nodelay(true)?;
    // The system would keep some megabytes for a client that takes nothing.
    SockRef::from(&stream).set_send_buffer_size(SEND_BYTES)?;
    Ok((stream, peer))
}

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Rooms {
    limit: usize,
    free: Arc<Semaphore>,
    held: Arc<Held>,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By when they were accepted.
    connections: BTreeMap<u64, Arc<Activity>>,
}

/// A connection's place among those of its listener.
#[derive(Debug)]
struct Room {
    rooms: Arc<Rooms>,
    number: u64,
    activity: Arc<Activity>,
    _permit: OwnedSemaphorePermit,
}

/// What was done to make room.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// Connections that were told to end.
    closed: usize,
    /// Until it is worth another try.
    wait: Duration,
}

impl Rooms {
    fn new(limit: usize) -> Arc<Self> {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        let (free, held) = (Arc::new(Semaphore::new(limit)), Arc::new(Held::new(HELD_BYTES, limit)));
        Arc::new(Self { limit, free, held, taken: Mutex::default() })
    }

    /// Waits for room. If there is none, the connections that are missed least are closed.
    async fn take(self: &Arc<Self>, times: ConnectionTimes) -> Room {
        let permit = loop {
            if let Ok(permit) = self.free.clone().try_acquire_owned() {
                break permit;
            }
            let wait = if self.is_ending_some() { ENDING } else { self.make_room().wait };
            tokio::select! {
                permit = self.free.clone().acquire_owned() => if let Ok(permit) = permit { break permit },
                () = sleep(wait) => {}
            }
        };
        let activity = Activity::new(times, self.held.clone());
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.next;
        taken.next += 1;
        taken.connections.insert(number, activity.clone());
        Room { rooms: self.clone(), number, activity, _permit: permit }
    }

    /// Whether a connection was cut within a second and has not ended: nobody else is closed meanwhile.
    fn is_ending_some(&self) -> bool {
        self.connections().any(|activity| activity.is_ending())
    }

    /// Closes connections that are quiet, whose clients take nothing, or whose requests still arrive. One on which the server
    /// works is closed when that is done.
    fn make_room(&self) -> Made {
        let now = Instant::now();
        let all: Vec<_> = self.connections().map(|activity| (activity.let_in().tenant().cloned(), activity)).collect();
        // There is no time for farewells then.
        let is_flooded = crowd::is_flooded(&all);
        let claims = crowd::in_order(all, now, |activity: &Arc<Activity>| {
            let (claim, from) = activity.claim()?;
            Some((claim, from, activity.slow_from()))
        });
        let next = claims.iter().map(|(_, from, _)| from.saturating_duration_since(now)).min();
        let mut closed = 0;
        for (claim, _, activity) in claims.iter().filter(|(_, from, _)| *from <= now).take(self.limit.div_ceil(SHARE)) {
            closed += 1;
            match claim {
                Claim::Quiet | Claim::Working => activity.make_room(),
                Claim::Strange if activity.is_quiet() && !is_flooded => activity.make_room(),
                Claim::Closing | Claim::Strange | Claim::Stalled | Claim::Arriving => activity.cut(),
            }
        }
        Made { closed, wait: next.unwrap_or(LOOK).clamp(LOOK / 20, LOOK) }
    }

    /// Cuts connections until no more is held than this, and by strangers no more than their part. Whoever holds more than its
    /// part comes first; then strangers, then the tenant that holds the most, with the connections that hold the most.
    fn relieve(&self, limit: usize) {
        // Auth lets connections in meanwhile: each is asked once. Those that were cut and have not ended yet count no more.
        let holding = self.connections().filter_map(|activity| {
            let tenant = activity.let_in().tenant().cloned();
            let is_strange = tenant.is_none();
            Some((tenant, activity.held()?, (is_strange, activity)))
        });
        let holding =
            crowd::most_dispensable(holding.collect(), held::tenants_part(limit), |(_, activity)| activity.accepted());
        let of_strangers = |&(held, (is_strange, _)): &(usize, (bool, _))| if is_strange { held } else { 0 };
        let mut over = holding.iter().map(|(held, _)| held).sum::<usize>().saturating_sub(limit);
        let mut over_strange =
            holding.iter().map(of_strangers).sum::<usize>().saturating_sub(held::tenants_part(limit));
        for (held, (is_strange, activity)) in holding {
            if over == 0 && (over_strange == 0 || !is_strange) {
                return;
            }
            over = over.saturating_sub(held);
            over_strange = over_strange.saturating_sub(if is_strange { held } else { 0 });
            if let Some(cuts) = self.held.cut(Instant::now()) {
                let limit = limit >> 20;
                tracing::warn!(
                    cuts,
                    held,
                    "connections are cut: all hold more than {limit} MiB, or strangers half of it"
                );
            }
            activity.cut();
        }
    }

    fn connections(&self) -> impl Iterator<Item = Arc<Activity>> + use<> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.connections.values().cloned().collect::<Vec<_>>().into_iter()
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
