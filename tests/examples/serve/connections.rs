//! Kept-alive connections, as OpenAI's clients use them.
use std::io::{BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_tests::{Body, Open};

use crate::Result;

/// Idle connections to one server; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Vec<TcpStream>>>);

/// A response whose head has been read.
pub(crate) struct Response {
    pub(crate) body: BufReader<Body>,
    keep: bool,
}

impl Connections {
    /// Sends a request on an idle connection, or on a new one if the server has closed every idle one.
    pub(crate) fn send(&self, address: &str, path: &str, body: &str) -> Result<Response> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        loop {
            let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let was_idle = idle.is_some();
            let socket = match idle {
                Some(socket) => socket,
                None => {
                    let socket = TcpStream::connect(address)?;
                    socket.set_nodelay(true)?;
                    socket
                }
            };
            match begin(socket, &request) {
                Ok(response) => return Ok(response),
                Err(error) if was_idle && is_closed(error.kind()) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the connection of a fully read response for reuse.
    pub(crate) fn put_back(&self, response: Response) {
        if let Some(socket) = response.body.into_inner().into_socket().filter(|_| response.keep) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        }
    }
}

fn begin(mut socket: TcpStream, request: &str) -> std::io::Result<Response> {
    socket.write_all(request.as_bytes())?;
    let open = Open::read(socket)?;
    let keep = !open.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok(Response { body: BufReader::new(open.body), keep })
}

fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}
