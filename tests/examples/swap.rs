//! Time from dropping a policy file to the generation that serves it, and the effect on running streams.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const REPEATS: usize = 15;
const STREAMS: usize = 8;
const UNDISTURBED: Duration = Duration::from_secs(8);

struct Server {
    child: Child,
    public: String,
    admin: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() -> Result<()> {
    let plugins = PathBuf::from(std::env::var("CAMSHAFT_TARGET")?).join("plugins");
    let dir = tempfile::tempdir()?;
    let cache = tempfile::tempdir()?;
    let samplers = dir.path().join("sampler");
    std::fs::create_dir(&samplers)?;
    // The last file of a directory is not removed by deleting it, so there is one more, which is off.
    let validators = dir.path().join("validator");
    std::fs::create_dir(&validators)?;
    std::fs::copy(plugins.join("validator-limits.wasm"), validators.join("10-limits.wasm"))?;
    std::fs::write(validators.join("10-limits.toml"), "[policy]\nmode = \"off\"\n")?;
    let server = start(dir.path(), cache.path())?;
    let stop = AtomicBool::new(false);
    let gaps = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..STREAMS).map(|_| scope.spawn(|| stream(&server.public, &stop, &gaps))).collect();
        std::thread::sleep(UNDISTURBED);
        let before = percentiles(&gaps);
        let measured = measure(&server, &samplers, &plugins);
        let during = percentiles(&gaps);
        stop.store(true, Ordering::Relaxed);
        let (mut finished, mut failed) = (0, 0);
        for stream in streams {
            let (a, b) = stream.join().map_err(|_| "a client panicked")??;
            (finished, failed) = (finished + a, failed + b);
        }
        println!("\n{STREAMS} streams all the while: {finished} finished, {failed} failed");
        println!("gaps between frames, ms: undisturbed {before}; while policies swap {during}");
        measured
    })
}

/// Takes the gaps recorded so far and summarises them.
fn percentiles(gaps: &Mutex<Vec<Duration>>) -> String {
    let mut gaps = std::mem::take(&mut *gaps.lock().unwrap_or_else(PoisonError::into_inner));
    gaps.sort_unstable();
    let at = |share: f64| gaps.get((gaps.len() as f64 * share) as usize).map_or(0.0, |gap| gap.as_secs_f64() * 1e3);
    let longest = gaps.last().map_or(0.0, |gap| gap.as_secs_f64() * 1e3);
    format!("median {:.1}, p99 {:.1}, p99.9 {:.1}, longest {longest:.1}", at(0.5), at(0.99), at(0.999))
}

fn measure(server: &Server, samplers: &Path, plugins: &Path) -> Result<()> {
    println!("| change, by atomic rename | median, ms | longest, ms |\n|---|---|---|");
    let component = std::fs::read(plugins.join("sampler-avoid-words.wasm"))?;
    let sidecar = |word: &str| format!("[settings]\nwords = [\"{word}\"]\n");
    place(samplers, "20-avoid-words.toml", sidecar("xyz").as_bytes())?;
    let mut first = Vec::new();
    let mut again = Vec::new();
    let mut settings = Vec::new();
    let mut removed = Vec::new();
    for i in 0..REPEATS {
        // An extra custom section makes it a different file, which must be compiled.
        let mut changed = component.clone();
        changed.extend([0, 3, 1, b'n', i as u8]);
        let appears = || place(samplers, "20-avoid-words.wasm", &changed);
        first.push(timed(server, true, appears)?);
        removed.push(timed(server, false, || Ok(std::fs::remove_file(samplers.join("20-avoid-words.wasm"))?))?);
        again.push(timed(server, true, appears)?);
        let word = sidecar(&format!("w{i}"));
        settings.push(timed(server, true, || place(samplers, "20-avoid-words.toml", word.as_bytes()))?);
    }
    for (name, mut times) in
        [("new component", first), ("known component", again), ("settings", settings), ("removal", removed)]
    {
        times.sort();
        println!("| {name} | {} | {} |", times[times.len() / 2].as_millis(), times[times.len() - 1].as_millis());
    }
    Ok(())
}

fn place(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let part = dir.join(".part");
    std::fs::write(&part, content)?;
    Ok(std::fs::rename(part, dir.join(name))?)
}

/// Time from `act` until the admin page shows a later generation with (or without) the policy.
fn timed(server: &Server, present: bool, act: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let (before, _) = policies(server)?;
    let begun = Instant::now();
    act()?;
    loop {
        let (generation, found) = policies(server)?;
        if generation > before && found == present {
            return Ok(begun.elapsed());
        }
        if begun.elapsed() > Duration::from_secs(30) {
            return Err("no swap within 30 s".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The current generation, and whether it has an active policy.
fn policies(server: &Server) -> Result<(u64, bool)> {
    let mut stream = TcpStream::connect(&server.admin)?;
    write!(stream, "GET /admin/policies HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let page: serde_json::Value = serde_json::from_str(text.split_once("\r\n\r\n").ok_or("no response")?.1)?;
    let generation = page["generation"].as_u64().ok_or("no generation")?;
    let active = |policy: &serde_json::Value| policy["state"] == "active";
    Ok((generation, page["policies"].as_array().is_some_and(|list| list.iter().any(active))))
}

fn start(policies: &Path, cache: &Path) -> Result<Server> {
    let mut command = Command::new(std::env::var("CAMSHAFT_BIN")?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--set", "log.level=error"]);
    command.arg("--policy-dir").arg(policies).env("XDG_CACHE_HOME", cache).stdout(Stdio::piped());
    // The server would reject these as unknown settings.
    command.env_remove("CAMSHAFT_BIN").env_remove("CAMSHAFT_TARGET");
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
    let mut address = |prefix: &str| -> Result<String> {
        let line = lines.next().ok_or("the server said nothing")??;
        Ok(line.strip_prefix(prefix).ok_or(format!("said {line:?}"))?.to_owned())
    };
    let public = address("listening on http://")?;
    let admin = address("admin on http://")?;
    Ok(Server { child, public, admin })
}

/// Streams one request after another and records the gaps between frames. Returns how many finished and failed.
fn stream(address: &str, stop: &AtomicBool, gaps: &Mutex<Vec<Duration>>) -> Result<(u32, u32)> {
    let body = r#"{"prompt":"Tell me a story.","max_tokens":400,"ignore_eos":true,"stream":true}"#;
    let (mut finished, mut failed) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(address)?;
        let length = body.len();
        write!(
            stream,
            "POST /v1/completions HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        let mut done = false;
        let mut last: Option<Instant> = None;
        let mut seen = Vec::new();
        for line in BufReader::new(stream).lines() {
            let line = line?;
            if line.starts_with("data: ") {
                seen.extend(last.map(|last: Instant| last.elapsed()));
                last = Some(Instant::now());
                done = line == "data: [DONE]";
            }
        }
        gaps.lock().unwrap_or_else(PoisonError::into_inner).extend(seen);
        if done { finished += 1 } else { failed += 1 }
    }
    Ok((finished, failed))
}
