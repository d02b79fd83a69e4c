//! Clients that are refused while they still send.
use super::*;
use crate::connection::HTTP2_STREAM_WINDOW;
use crate::exchange::SETTLE_BYTES;
use crate::socket::DRAIN_BYTES;

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_refusal_reaches_a_client_that_is_still_sending() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let body = vec![b'x'; LARGE];
    for round in 0..20 {
        let mut socket = rig.connect().await;
        let head = format!("POST /refuses HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGE}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        // All of it before anything is read, as simple clients do.
        socket.write_all(&body).await.unwrap();
        let got = to_the_end(&mut socket).await.to_lowercase();
        assert!(got.starts_with("http/1.1 404 ") && got.contains("connection: close"), "{round}: {got:?}");
    }
    // A head that cannot be served, with more behind it.
    let mut socket = rig.connect().await;
    socket.write_all(b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n").await.unwrap();
    socket.write_all(&body[..4 << 20]).await.unwrap();
    assert!(to_the_end(&mut socket).await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_refusal_reaches_an_http2_client_that_is_still_sending() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let (mut sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    for round in 0..5 {
        let (response, mut stream) = sender.send_request(http2(rig.address, "POST", "/refuses"), false).unwrap();
        let mut left = 3 << 20;
        while left > 0 {
            stream.reserve_capacity(left.min(64 << 10));
            let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            let room = room.expect("the stream is open").expect("the server takes the body");
            stream.send_data(Bytes::from(vec![b'x'; room]), left == room).unwrap();
            left -= room;
        }
        assert_eq!(response.await.unwrap().status(), 404, "{round}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_small_request_keeps_the_connection() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let mut socket = rig.connect().await;
    for _ in 0..3 {
        socket.write_all(b"POST /refuses HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc").await.unwrap();
        let got = answer(&mut socket).await.to_lowercase();
        assert!(got.starts_with("http/1.1 404 ") && !got.contains("connection: close"), "{got}");
    }
}

#[tokio::test]
async fn what_is_read_after_a_refusal_is_bounded() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let small = TcpSocket::new_v4().unwrap();
    small.set_send_buffer_size(64 << 10).unwrap();
    let mut socket = small.connect(rig.address).await.unwrap();
    // Nothing is in flight but what the server's system holds.
    let in_flight = receive_buffer_bytes() + (1 << 20);
    socket.write_all(b"POST /refuses HTTP/1.1\r\nhost: a\r\ncontent-length: 9999999999\r\n\r\n").await.unwrap();
    let block = vec![b'x'; 64 << 10];
    let mut sent = 0_usize;
    let sends = async {
        while let Ok(count) = socket.write(&block).await {
            sent += count;
            assert!(sent <= SETTLE_BYTES + DRAIN_BYTES + in_flight, "{sent}: it reads on");
        }
    };
    timeout(PATIENCE, sends).await.expect("the server stops reading");
    assert!(sent >= DRAIN_BYTES, "{sent}: it read a good deal");
}

/// The most that the system receives for a socket before it is read.
fn receive_buffer_bytes() -> usize {
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    limits.split_whitespace().last().unwrap().parse().unwrap()
}

#[tokio::test]
async fn what_is_read_after_an_http2_refusal_is_bounded() {
    let rig = Rig::new(100, times(LONG, LONG, LONG)).await;
    let (mut sender, connection) = h2::client::handshake(rig.connect().await).await.unwrap();
    tokio::spawn(connection);
    let (_response, mut stream) = sender.send_request(http2(rig.address, "POST", "/refuses"), false).unwrap();
    let mut sent = 0;
    let sends = async {
        loop {
            stream.reserve_capacity(64 << 10);
            // An error: the server has reset the stream.
            let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else { break };
            if stream.send_data(Bytes::from(vec![b'x'; room]), false).is_err() {
                break;
            }
            sent += room;
        }
    };
    timeout(PATIENCE, sends).await.expect("the server stops reading");
    assert!(sent >= DRAIN_BYTES, "{sent}: it read a good deal");
    assert!(sent <= SETTLE_BYTES + DRAIN_BYTES + HTTP2_STREAM_WINDOW as usize, "{sent}: it read on");
}
