use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::middleware::map_request;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use camshaft_api::LetIn;
use camshaft_core::ids::TenantId;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::*;
use crate::activity::QUIET;
use crate::socket::{AHEAD_BYTES, WATCH};

#[path = "listener_tests/crowd.rs"]
mod crowd;
#[path = "listener_tests/refusals.rs"]
mod refusals;

/// Longer than anything takes that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// A bound that a test waits for.
const SHORT: Duration = Duration::from_millis(300);
/// A bound that no test reaches.
const LONG: Duration = Duration::from_secs(600);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0camshaft";

struct Rig {
    address: SocketAddr,
    /// Handlers of `/forever` that run.
    running: Arc<AtomicUsize>,
    _stop: watch::Sender<bool>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Rig {
    async fn new(connections: usize, times: ConnectionTimes) -> Self {
        let running = Arc::new(AtomicUsize::new(0));
        let counted = running.clone();
        let forever = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let _running = Counted(counted.clone());
            async move {
                let _running = _running;
                pending::<()>().await;
            }
        };
        let counted = running.clone();
        let stream = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let running = Counted(counted.clone());
            async move {
                let begun = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"data: 1\n\n")) });
                let nothing = stream::once(async move {
                    let _running = running;
                    pending().await
                });
                ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(begun.chain(nothing)))
            }
        };
        let slow = |body: Bytes| async move {
            tokio::time::sleep(SHORT).await;
            format!("{} bytes", body.len())
        };
        let later = |body: Bytes| async move {
            tokio::time::sleep(3 * WATCH).await;
            format!("{} bytes", body.len())
        };
        let late = |body: Bytes| async move {
            tokio::time::sleep(WATCH + SHORT).await;
            format!("{} bytes", body.len())
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/slow", post(slow).get(slow))
            .route("/late", post(late))
            .route("/later", post(later))
            .route("/forever", get(forever.clone()).post(forever))
            .route("/stream", get(stream.clone()).post(stream))
            .route("/large", get(|| async { vec![b'x'; LARGE] }))
            .route("/refuses", post(|| async { StatusCode::NOT_FOUND }))
            // As auth does with whoever it lets in.
            .layer(map_request(|request: Request<axum::body::Body>| async {
                request.extensions().get::<LetIn>().unwrap().set(&TenantId::from("a"));
                request
            }))
            .route("/stranger", get(|| async { (StatusCode::UNAUTHORIZED, "who?").into_response() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(serve(
            listener,
            Door::new(router.clone(), router),
            ListenerAccess { connections, times, tls: None, crowd: Arc::default() },
            stopped,
        ));
        Self { address, running, _stop: stop }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends, and reads until the server closes.
    async fn exchange(&self, sent: &[u8]) -> String {
        let mut socket = self.connect().await;
        socket.write_all(sent).await.unwrap();
        to_the_end(&mut socket).await
    }

    async fn becomes_running(&self, count: usize) {
        let waits = async {
            while self.running.load(Ordering::SeqCst) != count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, waits).await.expect("handlers start and end");
    }
}

fn times(header: Duration, idle: Duration, stall: Duration) -> ConnectionTimes {
    ConnectionTimes { header, idle, stall }
}

async fn to_the_end(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, socket.read_to_end(&mut bytes)).await.expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn answer(socket: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let count = timeout(PATIENCE, socket.read(&mut bytes)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

#[tokio::test]
async fn regression_whatever_makes_no_request_is_closed() {
    let rig = Rig::new(100, times(SHORT, LONG, LONG)).await;
    let two = |a: &[u8], b: &[u8]| [a, b].concat();
    for silence in [
        b"".to_vec(),
        b"G".to_vec(),
        b"PRI".to_vec(),
        b"PRI * HTTP/2.0".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\nx: ".to_vec(),
        PREFACE.to_vec(),
        two(PREFACE, SETTINGS),
        two(&two(PREFACE, SETTINGS), PING),
        // The head of a request that never ends: HEADERS without END_HEADERS.
        two(&two(PREFACE, SETTINGS), b"\0\0\x01\x01\0\0\0\0\x01\x82"),
    ] {
        let got = rig.exchange(&silence).await;
        assert!(!got.contains("200"), "{:?}: {got:?}", String::from_utf8_lossy(&silence));
    }
}

#[tokio::test]
async fn a_connection_between_requests_is_kept_for_its_time_and_then_closed() {
    let rig = Rig::new(100, times(LONG, SHORT, LONG)).await;
    let mut socket = rig.connect().await;
    for _ in 0..2 {
        socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert!(answer(&mut socket).await.contains("here"));
    }
    assert_eq!(to_the_end(&mut socket).await, "");
    // Frames that open no stream win no time.
    let (mut sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    let ended = tokio::spawn(connection);
    let (response, _) = sender.send_request(http2(rig.address, "GET", "/"), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    let _ = timeout(PATIENCE, ended).await.expect("the server closes the connection");
}

#[tokio::test]
async fn regression_quiet_connections_make_room_and_busy_ones_do_not() {
    let rig = Rig::new(3, times(LONG, LONG, LONG)).await;
    let mut busy = rig.connect().await;
    busy.write_all(b"GET /forever HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    rig.becomes_running(1).await;
    let mut silent = [rig.connect().await, rig.connect().await];
    silent[1].write_all(PREFACE).await.unwrap();
    // More than there is room for, one after the other.
    for _ in 0..4 {
        let mut polite = rig.connect().await;
        polite.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert!(answer(&mut polite).await.contains("here"));
        // It stays open, and becomes quiet.
        std::mem::forget(polite.into_std().unwrap());
    }
    for socket in &mut silent {
        to_the_end(socket).await;
    }
    assert_eq!(rig.running.load(Ordering::SeqCst), 1, "nobody closed the busy one");
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_connection_that_is_still_read_from_makes_no_room() {
    let rig = Rig::new(1, times(LONG, LONG, LONG)).await;
    let small = TcpSocket::new_v4().unwrap();
    small.set_recv_buffer_size(256 << 10).unwrap();
    let mut slow = small.connect(rig.address).await.unwrap();
    slow.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut next = rig.connect().await;
    next.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let (mut got, mut block) = (0, vec![0; 16 << 10]);
    // Longer than a quiet connection is left alone once another one waits.
    for _ in 0..30 {
        tokio::time::sleep(LOOK / 10).await;
        got += slow.read(&mut block).await.unwrap();
    }
    while got < LARGE {
        let count = timeout(PATIENCE, slow.read(&mut block)).await.expect("the server goes on").unwrap();
        assert!(count > 0, "cut after {got} bytes");
        got += count;
    }
    assert!(answer(&mut next).await.contains("here"), "now it is quiet");
}

#[tokio::test]
async fn regression_a_client_that_half_closes_gets_its_answer() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let requests = [
        ("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n", "0 bytes"),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "here"),
        ("GET /slow HTTP/1.0\r\n\r\n", "0 bytes"),
        ("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc", "3 bytes"),
        ("POST /slow HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "3 bytes"),
        // Two at once: both are answered.
        ("GET /slow HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", "here"),
        // As long as the end is looked for behind bytes that nobody has parsed.
        ("POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc\r\n", "3 bytes"),
        ("POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabcGET / HTTP/1.1\r\nhost: a\r\n\r\n", "here"),
        // The second one is begun when the end was long ago.
        (
            "POST /later HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc\
             POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nabcd",
            "4 bytes",
        ),
    ];
    for (request, expected) in requests {
        let mut socket = rig.connect().await;
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let got = to_the_end(&mut socket).await;
        assert!(got.starts_with("HTTP/1.") && got.ends_with(expected), "{request:?}: {got:?}");
        let answers = got.matches("HTTP/1.").count();
        assert_eq!(answers, request.matches(" HTTP/1.").count(), "{got:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let mut socket = rig.connect().await;
    socket.write_all(b"GET /forever HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    rig.becomes_running(1).await;
    drop(socket);
    rig.becomes_running(0).await;
}

/// Reads until what came is as `wanted`.
async fn read_until(socket: &mut TcpStream, wanted: impl Fn(&str) -> bool) -> String {
    let mut got = String::new();
    while !wanted(&got) {
        let mut block = [0; 1024];
        let count = timeout(PATIENCE, socket.read(&mut block)).await.expect("more comes").unwrap();
        assert!(count > 0, "the stream goes on: {got:?}");
        got.push_str(std::str::from_utf8(&block[..count]).unwrap());
    }
    got
}

/// A connection on which the head and the first event have come.
async fn begun_stream(rig: &Rig, request: &str) -> TcpStream {
    let mut socket = rig.connect().await;
    socket.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut socket, |got| got.ends_with("data: 1\n\n\r\n")).await;
    socket
}

#[tokio::test]
async fn regression_a_client_that_leaves_a_silent_stream_of_events_ends_it() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    // Also behind bytes that nobody has parsed.
    for after in ["", "\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let socket = begun_stream(&rig, &format!("GET /stream HTTP/1.1\r\nhost: a\r\n\r\n{after}")).await;
        rig.becomes_running(1).await;
        drop(socket);
        rig.becomes_running(0).await;
    }
}

#[tokio::test]
async fn a_client_that_half_closes_gets_comments_while_its_stream_is_silent() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let mut socket = begun_stream(&rig, "GET /stream HTTP/1.1\r\nhost: a\r\n\r\n").await;
    socket.shutdown().await.unwrap();
    let comment = "3\r\n:\n\n\r\n";
    let got = read_until(&mut socket, |got| got.len() >= 3 * comment.len()).await;
    // Nothing else comes, each in a chunk of its own.
    assert_eq!(got, comment.repeat(3));
    assert_eq!(rig.running.load(Ordering::SeqCst), 1);
    drop(socket);
    rig.becomes_running(0).await;
}

#[tokio::test]
async fn regression_bytes_after_a_request_do_not_hide_that_its_client_has_left() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let pipelined = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(3);
    for after in ["\r\n", &pipelined] {
        let mut socket = rig.connect().await;
        socket.write_all(format!("GET /forever HTTP/1.1\r\nhost: a\r\n\r\n{after}").as_bytes()).await.unwrap();
        rig.becomes_running(1).await;
        drop(socket);
        rig.becomes_running(0).await;
    }
}

#[tokio::test]
async fn regression_no_number_of_bytes_after_a_request_hides_that_its_client_has_left() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    for count in [AHEAD_BYTES, 4 << 20] {
        let mut socket = rig.connect().await;
        let head = b"POST /forever HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
        socket.write_all(head).await.unwrap();
        rig.becomes_running(1).await;
        // More than the server takes is in the system's hands when the client leaves.
        let _ = timeout(SHORT, socket.write_all(&vec![b'x'; count])).await;
        drop(socket);
        rig.becomes_running(0).await;
    }
}

#[tokio::test]
async fn regression_a_client_that_half_closes_and_leaves_later_ends_its_request() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let mut socket = rig.connect().await;
    socket.write_all(b"GET /forever HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    socket.shutdown().await.unwrap();
    // What could tell that it is there is on its way already.
    let got = read_until(&mut socket, |got| !got.is_empty()).await;
    assert!("HTTP/1.".starts_with(&got), "{got:?}");
    assert_eq!(rig.running.load(Ordering::SeqCst), 1);
    drop(socket);
    rig.becomes_running(0).await;
}

#[tokio::test]
async fn half_a_body_is_not_waited_for_once_the_client_has_ended() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let mut socket = rig.connect().await;
    socket.write_all(b"POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 30\r\n\r\nabc").await.unwrap();
    socket.shutdown().await.unwrap();
    assert!(!to_the_end(&mut socket).await.contains(" 200 "));
}

/// More than the sockets of both sides hold.
const LARGE: usize = 12 << 20;

#[tokio::test]
async fn regression_strangers_that_take_nothing_of_their_answers_make_room() {
    let rig = Rig::new(3, times(LONG, LONG, LONG)).await;
    let (mut held, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let client = h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(rig.connect().await);
        let (mut sender, connection) = client.await.unwrap();
        held.push(tokio::spawn(connection));
        for _ in 0..8 {
            let (response, _) = sender.send_request(http2(rig.address, "GET", "/stranger"), true).unwrap();
            // The head arrives, and the body never can.
            assert_eq!(response.await.unwrap().status(), 401);
        }
        senders.push(sender);
    }
    assert!(rig.exchange(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.ends_with("here"));
}

/// Whether it was told to end.
fn asked(room: &Room) -> bool {
    room.activity.claim().is_none_or(|(claim, _)| claim == Claim::Closing)
}

#[tokio::test]
async fn where_no_file_is_free_the_listener_with_the_most_connections_makes_room() {
    let crowd = Crowd::default();
    let (few, many) = (Rooms::new(100), Rooms::new(100));
    crowd.join(few.clone());
    crowd.join(many.clone());
    let times = times(LONG, LONG, LONG);
    tokio::time::pause();
    let kept = few.take(times).await;
    let mut rooms = vec![many.take(times).await, many.take(times).await, many.take(times).await];
    tokio::time::advance(2 * QUIET).await;
    for _ in 0..2 {
        crowd.make_room();
        let before = rooms.len();
        // It ends.
        rooms.retain(|room| !asked(room));
        assert_eq!((rooms.len(), asked(&kept)), (before - 1, false));
    }
    rooms.clear();
    crowd.make_room();
    assert!(asked(&kept));
}

#[tokio::test]
async fn regression_a_client_that_takes_no_response_is_closed() {
    let rig = Rig::new(100, times(LONG, LONG, SHORT)).await;
    let mut client = h2::client::Builder::new();
    let (mut sender, connection) =
        client.initial_window_size(0).handshake::<_, Bytes>(rig.connect().await).await.unwrap();
    let ended = tokio::spawn(connection);
    let (response, _) = sender.send_request(http2(rig.address, "GET", "/"), true).unwrap();
    let response = response.await.unwrap();
    let _ = timeout(PATIENCE, ended).await.expect("the server closes the connection");
    drop(response);
}

fn http2(address: SocketAddr, method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://{address}{path}")).body(()).unwrap()
}
