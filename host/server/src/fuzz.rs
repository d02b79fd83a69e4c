//! Entry points of the fuzz targets: configuration files, and the bytes of connections.
use std::io::Write;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::{Overrides, Sources};
use crate::http::{ConnectionSetup, ConnectionState, ConnectionTimeouts, RouterSwitch, serve_connection};

const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
    header: Duration::from_secs(30),
    idle: Duration::from_secs(90),
    write: Duration::from_secs(60),
};
/// More than all bounds of a connection together, one after another.
const PATIENCE: Duration = Duration::from_secs(600);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const FRAME_HEAD: usize = 9;

/// Bits of an input's first byte: it is a list of HTTP/2 frames, each `type, flags, stream, length, payload`; the client
/// sends nothing more, but reads; the server ends meanwhile.
const FRAMES: u8 = 1;
const HALF_CLOSES: u8 = 2;
const STOPS: u8 = 4;

/// Any bytes are a configuration or an error that says why.
///
/// # Panics
/// If an error says nothing.
pub fn configuration(bytes: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::with_suffix(".toml") else { return };
    if file.write_all(bytes).is_ok() {
        let sources = Sources::new(Some(file.path()), std::iter::empty(), Overrides::default());
        let Ok(sources) = sources else { return };
        if let Err(error) = sources.load() {
            assert!(!error.to_string().is_empty());
        }
        let _ = sources.snapshot();
    }
}

/// A client's connection from its first byte to its last. The second byte of the input says in what portions the rest is
/// sent. Runs in paused time, so that bounds in time cost none.
///
/// # Panics
/// If the connection does not end, or what the client was sent is neither HTTP/1.1 nor HTTP/2.
pub async fn connection(router: Router, bytes: &[u8]) {
    let &[mode, portion, ref rest @ ..] = bytes else { return };
    let sent = if mode & FRAMES > 0 { frames(rest) } else { rest.to_vec() };
    let Ok((mut client, server)) = pair().await else { return };
    let Ok(peer) = server.peer_addr() else { return };
    let (stop, stopped) = watch::channel(false);
    let setup = ConnectionSetup { routers: RouterSwitch::new(router), tls: None, timeouts: TIMEOUTS, stop: stopped };
    let serving = tokio::spawn(serve_connection(server, peer, setup, ConnectionState::new()));
    let talking = async {
        for portion in sent.chunks(1 + usize::from(portion) * 16) {
            // A server that has closed takes no more.
            let _ = client.write_all(portion).await;
            tokio::task::yield_now().await;
        }
        if mode & HALF_CLOSES > 0 {
            let _ = client.shutdown().await;
        }
        if mode & STOPS > 0 {
            let _ = stop.send(true);
        }
        let mut answer = Vec::new();
        // An error, a reset, is an end as well.
        let _ = client.read_to_end(&mut answer).await;
        answer
    };
    let both = async { tokio::join!(talking, serving) };
    let Ok((answer, served)) = timeout(PATIENCE, both).await else { panic!("the connection does not end") };
    assert!(served.is_ok(), "{served:?}");
    check(&answer, sent.starts_with(PREFACE));
}

/// Both ends of a connection.
async fn pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (client, accepted) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    Ok((client?, accepted?.0))
}

fn check(answer: &[u8], http2: bool) {
    if http2 {
        return assert!(are_frames(answer), "{answer:?}");
    }
    let status = |answer: &[u8]| std::str::from_utf8(answer.get(9..12)?).ok()?.parse::<u16>().ok();
    let fits = answer.starts_with(b"HTTP/1.") && status(answer).is_some_and(|status| (100..=599).contains(&status));
    assert!(answer.is_empty() || fits && status(answer) != Some(500), "{:?}", String::from_utf8_lossy(answer));
}

/// Whether whole frames were sent, each as short as the client allows.
fn are_frames(mut answer: &[u8]) -> bool {
    while let Some((head, rest)) = answer.split_at_checked(FRAME_HEAD) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((_, rest)) = rest.split_at_checked(length).filter(|_| length <= 1 << 14) else { return false };
        answer = rest;
    }
    answer.is_empty()
}

/// The bytes of a client that speaks HTTP/2.
fn frames(mut rest: &[u8]) -> Vec<u8> {
    let mut out = [PREFACE, SETTINGS].concat();
    while let Some((&[kind, flags, stream, length], after)) = rest.split_first_chunk() {
        let (payload, after) = after.split_at(after.len().min(length.into()));
        out.extend([0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream]);
        out.extend(payload);
        rest = after;
    }
    out
}
