//! A model's vocabulary as bytes, with the look-ups that samplers need.
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::Token;

/// Answers kept for repeated look-ups, so that a per-token policy never scans the vocabulary twice for one word.
const CACHED_LOOKUPS: usize = 1024;

/// Immutable after load, shared by all threads.
pub struct Vocabulary {
    /// All pieces behind one another.
    bytes: Vec<u8>,
    /// Piece `i` is `bytes[ends[i-1]..ends[i]]`.
    ends: Vec<u32>,
    end_tokens: Vec<Token>,
    lookups: Mutex<HashMap<Lookup, Arc<[Token]>>>,
}

#[derive(PartialEq, Eq, Hash, Clone)]
struct Lookup {
    text: Vec<u8>,
    ignore_case: bool,
    prefix: bool,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.ends.len()).field("end_tokens", &self.end_tokens).finish()
    }
}

impl Vocabulary {
    /// Whether a token of the one is the same token of the other.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        (&self.bytes, &self.ends, &self.end_tokens) == (&other.bytes, &other.ends, &other.end_tokens)
    }

    /// `pieces[i]` is what token `i` adds to the text (empty for control tokens); `end_tokens` end a generation.
    pub fn new<P: AsRef<[u8]>>(pieces: impl IntoIterator<Item = P>, end_tokens: Vec<Token>) -> Self {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for piece in pieces {
            bytes.extend_from_slice(piece.as_ref());
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
        Self { bytes, ends, end_tokens, lookups: Mutex::default() }
    }

    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; empty for control tokens; `None` outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> Option<&[u8]> {
        let i = token.0 as usize;
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        self.bytes.get(start..end)
    }

    pub fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    pub fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    /// Tokens whose bytes begin with `prefix` (not empty), ascending. `ignore_case` folds ASCII letters.
    pub fn with_prefix(&self, prefix: &[u8], ignore_case: bool) -> Arc<[Token]> {
        self.lookup(Lookup { text: prefix.to_vec(), ignore_case, prefix: true })
    }

    /// Tokens whose bytes contain `needle` (not empty), ascending. `ignore_case` folds ASCII letters.
    pub fn containing(&self, needle: &[u8], ignore_case: bool) -> Arc<[Token]> {
        self.lookup(Lookup { text: needle.to_vec(), ignore_case, prefix: false })
    }

    fn lookup(&self, key: Lookup) -> Arc<[Token]> {
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lookups.get(&key) {
            return found.clone();
        }
        let found: Arc<[Token]> = self.scan(&key).into();
        if lookups.len() >= CACHED_LOOKUPS {
            lookups.clear();
        }
        lookups.insert(key, found.clone());
        found
    }

    fn scan(&self, key: &Lookup) -> Vec<Token> {
        let n = key.text.len();
        if n == 0 {
            return Vec::new();
        }
        let same =
            |window: &[u8]| if key.ignore_case { window.eq_ignore_ascii_case(&key.text) } else { window == key.text };
        let hit = |piece: &[u8]| match key.prefix {
            true => piece.len() >= n && same(&piece[..n]),
            false => piece.windows(n).any(same),
        };
        let tokens = (0u32..).map(Token).take(self.size());
        tokens.filter(|&token| self.token_bytes(token).is_some_and(hit)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tokens_by_prefix_and_content_once_scanned_then_cached() {
        let vocabulary = Vocabulary::new(["", "blue", " Blue", "b", "lue sky", "ue"], vec![Token(0)]);
        let ids = |tokens: Arc<[Token]>| tokens.iter().map(|t| t.0).collect::<Vec<_>>();
        for _ in 0..2 {
            assert_eq!(ids(vocabulary.with_prefix(b"b", false)), [1, 3]);
            assert_eq!(ids(vocabulary.containing(b"blue", false)), [1]);
            assert_eq!(ids(vocabulary.containing(b"blue", true)), [1, 2]);
            assert_eq!(ids(vocabulary.with_prefix(b"LUE", true)), [4]);
            assert_eq!(ids(vocabulary.with_prefix(b"", true)), [] as [u32; 0]);
        }
        assert_eq!(vocabulary.token_bytes(Token(5)), Some(&b"ue"[..]));
        assert_eq!(vocabulary.token_bytes(Token(6)), None);
        assert!(vocabulary.is_end(Token(0)));
    }
}
