//! Clients: bodies of requests, and closed loops over kept-alive connections.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;

/// Different requests of a run.
const BODIES: usize = 16;
const PATH: &str = "/predict";

/// A kept-alive connection to a server.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and reads the whole answer into `body`. Returns the status.
    fn ask(&mut self, request: &[u8], body: &mut Vec<u8>) -> Result<u16> {
        self.0.get_mut().write_all(request)?;
        let (mut status, mut length) = (None, None);
        loop {
            body.clear();
            if self.0.read_until(b'\n', body)? == 0 {
                return Err("the server closed the connection".into());
            }
            let line = std::str::from_utf8(body)?.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            match status {
                None => status = line.split(' ').nth(1).and_then(|status| status.parse().ok()),
                Some(_) => length = line.strip_prefix("content-length:").map(str::trim).map(str::parse).or(length),
            }
        }
        // Both servers know the length of what they answer here.
        body.resize(length.ok_or("an answer without a length")??, 0);
        self.0.read_exact(body)?;
        status.ok_or_else(|| "an answer without a status".into())
    }

    pub(crate) fn is_ok(&mut self, path: &str) -> bool {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.ask(request.as_bytes(), &mut Vec::new()).is_ok_and(|status| status == 200)
    }

    fn get(&mut self, path: &str) -> Result<Value> {
        let mut body = Vec::new();
        self.ask(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes(), &mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }
}

/// What clients send, as bytes on the wire. All servers get the same.
pub(crate) struct Load(Vec<Vec<u8>>);

impl Load {
    /// Requests of one row for the model of this server of Camshaft, which says what it takes.
    pub(crate) fn of(address: &str) -> Result<Self> {
        let info = Connection::open(address)?.get("/model/info")?;
        let Some([input]) = info["inputs"].as_array().map(Vec::as_slice) else {
            return Err("the benchmark takes models of one input".into());
        };
        if input["datatype"] != "FP32" {
            return Err(format!("the benchmark takes models of FP32, this one takes {}", input["datatype"]).into());
        }
        let axes: Option<Vec<i64>> =
            input["shape"].as_array().map(|axes| axes.iter().filter_map(Value::as_i64).collect());
        let shape: Vec<usize> =
            axes.unwrap_or_default().iter().map(|&axis| usize::try_from(axis).unwrap_or(1)).collect();
        let mut state = 0x9e37_79b9u32;
        let mut number = || {
            // Xorshift (Marsaglia 2003). Four digits, as of an image that was normalised.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            json!(f64::from(state % 30_000) / 1e4 - 1.0)
        };
        Ok(Self((0..BODIES).map(|_| request(&json!({"model": "m", "input": nested(&shape, &mut number)}))).collect()))
    }

    /// What a server answers to each request: all numbers of all outputs.
    pub(crate) fn answers(&self, address: &str) -> Result<Vec<Vec<f64>>> {
        let mut connection = Connection::open(address)?;
        let mut answer = |request: &Vec<u8>| {
            let mut body = Vec::new();
            let status = connection.ask(request, &mut body)?;
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            match (status, &answer["outputs"]) {
                (200, Value::Object(outputs)) => {
                    let data = outputs.values().filter_map(|output| output["data"].as_array()).flatten();
                    Ok(data.filter_map(Value::as_f64).collect())
                }
                _ => Err(format!("answered {status} {:.300}", String::from_utf8_lossy(&body)).into()),
            }
        };
        self.0.iter().map(&mut answer).collect()
    }

    /// Has clients ask again as soon as they are answered. What ends within `warm_up` does not count.
    pub(crate) fn drive(&self, address: &str, clients: usize, warm_up: Duration, span: Duration) -> Result<Run> {
        let begun = Instant::now();
        let one = |client: usize| -> Result<Vec<f64>> {
            let mut connection = Connection::open(address)?;
            let (mut body, mut times) = (Vec::new(), Vec::new());
            for request in self.0.iter().cycle().skip(client % BODIES) {
                let sent = Instant::now();
                if sent - begun >= warm_up + span {
                    break;
                }
                let status = connection.ask(request, &mut body)?;
                if status != 200 {
                    return Err(format!("answered {status} {:.300}", String::from_utf8_lossy(&body)).into());
                }
                let ended = Instant::now();
                if (warm_up..warm_up + span).contains(&(ended - begun)) {
                    times.push((ended - sent).as_secs_f64() * 1e3);
                }
            }
            Ok(times)
        };
        let mut times = Vec::new();
        std::thread::scope(|scope| -> Result<()> {
            let clients: Vec<_> = (0..clients).map(|client| scope.spawn(move || one(client))).collect();
            for client in clients {
                times.extend(client.join().map_err(|_| "a client panicked")??);
            }
            Ok(())
        })?;
        if times.is_empty() {
            return Err(format!("no request was answered within {span:?}").into());
        }
        times.sort_by(f64::total_cmp);
        Ok(Run { rate: times.len() as f64 / span.as_secs_f64(), times })
    }
}

/// What clients saw.
pub(crate) struct Run {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Milliseconds of each request, the shortest first.
    times: Vec<f64>,
}

impl Run {
    /// The nearest rank. `share`: 0 to 1.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let rank = (self.times.len() as f64 * share).ceil() as usize;
        self.times.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

fn request(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn nested(shape: &[usize], number: &mut impl FnMut() -> Value) -> Value {
    match shape.split_first() {
        None => number(),
        Some((&length, others)) => (0..length).map(|_| nested(others, number)).collect(),
    }
}
