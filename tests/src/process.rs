//! Starts the binary with arguments, files and an environment that come only from the test.
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::paths;
use crate::policies::PolicyDir;
use crate::poll::{PATIENCE, eventually};
use crate::server::Server;

/// A builder for the command line and its files.
#[derive(Debug)]
pub struct Setup {
    /// Holds everything that the process may write.
    pub scratch: TempDir,
    pub policies: PolicyDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: PathBuf,
    configures_models: bool,
    reads_log: bool,
    open_files: Option<u64>,
    /// A program, with its arguments, that starts the binary.
    starter: Vec<String>,
}

/// The output of a process that exited by itself.
#[derive(Debug)]
pub struct Finished {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// `camshaft` in an empty directory, without arguments. Tests share a cache of compiled components.
    pub fn new() -> Self {
        let scratch = tempfile::Builder::new().prefix("camshaft-e2e-").tempdir().expect("a scratch folder can be made");
        let policies = PolicyDir::new(scratch.path());
        let directory = scratch.path().join("empty");
        std::fs::create_dir(&directory).expect("a scratch folder can be made");
        let cache = paths::target().join("e2e/cache").to_string_lossy().into_owned();
        let environment = vec![("XDG_CACHE_HOME".to_owned(), cache)];
        Self {
            scratch,
            policies,
            arguments: Vec::new(),
            environment,
            directory,
            configures_models: false,
            reads_log: true,
            open_files: None,
            starter: Vec::new(),
        }
    }

    pub fn args<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let before = self.arguments.len();
        self.arguments.extend(arguments.into_iter().map(str::to_owned));
        self.configures_models |= self.arguments[before..].iter().any(|argument| argument == "--model");
        self
    }

    /// `--set KEY=VALUE`.
    pub fn set(self, key: &str, value: &str) -> Self {
        let pair = format!("{key}={value}");
        self.args(["--set", &pair])
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How many files the process may have open.
    pub fn open_files(mut self, count: u64) -> Self {
        self.open_files = Some(count);
        self
    }

    /// Has the binary started by a program, which is given its path and arguments after its own.
    pub fn started_by(mut self, program: &[&str]) -> Self {
        self.starter = program.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Writes a configuration file and names it on the command line.
    pub fn config(mut self, text: &str) -> Self {
        self.configures_models |= text.contains("[[model]]");
        let path = self.scratch.path().join("config.toml");
        std::fs::write(&path, text).expect("a scratch file can be written");
        let path = path.to_string_lossy().into_owned();
        self.args(["--config", &path])
    }

    /// Installs a standard plugin before the start.
    pub fn plugin(self, hook: &str, name: &str, package: &str, settings: &str) -> Self {
        self.policies.install(hook, name, &paths::plugin(package), settings);
        self
    }

    /// Installs a bad guest before the start.
    pub fn guest(self, hook: &str, name: &str, settings: &str) -> Self {
        self.component(hook, name, &paths::guest(&format!("misbehave-{hook}")), settings)
    }

    /// Installs any component before the start.
    pub fn component(self, hook: &str, name: &str, component: &[u8], settings: &str) -> Self {
        self.policies.install(hook, name, component, settings);
        self
    }

    /// Starts a server on free loopback ports with this test's policies, and waits until it listens.
    ///
    /// Unless the test configures models, the bundled model computes on one thread: tests run in parallel, and
    /// llama.cpp's threads spin while they wait for each other.
    pub fn start(mut self) -> Server {
        if !self.configures_models {
            self = self.set("model", "[{threads = 1}]");
        }
        let dir = self.policies.root().to_string_lossy().into_owned();
        let flags = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--policy-dir", &dir];
        self.args(flags).start_as_is("serve")
    }

    /// As [`Setup::start`], but what the server writes to standard error is never read.
    pub fn start_unread(mut self) -> Server {
        self.reads_log = false;
        self.start()
    }

    /// Starts a server with only the given arguments and environment.
    pub fn start_as_is(self, command: &str) -> Server {
        let child = self.command(&[command]).spawn().expect("the binary can be run");
        Server::new(child, self.scratch, self.policies, self.reads_log)
    }

    /// Runs a command that exits by itself.
    pub fn run(self, command: &[&str]) -> Finished {
        self.run_again(command)
    }

    /// Like [`Setup::run`], but keeps the scratch folder for another command.
    pub fn run_again(&self, command: &[&str]) -> Finished {
        let mut child = self.command(command).spawn().expect("the binary can be run");
        let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| out.read_to_end(&mut stdout));
            scope.spawn(|| err.read_to_end(&mut stderr));
            let begun = Instant::now();
            let ended = eventually("the command ends", || {
                if begun.elapsed() > PATIENCE / 2 {
                    let _ = child.kill();
                }
                child.try_wait().expect("a child can be waited for").ok_or("it runs")
            });
            assert!(begun.elapsed() < PATIENCE / 2, "`camshaft {}` did not end by itself: {ended}", command.join(" "));
        });
        let code = child.wait().expect("a child can be waited for").code();
        let text = |bytes| String::from_utf8(bytes).expect("the binary writes UTF-8");
        Finished { code, stdout: text(stdout), stderr: text(stderr) }
    }

    /// The first line that a command writes; the command is killed then.
    pub fn first_line(&self, command: &[&str]) -> String {
        let mut child = self.command(command).spawn().expect("the binary can be run");
        let out = child.stdout.take().expect("piped");
        let mut line = String::new();
        let read = BufReader::new(out).read_line(&mut line);
        let _ = child.kill();
        let _ = child.wait();
        read.expect("the binary writes UTF-8");
        line
    }

    fn command(&self, first: &[&str]) -> Command {
        let mut command = match (self.open_files, self.starter.split_first()) {
            (None, None) => Command::new(paths::binary()),
            (None, Some((program, arguments))) => {
                let mut starter = Command::new(program);
                starter.args(arguments).arg(paths::binary());
                starter
            }
            (Some(count), _) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("ulimit -n {count}; exec \"$0\" \"$@\"")]).arg(paths::binary());
                shell
            }
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CAMSHAFT_")) {
            command.env_remove(name);
        }
        if first.first() == Some(&"serve") {
            // Flags beat these. Without them a test would take the ports of a server that runs beside it.
            command.envs([("CAMSHAFT_LISTEN", "127.0.0.1:0"), ("CAMSHAFT_ADMIN__LISTEN", "127.0.0.1:0")]);
        }
        if matches!(first.first(), Some(&("serve" | "check"))) {
            // Most tests are not about policies.
            command.env("CAMSHAFT_POLICY__ALLOW_EMPTY", "true");
        }
        command.args(first).args(&self.arguments).envs(self.environment.clone()).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}
