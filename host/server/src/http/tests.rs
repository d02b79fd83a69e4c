use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;

/// Longer than anything takes that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// A bound that a test waits for.
const SHORT: Duration = Duration::from_millis(300);
/// A bound that no test reaches.
const LONG: Duration = Duration::from_secs(600);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0camshaft";
/// More than the sockets of both sides hold.
const LARGE: usize = 12 << 20;

struct Rig {
    address: SocketAddr,
    /// Handlers of `/forever` and `/stream` that run.
    running: Arc<AtomicUsize>,
    _stop: watch::Sender<bool>,
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Rig {
    async fn new(connections: usize, (header, idle, write): (Duration, Duration, Duration)) -> Self {
        let running = Arc::new(AtomicUsize::new(0));
        let counted = running.clone();
        let forever = move || {
            let running = Counted::new(&counted);
            async move {
                let _running = running;
                pending::<()>().await;
            }
        };
        let counted = running.clone();
        let events = move || {
            let running = Counted::new(&counted);
            async move {
                let begun = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"data: 1\n\n")) });
                let nothing = stream::once(async move {
                    let _running = running;
                    pending().await
                });
                ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(begun.chain(nothing)))
            }
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/forever", get(forever))
            .route("/stream", get(events))
            .route("/large", get(|| async { vec![b'x'; LARGE] }))
            .route("/refuses", post(|| async { StatusCode::NOT_FOUND }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let access = ListenerAccess { name: "public", connections, open: Arc::default() };
        let timeouts = ConnectionTimeouts { header, idle, write };
        let setup = ConnectionSetup { routers: RouterSwitch::new(router), tls: None, timeouts, stop: stopped };
        tokio::spawn(serve(listener, access, setup));
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
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, waits).await.expect("handlers start and end");
    }
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

fn http2(address: SocketAddr, method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://{address}{path}")).body(()).unwrap()
}

#[tokio::test]
async fn regression_whatever_makes_no_request_is_closed() {
    let rig = Rig::new(100, (SHORT, LONG, LONG)).await;
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
    let rig = Rig::new(100, (LONG, SHORT, LONG)).await;
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
    let rig = Rig::new(3, (LONG, LONG, LONG)).await;
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
    let rig = Rig::new(1, (LONG, LONG, LONG)).await;
    let small = TcpSocket::new_v4().unwrap();
    small.set_recv_buffer_size(256 << 10).unwrap();
    let mut slow = small.connect(rig.address).await.unwrap();
    slow.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut next = rig.connect().await;
    next.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let (mut got, mut block) = (0, vec![0; 16 << 10]);
    while got < LARGE {
        let count = timeout(PATIENCE, slow.read(&mut block)).await.expect("the server goes on").unwrap();
        assert!(count > 0, "cut after {got} bytes");
        got += count;
        tokio::task::yield_now().await;
    }
    assert!(answer(&mut next).await.contains("here"), "now it is quiet");
}

#[tokio::test]
async fn regression_clients_that_take_nothing_of_their_answers_make_room() {
    let rig = Rig::new(3, (LONG, LONG, LONG)).await;
    let (mut connections, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let client = h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(rig.connect().await);
        let (mut sender, connection) = client.await.unwrap();
        connections.push(tokio::spawn(connection));
        let (response, _) = sender.send_request(http2(rig.address, "GET", "/"), true).unwrap();
        // The head arrives, and the body never can.
        assert_eq!(response.await.unwrap().status(), 200);
        senders.push(sender);
    }
    assert!(rig.exchange(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.ends_with("here"));
}

#[tokio::test(start_paused = true)]
async fn a_listener_makes_room_among_its_own_connections_and_where_no_file_is_free_among_all() {
    let open: Arc<OpenConnections> = Arc::default();
    let mut connections = Vec::new();
    for name in ["admin", "public", "public"] {
        connections.push(OpenConnection::new(&ListenerAccess { name, connections: 9, open: open.clone() }));
        tokio::time::advance(SHORT).await;
    }
    let mut closes = async |listener, expected: usize| {
        open.close_longest_waiting(listener);
        timeout(SHORT, connections[expected].state.closed()).await.expect("it is told");
        assert_eq!(open.all().len(), connections.len() - 1);
        connections.remove(expected);
    };
    closes(Some("public"), 1).await;
    closes(None, 0).await;
    closes(None, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let rig = Rig::new(100, (LONG, LONG, LONG)).await;
    for path in ["/forever", "/stream"] {
        let mut socket = rig.connect().await;
        socket.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
        rig.becomes_running(1).await;
        drop(socket);
        rig.becomes_running(0).await;
    }
}

#[tokio::test]
async fn regression_a_client_that_takes_no_response_is_closed() {
    let rig = Rig::new(100, (LONG, LONG, SHORT)).await;
    let mut client = h2::client::Builder::new();
    let (mut sender, connection) =
        client.initial_window_size(0).handshake::<_, Bytes>(rig.connect().await).await.unwrap();
    let ended = tokio::spawn(connection);
    let (response, _) = sender.send_request(http2(rig.address, "GET", "/"), true).unwrap();
    let response = response.await.unwrap();
    let _ = timeout(PATIENCE, ended).await.expect("the server closes the connection");
    drop(response);
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_refusal_reaches_a_client_that_is_still_sending() {
    let rig = Rig::new(100, (LONG, LONG, LONG)).await;
    let body = vec![b'x'; LARGE];
    for round in 0..20 {
        let mut socket = rig.connect().await;
        let head = format!("POST /refuses HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGE}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        // All of it before anything is read, as simple clients do.
        socket.write_all(&body).await.unwrap();
        let got = to_the_end(&mut socket).await;
        assert!(got.starts_with("HTTP/1.1 404 "), "{round}: {got:?}");
    }
    // A head that cannot be served, with more behind it.
    let mut socket = rig.connect().await;
    socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n").await.unwrap();
    socket.write_all(&body[..4 << 20]).await.unwrap();
    assert!(to_the_end(&mut socket).await.starts_with("HTTP/1.1 400 "));
    let (mut sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    for round in 0..5 {
        let (response, mut stream) = sender.send_request(http2(rig.address, "POST", "/refuses"), false).unwrap();
        // Until the server says that it wants no more.
        for _ in 0..LARGE >> 14 {
            stream.reserve_capacity(16 << 10);
            let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else { break };
            if stream.send_data(Bytes::from(vec![b'x'; room]), false).is_err() {
                break;
            }
        }
        assert_eq!(response.await.unwrap().status(), 404, "{round}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_small_request_keeps_the_connection() {
    let rig = Rig::new(100, (LONG, LONG, LONG)).await;
    let mut socket = rig.connect().await;
    for _ in 0..3 {
        socket.write_all(b"POST /refuses HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc").await.unwrap();
        let got = answer(&mut socket).await.to_lowercase();
        assert!(got.starts_with("http/1.1 404 ") && !got.contains("connection: close"), "{got}");
    }
}
