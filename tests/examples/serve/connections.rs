//! Connections that are kept alive, as OpenAI's clients keep theirs, and responses that are read line by line.
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;

/// Idle connections to one server; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Vec<BufReader<TcpStream>>>>);

/// A response whose head was read.
pub(crate) struct Response {
    reader: BufReader<TcpStream>,
    left: Left,
    keep: bool,
}

/// What is to come of a body.
enum Left {
    Bytes(u64),
    /// Of this chunk; further ones follow.
    Chunk(u64),
    Nothing,
}

impl Connections {
    /// Sends a request on an idle connection, or on a new one where there is none that the server still holds.
    pub(crate) fn send(&self, address: &str, path: &str, body: &str) -> Result<Response> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        loop {
            let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let used = idle.is_some();
            let reader = match idle {
                Some(reader) => reader,
                None => {
                    let stream = TcpStream::connect(address)?;
                    stream.set_nodelay(true)?;
                    BufReader::new(stream)
                }
            };
            match Response::begin(reader, &request) {
                Ok(response) => return Ok(response),
                Err(error) if used && closed(error.kind()) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn put_back(&self, response: Response) {
        if response.keep && matches!(response.left, Left::Nothing) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(response.reader);
        }
    }
}

fn closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

impl Response {
    fn begin(mut reader: BufReader<TcpStream>, request: &str) -> std::io::Result<Self> {
        reader.get_mut().write_all(request.as_bytes())?;
        let (mut left, mut keep) = (Left::Nothing, true);
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let head = line.trim_end().to_ascii_lowercase();
            if head.is_empty() {
                break;
            }
            if let Some(length) = head.strip_prefix("content-length:") {
                left = Left::Bytes(length.trim().parse().map_err(|_| ErrorKind::InvalidData)?);
            }
            if head.starts_with("transfer-encoding:") {
                left = Left::Chunk(0);
            }
            keep &= head != "connection: close";
        }
        let mut response = Self { reader, left, keep };
        if matches!(response.left, Left::Chunk(_)) {
            response.next_chunk()?;
        }
        Ok(response)
    }

    /// Appends the next line, or what a body ends with; false at its end.
    pub(crate) fn line(&mut self, out: &mut Vec<u8>) -> std::io::Result<bool> {
        let before = out.len();
        loop {
            let left = match self.left {
                Left::Bytes(left) | Left::Chunk(left) if left > 0 => left,
                _ => {
                    self.left = Left::Nothing;
                    return Ok(out.len() > before);
                }
            };
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let here = &buffer[..buffer.len().min(left as usize)];
            let end = here.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(here.len());
            out.extend_from_slice(&here[..taken]);
            self.reader.consume(taken);
            let left = left - taken as u64;
            match self.left {
                Left::Chunk(_) if left == 0 => {
                    // The line break behind the chunk.
                    self.reader.read_line(&mut String::new())?;
                    self.next_chunk()?;
                }
                Left::Chunk(_) => self.left = Left::Chunk(left),
                _ => self.left = Left::Bytes(left),
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    fn next_chunk(&mut self) -> std::io::Result<()> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(|_| ErrorKind::InvalidData)?;
        self.left = Left::Chunk(length);
        if length == 0 {
            // No trailers are asked for: a line break ends the body.
            self.reader.read_line(&mut String::new())?;
            self.left = Left::Nothing;
        }
        Ok(())
    }
}
