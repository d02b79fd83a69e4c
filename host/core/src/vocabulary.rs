//! A model's vocabulary as bytes, and the look-ups that samplers need.
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::Token;

/// Bound of the look-up cache; past it the cache is cleared. With the cache, a policy that looks up the same words for
/// every token scans the vocabulary once per word.
const MAX_CACHED_LOOKUPS: usize = 1024;

/// Start and end of a part of a text, in bytes.
pub type Offsets = (u32, u32);

/// The tokens of a model. Immutable after load; all threads share it.
#[derive(Serialize, Deserialize)]
pub struct Vocabulary {
    /// The bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// The bytes of token `i` are `bytes[ends[i-1]..ends[i]]`.
    ends: Vec<u32>,
    end_tokens: Vec<Token>,
    #[serde(skip)]
    lookups: Mutex<HashMap<LookupKey, Arc<[Token]>>>,
}

#[derive(PartialEq, Eq, Hash, Clone)]
struct LookupKey {
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
    /// Whether every token means the same in both, so that one model can draft for the other.
    pub fn is_same_as(&self, other: &Self) -> bool {
        (&self.bytes, &self.ends, &self.end_tokens) == (&other.bytes, &other.ends, &other.end_tokens)
    }

    /// Equal digests mean that every token means the same.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for list in [self.ends.len(), self.end_tokens.len()] {
            hash.update((list as u64).to_le_bytes());
        }
        self.ends
            .iter()
            .chain(self.end_tokens.iter().map(|token| &token.0))
            .for_each(|id| hash.update(id.to_le_bytes()));
        hash.update(&self.bytes);
        hash.finalize().into()
    }

    /// `pieces[i]` is the text of token `i` (empty for control tokens). Drawing one of `end_tokens` ends a generation.
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

    /// The bytes of a token (empty for control tokens); `None` outside the vocabulary.
    pub fn token_bytes(&self, token: Token) -> Option<&[u8]> {
        let i = token.0 as usize;
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        self.bytes.get(start..end)
    }

    /// Where each token lies in `text`, in bytes. Some vocabularies put a space in front of a text. The text does not have
    /// it, so it has no offset. `None` if the tokens do not spell the text.
    pub fn offsets(&self, text: &str, tokens: &[Token]) -> Option<Vec<Offsets>> {
        // Tokens that do not spell the text seldom get far.
        self.spelled(text, tokens, 0).or_else(|| self.spelled(text, tokens, 1))
    }

    /// The same, with as many spaces in front of the text.
    fn spelled(&self, text: &str, tokens: &[Token], spaces: usize) -> Option<Vec<Offsets>> {
        let (mut rest, mut spaces) = (text.as_bytes(), spaces);
        let mut spans = Vec::with_capacity(tokens.len());
        for &token in tokens {
            let mut piece = self.token_bytes(token)?;
            let start = text.len() - rest.len();
            if spaces > 0 && !piece.is_empty() {
                piece = piece.strip_prefix(b" ")?;
                spaces -= 1;
            }
            rest = rest.strip_prefix(piece)?;
            spans.push((u32::try_from(start).ok()?, u32::try_from(text.len() - rest.len()).ok()?));
        }
        rest.is_empty().then_some(spans)
    }

    pub fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    pub fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    /// Tokens whose bytes begin with `prefix`, ascending; none for an empty prefix. `ignore_case` folds ASCII letters.
    pub fn with_prefix(&self, prefix: &[u8], ignore_case: bool) -> Arc<[Token]> {
        self.lookup(LookupKey { text: prefix.to_vec(), ignore_case, prefix: true })
    }

    /// Tokens whose bytes contain `needle`, ascending; none for an empty needle. `ignore_case` folds ASCII letters.
    pub fn containing(&self, needle: &[u8], ignore_case: bool) -> Arc<[Token]> {
        self.lookup(LookupKey { text: needle.to_vec(), ignore_case, prefix: false })
    }

    fn lookup(&self, key: LookupKey) -> Arc<[Token]> {
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lookups.get(&key) {
            return found.clone();
        }
        let found: Arc<[Token]> = self.scan(&key).into();
        if lookups.len() >= MAX_CACHED_LOOKUPS {
            lookups.clear();
        }
        lookups.insert(key, found.clone());
        found
    }

    fn scan(&self, key: &LookupKey) -> Vec<Token> {
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
    fn offsets_cover_the_text_without_a_space_that_the_vocabulary_put_in_front() {
        let vocabulary = Vocabulary::new(["", "ab", " ab", "c", " ", "\u{e9}"], Vec::new());
        let check = |text: &str, ids: &[u32], expected: Option<&[Offsets]>| {
            let tokens: Vec<Token> = ids.iter().copied().map(Token).collect();
            assert_eq!(vocabulary.offsets(text, &tokens).as_deref(), expected, "{text:?} {ids:?}");
        };
        check("abc", &[1, 3], Some(&[(0, 2), (2, 3)]));
        check("abc", &[0, 1, 3], Some(&[(0, 0), (0, 2), (2, 3)]));
        check("abc", &[2, 3], Some(&[(0, 2), (2, 3)]));
        check("abc", &[0, 2, 3], Some(&[(0, 0), (0, 2), (2, 3)]));
        check(" abc", &[2, 3], Some(&[(0, 3), (3, 4)]));
        check(" abc", &[4, 2, 3], Some(&[(0, 0), (0, 3), (3, 4)]));
        check("", &[], Some(&[]));
        check("c\u{e9}c", &[3, 5, 3], Some(&[(0, 1), (1, 3), (3, 4)]));
        // The vocabulary does not know all of the text, or has changed it.
        check("abxc", &[1, 3], None);
        check("abcx", &[1, 3], None);
        check("aBc", &[1, 3], None);
        check("abc", &[1, 3, 9], None);
    }

    #[test]
    fn finds_tokens_by_prefix_and_content_with_and_without_the_cache() {
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
