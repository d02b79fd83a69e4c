//! One connection from its first byte to its last: TLS, HTTP/1.1 or HTTP/2, and an end in bounded time.
//!
//! While the server works on a request, its connection has all the time that the API gives it. Otherwise the server waits for
//! the client, which has a bound: to ask for the first time (the TLS handshake included), to ask again, to take its answers.
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use camshaft_api::{MAX_HEADERS, PeerCertificates};
use http::Request;
use hyper::body::{Buf, Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::client_certificates;
use crate::http::RouterSwitch;
use crate::http::stream::HttpStream;

/// Of a request's head; past it 431.
pub(super) const HEAD_BYTES: usize = 64 << 10;
const HTTP2_HEAD_BYTES: u32 = 16 << 10;
const HTTP2_STREAMS: u32 = 256;
/// Bytes of bodies that a client may send before anybody reads them: of one stream, and of all.
const HTTP2_STREAM_WINDOW: u32 = 256 << 10;
const HTTP2_WINDOW: u32 = 512 << 10;
/// Bytes of a response that wait for the client's window.
const HTTP2_SEND_BYTES: usize = 64 << 10;
/// An HTTP/2 connection that is silent for this long is pinged.
const HTTP2_PING: Duration = Duration::from_secs(30);
/// From the decision to close a connection to its end, unless the client still asks or reads.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// After so long without a byte a response counts as not taken where others need the place. What the system keeps of it
/// takes a slow client a while.
const UNTAKEN: Duration = Duration::from_secs(5);

/// What a client that has just come may take to ask, whoever needs the place.
const GREETING: Duration = Duration::from_millis(100);

type ConnectionFailure = Box<dyn std::error::Error + Send + Sync>;

/// How long the server waits for a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimeouts {
    /// From the connection's beginning to the end of its first request's head.
    pub(crate) header: Duration,
    /// From the last byte of a response to the end of the next request's head.
    pub(crate) idle: Duration,
    /// From one byte of a response that the client takes to the next.
    pub(crate) write: Duration,
}

/// What a connection is served with.
#[derive(Clone)]
pub(crate) struct ConnectionSetup {
    pub(crate) routers: RouterSwitch,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) timeouts: ConnectionTimeouts,
    /// Turns true when the server ends.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Who is waited for on a connection, and since when.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    progress: Mutex<Progress>,
    close: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Whether the head of a request has ever arrived.
    has_asked: bool,
    /// Requests whose responses have not been written whole.
    open: usize,
    /// Of the open ones: those on which the server works. The others wait for the client to take what there is.
    working: usize,
    /// When something last moved.
    since: Instant,
}

impl ConnectionState {
    pub(crate) fn new() -> Arc<Self> {
        let progress = Progress { has_asked: false, open: 0, working: 0, since: Instant::now() };
        Arc::new(Self { progress: Mutex::new(progress), close: Notify::new() })
    }

    /// Since when the server waits for the client to ask, or to take what it should have taken by now.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        match *self.progress() {
            Progress { working: 1.., .. } => None,
            Progress { open: 1.., since, .. } if since.elapsed() < UNTAKEN => None,
            Progress { has_asked: false, since, .. } if since.elapsed() < GREETING => None,
            Progress { since, .. } => Some(since),
        }
    }

    /// Ends the connection, whatever it does.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Waits until somebody ends it.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    /// When the client has had its time; `None` while the server works. `closing`: since when the connection is to end.
    fn deadline(&self, timeouts: ConnectionTimeouts, closing: Option<Instant>) -> Option<Instant> {
        let Progress { has_asked, open, working, since } = *self.progress();
        match (working, open, closing) {
            (1.., ..) => None,
            (_, 1.., _) => Some(since + timeouts.write),
            (.., Some(closing)) => Some(since.max(closing) + LAST_WORDS),
            (.., None) => Some(since + if has_asked { timeouts.idle } else { timeouts.header }),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request, until its response was written whole, or given up.
#[derive(Debug)]
struct ActiveRequest {
    state: Arc<ConnectionState>,
    is_working: AtomicBool,
}

impl ActiveRequest {
    fn begin(state: Arc<ConnectionState>) -> Arc<Self> {
        {
            let mut progress = state.progress();
            progress.has_asked = true;
            progress.open += 1;
        }
        let request = Arc::new(Self { state, is_working: AtomicBool::new(false) });
        request.set_working(true);
        request
    }

    /// Something moved: now the server works on the response, or the client is to take some of it.
    fn set_working(&self, is_working: bool) {
        let mut progress = self.state.progress();
        progress.since = Instant::now();
        match (self.is_working.swap(is_working, Ordering::Relaxed), is_working) {
            (false, true) => progress.working += 1,
            (true, false) => progress.working -= 1,
            _ => {}
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.set_working(false);
        self.state.progress().open -= 1;
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, setup: ConnectionSetup, state: Arc<ConnectionState>) {
    let ended = match setup.tls.clone() {
        None => drive(stream, (peer, None), setup, &state).await,
        Some(acceptor) => match handshake(acceptor, stream, setup.clone()).await {
            Ok(stream) => {
                let certificates = client_certificates::of(stream.get_ref().1);
                drive(stream, (peer, certificates), setup, &state).await
            }
            Err(error) => Err(error),
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    mut setup: ConnectionSetup,
) -> Result<tokio_rustls::server::TlsStream<TcpStream>, ConnectionFailure> {
    tokio::select! {
        accepted = timeout(setup.timeouts.header, acceptor.accept(stream)) => match accepted {
            Ok(accepted) => accepted.map_err(|error| format!("TLS handshake failed: {error}").into()),
            Err(_) => Err("the TLS handshake took too long".into()),
        },
        _ = setup.stop.wait_for(|&stop| stop) => Err("closed during the TLS handshake: the server ends".into()),
    }
}

/// Serves requests until the client is done, the server ends, or the client has had its time.
async fn drive<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    (peer, certificates): (SocketAddr, Option<PeerCertificates>),
    setup: ConnectionSetup,
    state: &Arc<ConnectionState>,
) -> Result<(), ConnectionFailure> {
    let ConnectionSetup { routers, timeouts, mut stop, .. } = setup;
    let service = {
        let state = state.clone();
        hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            if let Some(certificates) = &certificates {
                request.extensions_mut().insert(certificates.clone());
            }
            let (active, router) = (ActiveRequest::begin(state.clone()), routers.current());
            async move {
                let response = router.oneshot(request.map(Body::new)).await?;
                active.set_working(false);
                Ok::<_, Infallible>(response.map(|body| ResponseBody { body, active }))
            }
        })
    };
    let builder = protocols();
    let connection = builder.serve_connection(TokioIo::new(HttpStream::new(stream)), service);
    tokio::pin!(connection);
    let shortest = timeouts.header.min(timeouts.idle).min(timeouts.write).min(LAST_WORDS);
    let mut closing = None;
    loop {
        // Looked at often enough to see every deadline, so that no request has to move a timer.
        let look = Instant::now() + shortest;
        let look = state.deadline(timeouts, closing).map_or(look, |deadline| deadline.min(look));
        // In no order: a client that never stops sending keeps the connection busy, and must not keep the others from being asked.
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = stop.wait_for(|&stop| stop), if closing.is_none() => {
                closing = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(look) => match state.deadline(timeouts, closing) {
                Some(deadline) if deadline <= Instant::now() => {
                    if closing.is_some() || state.progress().open > 0 {
                        return Err("the client has had its time".into());
                    }
                    // An HTTP/2 client is told, and asks elsewhere.
                    closing = Some(Instant::now());
                    connection.as_mut().graceful_shutdown();
                }
                _ => {}
            }
        }
    }
}

fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // hyper's own time for a head also runs while a connection is idle.
    builder.http1().header_read_timeout(None).max_buf_size(HEAD_BYTES).max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEAD_BYTES)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_WINDOW)
        .max_send_buf_size(HTTP2_SEND_BYTES)
        .keep_alive_interval(HTTP2_PING);
    builder
}

/// A response's body. It knows whom it waits for.
#[derive(Debug)]
struct ResponseBody {
    body: Body,
    active: Arc<ActiveRequest>,
}

impl hyper::body::Body for ResponseBody {
    type Data = ResponseChunk;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponseChunk>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.active.set_working(polled.is_pending());
        polled.map_ok(|frame| frame.map_data(|bytes| ResponseChunk { bytes, active: self.active.clone() }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of a response, which hyper keeps until they are written. Their request is open for as long.
#[derive(Debug)]
struct ResponseChunk {
    bytes: Bytes,
    active: Arc<ActiveRequest>,
}

impl Buf for ResponseChunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.active.state.progress().since = Instant::now();
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
