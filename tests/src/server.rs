//! A running server: its listeners, its output, its exit.
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::metrics::Metrics;
use crate::policies::PolicyDir;
use crate::poll::{PATIENCE, eventually};

/// Killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The public listener.
    pub client: Client,
    /// The admin listener.
    pub admin: Client,
    pub policies: PolicyDir,
    log: Arc<Mutex<String>>,
    scratch: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.char_indices().rev().nth(6000).map_or(0, |(at, _)| at);
            eprintln!("--- the end of what the server wrote to standard error ---\n{}", &log[from..]);
        }
    }
}

impl Server {
    /// Waits for the lines that name the server's addresses.
    pub(crate) fn new(mut child: Child, scratch: TempDir, policies: PolicyDir, reads_log: bool) -> Self {
        let lines = lines_of(child.stdout.take().expect("piped"));
        let log = if reads_log { collect(child.stderr.take().expect("piped")) } else { Arc::default() };
        let nowhere = Client::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut server = Self { child, client: nowhere.clone(), admin: nowhere, policies, log, scratch };
        server.client = server.listener(&lines, "listening on ");
        server.admin = server.listener(&lines, "admin on ");
        server
    }

    fn listener(&self, lines: &Receiver<String>, prefix: &str) -> Client {
        let line = lines.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|error| panic!("no line {prefix:?} ({error}); it wrote: {}", self.log()));
        let address = line.strip_prefix(prefix).unwrap_or_else(|| panic!("expected {prefix:?}, got {line:?}"));
        // A test that configures TLS speaks TLS.
        let address = address.trim_start_matches("https://").trim_start_matches("http://");
        let address: SocketAddr = address.parse().unwrap_or_else(|_| panic!("no address: {line:?}"));
        // A server on the wildcard address is reached on loopback.
        Client::new(SocketAddr::from(([127, 0, 0, 1], address.port())))
    }

    /// What was read of standard error so far. Lines are written and read by threads of their own, so that the last ones may
    /// not be here yet: only for what is asked again and again.
    pub fn log(&self) -> String {
        self.log.lock().expect("nobody panics with the log").clone()
    }

    /// Everything that was logged before this call: lines keep their order, so it makes one and waits for it.
    pub fn settled_log(&self) -> String {
        static MARKS: AtomicUsize = AtomicUsize::new(0);
        let mark = format!("/admin/logged-before-{}", MARKS.fetch_add(1, Ordering::Relaxed));
        assert_eq!(self.admin.get(&mark).status, 404);
        self.wait_for_log(&mark);
        self.log()
    }

    /// Waits for a line of the log: it is written beside the answers.
    pub fn wait_for_log(&self, text: &str) {
        eventually("it is logged", || {
            let log = self.log();
            if log.contains(text) { Ok(()) } else { Err(log) }
        });
    }

    /// Holds everything that the process may write.
    pub fn scratch(&self) -> &std::path::Path {
        self.scratch.path()
    }

    /// Replaces the configuration file that the test's setup wrote.
    pub fn write_config(&self, text: &str) {
        let new = self.scratch.path().join("config.toml.new");
        std::fs::write(&new, text).expect("a scratch file can be written");
        std::fs::rename(&new, self.scratch.path().join("config.toml")).expect("a scratch file can be renamed");
    }

    /// Resident memory of the process, including mapped files.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib * 1024
    }

    /// Lets the process open `more` files beside those that it has open now.
    pub fn bound_open_files(&self, more: usize) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs");
        let number = |name: std::ffi::OsString| name.to_str().and_then(|name| name.parse::<u64>().ok());
        let open: BTreeSet<u64> = open.filter_map(|entry| number(entry.ok()?.file_name())).collect();
        // A new file gets the lowest free number, which has to be below the bound.
        let bound = (0..).filter(|number| !open.contains(number)).nth(more);
        let new = Rlimit { current: bound, maximum: bound };
        prlimit(Some(self.pid()), Resource::Nofile, new).expect("limits of the own child can be set");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The processes that it has started, and those that they have, whose names begin so.
    pub fn processes(&self, names: &[&str]) -> Vec<i32> {
        processes_below(self.pid().as_raw_pid(), names)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process is there");
    }

    /// Waits until the server exits: its exit code, or `None` if a signal ended it.
    pub fn wait(&mut self) -> Option<i32> {
        eventually("the server ends", || self.child.try_wait().expect("a child can be waited for").ok_or("it runs"))
            .code()
    }

    /// # Panics
    /// If the process has ended.
    pub fn assert_runs(&mut self) {
        let ended = self.child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none(), "the server ended: {ended:?}; it wrote: {}", self.log());
    }

    /// A scrape of the admin listener, which needs no credentials.
    pub fn metrics(&self) -> Metrics {
        let response = self.admin.get("/metrics");
        assert_eq!(response.status, 200, "{}", response.text());
        Metrics::new(response.text().to_owned())
    }

    /// Waits until no request runs or waits and no KV is held.
    pub fn wait_until_idle(&self) {
        eventually("the server is idle", || {
            let metrics = self.metrics();
            let gauges = [
                metrics.get("camshaft_requests_running", &[]),
                metrics.get("camshaft_requests_waiting", &[]),
                metrics.get("camshaft_kv_tokens", &[("state", "held")]),
            ];
            if gauges.iter().all(|gauge| *gauge == Some(0.0)) { Ok(()) } else { Err(gauges) }
        });
    }

    /// `/admin/policies`.
    pub fn policy_page(&self) -> Value {
        let response = self.admin.get("/admin/policies");
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// A file's entry in `/admin/policies`.
    pub fn policy(&self, hook: &str, name: &str) -> Option<Value> {
        let page = self.policy_page();
        let entries = page["policies"].as_array().expect("the page lists policies");
        entries.iter().find(|entry| entry["hook"] == hook && entry["name"] == name).cloned()
    }

    /// Waits until a policy's entry satisfies the condition, and returns it.
    pub fn wait_for_policy(&self, (hook, name): (&str, &str), wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("the policy {hook}/{name} is as wanted"), || {
            let entry = self.policy(hook, name).unwrap_or(Value::Null);
            if wanted(&entry) { Ok(entry) } else { Err(entry) }
        })
    }

    /// Waits until a component is active.
    pub fn wait_until_active(&self, hook: &str, name: &str, component: &[u8]) -> Value {
        let digest = crate::sha256_hex(component);
        self.wait_for_policy((hook, name), |entry| {
            entry["state"] == "active" && entry["serving"] == digest.as_str() && entry["error"].is_null()
        })
    }

    /// The answer to a greedy chat with one message.
    pub fn answer(&self, question: &str) -> String {
        let body = json!({"model": "demo", "temperature": 0, "max_tokens": 250, "messages": [{"role": "user", "content": question}]});
        let answer = self.client.ask("/v1/chat/completions", &body);
        answer["choices"][0]["message"]["content"].as_str().expect("an answer has content").to_owned()
    }
}

/// Lines of standard output. The thread ends with the process.
fn lines_of(out: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = sync_channel(16);
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Collects standard error. The thread ends with the process.
fn collect(mut err: ChildStderr) -> Arc<Mutex<String>> {
    let log = Arc::new(Mutex::new(String::new()));
    let shared = log.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = err.read(&mut bytes) {
            shared.lock().expect("nobody panics with the log").push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    log
}

fn processes_below(pid: i32, names: &[&str]) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let below = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let below: Vec<i32> = below.flat_map(|list| pids(&list)).filter(|pid| is_called(*pid, names)).collect();
    below.into_iter().flat_map(|child| std::iter::once(child).chain(processes_below(child, names))).collect()
}

fn pids(list: &str) -> Vec<i32> {
    list.split(' ').filter_map(|pid| pid.parse().ok()).collect()
}

fn is_called(pid: i32, names: &[&str]) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    names.iter().any(|begin| name.starts_with(begin))
}
