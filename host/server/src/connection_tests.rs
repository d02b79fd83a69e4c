//! Slow readers, in virtual time.
use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::activity::ConnectionTimes;
use crate::held::TRAILERS_BYTES;
use crate::socket::{DRAIN_SILENCE, DRAIN_TIME};

const TIMES: ConnectionTimes =
    ConnectionTimes { header: Duration::from_secs(30), idle: Duration::from_secs(90), stall: Duration::from_secs(60) };
/// What lies between the server and the client.
const BETWEEN: usize = 64 << 10;
/// A response in one piece.
const LARGE: usize = 4 << 20;
/// No head has it.
const FILLING: u8 = 0xff;
/// Between two reads of a slow reader.
const SLOWLY: Duration = Duration::from_secs(30);

fn is_quiet(activity: &Activity) -> bool {
    activity.claim().is_some() && activity.is_quiet()
}

struct Rig {
    client: DuplexStream,
    activity: Arc<Activity>,
    ended: JoinHandle<Result<(), Failure>>,
    _idle: TcpStream,
    stop: watch::Sender<bool>,
}

impl Rig {
    async fn new(times: ConnectionTimes) -> Self {
        let late = || async {
            sleep(Duration::from_secs(10)).await;
            "late"
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/large", get(|| async { Bytes::from(vec![FILLING; LARGE]) }))
            .route("/ignores", post(|| async { "no" }))
            .route("/takes", post(|body: Bytes| async move { format!("{} bytes", body.len()) }))
            .route("/late", get(late));
        let (stop, stopped) = watch::channel(false);
        let (client, server) = duplex(BETWEEN);
        let activity = Activity::new(times, Arc::default());
        let served = Served { door: Door::new(router.clone(), router), tls: None, stop: stopped };
        let (idle, socket) = idle_sockets().await;
        let (socket, of_drive) = (Socket::new(socket), activity.clone());
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let drive = async move { drive((server, &socket), peer.into(), served, &of_drive).await };
        Self { client, activity, ended: tokio::spawn(drive), _idle: idle, stop }
    }

    async fn send(&mut self, path: &str) {
        self.client.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    }

    /// One answer that fits into a read.
    async fn answer(&mut self) -> String {
        let mut bytes = [0; 1024];
        let count = self.client.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    async fn rest(&mut self) -> String {
        let mut text = String::new();
        self.client.read_to_string(&mut text).await.unwrap();
        text
    }
}

/// Nothing goes over it: the bytes of a test go through memory.
async fn idle_sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (connected, listener.accept().await.unwrap().0)
}

#[tokio::test(start_paused = true)]
async fn regression_a_slow_reader_of_a_response_in_one_piece_gets_all_of_it() {
    let mut rig = Rig::new(TIMES).await;
    rig.send("/large").await;
    let (mut got, mut block) = (0, vec![0; BETWEEN / 2]);
    while got < LARGE {
        sleep(SLOWLY).await;
        if got + BETWEEN < LARGE {
            assert!(!is_quiet(&rig.activity), "after {got} bytes: it is still being sent");
        }
        let count = rig.client.read(&mut block).await.unwrap();
        assert!(count > 0, "cut after {got} bytes");
        got += block[..count].iter().filter(|&&byte| byte == FILLING).count();
    }
    sleep(Duration::from_secs(1)).await;
    assert!(is_quiet(&rig.activity));
    rig.send("/").await;
    assert!(rig.answer().await.ends_with("here"), "the connection goes on");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_more_of_a_response_in_one_piece_is_cut() {
    let mut rig = Rig::new(ConnectionTimes { idle: Duration::from_secs(3600), ..TIMES }).await;
    rig.send("/large").await;
    timeout(2 * TIMES.stall, rig.ended).await.expect("it is cut").unwrap().unwrap();
    let mut got = Vec::new();
    rig.client.read_to_end(&mut got).await.unwrap();
    assert!(got.len() <= BETWEEN, "{}", got.len());
}

/// The head of `/large`, over HTTP/2, by a client with the smallest of windows.
async fn http2_large(client: DuplexStream) -> Response<h2::RecvStream> {
    let mut builder = h2::client::Builder::new();
    let (mut sender, connection) = builder.initial_window_size(32 << 10).handshake::<_, Bytes>(client).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://a/large").body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    response.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn regression_a_slow_http2_reader_of_a_response_in_one_piece_gets_all_of_it() {
    let rig = Rig::new(TIMES).await;
    let mut body = http2_large(rig.client).await.into_body();
    let mut got = 0;
    while let Some(data) = body.data().await {
        let count = data.unwrap_or_else(|error| panic!("after {got} bytes: {error}")).len();
        got += count;
        sleep(SLOWLY).await;
        body.flow_control().release_capacity(count).unwrap();
    }
    assert_eq!(got, LARGE);
}

#[tokio::test(start_paused = true)]
async fn regression_an_http2_client_that_opens_no_window_for_the_rest_of_a_response_is_cut() {
    let rig = Rig::new(ConnectionTimes { idle: Duration::from_secs(3600), ..TIMES }).await;
    let mut body = http2_large(rig.client).await.into_body();
    let takes = async {
        let mut got = 0;
        while let Some(Ok(data)) = body.data().await {
            got += data.len();
        }
        got
    };
    let got = timeout(2 * TIMES.stall, takes).await.expect("it is cut");
    assert!((1..LARGE).contains(&got), "{got}");
}

#[tokio::test(start_paused = true)]
async fn regression_a_request_that_begins_while_room_is_made_is_answered() {
    // Before the connection hears of it, and after the handler has begun.
    for head_start in [Duration::ZERO, Duration::from_secs(1)] {
        let mut rig = Rig::new(TIMES).await;
        rig.send("/").await;
        assert!(rig.answer().await.ends_with("here"));
        sleep(Duration::from_secs(10)).await;
        assert!(is_quiet(&rig.activity));
        rig.send("/late").await;
        if head_start > Duration::ZERO {
            sleep(head_start).await;
        }
        rig.activity.make_room();
        let got = rig.rest().await;
        assert!(got.ends_with("late") && got.contains("connection: close"), "{head_start:?}: {got:?}");
        rig.ended.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_makes_room_at_once() {
    let mut rig = Rig::new(TIMES).await;
    rig.send("/").await;
    assert!(rig.answer().await.ends_with("here"));
    rig.activity.make_room();
    assert_eq!(timeout(Duration::from_millis(1), rig.rest()).await.expect("it closes"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_a_connection_that_was_cut_ends_whatever_its_client_sends() {
    let Rig { mut client, activity, ended, _idle, stop: _stop } = Rig::new(TIMES).await;
    let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Settings, and then frames of a kind that nobody knows.
    begin.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    client.write_all(&begin).await.unwrap();
    let flood = [0, 0, 0, 0xfa, 0, 0, 0, 0, 0].repeat(BETWEEN / 9);
    let sends = tokio::spawn(async move { while client.write_all(&flood).await.is_ok() {} });
    sleep(Duration::from_millis(100)).await;
    assert!(!sends.is_finished() && !ended.is_finished());
    activity.cut();
    timeout(Duration::from_secs(60), ended).await.expect("it ends").unwrap().unwrap();
    sends.await.unwrap();
}

/// A request with a body, by a client that takes no answer: the stream of the body, and what keeps the connection.
async fn http2_upload(client: DuplexStream, path: &str) -> (h2::SendStream<Bytes>, impl Sized + use<>) {
    let mut builder = h2::client::Builder::new();
    let (mut sender, connection) = builder.initial_window_size(0).handshake::<_, Bytes>(client).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://a{path}")).body(()).unwrap();
    let (response, body) = sender.send_request(request, false).unwrap();
    (body, (sender, response.await.map(Response::into_body)))
}

fn held(activity: &Activity) -> usize {
    activity.held().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn regression_trailers_that_nobody_reads_count_until_the_stream_ends() {
    let rig = Rig::new(TIMES).await;
    // Nobody takes a body there: it is drained for a while and left alone.
    let (mut body, client) = http2_upload(rig.client, "/ignores").await;
    sleep(DRAIN_TIME + DRAIN_SILENCE).await;
    assert!(held(&rig.activity) >= TRAILERS_BYTES, "they may still come");
    body.send_trailers(http::HeaderMap::new()).unwrap();
    drop((body, client));
    rig.ended.await.unwrap().unwrap();
    assert_eq!(held(&rig.activity), 0);
}

#[tokio::test(start_paused = true)]
async fn trailers_of_a_request_that_was_read_to_its_end_count_no_more() {
    let rig = Rig::new(TIMES).await;
    let mut builder = h2::client::Builder::new();
    let (mut sender, connection) = builder.initial_window_size(0).handshake::<_, Bytes>(rig.client).await.unwrap();
    tokio::spawn(connection);
    for (ends_with_head, trailers) in [(true, false), (false, true), (false, false)] {
        let before = held(&rig.activity);
        let request = Request::post("http://a/takes").body(()).unwrap();
        let (response, mut body) = sender.send_request(request, ends_with_head).unwrap();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(held(&rig.activity) >= before + TRAILERS_BYTES, !ends_with_head);
        match trailers {
            true => body.send_trailers(http::HeaderMap::new()).unwrap(),
            false if !ends_with_head => body.send_data(Bytes::from_static(b"x"), true).unwrap(),
            false => {}
        }
        let response = response.await.unwrap();
        let after = held(&rig.activity) - before;
        assert!((1..TRAILERS_BYTES).contains(&after), "{after}: its answer is not taken");
        std::mem::forget(response);
    }
}

#[tokio::test(start_paused = true)]
async fn regression_an_http2_client_that_says_nothing_does_not_delay_the_end() {
    let mut rig = Rig::new(TIMES).await;
    rig.client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    rig.stop.send(true).unwrap();
    timeout(Duration::from_secs(3), rig.ended).await.expect("it ends").unwrap().unwrap();
}
