//! A server for suites of clients: the standard policies, three keys, the demo model, and a model that embeds where there is one.
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::build;
use crate::command::{Failure, copy_if_changed, root, target};
use crate::registries::place;

/// May do everything; may use another model only; may make one request a minute: of `tests/clients/keys.toml`.
pub(crate) const KEYS: [&str; 3] = ["sk-good", "sk-other", "sk-limited"];

/// Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    /// `http://…` of the public listener.
    pub(crate) url: String,
    /// The same of the admin listener.
    pub(crate) admin: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    /// Starts the server on free ports, and waits until it has loaded. Its log goes to a file in the target directory.
    /// `models`: entries of the configuration. `timeout`: from arrival to the first token.
    pub(crate) fn start(binary: &Path, models: &[String], timeout: &str) -> Result<Self, Failure> {
        let policies = place("policy.d");
        build::lay_out(&policies)?;
        copy_if_changed(&root().join("tests/clients/keys.toml"), &policies.join("auth/10-api-keys.toml"))?;
        let log = std::fs::File::create(log())?;
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CAMSHAFT_")) {
            command.env_remove(name);
        }
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--policy-dir"])
            .arg(policies);
        command.arg("--set").arg(format!("model=[{}]", models.join(", ")));
        command.arg("--set").arg(format!("queue.timeout={timeout:?}"));
        command.env("XDG_CACHE_HOME", target().join("e2e/cache"));
        command.current_dir(place("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| Failure(format!("{}: {error}", binary.display())))?;
        let out = child.stdout.take();
        let mut served = Self { child, url: String::new(), admin: String::new() };
        let mut lines = out.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok));
        let mut address = |prefix: &str| {
            let line = lines.next().unwrap_or_default();
            let address = line.strip_prefix(prefix).map(str::to_owned);
            address.ok_or_else(|| Failure(format!("the server did not start ({line:?}): see {}", log_shown())))
        };
        served.url = address("listening on ")?;
        served.admin = address("admin on ")?;
        Ok(served)
    }
}

/// The models' entries in the configuration.
pub(crate) fn models() -> Vec<String> {
    let mut models = vec![r#"{id = "demo", path = "demo"}"#.to_owned()];
    if let Some(folder) = std::env::var_os("CAMSHAFT_MODELS") {
        let file = PathBuf::from(folder).join("all-MiniLM-L6-v2-q8_0.gguf");
        models.push(format!("{{id = \"embedder\", path = {:?}}}", file.to_string_lossy()));
    }
    models
}

/// The entry of the demo model with a context of the length that agents need. What it says there means nothing.
pub(crate) fn long_model() -> Result<String, Failure> {
    const KEY: &[u8] = b"llama.context_length";
    const TOKENS: u32 = 1 << 18;
    let mut file = std::fs::read(root().join("config/models/demo.gguf"))?;
    let key = file.windows(KEY.len()).position(|part| part == KEY);
    // Behind the key are the type of its value and the value, of 4 bytes each.
    let at =
        key.ok_or_else(|| Failure("the demo model does not say how long its context is".to_owned()))? + KEY.len() + 4;
    file[at..at + 4].copy_from_slice(&TOKENS.to_le_bytes());
    let path = place("long.gguf");
    std::fs::write(&path, file)?;
    let path = path.display();
    Ok(format!(
        "{{id = \"agent\", path = \"{path}\", context-tokens = {TOKENS}, sequences = 1, aliases = [\"claude-*\", \"gpt-*\"]}}"
    ))
}

fn log() -> PathBuf {
    place("server.log")
}

pub(crate) fn log_shown() -> String {
    log().display().to_string()
}
