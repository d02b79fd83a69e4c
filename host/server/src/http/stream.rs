//! The bytes of a connection, under HTTP and above TLS: hyper's own answers get an error and an id, and a client that still
//! sends can read its answer before the connection closes.
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use camshaft_api::refused_head;
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http::connection::HEAD_BYTES;

/// How long what a client still sends is read and thrown away after the last answer. A socket that is closed before tells the
/// client of a reset, and the answer may be lost.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// The beginning of every answer over HTTP/1, and where its status stands.
const BEGINNING: &str = "HTTP/1.";
const STATUS: std::ops::Range<usize> = 9..12;
/// What hyper's own answers say of their bodies.
const EMPTY: &str = "\r\ncontent-length: 0\r\n";
/// What all other answers have.
const ID: &str = "\r\nx-request-id: ";

/// A stream over which hyper reads and writes.
#[derive(Debug)]
pub(super) struct HttpStream<S> {
    stream: S,
    instead: Option<ReplacementResponse>,
    /// Once nothing more is written.
    linger: Option<Pin<Box<Sleep>>>,
}

/// What is written in the place of hyper's own answer, to a head that it cannot read and that reaches no router. hyper writes
/// such an answer as one piece.
#[derive(Debug)]
struct ReplacementResponse {
    answer: Vec<u8>,
    /// Bytes of it that are written.
    sent: usize,
    /// Bytes of hyper's answer.
    replaced: usize,
}

impl ReplacementResponse {
    /// `None`: it is another answer, or part of one.
    fn of(written: &[u8]) -> Option<Self> {
        if !written.starts_with(BEGINNING.as_bytes()) || written.get(STATUS.start) != Some(&b'4') {
            return None;
        }
        let head = std::str::from_utf8(written).ok().filter(|head| head.ends_with("\r\n\r\n") && !head.contains(ID))?;
        let status: StatusCode = head.get(STATUS)?.parse().ok()?;
        let (before, after) = head.split_once(EMPTY)?;
        let (lines, body) = refused_head(status, HEAD_BYTES);
        let answer = [format!("{before}\r\n{lines}{after}").into_bytes(), body].concat();
        Some(Self { answer, sent: 0, replaced: written.len() })
    }
}

impl<S> HttpStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, instead: None, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HttpStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HttpStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            this.instead = ReplacementResponse::of(buf);
        }
        let Some(ReplacementResponse { answer, sent, replaced }) = &mut this.instead else {
            return Pin::new(&mut this.stream).poll_write(cx, buf);
        };
        while *sent < answer.len() {
            let count = ready!(Pin::new(&mut this.stream).poll_write(cx, &answer[*sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *sent += count;
        }
        let replaced = *replaced;
        this.instead = None;
        Poll::Ready(Ok(replaced))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut full = bufs.iter().filter(|buf| !buf.is_empty());
        match (full.next(), full.next()) {
            // An answer of hyper's own is alone.
            (Some(only), None) => self.poll_write(cx, only),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let linger = this.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut bytes = [0; 4 << 10];
        // The time first: a client that never stops sending must not keep it from being asked.
        while linger.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const OWN: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\
                       date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";

    /// What a client reads that the pipe gives a few bytes at a time.
    async fn read(written: &str) -> String {
        let (mut client, server) = duplex(16);
        let reading = tokio::spawn(async move {
            let mut got = String::new();
            client.read_to_string(&mut got).await.unwrap();
            got
        });
        let mut stream = HttpStream::new(server);
        stream.write_all(written.as_bytes()).await.unwrap();
        drop(stream);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn regression_an_answer_of_hypers_own_has_an_id_and_an_error() {
        let got = read(OWN).await;
        let (head, body) = got.split_once("\r\n\r\n").unwrap();
        for part in ["HTTP/1.1 431 ", "\r\nconnection: close\r\n", "\r\nx-request-id: req_", "\r\ndate: "] {
            assert!(head.contains(part), "{part:?}: {head}");
        }
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
        let error: Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["error"]["code"], "head_too_large");
    }

    #[tokio::test]
    async fn every_other_answer_is_written_as_it_is() {
        for other in [
            "HTTP/1.1 404 Not Found\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nx-request-id: a\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            &OWN[..OWN.len() - 1],
            "HTTP/1.1 4",
            "HTTP/1.",
            "",
        ] {
            assert_eq!(read(other).await, other);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_sends_after_its_answer_is_read_for_a_bounded_time() {
        let (mut client, server) = duplex(1 << 10);
        let mut stream = HttpStream::new(server);
        let begun = Instant::now();
        let sends = async {
            while client.write_all(&[0; 1 << 10]).await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = sends => panic!("the stream is open"),
            ended = stream.shutdown() => ended.unwrap(),
        }
        assert_eq!(begun.elapsed().as_secs(), LINGER.as_secs());
        // A client that closes is not waited for.
        let (client, server) = duplex(1 << 10);
        drop(client);
        HttpStream::new(server).shutdown().await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), LINGER.as_secs());
    }
}
