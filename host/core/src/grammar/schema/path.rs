//! A place in a schema, as errors name it.
use crate::shown::on_one_line;

/// Maximum characters of one name in a path.
const NAME_CHARS: usize = 64;

/// Names and numbers from the root to a value.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    text: String,
    /// Schemas around it, along references too.
    depth: usize,
}

impl Path {
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// The schema at this place.
    #[must_use]
    pub(super) fn inner(&self) -> Self {
        Self { text: self.text.clone(), depth: self.depth + 1 }
    }

    /// The root, met as deep as this place.
    #[must_use]
    pub(super) fn root(&self) -> Self {
        Self { text: String::new(), depth: self.depth }
    }

    #[must_use]
    pub(super) fn name(&self, name: &str) -> Self {
        let mut cut: String = name.chars().take(NAME_CHARS).collect();
        if cut.len() < name.len() {
            cut.push_str("...");
        }
        let dot = if self.text.is_empty() { "" } else { "." };
        Self { text: format!("{}{dot}{}", self.text, on_one_line(&cut)), depth: self.depth }
    }

    #[must_use]
    pub(super) fn index(&self, index: usize) -> Self {
        Self { text: format!("{}[{index}]", self.text), depth: self.depth }
    }
}
