//! What the fuzz targets call: grammars that others wrote.
use std::sync::{Arc, OnceLock};

use super::spec::{Grammar, GrammarSpec};
use super::store::GrammarStore;
use crate::ids::Token;
use crate::vocabulary::Vocabulary;

/// Bytes of an input that is compiled: more only take longer.
const MAX_BYTES: usize = 4096;
/// Tokens that are taken of a grammar that compiles.
const TOKENS: usize = 32;

/// Compiles the bytes as a JSON schema. If they are one, writes a text that it allows.
pub fn schema(data: &[u8]) {
    if let Some(text) = text(data) {
        run(GrammarSpec::JsonSchema { schema: text }, data);
    }
}

/// Compiles the bytes as a grammar in GBNF, and as one in Lark.
pub fn gbnf(data: &[u8]) {
    if let Some(text) = text(data) {
        run(GrammarSpec::Gbnf { text: text.clone() }, data);
        run(GrammarSpec::Lark { text }, data);
    }
}

fn text(data: &[u8]) -> Option<String> {
    std::str::from_utf8(data.get(..data.len().min(MAX_BYTES))?).ok().map(str::to_owned)
}

fn run(spec: GrammarSpec, data: &[u8]) {
    static STORE: OnceLock<GrammarStore> = OnceLock::new();
    let store = STORE.get_or_init(|| {
        let pieces = (0..=255u8).map(|byte| vec![byte]).chain([Vec::new()]);
        GrammarStore::new(Arc::new(Vocabulary::new(pieces, vec![Token(256)])))
    });
    let Ok(mut matcher) = store.matcher(&Grammar::new(spec)) else { return };
    for byte in data.iter().cycle().take(TOKENS) {
        let Ok(mask) = matcher.mask() else { return };
        let allowed: Vec<u32> = (0..256).filter(|token| mask.allows(Token(*token))).collect();
        let Some(token) = allowed.get(usize::from(*byte) % allowed.len().max(1)) else { return };
        let taken = matcher.accept(Token(*token));
        assert!(taken.is_ok(), "a token of the mask is taken");
    }
}
