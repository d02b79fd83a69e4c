//! A model's vocabulary as `llguidance` sees it.
use std::sync::Arc;

use llguidance::earley::SlicedBiasComputer;
use toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::error::{GrammarError, GrammarFault};
use crate::limits;
use crate::vocabulary::Vocabulary;

/// Longest token that the trie can hold, in bytes. Longer ones are never allowed.
const MAX_TOKEN_BYTES: usize = 512;
/// Bytes of all tokens together: an upper bound of the trie's nodes, of which it can count 2^22.
const MAX_TRIE_BYTES: usize = (1 << 22) - 1;
/// Tokens of a trie, which numbers them with 24 bits and keeps the last number for itself.
const MAX_TOKENS: usize = (1 << 24) - 1;

/// The tokens of a vocabulary as a trie. It splits bytes greedily, which is not how models' tokenizers split texts, and says so.
struct GreedyTokens(TokTrie);

impl TokenizerEnv for GreedyTokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// What compiles grammars for a vocabulary. Control tokens have bytes of no text, so that only a grammar that names them by number
/// allows them. It takes about 100 bytes for each byte of the vocabulary's tokens.
///
/// # Errors
/// The vocabulary is larger than the trie can hold.
pub(super) fn factory(vocabulary: &Vocabulary) -> Result<llguidance::ParserFactory, GrammarError> {
    let refused = |why: String| GrammarError::new(GrammarFault::Vocabulary, why);
    let size = u32::try_from(vocabulary.size()).ok().filter(|&size| size > 0 && size as usize <= MAX_TOKENS);
    let size = size.ok_or_else(|| refused(format!("grammars work with 1 to {MAX_TOKENS} tokens")))?;
    let words: Vec<Vec<u8>> = (0..size).map(|token| word(vocabulary, token)).collect();
    let bytes: usize = words.iter().map(Vec::len).sum();
    if bytes > MAX_TRIE_BYTES {
        return Err(refused(format!("the vocabulary has {bytes} bytes, grammars work with up to {MAX_TRIE_BYTES}")));
    }
    let ends: Vec<TokenId> = vocabulary.end_tokens().iter().map(|token| token.0).filter(|&end| end < size).collect();
    let info = TokRxInfo::new(size, ends.first().copied().unwrap_or(INVALID_TOKEN));
    let mut trie = TokTrie::from(&info, &words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(&ends);
    }
    let tokens: TokEnv = Arc::new(GreedyTokens(trie));
    let factory = llguidance::ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices());
    let mut factory = factory.map_err(|error| refused(error.to_string()))?;
    factory.quiet();
    *factory.limits_mut() = llguidance::api::ParserLimits {
        max_lexer_states: limits::GRAMMAR_LEXER_STATES,
        verbose_errors: false,
        ..llguidance::api::ParserLimits::default()
    };
    Ok(factory)
}

/// Patterns of tokens. Where a grammar allows all texts of one, a mask has all of its tokens without looking at any.
fn slices() -> Vec<String> {
    let mut slices = SlicedBiasComputer::general_slices();
    // Most identifiers, and what formats such as `email` are made of.
    slices.push("[a-zA-Z0-9]+".to_owned());
    slices
}

/// What a grammar may spell with a token. No text has a byte of 255, which begins the names of control tokens here: one without any
/// could not be forced.
fn word(vocabulary: &Vocabulary, token: TokenId) -> Vec<u8> {
    let bytes = vocabulary.token_bytes(crate::ids::Token(token)).unwrap_or_default();
    if bytes.is_empty() {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("[{token}]").as_bytes()].concat();
    }
    let usable = bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
    if usable { bytes.to_vec() } else { Vec::new() }
}
