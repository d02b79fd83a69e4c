//! A minimal HTTP/1.1 client on a bare socket: one request per connection.
//!
//! The tests must send what no client library allows (half a body, a wrong length) and see exactly which bytes come
//! back and when.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::Value;

use crate::poll::PATIENCE;
use crate::stream::Stream;

/// A client of one listener.
#[derive(Debug, Clone)]
pub struct Client {
    pub address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// A request to send.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// A JSON body.
    pub fn post(path: &str, body: &Value) -> Self {
        Self::new("POST", path).header("content-type", "application/json").body(body.to_string())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body and its correct length.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        let length = self.body.len().to_string();
        self.header("content-length", &length)
    }

    /// Appends bytes after the head without a length header.
    pub fn raw_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, headers: Vec::new() }
    }

    /// The same client, with a header on every request.
    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name.to_owned(), value.to_owned()));
        client
    }

    /// The same client, with an API key.
    pub fn with_key(&self, key: &str) -> Self {
        self.with_header("authorization", &format!("Bearer {key}"))
    }

    pub fn get(&self, path: &str) -> Response {
        self.send(&Request::get(path))
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send(&Request::post(path, body))
    }

    pub fn send(&self, request: &Request) -> Response {
        self.open(request).response()
    }

    /// Posts, expects 200, and returns the JSON.
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        response.json()
    }

    /// Posts, expects 200, and returns the events as they arrive.
    pub fn stream(&self, path: &str, body: &Value) -> Stream {
        let open = self.open(&Request::post(path, body));
        if open.status != 200 {
            panic!("{path} {body}: {}", open.response().text());
        }
        Stream::new(open)
    }

    /// Sends, reads the response's head, and leaves the body to the caller.
    pub fn open(&self, request: &Request) -> Open {
        let socket = self.begin(request);
        Open::read(socket).unwrap_or_else(|error| panic!("{} {}: {error}", request.method, request.path))
    }

    /// Opens a connection without sending anything.
    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).expect("the listener accepts");
        socket.set_nodelay(true).expect("a socket takes options");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
        socket.set_write_timeout(Some(PATIENCE)).expect("a socket takes options");
        socket
    }

    /// Sends without waiting. Drop the socket to disconnect.
    pub fn begin(&self, request: &Request) -> TcpStream {
        let mut socket = self.connect();
        let mut head =
            format!("{} {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", request.method, request.path, self.address);
        for (name, value) in self.headers.iter().chain(&request.headers) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        // The server may answer and close before it has read everything; then the answer counts, not the failed write.
        let _ = socket.write_all(&[head.as_bytes(), &request.body].concat());
        socket
    }

    /// The same, for a client that does not read: bounds the system's receive buffer, so that the response soon fills it.
    pub fn begin_unread(&self, request: &Request) -> TcpStream {
        let socket = self.begin(request);
        set_socket_recv_buffer_size(&socket, 4096).expect("a socket takes options");
        socket
    }
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {:?}", self.text()))
    }
}

/// A response whose body has not been read yet.
#[derive(Debug)]
pub struct Open {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Body,
}

impl Open {
    /// Reads the response's head.
    pub fn read(socket: TcpStream) -> std::io::Result<Self> {
        let mut reader = BufReader::new(socket);
        let first = line(&mut reader)?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("not a status line: {first:?}")))?;
        let mut headers = Vec::new();
        loop {
            let text = line(&mut reader)?;
            let Some((name, value)) = text.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let framing = match (find(&headers, "transfer-encoding"), find(&headers, "content-length")) {
            (Some(_), _) => Framing::Chunked { left: 0, first: true },
            (None, Some(length)) => Framing::Length(length.parse().map_err(std::io::Error::other)?),
            (None, None) => Framing::ToTheEnd,
        };
        Ok(Self { status, headers, body: Body { reader, framing } })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Reads the rest.
    pub fn response(mut self) -> Response {
        let mut body = Vec::new();
        self.body.read_to_end(&mut body).expect("the body comes whole");
        Response { status: self.status, headers: self.headers, body }
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
}

/// A body being received. Reading fails if the connection ends before the body does.
#[derive(Debug)]
pub struct Body {
    reader: BufReader<TcpStream>,
    framing: Framing,
}

#[derive(Debug)]
enum Framing {
    Length(u64),
    Chunked { left: u64, first: bool },
    ToTheEnd,
    Over,
}

impl Body {
    /// The connection, if the body was read completely and the connection can be reused.
    pub fn into_socket(self) -> Option<TcpStream> {
        let over = matches!(self.framing, Framing::Over | Framing::Length(0)) && self.reader.buffer().is_empty();
        over.then(|| self.reader.into_inner())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Framing::Chunked { left: 0, first } = self.framing {
            if !first {
                line(&mut self.reader)?;
            }
            let size = line(&mut self.reader)?;
            let left = u64::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16);
            let left = left.map_err(|_| std::io::Error::other(format!("not a chunk size: {size:?}")))?;
            self.framing = if left == 0 {
                // No trailers are expected: an empty line ends the body.
                line(&mut self.reader)?;
                Framing::Over
            } else {
                Framing::Chunked { left, first: false }
            };
        }
        let (Framing::Length(left) | Framing::Chunked { left, .. }) = &mut self.framing else {
            return if matches!(self.framing, Framing::Over) { Ok(0) } else { self.reader.read(buffer) };
        };
        let most = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        if most == 0 {
            // A zero-length read would still block on the socket.
            return Ok(0);
        }
        let count = self.reader.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        *left -= count as u64;
        Ok(count)
    }
}

/// One line without its line break; an error if the connection ends.
fn line(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut text = String::new();
    if reader.read_line(&mut text)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
