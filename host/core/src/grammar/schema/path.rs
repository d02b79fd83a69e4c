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

/// Decodes `%20` and the like. What is no such code stays.
pub(super) fn decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = fragment.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
