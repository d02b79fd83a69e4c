//! The servers under test: Camshaft as a process, and the bare engine loop.
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::client::Target;
use crate::{Options, Result};

/// A Camshaft process with the standard policies.
pub(crate) struct Own {
    child: Child,
    pub(crate) address: String,
}

impl Drop for Own {
    fn drop(&mut self) {
        // An error means that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn target() -> Result<PathBuf> {
    Ok(PathBuf::from(std::env::var("CAMSHAFT_TARGET")?))
}

impl Own {
    /// `more`: further settings of the model.
    pub(crate) fn start(options: &Options, more: &str) -> Result<Self> {
        let mut command = Command::new(std::env::var("CAMSHAFT_BIN")?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--set", "log.level=error"]);
        let (path, threads) = (options.model.to_string_lossy(), options.threads);
        command.args(["--set", &format!("model=[{{id=\"m\", path={path:?}, threads={threads}{more}}}]")]);
        command.arg("--policy-dir").arg(target()?.join("policy.d")).stdout(Stdio::piped());
        // The server would reject these as unknown settings.
        command.env_remove("CAMSHAFT_BIN").env_remove("CAMSHAFT_TARGET");
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").ok_or(format!("said {line:?}"))?.to_owned();
        Ok(Self { child, address })
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

/// Tokens per second of the same batches on the bare engine loop.
pub(crate) fn bare(options: &Options, streams: u32, prompt: u32, tokens: u32) -> Result<f64> {
    let numbers = [streams, prompt, tokens, options.rounds, options.threads, options.kv_tokens].map(|n| n.to_string());
    let program = target()?.join("release/examples/bare");
    let output = Command::new(program).arg(&options.model).args(numbers).arg(&options.kv_layout).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
