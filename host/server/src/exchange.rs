//! One request and its response on a connection: what is left of a request's body when its response is ready.
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use camshaft_api::PeerCertificates;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Buf, Frame, Incoming, SizeHint};
use tokio::time::{Instant, timeout, timeout_at};
use tower::ServiceExt;

use crate::activity::{Activity, OpenRequest, Sending, TrailerRoom};
use crate::door::Door;
use crate::held::Admission;
use crate::socket::{DRAIN_BYTES, DRAIN_SILENCE, DRAIN_TIME};

/// What is left of a body that nobody reads: what arrives within this time, up to this size, costs no connection.
const SETTLE_TIME: Duration = Duration::from_millis(20);
pub(crate) const SETTLE_BYTES: usize = 64 << 10;

/// A comment in a stream of events, which clients skip.
const COMMENT: &[u8] = b":\n\n";

/// Headers that the answer to a refused request depends on.
const KEPT: [&str; 5] =
    ["expect", "origin", "x-request-id", "access-control-request-method", "access-control-request-headers"];
/// Of one of them; a longer one is dropped.
const KEPT_BYTES: usize = 256;

fn kept(headers: &HeaderMap, name: &'static str) -> Option<(HeaderName, HeaderValue)> {
    let value = headers.get(name).filter(|value| value.len() <= KEPT_BYTES)?;
    // A copy, because the value shares the memory of its head.
    HeaderValue::from_bytes(value.as_bytes()).ok().map(|value| (HeaderName::from_static(name), value))
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// What a TLS client has shown.
    pub(crate) certificates: Option<PeerCertificates>,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, certificates: None }
    }
}

/// Answers one request. It counts as open from the call on, and not only from the first poll. Without memory for it, its head
/// is gone with the call.
pub(crate) fn answer(
    mut request: Request<Incoming>,
    peer: &Peer,
    door: &Door,
    activity: Arc<Activity>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
    let http2 = request.version() >= Version::HTTP_2;
    let begun = match activity.admission() {
        Admission::Served => {
            let headers = request.headers();
            let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
            let uri = request.uri();
            let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
            let others = uri.authority().map_or(0, |name| name.as_str().len()) + request.method().as_str().len();
            Some((activity.begin(http2, (headers.len(), bytes + path + others)), door.router()))
        }
        Admission::Refused => {
            *request.headers_mut() = KEPT.into_iter().filter_map(|name| kept(request.headers(), name)).collect();
            *request.uri_mut() = Uri::default();
            // Axum leaves out the body that an answer to HEAD must not have.
            if ![Method::OPTIONS, Method::HEAD].contains(request.method()) {
                *request.method_mut() = Method::POST;
            }
            Some((activity.begin_refused(http2), door.overloaded()))
        }
        Admission::Cut => None,
    };
    let pending = begun.map(|(open, router)| (pending(request, peer, activity, open), router));
    async move {
        match pending {
            Some((pending, router)) => respond(pending, router).await,
            // The connection ends.
            None => std::future::pending().await,
        }
    }
}

fn pending(request: Request<Incoming>, peer: &Peer, activity: Arc<Activity>, open: OpenRequest) -> Pending {
    let http2 = request.version() >= Version::HTTP_2;
    let waits = request.headers().contains_key(header::EXPECT);
    let let_in = activity.let_in().clone();
    let unread = Unread::default();
    // What follows a CONNECT is no body to hyper, and nobody reads it.
    let (is_whole, connects) = (request.body().is_end_stream(), request.method() == Method::CONNECT);
    let trailers = (http2 && (!is_whole || connects)).then(|| activity.expect_trailers());
    let of_body = trailers.clone().filter(|_| !is_whole);
    let body = |body| Body::new(RequestBody::new(body, unread.clone(), activity, of_body));
    let mut request = request.map(body);
    request.extensions_mut().insert(ConnectInfo(peer.address));
    if let Some(certificates) = &peer.certificates {
        request.extensions_mut().insert(certificates.clone());
    }
    request.extensions_mut().insert(let_in);
    Pending { request, unread, trailers, waits, http2, open }
}

/// A request that nobody has looked at.
struct Pending {
    request: Request<Body>,
    unread: Unread,
    trailers: Option<Arc<TrailerRoom>>,
    /// Whether the client waits to be asked for its body.
    waits: bool,
    http2: bool,
    open: OpenRequest,
}

async fn respond(pending: Pending, router: Router) -> Result<Response<ResponseBody>, Infallible> {
    let Pending { request, unread, trailers, waits, http2, mut open } = pending;
    let mut response = router.oneshot(request).await?;
    let mut rest = unread.take();
    if let Some(body) = &mut rest
        // A client that waits to be asked has sent nothing.
        && !waits
        && drain(body, SETTLE_BYTES, SETTLE_TIME, SETTLE_TIME).await
    {
        rest = None;
        trailers.iter().for_each(|trailers| trailers.end());
    }
    if rest.is_some() && !http2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        open.activity().leaves_unread();
    }
    open.answer();
    // Over HTTP/1 the rest is read from the socket, after the connection has ended.
    if let Some(mut rest) = rest.filter(|_| http2) {
        // The client can end its request and find the response. It may not take that, and a frame that nobody reads keeps
        // the memory of all that was read with it.
        let trailers = trailers.clone();
        tokio::spawn(async move {
            if drain(&mut rest, DRAIN_BYTES, DRAIN_TIME, DRAIN_SILENCE).await {
                trailers.iter().for_each(|trailers| trailers.end());
            }
        });
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    Ok(response.map(|body| ResponseBody { body, open, trailers, is_events }))
}

/// Reads and throws away. Whether the body ended.
async fn drain(body: &mut Incoming, bytes: usize, time: Duration, silence: Duration) -> bool {
    let (end, mut left) = (Instant::now() + time, bytes);
    while let Ok(Ok(frame)) = timeout_at(end, timeout(silence, body.frame())).await {
        let Some(Ok(frame)) = frame else { return frame.is_none() };
        let size = frame.data_ref().map_or(0, Bytes::len);
        if size > left {
            return false;
        }
        left -= size;
    }
    false
}

/// A request's body that its handler has dropped before the end.
#[derive(Debug, Clone, Default)]
struct Unread(Arc<Mutex<Option<Incoming>>>);

impl Unread {
    fn take(&self) -> Option<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, body: Incoming) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }
}

/// A request's body on loan to its handler.
struct RequestBody {
    /// `None` once it has ended.
    body: Option<Incoming>,
    unread: Unread,
    activity: Arc<Activity>,
    trailers: Option<Arc<TrailerRoom>>,
}

impl RequestBody {
    fn new(body: Incoming, unread: Unread, activity: Arc<Activity>, trailers: Option<Arc<TrailerRoom>>) -> Self {
        let mut new = Self { body: Some(body), unread, activity, trailers };
        if new.is_over() {
            new.end_over();
        }
        new
    }

    fn is_over(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_end_stream())
    }

    /// All of it was read.
    fn end_over(&mut self) {
        drop(self.end());
        self.trailers.take().iter().for_each(|trailers| trailers.end());
    }

    fn end(&mut self) -> Option<Incoming> {
        let body = self.body.take();
        body.iter().for_each(|_| self.activity.arrived());
        body
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) if !self.is_over() => {}
            // A broken body has no rest.
            Some(_) | None => self.end_over(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), hyper::body::Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(body) = self.end() {
            self.unread.put(body);
        }
    }
}

/// A response's body. It knows whose turn it is: the server's or the client's.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: Body,
    open: OpenRequest,
    /// Of the request: they may come until the stream ends.
    trailers: Option<Arc<TrailerRoom>>,
    /// Whether it is a stream of events, of which it gives whole ones.
    is_events: bool,
}

impl hyper::body::Body for ResponseBody {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        // Whatever is sent tells as much as a comment.
        let asked = self.is_events && self.open.activity().take_probe();
        if asked && polled.is_pending() {
            polled = Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
        }
        match &polled {
            Poll::Pending => self.open.works(),
            Poll::Ready(_) => self.open.moved(),
        }
        let piece = |bytes: Bytes| Piece {
            sending: self.open.activity().send(bytes.len()),
            bytes,
            _trailers: self.trailers.clone(),
        };
        polled.map_ok(|frame| frame.map_data(piece))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of a response. The connection drops the body with the last of them, and keeps them until they are written.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    sending: Sending,
    _trailers: Option<Arc<TrailerRoom>>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.sending.wrote(count, self.bytes.remaining());
    }
}
