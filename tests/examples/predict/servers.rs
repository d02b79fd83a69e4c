//! The servers under test, as processes: Camshaft as it is shipped, and onnxruntime behind aiohttp.
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::Connection;

/// How the server of onnxruntime computes: where its event loop runs, or on threads beside it.
const PEERS: [(&str, &[&str]); 2] = [("onnxruntime", &[]), ("onnxruntime, threads", &["--threads"])];
const PEER: &str = "docs/benchmarks/onnx_server.py";
const START: Duration = Duration::from_secs(60);

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

impl Server {
    /// Camshaft with the standard policies and the shipped defaults. Nothing is set but the model's path.
    pub(crate) fn camshaft(model: &Path) -> Result<Self> {
        let policies = PathBuf::from(std::env::var("CAMSHAFT_TARGET")?).join("policy.d");
        let mut command = Command::new(std::env::var("CAMSHAFT_BIN")?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--set", "log.level=error"]);
        command.args(["--set", &format!("model=[{{id=\"m\", path={:?}}}]", model.to_string_lossy())]);
        command.arg("--policy-dir").arg(policies);
        // The server would reject these as unknown settings.
        command.env_remove("CAMSHAFT_BIN").env_remove("CAMSHAFT_TARGET").env_remove("CAMSHAFT_MODELS");
        Self::start("camshaft", command, "/readyz")
    }

    /// onnxruntime with its defaults behind aiohttp, in both ways of computing.
    pub(crate) fn peers(model: &Path) -> Result<Vec<Self>> {
        let start = |(name, flags): &(&'static str, &[&str])| {
            let mut command = Command::new("python3");
            command.arg(camshaft_tests::repository().join(PEER)).arg(model).args(*flags);
            Self::start(name, command, "/healthz")
        };
        PEERS.iter().map(start).collect()
    }

    fn start(name: &'static str, mut command: Command, ready: &str) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("{name}: {error}"))?;
        let output = child.stdout.take();
        let mut server = Self { child, name, address: String::new() };
        let mut line = String::new();
        BufReader::new(output.ok_or("no standard output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://");
        server.address = address.ok_or(format!("{name} did not start: it said {line:?}"))?.to_owned();
        let begun = Instant::now();
        while !Connection::open(&server.address)?.is_ok(ready) {
            if begun.elapsed() > START {
                return Err(format!("{name} is not ready after {START:?}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}
