//! Components that are made to take the compiler's time or memory: they are compiled in processes with bounds.
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use camshaft_tests::{Request, Server, Setup, binary, eventually, plugin};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Unsigned LEB128.
fn number(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn section(id: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(id);
    number(content.len(), out);
    out.extend_from_slice(content);
}

/// A valid component that holds one function of this many multiplications, and as many additions. By its exports' names it is a
/// sampler, so that it is compiled.
pub(crate) fn bomb(operations: usize) -> Vec<u8> {
    let mut body = vec![0, 0x20, 0];
    for _ in 0..operations {
        // local.get 0, i32.mul, local.get 0, i32.add
        body.extend_from_slice(&[0x20, 0, 0x6c, 0x20, 0, 0x6a]);
    }
    body.push(0x0b);
    let mut code = vec![1];
    number(body.len(), &mut code);
    code.extend_from_slice(&body);
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    section(1, &[1, 0x60, 1, 0x7f, 1, 0x7f], &mut module);
    section(3, &[1, 0], &mut module);
    section(10, &code, &mut module);
    let mut component = b"\0asm\x0d\0\x01\0".to_vec();
    section(1, &module, &mut component);
    // An instance without exports.
    section(5, &[1, 1, 0], &mut component);
    let mut exports = vec![2];
    for name in ["camshaft:host/plugin@1.0.0", "camshaft:sampler/policy@0.2.0"] {
        exports.extend([0, name.len() as u8]);
        exports.extend_from_slice(name.as_bytes());
        exports.extend([5, 0, 0]);
    }
    section(11, &exports, &mut component);
    component
}

/// Runs the hidden command over a component that is to be a sampler.
fn compile(dir: &Path, component: &[u8], memory_bytes: u64, cpu_seconds: u64) -> (ExitStatus, String) {
    fs::write(dir.join("component"), component).unwrap();
    let mut command = Command::new(binary());
    command.arg("compile-policy").arg(dir.join("cache")).args(["sampler", "plenty"]);
    command.args([memory_bytes.to_string(), cpu_seconds.to_string()]);
    // As the server does: what is reserved and not used would count.
    command.env("MIMALLOC_ARENA_RESERVE", "32M");
    command.stdin(File::open(dir.join("component")).unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().unwrap();
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn regression_a_compile_past_a_bound_ends_its_own_process() {
    const GIB: u64 = 1 << 30;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("cache")).unwrap();
    let good = compile(dir.path(), &plugin("sampler-standard"), 2 * GIB, 120);
    assert_eq!(good.0.code(), Some(0), "{good:?}");
    let bad = compile(dir.path(), b"\0asm\x0d\0\x01\0nonsense", 2 * GIB, 120);
    assert!(bad.0.code() == Some(65) && !bad.1.is_empty(), "{bad:?}");
    // The server does not load the code of what it would refuse.
    let other = compile(dir.path(), &plugin("scheduler-fcfs"), 2 * GIB, 120);
    assert_eq!((other.0.code(), other.1.as_str()), (Some(67), "scheduler"));
    let none = compile(dir.path(), b"\0asm\x0d\0\x01\0", 2 * GIB, 120);
    assert!(none.0.code() == Some(68) && none.1.contains("exports no hook"), "{none:?}");
    // What is wrong with the directory is no fault of the component.
    fs::remove_dir_all(dir.path().join("cache")).unwrap();
    fs::write(dir.path().join("cache"), "").unwrap();
    let elsewhere = compile(dir.path(), &plugin("sampler-standard"), 2 * GIB, 120);
    assert!(elsewhere.0.code() == Some(73) && elsewhere.1.contains("cannot be used"), "{elsewhere:?}");
    fs::remove_file(dir.path().join("cache")).unwrap();
    let bomb = bomb(1_000_000);
    let late = compile(dir.path(), &bomb, 8 * GIB, 1);
    assert_eq!(late.0.signal(), Some(Signal::XCPU.as_raw()), "{late:?}");
    let large = compile(dir.path(), &bomb, GIB / 4, 120);
    assert_eq!(large.0.signal(), Some(Signal::ABORT.as_raw()), "{large:?}");
}

/// The process that compiles for this server.
fn compiling(server: &Server) -> Option<Pid> {
    let parent = format!("PPid:\t{}", server.pid().as_raw_nonzero());
    compilers(|status, _| status.lines().any(|line| line == parent))
}

/// The process that compiles into this cache.
pub(crate) fn compiling_into(cache: &Path) -> Option<Pid> {
    let cache = cache.to_string_lossy();
    compilers(|_, command| command.contains(&*cache))
}

/// A process that compiles, by its status and its command line.
fn compilers(wanted: impl Fn(&str, &str) -> bool) -> Option<Pid> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        command.contains("compile-policy") && wanted(&status, &command)
    };
    pids.into_iter().find(is_it).and_then(Pid::from_raw)
}

#[test]
fn regression_a_compile_that_hangs_holds_up_neither_requests_nor_the_end() {
    let good = plugin("sampler-standard");
    let mut server = Setup::new().plugin("sampler", "10-standard", "sampler-standard", "").start();
    server.policies.put("sampler", "20-bomb.wasm", bomb(1_000_000));
    let child = eventually("it is being compiled", || compiling(&server).ok_or(()));
    let first_to_go = format!("/proc/{}/oom_score_adj", child.as_raw_nonzero());
    eventually("where memory is short, the system ends it before the server", || {
        let adjusted = fs::read_to_string(&first_to_go).unwrap_or_default();
        if adjusted.trim() == "1000" { Ok(()) } else { Err(adjusted) }
    });
    // From here on it never ends by itself.
    kill_process(child, Signal::STOP).unwrap();
    let reload = server.admin.begin(&Request::post("/admin/reload", &json!({})));
    let hello = json!({"model": "demo", "prompt": "a", "max_tokens": 1});
    assert_eq!(server.client.post("/v1/completions", &hello).status, 200);
    server.wait_until_active("sampler", "standard", &good);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    eventually("the process ended with its server", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.as_raw_nonzero())).unwrap_or_default();
        if status.is_empty() || status.contains("State:\tZ") { Ok(()) } else { Err(status) }
    });
    drop(reload);
}

#[test]
fn regression_a_cache_directory_that_cannot_be_made_is_said_and_stops_nothing() {
    let setup = Setup::new();
    let [file, temporary] = ["file", "tmp"].map(|name| setup.scratch.path().join(name));
    std::fs::write(&file, "").unwrap();
    std::fs::create_dir(&temporary).unwrap();
    let path = |path: &Path| path.to_string_lossy().into_owned();
    // Nobody makes a directory below a file, not even root.
    let setup = setup.env("XDG_CACHE_HOME", &path(&file.join("cache"))).env("TMPDIR", &path(&temporary));
    let server = setup.plugin("sampler", "10-standard", "sampler-standard", "").start();
    server.wait_for_policy(("sampler", "standard"), |entry| entry["state"] == "active");
    assert!(!server.answer("Hello!").is_empty());
    let log = server.settled_log();
    let line = log.lines().find(|line| line.contains("not kept where they should be")).expect("it is said");
    let instead = std::fs::read_dir(&temporary).unwrap().next().expect("it is kept elsewhere").unwrap().path();
    assert!(line.contains(&path(&file)) && line.contains(&path(&instead)), "{line}");
}

#[test]
fn regression_without_a_home_components_are_compiled_apart_all_the_same() {
    let setup = Setup::new();
    let temporary = setup.scratch.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let setup = setup.env("XDG_CACHE_HOME", "").env("HOME", "").env("TMPDIR", &temporary.to_string_lossy());
    let server = setup.start();
    server.policies.put("sampler", "20-bomb.wasm", bomb(1_000_000));
    let child = eventually("another process compiles it", || compiling(&server).ok_or(()));
    kill_process(child, Signal::KILL).unwrap();
    server.wait_for_policy(("sampler", "bomb"), |entry| entry["error"].to_string().contains("killed by signal 9"));
    assert!(std::fs::read_dir(&temporary).unwrap().next().is_some(), "it has a directory for compiled code");
}

#[test]
fn regression_compiled_code_that_the_disk_changed_is_compiled_again() {
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let setup = Setup::new().env("XDG_CACHE_HOME", &cache.path().to_string_lossy());
        setup.plugin("sampler", "10-standard", "sampler-standard", "").start()
    };
    let files = || fs::read_dir(cache.path().join("camshaft")).unwrap().map(|entry| entry.unwrap().path());
    drop(start());
    let good: Vec<_> = files().map(|path| (fs::read(&path).unwrap(), path)).collect();
    for (code, path) in &good {
        let mut bad = code.clone();
        // In the middle lies machine code.
        bad.iter_mut().skip(code.len() / 2).step_by(97).for_each(|byte| *byte ^= 1);
        fs::write(path, bad).unwrap();
    }
    let server = start();
    assert!(!server.answer("Hello!").is_empty());
    assert_eq!(server.settled_log().matches("compiled code is damaged: it is compiled again").count(), good.len());
    drop(server);
    assert!(good.iter().all(|(code, path)| fs::read(path).unwrap() == *code), "what was made again is kept");
    assert!(!start().settled_log().contains("damaged"));
}
