//! Slow readers, in virtual time.
use axum::Router;
use axum::routing::get;
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;

const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    header: Duration::from_secs(30),
    idle: Duration::from_secs(90),
    write: Duration::from_secs(60),
};
/// What lies between the server and the client.
const BETWEEN: usize = 64 << 10;
/// A response in one piece.
const LARGE: usize = 4 << 20;
/// No head has it.
const FILLING: u8 = 0xff;
/// Between two reads of a slow reader.
const SLOWLY: Duration = Duration::from_secs(30);

struct Rig {
    client: DuplexStream,
    state: Arc<ConnectionState>,
    ended: JoinHandle<Result<(), ConnectionFailure>>,
    stop: watch::Sender<bool>,
}

impl Rig {
    fn new(timeouts: ConnectionTimeouts) -> Self {
        let late = || async {
            sleep(Duration::from_secs(10)).await;
            "late"
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/large", get(|| async { Bytes::from(vec![FILLING; LARGE]) }))
            .route("/late", get(late));
        let (stop, stopped) = watch::channel(false);
        let (client, server) = duplex(BETWEEN);
        let state = ConnectionState::new();
        let setup = ConnectionSetup { routers: RouterSwitch::new(router), tls: None, timeouts, stop: stopped };
        let (peer, of_drive) = (SocketAddr::from(([127, 0, 0, 1], 1)), state.clone());
        let ended = tokio::spawn(async move { drive(server, (peer, None), setup, &of_drive).await });
        Self { client, state, ended, stop }
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

    fn is_open(&self) -> bool {
        self.state.progress().open > 0
    }
}

#[tokio::test(start_paused = true)]
async fn regression_a_slow_reader_of_a_response_in_one_piece_gets_all_of_it() {
    let mut rig = Rig::new(TIMEOUTS);
    rig.send("/large").await;
    let (mut got, mut block) = (0, vec![0; BETWEEN / 2]);
    while got < LARGE {
        sleep(SLOWLY).await;
        if got + 2 * BETWEEN < LARGE {
            assert!(rig.is_open(), "after {got} bytes: it is still being sent");
        }
        let count = rig.client.read(&mut block).await.unwrap();
        assert!(count > 0, "cut after {got} bytes");
        got += block[..count].iter().filter(|&&byte| byte == FILLING).count();
    }
    sleep(Duration::from_secs(1)).await;
    assert!(!rig.is_open());
    rig.send("/").await;
    assert!(rig.answer().await.ends_with("here"), "the connection goes on");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_more_of_a_response_in_one_piece_is_cut() {
    let mut rig = Rig::new(ConnectionTimeouts { idle: Duration::from_secs(3600), ..TIMEOUTS });
    rig.send("/large").await;
    timeout(2 * TIMEOUTS.write, rig.ended).await.expect("it is cut").unwrap().unwrap_err();
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
    let rig = Rig::new(TIMEOUTS);
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
    let rig = Rig::new(ConnectionTimeouts { idle: Duration::from_secs(3600), ..TIMEOUTS });
    let mut body = http2_large(rig.client).await.into_body();
    let takes = async {
        let mut got = 0;
        while let Some(Ok(data)) = body.data().await {
            got += data.len();
        }
        got
    };
    let got = timeout(2 * TIMEOUTS.write, takes).await.expect("it is cut");
    assert!((1..LARGE).contains(&got), "{got}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_runs_when_the_server_ends_is_answered() {
    let mut rig = Rig::new(TIMEOUTS);
    rig.send("/late").await;
    sleep(Duration::from_secs(1)).await;
    rig.stop.send(true).unwrap();
    let mut got = String::new();
    rig.client.read_to_string(&mut got).await.unwrap();
    assert!(got.ends_with("late") && got.contains("connection: close"), "{got:?}");
    drop(rig.client);
    rig.ended.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn regression_a_client_that_says_nothing_does_not_delay_the_end() {
    for beginning in
        [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"GET"]
    {
        let mut rig = Rig::new(TIMEOUTS);
        rig.client.write_all(beginning).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        rig.stop.send(true).unwrap();
        let _ended = timeout(2 * LAST_WORDS, rig.ended).await.expect("it ends").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_keeps_the_server_waiting_waits_since_the_last_thing_that_moved() {
    let state = ConnectionState::new();
    let since = || state.waiting_since().map(|since| since.elapsed());
    tokio::time::advance(SLOWLY).await;
    assert_eq!(since(), Some(SLOWLY), "it has asked for nothing");
    let request = ActiveRequest::begin(state.clone());
    tokio::time::advance(SLOWLY).await;
    assert_eq!(since(), None, "the server works");
    request.set_working(false);
    assert_eq!(since(), None, "the answer is on its way");
    tokio::time::advance(UNTAKEN).await;
    assert_eq!(since(), Some(UNTAKEN), "the answer is not taken");
    drop(request);
    assert_eq!(since(), Some(Duration::ZERO), "it may ask again");
}
