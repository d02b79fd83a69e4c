//! One connection from its first byte to its last: TLS, HTTP/1.1 or HTTP/2, and an end in bounded time.
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use camshaft_api::MAX_HEADERS;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::activity::Activity;
use crate::client_certificates;
use crate::door::Door;
use crate::exchange::{self, Peer};
use crate::refused_heads::RefusedHeads;
use crate::socket::{HalfClosing, Socket};

/// Of a request's head; past it 431.
const HEAD_BYTES: usize = 64 << 10;
const HTTP2_HEAD_BYTES: u32 = 16 << 10;
const HTTP2_STREAMS: u32 = 256;
/// Bytes of bodies that a client may send before anybody reads them: of one stream, and of all.
pub(crate) const HTTP2_STREAM_WINDOW: u32 = 256 << 10;
const HTTP2_WINDOW: u32 = 512 << 10;
/// Bytes of a response that wait for the client's window.
const HTTP2_SEND_BYTES: usize = 64 << 10;
/// An HTTP/2 connection that is silent for this long is pinged.
const HTTP2_PING: Duration = Duration::from_secs(30);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a connection is served with.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) door: Door,
    pub(crate) tls: Option<TlsAcceptor>,
    /// Turns true when the server ends.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(stream: TcpStream, peer: SocketAddr, served: Served, activity: Arc<Activity>) {
    let socket = Socket::new(stream);
    let mut stream = TimeoutStream::new(socket.clone());
    stream.set_write_timeout(Some(activity.times().stall));
    let stream = Box::pin(stream);
    let ended = match served.tls.clone() {
        None => drive((stream, &socket), Peer::from(peer), served, &activity).await,
        Some(acceptor) => match handshake(acceptor, stream, served.stop.clone(), &activity).await {
            Ok(stream) => {
                let peer = Peer { address: peer, certificates: client_certificates::of(stream.get_ref().1) };
                drive((stream, &socket), peer, served, &activity).await
            }
            Err(error) => Err(error),
        },
    };
    // A connection that had to make room makes it now.
    let unread = activity.has_unread() || ended.as_ref().is_err_and(is_unread_request);
    if unread && !activity.was_cut() {
        tokio::select! {
            () = socket.linger() => {}
            () = activity.room_wanted() => {}
        }
    }
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// Whether hyper refused a head, and left the rest of the request unread.
fn is_unread_request(error: &Failure) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: TlsAcceptor,
    stream: S,
    mut stop: watch::Receiver<bool>,
    activity: &Activity,
) -> Result<tokio_rustls::server::TlsStream<S>, Failure> {
    let end = activity.deadline().unwrap_or_else(Instant::now);
    tokio::select! {
        accepted = acceptor.accept(stream) => accepted.map_err(|error| format!("TLS handshake failed: {error}").into()),
        () = sleep_until(end) => Err("the TLS handshake took too long".into()),
        () = activity.room_wanted() => Err("closed during the TLS handshake to make room".into()),
        _ = stop.wait_for(|&stop| stop) => Err("closed during the TLS handshake: the server ends".into()),
    }
}

/// Serves requests until the client is done, the server ends, or the connection is quiet for too long.
async fn drive<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    (stream, socket): (S, &Socket),
    peer: Peer,
    served: Served,
    activity: &Arc<Activity>,
) -> Result<(), Failure> {
    let address = peer.address;
    let stream = HalfClosing::new(stream, socket.clone(), activity.clone());
    let Served { door, mut stop, .. } = served;
    let service = {
        let activity = activity.clone();
        hyper::service::service_fn(move |request| exchange::answer(request, &peer, &door, activity.clone()))
    };
    let builder = protocols();
    let stream = TokioIo::new(RefusedHeads::new(stream, HEAD_BYTES));
    let connection = builder.serve_connection(stream, service);
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        // Looked at often enough to see every deadline, so that no request has to move a timer.
        let look = Instant::now() + activity.times().shortest();
        let look = activity.deadline().map_or(look, |deadline| deadline.min(look));
        tokio::select! {
            // A request that has arrived begins before the connection is found quiet.
            biased;
            ended = poll_fn(|cx| {
                socket.begin_turn();
                connection.as_mut().poll(cx)
            }) => return ended,
            () = activity.room_wanted() => {
                // At once: a client that never stops sending keeps the timer below from being looked at.
                if activity.was_cut() {
                    return Ok(());
                }
                tracing::debug!(peer = %address, "a connection is closed: others need its place");
                connection.as_mut().graceful_shutdown();
            }
            _ = stop.wait_for(|&stop| stop), if !stopping => {
                stopping = true;
                // A quiet HTTP/2 client that says nothing is waited for no longer than for a last request.
                activity.close();
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(look) => {
                if activity.deadline().is_none_or(|deadline| deadline > Instant::now()) {
                    continue;
                }
                if !activity.close() {
                    return Ok(());
                }
                tracing::debug!(peer = %address, "a connection is closed: it was quiet for too long");
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Heads are timed by `Activity`, for both protocols and from the connection's first moment.
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

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
