//! A streaming client that timestamps every frame.
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::Result;
use crate::connections::{Connections, Response};
use crate::costs::{self, Costs};

/// Seeds prompts, so that none repeats within a run or between servers.
static FRESH: AtomicU32 = AtomicU32::new(1);

/// A server with an OpenAI-style API.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    address: String,
    model: String,
    vocabulary: u32,
    sampling: Sampling,
    connections: Connections,
    /// The process, where it is one of ours.
    pid: Option<u32>,
}

/// Sampling parameters sent to both servers. Every one is sent, because the servers' defaults differ.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// The most likely token.
    Greedy,
    /// OpenAI's defaults: the unmodified distribution.
    OpenAi,
    /// llama-server's defaults: top-k 40, then top-p and min-p.
    LlamaServer,
}

impl Sampling {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "greedy" => Self::Greedy,
            "openai" => Self::OpenAi,
            "llama-server" => Self::LlamaServer,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::OpenAi => "openai",
            Self::LlamaServer => "llama-server",
        }
    }

    /// Temperature, `top_k`, `top_p` and `min_p`.
    fn parameters(self) -> (f64, u32, f64, f64) {
        match self {
            Self::Greedy => (0.0, 0, 1.0, 0.0),
            Self::OpenAi => (1.0, 0, 1.0, 0.0),
            Self::LlamaServer => (0.8, 40, 0.95, 0.05),
        }
    }
}

/// Timestamps of one stream.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) sent: Instant,
    pub(crate) frames: Vec<Instant>,
    pub(crate) tokens: u32,
}

impl Stream {
    /// Seconds to the first frame with text.
    pub(crate) fn first(&self) -> f64 {
        self.frames.first().map_or(f64::NAN, |first| first.duration_since(self.sent).as_secs_f64())
    }

    /// Seconds between consecutive frames, for gaps that overlap the span.
    pub(crate) fn gaps(&self, from: Instant, to: Instant) -> impl Iterator<Item = f64> + '_ {
        let pairs = self.frames.windows(2).filter(move |pair| pair[1] >= from && pair[0] <= to);
        pairs.map(|pair| pair[1].duration_since(pair[0]).as_secs_f64())
    }
}

impl Target {
    pub(crate) fn new(name: &str, address: &str, model: &str, vocabulary: u32) -> Self {
        let (name, address, model) = (name.to_owned(), address.to_owned(), model.to_owned());
        Self {
            name,
            address,
            model,
            vocabulary,
            sampling: Sampling::OpenAi,
            connections: Connections::default(),
            pid: None,
        }
    }

    /// The same target, whose process this is.
    pub(crate) fn costs_of(self, pid: u32) -> Self {
        Self { pid: Some(pid), ..self }
    }

    /// What it has taken of the machine so far.
    pub(crate) fn costs(&self) -> Option<Costs> {
        self.pid.map(costs::of)
    }

    /// The same target with other sampling parameters.
    pub(crate) fn sampling(&self, sampling: Sampling) -> Self {
        Self { sampling, ..self.clone() }
    }

    /// A prompt of `count` tokens that was never sent before.
    pub(crate) fn fresh(&self, count: u32) -> Vec<u32> {
        let mut state = FRESH.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9) | 1;
        let mut token = || {
            // Xorshift (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            // The first ids are control tokens and bytes.
            260 + state % (self.vocabulary - 260)
        };
        (0..count).map(|_| token()).collect()
    }

    /// The whole body of a response.
    pub(crate) fn post(&self, path: &str, body: &str) -> Result<String> {
        let mut response = self.send(path, body)?;
        let mut text = Vec::new();
        response.body.read_to_end(&mut text)?;
        self.connections.put_back(response);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether GET answers 200.
    pub(crate) fn is_ok(&self, path: &str) -> bool {
        let Ok(mut socket) = TcpStream::connect(&self.address) else { return false };
        let mut answer = String::new();
        write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").is_ok()
            && socket.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    fn send(&self, path: &str, body: &str) -> Result<Response> {
        self.connections.send(&self.address, path, body)
    }

    pub(crate) fn embed(&self, inputs: &[Vec<u32>]) -> Result<()> {
        // One input is sent as most clients send it.
        let input = if let [input] = inputs { json!(input) } else { json!(inputs) };
        let answer = self.post("/v1/embeddings", &json!({"model": self.model, "input": input}).to_string())?;
        if answer.contains("\"embedding\"") { Ok(()) } else { Err(format!("{}: {answer:.200}", self.name).into()) }
    }

    /// Streams a completion of exactly `tokens`.
    pub(crate) fn stream(&self, prompt: &[u32], tokens: u32) -> Result<Stream> {
        let (temperature, top_k, top_p, min_p) = self.sampling.parameters();
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": true,
            "stream_options": {"include_usage": true},
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        });
        let sent = Instant::now();
        let (mut frames, mut drawn, mut done) = (Vec::with_capacity(tokens as usize), None, false);
        let mut response = self.send("/v1/completions", &body.to_string())?;
        let (mut line, mut other) = (Vec::new(), String::new());
        while response.body.read_until(b'\n', &mut line)? > 0 {
            if let Some(data) = line.strip_prefix(b"data: ") {
                let now = Instant::now();
                done |= data.starts_with(b"[DONE]");
                if data.starts_with(b"{\"error\"") {
                    other.push_str(&String::from_utf8_lossy(data));
                }
                // Only the last frames are parsed: parsing every one would take CPU time from the server.
                if !data.starts_with(b"[DONE]") {
                    frames.push(now);
                }
                if data.windows(19).any(|part| part == b"\"completion_tokens\"") {
                    let value: Value = serde_json::from_slice(data)?;
                    drawn = value["usage"]["completion_tokens"].as_u64();
                    frames.pop();
                }
            } else if other.len() < 300 && !line.trim_ascii().is_empty() {
                other.push_str(&String::from_utf8_lossy(&line));
            }
            line.clear();
        }
        self.connections.put_back(response);
        match drawn {
            Some(drawn) if done => Ok(Stream { sent, frames, tokens: drawn as u32 }),
            _ => Err(format!("{}: a stream ended after {} frames: {other:.300}", self.name, frames.len()).into()),
        }
    }

    /// Streams all prompts at once.
    pub(crate) fn streams(&self, prompts: &[Vec<u32>], tokens: u32) -> Result<Vec<Stream>> {
        if let [prompt] = prompts {
            return Ok(vec![self.stream(prompt, tokens)?]);
        }
        std::thread::scope(|scope| {
            let clients: Vec<_> =
                prompts.iter().map(|prompt| scope.spawn(move || self.stream(prompt, tokens))).collect();
            clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked")?).collect()
        })
    }
}
