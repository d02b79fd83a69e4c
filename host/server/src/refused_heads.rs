//! Gives hyper's own answers, to heads that it cannot read, the id and the error that every answer has.
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use camshaft_api::refused_head;
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The beginning of every answer over HTTP/1, and where its status stands.
const BEGINNING: &str = "HTTP/1.";
const STATUS: std::ops::Range<usize> = 9..12;
/// What hyper's own answers say of their bodies.
const EMPTY: &str = "\r\ncontent-length: 0\r\n";
/// What all other answers have.
const ID: &str = "\r\nx-request-id: ";

/// A stream over which hyper writes. Requests that it refuses reach no router, so their answers are completed here. hyper writes
/// a head as one piece.
#[derive(Debug)]
pub(crate) struct RefusedHeads<S> {
    stream: S,
    /// The most that a head may have.
    head_bytes: usize,
    instead: Option<Instead>,
}

/// What is written in the place of hyper's own answer.
#[derive(Debug)]
struct Instead {
    answer: Vec<u8>,
    /// Bytes of it that are written.
    sent: usize,
    /// Bytes of hyper's answer.
    replaced: usize,
}

impl<S> RefusedHeads<S> {
    pub(crate) fn new(stream: S, head_bytes: usize) -> Self {
        Self { stream, head_bytes, instead: None }
    }
}

/// The status of hyper's own answer, and its head before and after where it says that there is no body; `None`: it is another
/// answer, or part of one.
fn own_answer(written: &[u8]) -> Option<(StatusCode, &str, &str)> {
    if !written.starts_with(BEGINNING.as_bytes()) || written.get(STATUS.start) != Some(&b'4') {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?;
    let status = head.get(STATUS)?.parse().ok()?;
    let (before, after) = head.split_once(EMPTY)?;
    (head.ends_with("\r\n\r\n") && !head.contains(ID)).then_some((status, before, after))
}

/// The whole answer in the place of hyper's own, if this is one.
fn completed(written: &[u8], head_bytes: usize) -> Option<Vec<u8>> {
    let (status, before, after) = own_answer(written)?;
    let (lines, body) = refused_head(status, head_bytes);
    Some([format!("{before}\r\n{lines}{after}").into_bytes(), body].concat())
}

impl<S: AsyncRead + Unpin> AsyncRead for RefusedHeads<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RefusedHeads<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            let answer = completed(buf, this.head_bytes);
            this.instead = answer.map(|answer| Instead { answer, sent: 0, replaced: buf.len() });
        }
        let Some(Instead { answer, sent, replaced }) = &mut this.instead else {
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
        let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        if self.instead.is_some() || own_answer(first).is_some() {
            return self.poll_write(cx, first);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

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
        let mut stream = RefusedHeads::new(server, 77);
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
}
