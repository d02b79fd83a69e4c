//! Throughput of the server over HTTP against the bare engine loop, in one run, alternating.
//!
//! `serve [--model PATH] [--streams 1,8,32] [--prompt 32] [--tokens 64] [--rounds 6] [--repeats 3] [--threads 2]`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Options {
    model: PathBuf,
    streams: Vec<u32>,
    prompt: u32,
    tokens: u32,
    rounds: u32,
    repeats: u32,
    threads: u32,
}

fn main() -> Result<()> {
    let options = options()?;
    let target = PathBuf::from(std::env::var("CAMSHAFT_TARGET")?);
    let empty = tempfile::tempdir()?;
    let native = Server::start(&options, empty.path())?;
    let components = Server::start(&options, &target.join("policy.d"))?;
    println!(
        "model {}, prompt {} tokens, {} tokens out, {} threads",
        options.model.display(),
        options.prompt,
        options.tokens,
        options.threads
    );
    println!(
        "| streams | bare, tokens/s | native policies | / bare | component policies | / bare | / native |\n|---|---|---|---|---|---|---|"
    );
    for &streams in &options.streams {
        let mut measured = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..options.repeats {
            measured[0].push(bare(&target, &options, streams)?);
            measured[1].push(native.drive(&options, streams)?);
            measured[2].push(components.drive(&options, streams)?);
        }
        let [bare, native, components] = measured.map(|mut values| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        });
        println!(
            "| {streams} | {bare:.0} | {native:.0} | {:.2} | {components:.0} | {:.2} | {:.3} |",
            native / bare,
            components / bare,
            components / native
        );
    }
    Ok(())
}

fn options() -> Result<Options> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given: BTreeMap<&str, &str> =
        arguments.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let number = |name: &str, default: u32| given.get(name).map_or(Ok(default), |text| text.parse());
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/models/demo.gguf");
    let streams = given.get("--streams").unwrap_or(&"1,8,32").split(',').map(str::parse);
    Ok(Options {
        model: given.get("--model").map_or(demo, PathBuf::from),
        streams: streams.collect::<std::result::Result<_, _>>()?,
        prompt: number("--prompt", 32)?,
        tokens: number("--tokens", 64)?,
        rounds: number("--rounds", 6)?,
        repeats: number("--repeats", 3)?,
        threads: number("--threads", 2)?,
    })
}

fn bare(target: &Path, options: &Options, streams: u32) -> Result<f64> {
    let numbers = [streams, options.prompt, options.tokens, options.rounds, options.threads].map(|n| n.to_string());
    let output = Command::new(target.join("release/examples/bare")).arg(&options.model).args(numbers).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

struct Server {
    child: Child,
    address: String,
    vocabulary: u32,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already, or killed here: both are the end of it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(options: &Options, policies: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::var("CAMSHAFT_BIN")?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--set", "log.level=warn"]);
        let model =
            format!("model=[{{id=\"m\", path={:?}, threads={}}}]", options.model.to_string_lossy(), options.threads);
        command.args(["--set", &model]).arg("--policy-dir").arg(policies).stdout(Stdio::piped());
        // Not settings of the server.
        command.env_remove("CAMSHAFT_BIN").env_remove("CAMSHAFT_TARGET");
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").ok_or(format!("said {line:?}"))?.to_owned();
        let mut server = Self { child, address, vocabulary: 0 };
        // The size is not part of the API: the largest token id that is accepted.
        let (mut low, mut high) = (1u32, 1 << 20);
        while low + 1 < high {
            let middle = u32::midpoint(low, high);
            let body = format!("{{\"model\":\"m\",\"tokens\":[{middle}]}}");
            if server.post("/v1/detokenize", &body)?.1.contains("\"text\"") { low = middle } else { high = middle }
        }
        server.vocabulary = low + 1;
        Ok(server)
    }

    /// HTTP/1.0: the body ends with the connection, without chunk framing in between.
    fn send(&self, path: &str, body: &str) -> Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        Ok(BufReader::new(stream))
    }

    fn post(&self, path: &str, body: &str) -> Result<(String, String)> {
        let mut text = String::new();
        self.send(path, body)?.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or("no response")?;
        Ok((head.to_owned(), body.to_owned()))
    }

    /// Tokens per second over `rounds` rounds of `streams` streamed requests at once, after one round to warm up.
    fn drive(&self, options: &Options, streams: u32) -> Result<f64> {
        self.round(options, streams)?;
        let begun = Instant::now();
        let mut tokens = 0;
        for _ in 0..options.rounds {
            tokens += self.round(options, streams)?;
        }
        Ok(f64::from(tokens) / begun.elapsed().as_secs_f64())
    }

    fn round(&self, options: &Options, streams: u32) -> Result<u32> {
        std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..streams).map(|stream| scope.spawn(move || self.client(options, stream))).collect();
            let mut tokens = 0;
            for client in clients {
                tokens += client.join().map_err(|_| "a client panicked")??;
            }
            Ok(tokens)
        })
    }

    fn client(&self, options: &Options, stream: u32) -> Result<u32> {
        let prompt: Vec<String> = (0..options.prompt)
            .map(|i| (3 + (stream * 7919 + i * 104_729) % (self.vocabulary - 3)).to_string())
            .collect();
        let body = format!(
            "{{\"model\":\"m\",\"prompt\":[{}],\"max_tokens\":{},\"ignore_eos\":true,\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"seed\":{stream}}}",
            prompt.join(","),
            options.tokens
        );
        let mut usage = None;
        for line in self.send("/v1/completions", &body)?.lines() {
            let line = line?;
            if line.starts_with("data: ") && line.contains("\"completion_tokens\":") {
                let rest = line.split("\"completion_tokens\":").nth(1).unwrap_or_default();
                let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
                usage = Some(digits.parse()?);
            }
        }
        usage.ok_or_else(|| "a stream ended without usage".into())
    }
}
