//! `cargo xtask dist --emulated`: serves from `dist/` on processors that QEMU emulates, to see that no instruction is missing there.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::command::{Done, Failure, root, say, succeeds};
use crate::setup::{Need, packages};

const QEMU: &str = "qemu-x86_64";
const NEEDS: [Need; 1] = [Need {
    what: "qemu-user (emulates processors)",
    present: || succeeds(QEMU, &["--version"]),
    packages: &["qemu-user"],
}];
/// Processors, and the kernels that may be loaded there: QEMU 7 does not know AVX-512, whatever the processor.
const PROCESSORS: [(&str, &[&str]); 4] = [
    ("Nehalem", &["sse42"]),
    ("SandyBridge", &["sandybridge"]),
    ("Haswell", &["haswell"]),
    ("Skylake-Server", &["haswell", "skylakex"]),
];
/// How long it may take until the server listens, and then until it answers: emulated code runs for minutes where it runs at all.
const PATIENCE: Duration = Duration::from_secs(300);
/// Of the log that wait to be read.
const LINES: usize = 64;
const ASKED: &str = r#"{"model":"demo","messages":[{"role":"user","content":"hello"}],"max_tokens":8}"#;

/// Needs `dist/` to be there.
pub(crate) fn run() -> Done {
    if !cfg!(target_arch = "x86_64") {
        return Err(Failure("processors are emulated on x86-64 only".to_owned()));
    }
    packages(&NEEDS)?;
    for (processor, kernels) in PROCESSORS {
        let mut server = serve(processor)?;
        let found = watch(&mut server);
        // It has ended, or must.
        let _ = server.kill();
        let _ = server.wait();
        let found = found.map_err(|Failure(why)| Failure(format!("{processor}: {why}")))?;
        if !kernels.contains(&found.as_str()) {
            return Err(Failure(format!("{processor}: kernels {found}, expected one of {kernels:?}")));
        }
        say(&format!("{processor}: kernels {found}, answered"));
    }
    Ok(())
}

fn serve(processor: &str) -> Result<Child, Failure> {
    let dist = root().join("dist");
    let mut command = Command::new(QEMU);
    command
        .args(["-cpu", processor])
        .arg(dist.join("camshaft"))
        .arg("serve")
        .arg("--config")
        .arg(dist.join("config.toml"));
    command.args(["--listen", "127.0.0.1:0", "--set", "admin.listen=''", "--set", "log.format='json'"]);
    let server = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    server.map_err(|error| Failure(format!("cannot run {QEMU}: {error}")))
}

/// Waits until the server listens, and has it answer. Returns the kernels that it loaded.
fn watch(server: &mut Child) -> Result<String, Failure> {
    let (said, lines) = mpsc::sync_channel(LINES);
    if let (Some(out), Some(log)) = (server.stdout.take(), server.stderr.take()) {
        follow(out, said.clone());
        follow(log, said);
    }
    let (mut last, mut kernels) = (String::new(), None);
    loop {
        let line =
            lines.recv_timeout(PATIENCE).map_err(|_| Failure(format!("it does not listen; it said last: {last}")))?;
        kernels = kernels.or_else(|| value(&line, "\"kernels\":\""));
        if let Some(address) = value(&line, "listening on http://") {
            answers(&address)?;
            return kernels.ok_or_else(|| Failure("the log names no kernels".to_owned()));
        }
        last = line;
    }
}

/// Sends all lines. Reads to the end: a server waits for whoever does not read its log.
fn follow(from: impl Read + Send + 'static, said: mpsc::SyncSender<String>) {
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).for_each(|line| drop(said.send(line)))
    });
}

/// What follows `key` on the line, as far as a quote, a space or the end.
fn value(line: &str, key: &str) -> Option<String> {
    let (_, rest) = line.split_once(key)?;
    rest.split(['"', ' ']).next().map(str::to_owned)
}

/// Asks for a few tokens.
fn answers(address: &str) -> Done {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        ASKED.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(ASKED.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let is_whole = answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":8");
    if is_whole { Ok(()) } else { Err(Failure(format!("it answered: {answer}"))) }
}
