//! A temporary policy directory.
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// `policy.d`, and a staging folder on the same file system.
#[derive(Debug, Clone)]
pub struct PolicyDir {
    root: PathBuf,
    staging: PathBuf,
}

impl PolicyDir {
    /// Creates the directory with a folder for every hook.
    pub(crate) fn new(scratch: &Path) -> Self {
        let (root, staging) = (scratch.join("policy.d"), scratch.join("staging"));
        for hook in ["auth", "validator", "scheduler", "sampler", "filter"] {
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

    /// Puts a file in place atomically, by a rename.
    pub fn put(&self, hook: &str, file: &str, content: impl AsRef<[u8]>) {
        let part = self.staging.join(file);
        std::fs::write(&part, content).expect("a scratch file can be written");
        std::fs::rename(&part, self.path(hook, file)).expect("a scratch file can be renamed");
    }

    /// Overwrites a file in place, like an editor that uses no temporary file.
    pub fn edit(&self, hook: &str, file: &str, content: &str) {
        std::fs::write(self.path(hook, file), content).expect("a scratch file can be written");
    }

    pub fn remove(&self, hook: &str, file: &str) {
        std::fs::remove_file(self.path(hook, file)).expect("the file was there");
    }

    /// Installs a component; its settings are written first.
    pub fn install(&self, hook: &str, name: &str, component: &[u8], settings: &str) {
        if !settings.is_empty() {
            self.put(hook, &format!("{name}.toml"), settings);
        }
        self.put(hook, &format!("{name}.wasm"), component);
    }
}

/// Settings of `auth-api-keys` for these keys, each with extra TOML lines (`allowed-models = […]`).
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
