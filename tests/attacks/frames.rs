//! HTTP/2 by hand: frames that no client library sends.
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use camshaft_tests::Client;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// What a client may send before anybody answers (RFC 9113, section 6.9.2).
const FIRST_WINDOW: i64 = 65_535;
/// How long the server may keep a client waiting that has a frame to send or awaits one.
const SILENCE: Duration = Duration::from_secs(20);

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A block of headers without compression, each shorter than 127 bytes.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for text in headers.iter().flat_map(|(name, value)| [None, Some(name), Some(value)]) {
        match text {
            // A literal that enters no table.
            None => block.push(0),
            Some(text) => {
                assert!(text.len() < 127, "{text}");
                block.push(text.len() as u8);
                block.extend(text.as_bytes());
            }
        }
    }
    block
}

/// The headers of a request, with `more` behind them.
pub(crate) fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let first = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    block(&[&first[..], more].concat())
}

/// A connection. Its errors are the server's answers to what it is sent.
#[derive(Debug)]
pub(crate) struct Http2 {
    socket: TcpStream,
    /// What may still be sent on the connection and on the only stream with a body.
    windows: [i64; 2],
}

impl Http2 {
    pub(crate) fn connect(client: &Client) -> Self {
        let mut socket = client.connect();
        socket.set_write_timeout(Some(SILENCE)).unwrap();
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        socket.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
        Self { socket, windows: [FIRST_WINDOW; 2] }
    }

    /// Whether the system took the bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// The next frame: kind, flags and payload. `None` once the server has closed, or says nothing.
    pub(crate) fn next(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.socket.read_exact(&mut payload).ok()?;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        match (head[3], number(&head[5..])) {
            (WINDOW_UPDATE, stream) => self.windows[usize::from(stream > 0)] += i64::from(number(&payload)),
            // The server's own settings, which hold once they are acknowledged: the window of a stream is the fourth.
            (SETTINGS, _) if head[4] & ACK == 0 => {
                self.send(&frame(SETTINGS, ACK, 0, &[]));
                for setting in payload.chunks(6).filter(|setting| setting[..2] == [0, 4]) {
                    self.windows[1] += i64::from(number(&setting[2..])) - FIRST_WINDOW;
                }
            }
            _ => {}
        }
        Some((head[3], head[4], payload))
    }

    /// Sends part of a body as the server's windows allow.
    ///
    /// # Errors
    /// The status of the response that came first; `None` if the server closed.
    pub(crate) fn send_body(&mut self, stream: u32, mut bytes: usize) -> Result<(), Option<u16>> {
        while bytes > 0 {
            let part = bytes.min(16 << 10).min(usize::try_from(*self.windows.iter().min().unwrap()).unwrap_or(0));
            if part > 0 {
                if !self.send(&frame(DATA, 0, stream, &vec![b' '; part])) {
                    return Err(self.status());
                }
                self.windows.iter_mut().for_each(|window| *window -= part as i64);
                bytes -= part;
                continue;
            }
            match self.next() {
                Some((SETTINGS | WINDOW_UPDATE | PING, ..)) => {}
                Some((HEADERS, _, block)) => return Err(Some(status(&block))),
                _ => return Err(None),
            }
        }
        Ok(())
    }

    /// The status of the first response, as far as it is one of the table's; `None` if the server closes instead.
    pub(crate) fn status(&mut self) -> Option<u16> {
        loop {
            match self.next()? {
                (HEADERS, _, block) => return Some(status(&block)),
                (GOAWAY | RST_STREAM, ..) => return None,
                _ => {}
            }
        }
    }

    /// Reads to the end. Whether the server closed the connection, and did not just fall silent.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 16 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        }
    }
}

/// `:status` stands first: one of the static table (RFC 7541, appendix A), or a text of three digits.
fn status(block: &[u8]) -> u16 {
    const KNOWN: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    // An encoder may first say how large its table is.
    let block = if block[0] & 0xe0 == 0x20 { &block[1..] } else { block };
    match block {
        [index @ 0x88..=0x8e, ..] => KNOWN[usize::from(index - 0x88)],
        [_, 3, digits @ ..] => std::str::from_utf8(&digits[..3]).unwrap().parse().unwrap(),
        [_, packed, digits @ ..] => unpack(&digits[..usize::from(packed & 0x7f)]),
        _ => panic!("no status in {block:?}"),
    }
}

/// Digits in Huffman's code (RFC 7541, appendix B): 0 to 2 take five bits, the others six.
fn unpack(bytes: &[u8]) -> u16 {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1)));
    let mut number = 0;
    for _ in 0..3 {
        let mut code = (0..5).fold(0, |code, _| code << 1 | bits.next().unwrap());
        let digit = if code < 3 {
            code
        } else {
            code = code << 1 | bits.next().unwrap();
            code - 0x19 + 3
        };
        number = number * 10 + digit;
    }
    number
}
