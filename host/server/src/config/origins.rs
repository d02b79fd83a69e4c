//! Who wrote each value, for errors that are found after the configuration was read.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::tree::{Node, Source};

/// The sources of the keys below one section. Keys that nobody wrote are not in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Origins {
    /// `model.0.`, or nothing for the whole configuration.
    section: String,
    written: Arc<BTreeMap<String, Source>>,
}

impl Origins {
    pub(super) fn of(tree: &Node) -> Self {
        let mut written = BTreeMap::new();
        tree.leaves(&mut |key, _, source| {
            if *source != Source::Default {
                written.insert(key.to_owned(), source.clone());
            }
        });
        Self { section: String::new(), written: Arc::new(written) }
    }

    /// Those of the keys below `section`.
    pub(super) fn below(&self, section: &str) -> Self {
        Self { section: format!("{}{section}.", self.section), written: self.written.clone() }
    }

    /// Where a key of this section was written, and its name in the whole configuration. What an order wrote has no name there, and
    /// came from nowhere else.
    pub(crate) fn at(&self, key: &str) -> Origin {
        if self.written.values().any(|source| *source == Source::Order) {
            return Origin { key: key.to_owned(), source: None };
        }
        let key = format!("{}{key}", self.section);
        let source = self.written.get(&key).cloned();
        Origin { key, source }
    }
}

/// A key, and who wrote its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub(crate) key: String,
    /// `None`: the default holds.
    source: Option<Source>,
}

/// ` (file camshaft.toml:3)`, as errors end that are found while the configuration is read; nothing for a default.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}
