//! The bytes of a connection: a socket that outlives the protocol on it, and clients that send nothing more but still
//! read.
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout, timeout_at};

use crate::activity::{Activity, Awaited};
use crate::frames::Frames;

/// How often a connection whose client sends nothing more is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often a connection with a request in flight is looked at: hyper reads nothing while it has bytes that it has not
/// parsed, and then does not see the end.
pub(crate) const WATCH: Duration = Duration::from_secs(1);
/// After the last byte of a client, and after the head of each request: time for the request to be taken from the
/// connection's buffer.
const SETTLE: Duration = Duration::from_secs(1);
/// What a client may send behind a request that is being answered, besides what hyper has taken (at most a head's size).
/// Past it nobody could see the client leave, and the connection is closed.
pub(crate) const AHEAD_BYTES: usize = 64 << 10;
/// The first byte of every response.
const FIRST: u8 = b'H';

/// Bounds of what is read and thrown away after a refusal, so that the client finds the answer: of a connection, and over
/// HTTP/2 of a stream.
pub(crate) const DRAIN_BYTES: usize = 16 << 20;
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(10);
pub(crate) const DRAIN_SILENCE: Duration = Duration::from_secs(2);

/// After so much of one connection the others have their turn, and its requests are begun: what a client has sent at once
/// may be thousands of headers.
const TURN_BYTES: usize = 8 << 10;

/// A TCP connection, shared by the protocol on it and by those who watch it.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    stream: Arc<TcpStream>,
    /// Bytes that may still be read in this turn; without end before the first turn.
    left: Arc<AtomicUsize>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: Arc::new(stream), left: Arc::new(AtomicUsize::new(usize::MAX)) }
    }

    /// The connection's task is polled. Until the next turn it reads a bounded amount, however often the protocol asks: it
    /// asks again for each request that it begins.
    pub(crate) fn begin_turn(&self) {
        self.left.store(TURN_BYTES, Ordering::Relaxed);
    }

    /// Sends nothing more, and reads what the client is still sending until it has ended or a bound is reached. Closed
    /// at once, the socket would tell the client of a reset, and the client would drop the answer it has not read.
    pub(crate) async fn linger(&self) {
        if SockRef::from(&*self.stream).shutdown(Shutdown::Write).is_err() {
            return;
        }
        let (end, mut left) = (Instant::now() + DRAIN_TIME, DRAIN_BYTES);
        let mut bytes = vec![0; 16 << 10];
        while left > 0
            && matches!(timeout_at(end, timeout(DRAIN_SILENCE, self.stream.readable())).await, Ok(Ok(Ok(()))))
        {
            match self.stream.try_read(&mut bytes) {
                Ok(count @ 1..) => left = left.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// The error that the peer's system has reported: there is nobody to answer.
    fn broken(&self) -> io::Result<()> {
        self.stream.take_error()?.map_or(Ok(()), Err)
    }

    /// Whether the client sends nothing more, even if some of what it sent was not read.
    fn has_ended(&self, cx: &mut Context<'_>) -> bool {
        matches!(pin!(self.stream.ready(Interest::READABLE)).poll(cx), Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(buf) {
                Ok(count) => {
                    self.left.store(left.saturating_sub(count), Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write_vectored(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }
}

/// Hides the end of what a client sends as long as an answer is due, because a client may close its sending half after
/// its request and wait.
///
/// A client that has closed both halves looks the same until something is sent to it; then its system answers that
/// nobody is there. So the first byte of the answer, which is the same for every answer, goes out at once. Once the answer
/// has begun, one that is a stream of events has comments to send ([`Activity::ask_for_probe`]).
#[derive(Debug)]
pub(crate) struct HalfClosing<S> {
    stream: S,
    socket: Socket,
    activity: Arc<Activity>,
    ended: Option<Ended>,
    /// The next look for an end that nobody reads; `None` if no request is in flight.
    watch: Option<Pin<Box<Sleep>>>,
    /// What was read to see the end behind it.
    ahead: VecDeque<u8>,
    first: First,
    /// Whether everything that was written has left.
    flushed: bool,
    frames: Frames,
}

#[derive(Debug)]
struct Ended {
    at: Instant,
    look: Pin<Box<Sleep>>,
    /// When a comment was asked for.
    asked: Option<Instant>,
}

impl Ended {
    fn now() -> Self {
        Self { at: Instant::now(), look: Box::pin(sleep(LOOK)), asked: None }
    }
}

/// What became of the first byte of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Unsent,
    /// Sent ahead; the answer's own is left out.
    Sent,
}

impl<S: AsyncRead + AsyncWrite + Unpin> HalfClosing<S> {
    /// `stream` runs over `socket`.
    pub(crate) fn new(stream: S, socket: Socket, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            socket,
            activity,
            ended: None,
            watch: None,
            ahead: VecDeque::new(),
            first: First::Unsent,
            flushed: true,
            frames: Frames::new(),
        }
    }

    /// Pending while an answer is due; ready when the end may be told.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let Some(at) = self.ended.as_ref().map(|ended| ended.at) else { return Poll::Ready(Ok(())) };
            self.socket.broken()?;
            match self.activity.awaited() {
                Awaited::Nothing => return Poll::Ready(Ok(())),
                Awaited::Rest if at.max(self.activity.begun()).elapsed() >= SETTLE => return Poll::Ready(Ok(())),
                Awaited::Answer => self.probe(cx)?,
                Awaited::More => self.ask(cx),
                Awaited::Rest | Awaited::End => {}
            }
            let Some(Ended { look, .. }) = &mut self.ended else { return Poll::Ready(Ok(())) };
            ready!(look.as_mut().poll(cx));
            look.as_mut().reset(Instant::now() + LOOK);
        }
    }

    /// Sends the first byte of the answer that is due, unless something else is on its way.
    fn probe(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.first == First::Sent || !self.flushed {
            return Ok(());
        }
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, &[FIRST]) {
            written?;
            self.first = First::Sent;
            // What it does not send now goes with the rest.
            if let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(cx) {
                flushed?;
            }
        }
        Ok(())
    }

    /// Asks the stream of events that has begun for a comment, now and then.
    fn ask(&mut self, cx: &mut Context<'_>) {
        let now = Instant::now();
        if let Some(ended) = &mut self.ended
            && ended.asked.is_none_or(|asked| asked + WATCH <= now)
        {
            ended.asked = Some(now);
            self.activity.ask_for_probe();
            cx.waker().wake_by_ref();
        }
    }

    /// Looks now and then, while a request is in flight, whether its client has ended without anybody reading the end.
    fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            let Some(watch) = &mut self.watch else {
                if self.activity.awaited() == Awaited::Nothing {
                    return Ok(());
                }
                self.watch = Some(Box::pin(sleep(WATCH)));
                continue;
            };
            if watch.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.watch = None;
            self.socket.broken()?;
            let awaited = self.activity.awaited();
            if let Awaited::Answer | Awaited::More = awaited {
                self.read_ahead(cx)?;
            }
            match awaited {
                Awaited::Answer if self.ended.is_some() || self.socket.has_ended(cx) => self.probe(cx)?,
                Awaited::More => self.ask(cx),
                _ => {}
            }
        }
    }

    /// Reads what the client sends behind its request: its end comes after that.
    fn read_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut bytes = [0; 4 << 10];
        while self.ended.is_none() {
            let mut buf = ReadBuf::new(&mut bytes);
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, &mut buf) else { return Ok(()) };
            read?;
            if buf.filled().is_empty() {
                self.ended = Some(Ended::now());
            }
            self.ahead.extend(buf.filled());
            if self.ahead.len() > AHEAD_BYTES {
                return Err(io::Error::other("too much was sent behind a request that is being answered"));
            }
            // hyper may wait for them.
            cx.waker().wake_by_ref();
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for HalfClosing<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(buf.remaining());
            let (first, second) = self.ahead.as_slices();
            let of_first = count.min(first.len());
            buf.put_slice(&first[..of_first]);
            buf.put_slice(&second[..count - of_first]);
            self.ahead.drain(..count);
            if self.ahead.is_empty() {
                // A connection that goes on keeps no memory for it.
                self.ahead = VecDeque::new();
            }
            self.activity.heard();
            return Poll::Ready(Ok(()));
        }
        if self.ended.is_none() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            self.frames.read(&buf.filled()[before..]).map_err(io::Error::other)?;
            if buf.filled().len() > before || buf.remaining() == 0 {
                self.activity.heard();
                return Poll::Ready(Ok(()));
            }
            self.ended = Some(Ended::now());
        }
        self.poll_end(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HalfClosing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.flushed = false;
        let skipped = usize::from(self.first == First::Sent && buf.first() == Some(&FIRST));
        let rest = &buf[skipped..];
        let written = if rest.is_empty() { 0 } else { ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? };
        self.first = First::Unsent;
        Poll::Ready(Ok(skipped + written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.first == First::Sent {
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        self.flushed = false;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.flushed = true;
        self.activity.flushed();
        // hyper flushes whenever it is polled.
        Poll::Ready(self.watch(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::net::TcpListener;

    use super::*;
    use crate::activity::ConnectionTimes;

    #[tokio::test]
    async fn regression_a_turn_reads_a_bounded_amount_however_often_it_asks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut socket = Socket::new(listener.accept().await.unwrap().0);
        client.write_all(&vec![0; 4 * TURN_BYTES]).await.unwrap();
        // How much is read until it is somebody else's turn, asked thrice.
        let turn = |socket: &mut Socket, enough: usize| {
            let (mut read, mut bytes) = (0, [0; 1024]);
            for _ in 0..3 {
                while read < enough {
                    let mut buf = ReadBuf::new(&mut bytes);
                    let mut cx = Context::from_waker(std::task::Waker::noop());
                    if Pin::new(&mut *socket).poll_read(&mut cx, &mut buf).is_pending() {
                        break;
                    }
                    read += buf.filled().len();
                }
            }
            read
        };
        socket.stream.readable().await.unwrap();
        assert_eq!(turn(&mut socket, 2 * TURN_BYTES), 2 * TURN_BYTES, "before the first turn");
        socket.begin_turn();
        assert_eq!(turn(&mut socket, usize::MAX), TURN_BYTES);
        socket.begin_turn();
        assert_eq!(turn(&mut socket, usize::MAX), TURN_BYTES);
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_bounded_and_comes_in_order() {
        let long = Duration::from_secs(600);
        let activity = Activity::new(ConnectionTimes { header: long, idle: long, stall: long }, Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = Socket::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let (mut client, server) = duplex(AHEAD_BYTES + 9);
        let mut stream = HalfClosing::new(server, socket, activity);
        let sent: Vec<u8> = (0..AHEAD_BYTES).map(|at| (at % 251) as u8).collect();
        client.write_all(&sent).await.unwrap();
        let ahead = |stream: &mut HalfClosing<_>, cx: &mut Context<'_>| Poll::Ready(stream.read_ahead(cx));
        poll_fn(|cx| ahead(&mut stream, cx)).await.expect("at the bound");
        client.write_all(b"x").await.unwrap();
        poll_fn(|cx| ahead(&mut stream, cx)).await.expect_err("one past it");
        drop(client);
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.unwrap();
        assert!(got.len() == AHEAD_BYTES + 1 && got.starts_with(&sent) && got.ends_with(b"x"));
    }
}
