//! What a client asks a text to look like, as data.
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::GrammarError;
use crate::ids::GrammarDigest;
use crate::limits;

/// What a generated text must match as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrammarSpec {
    /// JSON that a JSON Schema (draft 2020-12) accepts. `schema` is JSON.
    JsonSchema { schema: String },
    /// Any JSON object.
    JsonObject,
    /// `llguidance`'s variant of Lark.
    Lark { text: String },
    /// llama.cpp's grammars.
    Gbnf { text: String },
    /// A regular expression in the syntax of Rust's `regex`, without look-around.
    Regex { pattern: String },
    /// One of these texts.
    Choice { texts: Vec<String> },
}

impl GrammarSpec {
    /// Its kind, and what the client wrote.
    fn texts(&self) -> (&'static str, &[String]) {
        match self {
            Self::JsonSchema { schema } => ("json-schema", std::slice::from_ref(schema)),
            Self::JsonObject => ("json-object", &[]),
            Self::Lark { text } => ("lark", std::slice::from_ref(text)),
            Self::Gbnf { text } => ("gbnf", std::slice::from_ref(text)),
            Self::Regex { pattern } => ("regex", std::slice::from_ref(pattern)),
            Self::Choice { texts } => ("choice", texts),
        }
    }

    /// Bytes of its texts.
    pub fn text_bytes(&self) -> usize {
        self.texts().1.iter().map(String::len).sum()
    }

    /// # Errors
    /// Its texts have too many bytes.
    pub fn check_size(&self) -> Result<(), GrammarError> {
        let (bytes, max) = (self.text_bytes(), limits::GRAMMAR_BYTES);
        if bytes <= max {
            return Ok(());
        }
        Err(GrammarError::too_large(format!("a grammar of {bytes} bytes, at most {max}")))
    }
}

/// A grammar and its name among all. Travels as the grammar alone, so that the name is always the right one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "GrammarSpec", into = "GrammarSpec")]
pub struct Grammar {
    spec: GrammarSpec,
    digest: GrammarDigest,
}

impl Grammar {
    pub fn new(spec: GrammarSpec) -> Self {
        let digest = digest(&spec);
        Self { spec, digest }
    }

    pub fn spec(&self) -> &GrammarSpec {
        &self.spec
    }

    /// Equal digests mean equal grammars, in any process.
    pub fn digest(&self) -> GrammarDigest {
        self.digest
    }
}

impl From<GrammarSpec> for Grammar {
    fn from(spec: GrammarSpec) -> Self {
        Self::new(spec)
    }
}

impl From<Grammar> for GrammarSpec {
    fn from(grammar: Grammar) -> Self {
        grammar.spec
    }
}

/// Each text goes in behind its length, so that no two grammars feed the same bytes.
fn digest(spec: &GrammarSpec) -> GrammarDigest {
    let (kind, texts) = spec.texts();
    let mut hash = Sha256::new();
    for text in std::iter::once(kind).chain(texts.iter().map(String::as_str)) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    GrammarDigest::new(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_kinds_and_texts_apart_and_survives_a_journey() {
        let choice = |texts: &[&str]| GrammarSpec::Choice { texts: texts.iter().map(|t| (*t).to_owned()).collect() };
        let specs = [
            GrammarSpec::JsonObject,
            GrammarSpec::Lark { text: "a".to_owned() },
            GrammarSpec::Gbnf { text: "a".to_owned() },
            choice(&["ab", "c"]),
            choice(&["a", "bc"]),
            choice(&["a", "b", "c"]),
        ];
        let digests: std::collections::BTreeSet<_> =
            specs.iter().map(|spec| Grammar::new(spec.clone()).digest()).collect();
        assert_eq!(digests.len(), specs.len());
        for spec in specs {
            let grammar = Grammar::new(spec);
            let text = serde_json::to_string(&grammar).unwrap();
            assert_eq!(serde_json::from_str::<Grammar>(&text).unwrap(), grammar, "{text}");
        }
    }
}
