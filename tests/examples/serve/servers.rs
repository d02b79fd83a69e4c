//! The servers under test: Camshaft and llama-server as processes, and the bare engine loop.
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::Target;
use crate::report::OWN;
use crate::{Options, Result};

/// llama-server's defaults, and the fastest flags known for up to 32 streams of up to 1,280 tokens, each with its own KV cache.
const FLAGS: [(&str, &[&str]); 2] = [
    ("llama-server", &[]),
    ("llama-server, tuned", &["-np", "32", "-c", "40960", "--no-kv-unified", "-fa", "on", "-ub", "512", "-b", "2048"]),
];
const START: Duration = Duration::from_secs(120);

/// A server that ends with the benchmark.
pub(crate) struct Server {
    child: Child,
    pub(crate) name: &'static str,
    pub(crate) address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn target() -> Result<PathBuf> {
    Ok(PathBuf::from(std::env::var("CAMSHAFT_TARGET")?))
}

impl Server {
    /// Camshaft with the standard policies and the shipped defaults. `more`: settings of the model that differ.
    pub(crate) fn camshaft(options: &Options, more: &str) -> Result<Self> {
        let mut command = Command::new(std::env::var("CAMSHAFT_BIN")?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--set", "log.level=error"]);
        let path = options.model.to_string_lossy();
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        command.args(["--set", &format!("model=[{{id=\"m\", path={path:?}{more}}}]")]);
        command.arg("--policy-dir").arg(target()?.join("policy.d")).stdout(Stdio::piped());
        // The server would reject these as unknown settings.
        command.env_remove("CAMSHAFT_BIN").env_remove("CAMSHAFT_TARGET").env_remove("CAMSHAFT_MODELS");
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").ok_or(format!("said {line:?}"))?.to_owned();
        let server = Self { child, name: OWN, address };
        server.wait("/readyz")?;
        Ok(server)
    }

    /// llama-server with its defaults, and with the best flags.
    pub(crate) fn llama(program: &Path, options: &Options, embeds: bool) -> Result<Vec<Self>> {
        let start = |(name, flags): &(&'static str, &[&str])| {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut command = Command::new(program);
            command.arg("-m").arg(&options.model).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
            if embeds {
                command.arg("--embeddings");
            }
            command.args(*flags).stdout(Stdio::null()).stderr(Stdio::null());
            let server = Self { child: command.spawn()?, name, address: format!("127.0.0.1:{port}") };
            server.wait("/health")?;
            Ok(server)
        };
        FLAGS.iter().map(start).collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait(&self, path: &str) -> Result<()> {
        let begun = Instant::now();
        let probe = Target::new("", &self.address, "m", 0);
        while !probe.is_ok(path) {
            if begun.elapsed() > START {
                return Err(format!("{} is not ready after {START:?}", self.name).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Finds the vocabulary size by bisection: the largest token id that detokenize accepts.
    pub(crate) fn vocabulary(&self) -> Result<u32> {
        let probe = Target::new("", &self.address, "m", 0);
        let (mut low, mut high) = (1u32, 1 << 20);
        while low + 1 < high {
            let middle = u32::midpoint(low, high);
            let answer = probe.post("/v1/detokenize", &format!("{{\"model\":\"m\",\"tokens\":[{middle}]}}"))?;
            if answer.contains("\"text\"") { low = middle } else { high = middle }
        }
        Ok(low + 1)
    }
}

/// As many threads as Camshaft takes: one for each physical core.
fn physical_cores() -> u32 {
    let available = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let ids = |processor: &str| -> Vec<String> {
        let is_id = |line: &&str| line.starts_with("physical id") || line.starts_with("core id");
        processor.lines().filter(is_id).map(str::to_owned).collect()
    };
    let cores: BTreeSet<Vec<String>> = info.split("\n\n").map(ids).filter(|ids| !ids.is_empty()).collect();
    if cores.is_empty() { available } else { available.min(cores.len() as u32) }
}

/// Tokens per second of the same batches on the bare engine loop, in its best layout.
pub(crate) fn bare(options: &Options, streams: u32, prompt: u32, tokens: u32) -> Result<f64> {
    let threads = physical_cores();
    let kv_tokens = 32 * (prompt + tokens).next_multiple_of(256);
    let numbers = [streams, prompt, tokens, options.rounds, threads, kv_tokens].map(|n| n.to_string());
    let program = target()?.join("release/examples/bare");
    let output = Command::new(program).arg(&options.model).args(numbers).arg("per-sequence").output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
