//! An HTTP server on this machine that does what a test says, right or wrong.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// How a body is framed, and where it ends.
#[derive(Debug, Clone, Default)]
pub(crate) enum Framing {
    /// Its length, truly.
    #[default]
    Length,
    Chunked,
    /// The length is announced, and the connection closed after this many bytes.
    CutAfter(usize),
    /// The length is announced, and nothing comes after this many bytes.
    SilentAfter(usize),
    /// A byte at a time, with a pause after each.
    Drip(Duration),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) framing: Framing,
}

impl Reply {
    pub(crate) fn new(status: u16, body: &[u8]) -> Self {
        Self { status, body: body.to_vec(), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn framed(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }
}

/// What a good server answers that has this file: conditions and ranges heeded.
pub(crate) fn file(seen: &Seen, bytes: &[u8], etag: &str) -> Reply {
    let etag = format!("\"{etag}\"");
    if seen.header("if-none-match") == Some(&etag) {
        return Reply::new(304, b"").with("etag", etag);
    }
    let heeds = seen.header("if-range").is_none_or(|condition| condition == etag);
    let from = seen
        .header("range")
        .filter(|_| heeds)
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        Some(from) if from >= bytes.len() => {
            Reply::new(416, b"").with("content-range", format!("bytes */{}", bytes.len()))
        }
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            Reply::new(206, &bytes[from..]).with("content-range", range).with("etag", etag)
        }
        None => Reply::new(200, bytes).with("etag", etag),
    }
}

/// Ends with the process.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// `answer` is given each request, and its number from 0.
    pub(crate) fn start(answer: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (log, answer) = (server.seen.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (log.clone(), answer.clone());
                thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Seen>>, answer: &(dyn Fn(&Seen, usize) -> Reply + Sync)) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            match line.trim_end().split_once(':') {
                Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.trim().to_owned())),
                None => break,
            }
        }
        let seen = Seen { method, target, headers };
        let number = {
            let mut log = log.lock().unwrap();
            log.push(seen.clone());
            log.len() - 1
        };
        let reply = answer(&seen, number);
        send(&mut stream, &reply, seen.method == "HEAD").ok()?;
    }
}

fn send(stream: &mut TcpStream, reply: &Reply, head: bool) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {} x\r\n", reply.status);
    reply.headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    match reply.framing {
        Framing::Chunked => text.push_str("transfer-encoding: chunked\r\n"),
        _ if reply.status == 304 || reply.headers.iter().any(|(name, _)| *name == "content-length") => {}
        _ => text.push_str(&format!("content-length: {}\r\n", reply.body.len())),
    }
    stream.write_all(format!("{text}\r\n").as_bytes())?;
    if head {
        return Ok(());
    }
    match reply.framing {
        Framing::Length => stream.write_all(&reply.body),
        Framing::Chunked => {
            for chunk in reply.body.chunks(10_000) {
                stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
        Framing::CutAfter(bytes) => {
            stream.write_all(&reply.body[..bytes.min(reply.body.len())])?;
            stream.shutdown(std::net::Shutdown::Both)?;
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        Framing::SilentAfter(bytes) => {
            stream.write_all(&reply.body[..bytes.min(reply.body.len())])?;
            // Until the client goes.
            stream.read_exact(&mut [0])
        }
        Framing::Drip(pause) => {
            for byte in &reply.body {
                stream.write_all(&[*byte])?;
                thread::sleep(pause);
            }
            Ok(())
        }
    }
}
