//! A policy directory of a test's own.
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// `policy.d`, and a folder beside it on the same file system to prepare files in.
#[derive(Debug, Clone)]
pub struct PolicyDir {
    root: PathBuf,
    staging: PathBuf,
}

impl PolicyDir {
    /// Makes the directory with a folder for every hook.
    pub(crate) fn new(scratch: &Path) -> Self {
        let (root, staging) = (scratch.join("policy.d"), scratch.join("staging"));
        for hook in ["auth", "validator", "scheduler", "sampler"] {
            std::fs::create_dir_all(root.join(hook)).expect("a scratch folder can be made");
        }
        std::fs::create_dir_all(&staging).expect("a scratch folder can be made");
        Self { root, staging }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, hook: &str, file: &str) -> PathBuf {
        self.root.join(hook).join(file)
    }

    /// Puts a file in place whole, by a rename.
    pub fn put(&self, hook: &str, file: &str, content: impl AsRef<[u8]>) {
        let part = self.staging.join(file);
        std::fs::write(&part, content).expect("a scratch file can be written");
        std::fs::rename(&part, self.path(hook, file)).expect("a scratch file can be renamed");
    }

    /// Writes over a file where it lies, as an editor without a temporary file does.
    pub fn edit(&self, hook: &str, file: &str, content: &str) {
        std::fs::write(self.path(hook, file), content).expect("a scratch file can be written");
    }

    pub fn remove(&self, hook: &str, file: &str) {
        std::fs::remove_file(self.path(hook, file)).expect("the file was there");
    }

    /// A component with its settings, which are there first.
    pub fn install(&self, hook: &str, name: &str, component: &[u8], settings: &str) {
        if !settings.is_empty() {
            self.put(hook, &format!("{name}.toml"), settings);
        }
        self.put(hook, &format!("{name}.wasm"), component);
    }
}

/// The settings of `auth-api-keys` for keys, each with TOML lines of its own (`allowed-models = […]`).
pub fn api_keys(keys: &[(&str, &str)]) -> String {
    let mut text = String::from("[settings]\n");
    for (index, (key, more)) in keys.iter().enumerate() {
        let sha256 = sha256_hex(key.as_bytes());
        text.push_str(&format!(
            "[[settings.keys]]\nname = \"key-{index}\"\nsha256 = \"{sha256}\"\ntenant = \"tenant-{index}\"\n{more}\n"
        ));
    }
    text
}

pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
