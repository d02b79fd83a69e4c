//! The cost of everything around the engine: requests per second and latency with an engine that computes nothing.
//!
//! `front [--peer HOST:PORT] [--seconds N] [--repeats N]`: closed loops over kept-alive connections, without policies (the
//! native scheduler and sampler) and with the standard components in all four hooks. The floor is the server's own
//! `/healthz`, and the peer's `/health`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CONNECTIONS: [usize; 3] = [1, 32, 256];

struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on the fake engine, with capacity for every connection. `policies` is the policy directory.
fn start(policies: &str) -> Result<Server> {
    let program = PathBuf::from(std::env::var("CAMSHAFT_TARGET")?).join("release/examples/fake");
    let mut command = Command::new(program);
    command.args(["listen=127.0.0.1:0", "admin.listen=", &format!("policy.dir={policies}"), "policy.allow-empty=true"]);
    command.arg("model=[{id=\"m\", sequences=255, batch-tokens=2048, context-tokens=65536}]");
    // The access log is written, as in production, and discarded.
    command.env_remove("CAMSHAFT_BIN").env_remove("CAMSHAFT_TARGET").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on http://").ok_or(format!("said {line:?}"))?.to_owned();
    Ok(Server { child, address })
}

/// One kind of request, as bytes on the wire.
struct Load {
    name: &'static str,
    request: Vec<u8>,
}

fn get(name: &'static str, path: &str) -> Load {
    Load { name, request: format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes() }
}

fn post(name: &'static str, path: &str, body: &serde_json::Value) -> Load {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}"
    );
    Load { name, request: format!("{head}\r\n\r\n{body}").into_bytes() }
}

fn loads() -> [Load; 4] {
    let prompt = "The quick brown fox jumps over it";
    let completion = serde_json::json!({"model": "m", "prompt": prompt, "max_tokens": 1, "ignore_eos": true});
    let messages = serde_json::json!([{"role": "user", "content": prompt}]);
    let chat = |stream: bool| serde_json::json!({"model": "m", "messages": messages, "max_tokens": 16, "ignore_eos": true, "stream": stream});
    [
        get("`GET /healthz`", "/healthz"),
        post("completion of 1 token", "/v1/completions", &completion),
        post("chat of 16 tokens", "/v1/chat/completions", &chat(false)),
        post("chat of 16 tokens, streamed", "/v1/chat/completions", &chat(true)),
    ]
}

/// Reads one complete response. False if the server closed the connection instead.
fn response(reader: &mut BufReader<TcpStream>, line: &mut Vec<u8>) -> Result<bool> {
    let (mut length, mut chunked, mut first) = (0usize, false, true);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', line);
        if first && read.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |&bytes| bytes == 0) {
            return Ok(false);
        }
        read?;
        if std::mem::take(&mut first) && !line.starts_with(b"HTTP/1.1 200") {
            return Err(format!("answered {:?}", String::from_utf8_lossy(line)).into());
        }
        if line.len() <= 2 {
            break;
        }
        let text = std::str::from_utf8(line)?.trim().to_ascii_lowercase();
        if let Some(value) = text.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        chunked |= text.starts_with("transfer-encoding:") && text.ends_with("chunked");
    }
    if !chunked {
        line.resize(length, 0);
        reader.read_exact(line)?;
        return Ok(true);
    }
    loop {
        line.clear();
        reader.read_until(b'\n', line)?;
        let size = usize::from_str_radix(std::str::from_utf8(line)?.trim(), 16)?;
        line.resize(size + 2, 0);
        reader.read_exact(line)?;
        if size == 0 {
            return Ok(true);
        }
    }
}

/// Drives this many connections: requests per second, and every request's latency in seconds.
fn drive(address: &str, load: &Load, connections: usize, span: Duration) -> Result<(f64, Vec<f64>)> {
    let begun = Instant::now();
    let one = || -> Result<Vec<f64>> {
        let connect = || -> Result<_> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(BufReader::new(stream))
        };
        let mut reader = connect()?;
        let (mut line, mut times) = (Vec::new(), Vec::new());
        while begun.elapsed() < span {
            let sent = Instant::now();
            // Some servers close a connection after a number of requests; reconnecting is part of their cost.
            while reader.get_mut().write_all(&load.request).is_err() || !response(&mut reader, &mut line)? {
                reader = connect()?;
            }
            times.push(sent.elapsed().as_secs_f64());
        }
        Ok(times)
    };
    let mut times = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..connections).map(|_| scope.spawn(one)).collect();
        for client in clients {
            times.extend(client.join().map_err(|_| "a client panicked")??);
        }
        Ok(())
    })?;
    times.sort_by(f64::total_cmp);
    Ok((times.len() as f64 / begun.elapsed().as_secs_f64(), times))
}

/// Requests per second, and milliseconds at the median and at p99.
type Figures = [f64; 3];

/// The medians of several runs.
fn measure(address: &str, load: &Load, connections: usize, (span, repeats): (Duration, usize)) -> Result<Figures> {
    let mut runs: Vec<Figures> = Vec::new();
    for _ in 0..repeats {
        let (rate, times) = drive(address, load, connections, span)?;
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).map_or(f64::NAN, |time| time * 1e3);
        runs.push([rate, at(0.5), at(0.99)]);
    }
    let median = |i: usize| {
        let mut values: Vec<f64> = runs.iter().map(|run| run[i]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok([median(0), median(1), median(2)])
}

fn main() -> Result<()> {
    let (mut peer, mut span, mut repeats) = (None, Duration::from_secs(2), 3);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name:?} wants a value"))?;
        match name.as_str() {
            "--peer" => peer = Some(value.trim_start_matches("http://").trim_end_matches('/').to_owned()),
            "--seconds" => span = Duration::from_secs_f64(value.parse()?),
            "--repeats" => repeats = value.parse::<usize>()?.max(1),
            _ => return Err(format!("unknown option {name:?}").into()),
        }
    }
    let how = (span, repeats);
    let empty = tempfile::tempdir()?;
    let standard = PathBuf::from(std::env::var("CAMSHAFT_TARGET")?).join("policy.d");
    let servers = [
        ("no policies", start(&empty.path().to_string_lossy())?),
        ("standard components", start(&standard.to_string_lossy())?),
    ];
    println!("| connections | server | request | requests/s | median, ms | p99, ms | median over its /healthz, ms |");
    println!("|---|---|---|---|---|---|---|");
    let print = |connections: usize, server: &str, request: &str, [rate, median, p99]: Figures, over: Option<f64>| {
        let over = over.map_or(String::new(), |floor| format!("{:.3}", median - floor));
        println!("| {connections} | {server} | {request} | {rate:.0} | {median:.3} | {p99:.3} | {over} |");
    };
    for connections in CONNECTIONS {
        if let Some(peer) = &peer {
            let load = get("`GET /health`", "/health");
            print(connections, "peer", load.name, measure(peer, &load, connections, how)?, None);
        }
        for (name, server) in &servers {
            let mut floor = None;
            for load in loads() {
                let figures = measure(&server.address, &load, connections, how)?;
                print(connections, name, load.name, figures, floor);
                floor.get_or_insert(figures[1]);
            }
        }
    }
    Ok(())
}
