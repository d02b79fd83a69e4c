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
/// What is taken of what a client sends behind a request that is being answered, besides what hyper has taken (at most a
/// head's size). Who has sent more may have left: its end comes after that.
pub(crate) const AHEAD_BYTES: usize = 64 << 10;
/// The first bytes of every response.
const FIRST: &[u8] = b"HTTP/1.";

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
/// nobody is there. So the first bytes of the answer, which are the same for every answer, go out ahead: after 0, 1, 3, 7, 15, 31
/// and 63 seconds. Once the answer has begun, one that is a stream of events has comments to send
/// ([`Activity::ask_for_probe`]).
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
    /// When a comment was asked for.
    asked: Option<Instant>,
    /// Whether everything that was written has left.
    flushed: bool,
    frames: Frames,
}

#[derive(Debug)]
struct Ended {
    at: Instant,
    look: Pin<Box<Sleep>>,
}

impl Ended {
    fn now() -> Self {
        Self { at: Instant::now(), look: Box::pin(sleep(LOOK)) }
    }
}

/// What became of the first bytes of an answer.
#[derive(Debug, Clone, Copy)]
struct First {
    /// Of [`FIRST`]: how many were sent ahead. The answer's own are left out.
    sent: usize,
    /// Before the next one.
    pause: Duration,
    next: Option<Instant>,
}

impl First {
    const UNSENT: Self = Self { sent: 0, pause: WATCH, next: None };
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
            first: First::UNSENT,
            asked: None,
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

    /// Sends the next of the first bytes of the answer that is due, if it is time, unless something else is on its way.
    fn probe(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let now = Instant::now();
        let Some(byte) = FIRST.get(self.first.sent..=self.first.sent) else { return Ok(()) };
        if !self.flushed || self.first.next.is_some_and(|next| now < next) {
            return Ok(());
        }
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, byte) {
            written?;
            let pause = self.first.pause;
            self.first = First { sent: self.first.sent + 1, pause: 2 * pause, next: Some(now + pause) };
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
        if self.asked.is_none_or(|asked| asked + WATCH <= now) {
            self.asked = Some(now);
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
            if let Awaited::Answer | Awaited::More = awaited
                && self.read_ahead(cx)?
            {
                // There may be more of it than one turn reads.
                self.watch = Some(Box::pin(sleep(LOOK)));
            }
            if self.ended.is_none() && self.ahead.len() < AHEAD_BYTES && !self.socket.has_ended(cx) {
                continue;
            }
            match awaited {
                Awaited::Answer => self.probe(cx)?,
                Awaited::More => self.ask(cx),
                _ => {}
            }
        }
    }

    /// Reads what the client sends behind its request: its end comes after that. Whether there was anything.
    fn read_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let before = self.ahead.len();
        let mut bytes = [0; 4 << 10];
        while self.ended.is_none() && self.ahead.len() < AHEAD_BYTES {
            let count = bytes.len().min(AHEAD_BYTES - self.ahead.len());
            let mut buf = ReadBuf::new(&mut bytes[..count]);
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, &mut buf) else { break };
            read?;
            if buf.filled().is_empty() {
                self.ended = Some(Ended::now());
            }
            self.ahead.extend(buf.filled());
            // hyper may wait for them.
            cx.waker().wake_by_ref();
        }
        Ok(self.ahead.len() > before)
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
        let skipped = self.first.sent.min(buf.len());
        let rest = &buf[skipped..];
        let written = if rest.is_empty() { 0 } else { ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? };
        // hyper writes a head as one piece.
        self.first = First::UNSENT;
        Poll::Ready(Ok(skipped + written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.first.sent > 0 {
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

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
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

    struct Piped {
        client: DuplexStream,
        stream: HalfClosing<DuplexStream>,
        activity: Arc<Activity>,
        /// The other end of the socket, which breaks without it.
        _peer: TcpStream,
    }

    /// A connection whose bytes go over a pipe of this size.
    async fn piped(bytes: usize) -> Piped {
        let long = Duration::from_secs(600);
        let activity = Activity::new(ConnectionTimes { header: long, idle: long, stall: long }, Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = Socket::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let (client, server) = duplex(bytes);
        let stream = HalfClosing::new(server, socket, activity.clone());
        Piped { client, stream, activity, _peer: listener.accept().await.unwrap().0 }
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_bounded_and_comes_in_order() {
        let Piped { mut client, mut stream, _peer, .. } = piped(2 * AHEAD_BYTES).await;
        let sent: Vec<u8> = (0..=AHEAD_BYTES).map(|at| (at % 251) as u8).collect();
        let ahead = |stream: &mut HalfClosing<_>, cx: &mut Context<'_>| Poll::Ready(stream.read_ahead(cx));
        for (count, taken) in [(AHEAD_BYTES - 1, AHEAD_BYTES - 1), (1, AHEAD_BYTES), (1, AHEAD_BYTES)] {
            let from = stream.ahead.len();
            client.write_all(&sent[from..from + count]).await.unwrap();
            poll_fn(|cx| ahead(&mut stream, cx)).await.unwrap();
            assert_eq!(stream.ahead.len(), taken);
        }
        drop(client);
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.unwrap();
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    }

    #[tokio::test(start_paused = true)]
    async fn regression_the_first_bytes_of_an_answer_go_out_one_by_one_ever_more_slowly() {
        let Piped { mut client, mut stream, activity, _peer } = piped(1 << 10).await;
        let open = activity.begin(false, (1, 1));
        activity.arrived();
        client.shutdown().await.unwrap();
        let begun = Instant::now();
        let mut times = Vec::new();
        for _ in 0..FIRST.len() {
            let byte = tokio::select! {
                byte = client.read_u8() => byte.unwrap(),
                _ = stream.read_u8() => panic!("the end is told while an answer is due"),
            };
            assert_eq!(byte, FIRST[times.len()]);
            times.push(begun.elapsed().as_secs());
        }
        assert_eq!(times, [0, 1, 3, 7, 15, 31, 63]);
        let more = async {
            tokio::select! {
                byte = client.read_u8() => panic!("{byte:?}"),
                _ = stream.read_u8() => panic!("the end is told while an answer is due"),
            }
        };
        timeout(Duration::from_secs(600), more).await.expect_err("nobody knows how the answer goes on");
        // The answer leaves them out, in one piece or in several, and so does no later one.
        let answers: [&[&str]; 2] = [&["HTTP/1.1 200 OK\r\n\r\n", "ab"], &["HTTP/1.0 404 \r\n\r\n"]];
        for answer in answers {
            let pieces: Vec<_> = answer.iter().map(|piece| io::IoSlice::new(piece.as_bytes())).collect();
            let count = stream.write_vectored(&pieces).await.unwrap();
            stream.write_all(&answer.concat().as_bytes()[count..]).await.unwrap();
        }
        drop((open, stream));
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "1 200 OK\r\n\r\nabHTTP/1.0 404 \r\n\r\n");
    }
}
