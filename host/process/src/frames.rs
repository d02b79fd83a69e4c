//! Messages between processes: four bytes of length (little-endian), then MessagePack. A frame is written at once.
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of a message. Bodies of requests are bounded far below it.
const FRAME_BYTES: usize = 1 << 30;
/// File descriptors that travel with one.
const DESCRIPTORS: usize = 2;
const LENGTH: usize = 4;
/// Read at once.
const READ_BYTES: usize = 16 << 10;
/// Most answers are no longer.
const ANSWER_BYTES: usize = 4 << 10;

/// # Errors
/// It cannot be written as MessagePack, or is too long.
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; LENGTH];
    message.serialize(&mut rmp_serde::Serializer::new(&mut frame).with_struct_map()).map_err(io::Error::other)?;
    let length = u32::try_from(frame.len() - LENGTH).ok().filter(|length| *length as usize <= FRAME_BYTES);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// # Errors
/// It is another message.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn length(header: [u8; LENGTH]) -> io::Result<usize> {
    let length = u32::from_le_bytes(header) as usize;
    if length <= FRAME_BYTES { Ok(length) } else { Err(io::Error::from(io::ErrorKind::InvalidData)) }
}

/// # Errors
/// The other end is gone, or the message cannot be written.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

/// The next message; `None` if the other end has closed.
///
/// # Errors
/// The connection broke, or there is another message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut header = [0; LENGTH];
    match from.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut body = vec![0; length(header)?];
    from.read_exact(&mut body)?;
    decode(&body).map(Some)
}

/// Sends a frame and waits for the body of the answer.
///
/// # Errors
/// The other end is gone, or says that it sends more than anybody does.
pub async fn exchange(other: &mut (impl AsyncRead + AsyncWrite + Unpin), frame: &[u8]) -> io::Result<Vec<u8>> {
    other.write_all(frame).await?;
    // Most answers come in one piece, and nothing comes behind one.
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    let mut wanted = LENGTH;
    while answer.len() < wanted {
        // No more than comes: the other end may say anything.
        answer.reserve(ANSWER_BYTES);
        if other.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        if let (LENGTH, Some(header)) = (wanted, answer.first_chunk()) {
            wanted = LENGTH + length(*header)?;
        }
    }
    Ok(answer.split_off(LENGTH))
}

/// Sends what the other end takes without waiting, and says how many bytes that were.
///
/// # Errors
/// The other end is gone.
pub fn send_now(to: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    match rustix::net::send(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
        sent => Ok(sent?),
    }
}

/// What comes from a socket, message by message, for a thread that has other work.
#[derive(Debug)]
pub struct Incoming {
    socket: UnixStream,
    bytes: Vec<u8>,
    /// Where the next message begins.
    next: usize,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<T> {
    Message(T),
    /// No whole message, within the time that there was.
    Nothing,
    /// The other end is gone.
    Closed,
}

impl Incoming {
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, bytes: Vec::new(), next: 0 }
    }

    /// The next message. Waits for it this long, `None`: until it comes.
    ///
    /// # Errors
    /// The connection broke, or there is another message.
    pub fn next<T: DeserializeOwned>(&mut self, patience: Option<Duration>) -> io::Result<Received<T>> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let rest = &self.bytes[self.next..];
            let whole = rest.first_chunk().map(|header| length(*header)).transpose()?;
            if let Some(body) = whole.and_then(|length| rest.get(LENGTH..LENGTH + length)) {
                let message = decode(body)?;
                self.next += LENGTH + body.len();
                return Ok(Received::Message(message));
            }
            self.bytes.drain(..self.next);
            self.next = 0;
            match self.receive()? {
                Some(0) => return Ok(Received::Closed),
                Some(_) => {}
                None => {
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    if left.is_some_and(|left| left.is_zero()) {
                        return Ok(Received::Nothing);
                    }
                    let left = left.and_then(|left| Timespec::try_from(left).ok());
                    match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref()) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    /// Bytes that came; `None`: there are none now.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        let had = self.bytes.len();
        self.bytes.resize(had + READ_BYTES, 0);
        let got = rustix::net::recv(&self.socket, &mut self.bytes[had..], RecvFlags::DONTWAIT);
        let (count, got) = match got {
            Ok((count, _)) => (count, Ok(Some(count))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => (0, Ok(None)),
            // As good as gone.
            Err(rustix::io::Errno::CONNRESET) => (0, Ok(Some(0))),
            Err(error) => (0, Err(error.into())),
        };
        self.bytes.truncate(had + count);
        got
    }
}

/// As [`send`], with file descriptors.
///
/// # Errors
/// As there.
pub fn send_with<T: Serialize>(to: &mut UnixStream, message: &T, with: &[BorrowedFd<'_>]) -> io::Result<()> {
    let frame = encode(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !with.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(with)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent = sendmsg(to.as_fd(), &[IoSlice::new(&frame)], &mut ancillary, SendFlags::NOSIGNAL)?;
    to.write_all(&frame[sent..])
}

/// As [`receive`], with the file descriptors that came along.
///
/// # Errors
/// As there.
pub fn receive_with<T: DeserializeOwned>(from: &mut UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let (mut header, mut read, mut descriptors) = ([0; LENGTH], 0, Vec::new());
    while read < LENGTH {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut header[read..])];
        let got = match recvmsg(from.as_fd(), slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            got => got?.bytes,
        };
        if got == 0 {
            return Ok(None);
        }
        read += got;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
    }
    let mut body = vec![0; length(header)?];
    from.read_exact(&mut body)?;
    Ok(Some((decode(&body)?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_its_descriptors_arrive() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let (left, mut right) = UnixStream::pair().unwrap();
        let long = "a".repeat(1 << 20);
        let sender = std::thread::spawn(move || send_with(&mut one, &(7, &long), &[left.as_fd()]).unwrap());
        let ((number, text), descriptors) = receive_with::<(u32, String)>(&mut other).unwrap().unwrap();
        sender.join().unwrap();
        assert_eq!((number, text.len(), descriptors.len()), (7, 1 << 20, 1));
        let mut left = UnixStream::from(descriptors.into_iter().next().unwrap());
        send(&mut left, &"hi").unwrap();
        drop(left);
        assert_eq!(receive::<String>(&mut right).unwrap().as_deref(), Some("hi"));
        assert_eq!(receive::<String>(&mut right).unwrap(), None, "the other end has closed");
        assert!(receive_with::<u32>(&mut other).unwrap().is_none());
    }

    #[test]
    fn messages_come_one_by_one_however_they_arrive() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new(other);
        assert_eq!(incoming.next::<u32>(Some(Duration::ZERO)).unwrap(), Received::Nothing);
        let long = "b".repeat(3 * READ_BYTES);
        let frames = [encode(&7u32).unwrap(), encode(&long).unwrap(), encode(&8u32).unwrap()].concat();
        one.write_all(&frames[..6 + READ_BYTES]).unwrap();
        assert_eq!(incoming.next(Some(Duration::ZERO)).unwrap(), Received::Message(7u32));
        assert_eq!(incoming.next::<String>(Some(Duration::from_millis(1))).unwrap(), Received::Nothing);
        one.write_all(&frames[6 + READ_BYTES..]).unwrap();
        assert_eq!(incoming.next(None).unwrap(), Received::Message(long));
        drop(one);
        assert_eq!(incoming.next(None).unwrap(), Received::Message(8u32));
        assert_eq!(incoming.next::<u32>(None).unwrap(), Received::Closed);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        assert!(receive::<String>(&mut &[1, 0, 0, 0, 0xc1][..]).is_err());
        assert!(receive::<String>(&mut &[255, 255, 255, 255][..]).is_err(), "longer than any");
        assert!(receive::<String>(&mut &[9, 0, 0, 0, 1][..]).is_err(), "cut");
    }
}
