//! The cache of models, and where sources without an address lead.
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::ByteSize;

/// The cache of models that are pulled, and where they come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Models {
    /// Directory of the cache. Unset: camshaft/models below XDG_CACHE_HOME or ~/.cache.
    #[schemars(extend("format" = "path"))]
    pub cache_dir: Option<PathBuf>,
    /// What the cache holds at most, once a pull is done: models that were not used for longest go, never one in use. 0: all
    /// that the disk has room for.
    pub cache_size: ByteSize,
    /// Base address of "hf:" sources. Unset: HF_ENDPOINT, or "https://huggingface.co".
    pub hf_endpoint: Option<String>,
    /// Base address of "ollama:" sources.
    pub ollama_registry: String,
    /// Ask other machines over http, which nothing protects but the digest.
    pub allow_http: bool,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            cache_dir: None,
            cache_size: ByteSize::gib(256),
            hf_endpoint: None,
            ollama_registry: "https://registry.ollama.ai".to_owned(),
            allow_http: false,
        }
    }
}

impl Models {
    /// `None`: where the environment says.
    pub fn dir(&self) -> Option<PathBuf> {
        self.cache_dir.clone().filter(|dir| !dir.as_os_str().is_empty())
    }
}
