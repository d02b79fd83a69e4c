//! Compiles a grammar for a vocabulary.
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::{ParserFactory, TokenParser, regex_to_lark};
use serde_json::Value;
use toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::error::{GrammarError, GrammarFault, compiler_reason};
use super::lark::lark_string;
use super::matcher::{Matcher, MatcherError};
use super::spec::GrammarSpec;
use super::{gbnf, lark, schema};
use crate::ids::Token;
use crate::limits;
use crate::vocabulary::Vocabulary;

/// Parts of a schema that are compiled to find out which one the compiler refuses.
const PARTS: usize = 64;

/// Longest token that the trie can hold, in bytes. Longer ones are never allowed.
const MAX_TOKEN_BYTES: usize = 512;
/// Bytes of all tokens together: an upper bound of the trie's nodes, of which it can count 2^22.
const MAX_TRIE_BYTES: usize = (1 << 22) - 1;
/// Tokens of a trie, which numbers them with 24 bits and keeps the last number for itself.
const MAX_TOKENS: usize = (1 << 24) - 1;

/// A compiled grammar. Its lexer learns states while it is used, which all generations with the grammar share.
pub(super) struct Compiled {
    /// Never used, so that it has learned nothing and failed at nothing.
    pub(super) pristine: TokenParser,
    /// Its clones share a lexer; another one once a generation failed with it. `None`: nobody has used it since.
    shared: Mutex<Option<TokenParser>>,
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Memory that it took when it was compiled, about.
    pub(super) bytes: usize,
    /// See [`Matcher::is_slow`].
    pub(super) is_slow: AtomicBool,
}

impl Compiled {
    /// # Errors
    /// The grammar is not supported, over a bound, or nothing matches it.
    pub(super) fn new(
        factory: &ParserFactory,
        vocabulary: &Arc<Vocabulary>,
        spec: &GrammarSpec,
    ) -> Result<Arc<Self>, GrammarError> {
        spec.check_size()?;
        let mut pristine = compile(factory, spec)?;
        pristine.start_without_prompt();
        let bytes = 2 * spec.text_bytes() + pristine.parser.lexer_stats().num_bytes;
        let compiled = Arc::new(Self {
            pristine,
            shared: Mutex::default(),
            vocabulary: vocabulary.clone(),
            bytes,
            is_slow: AtomicBool::default(),
        });
        let mut matcher = Matcher::new(compiled.clone());
        // What comes first may be slow already: the steps of the first generation need not find that out.
        matcher.forced(1);
        match matcher.mask() {
            Ok(_) => Ok(compiled),
            Err(MatcherError::TooComplex(why)) => Err(GrammarError::too_large(why)),
            Err(_) => Err(GrammarError::invalid("no text that this model can write matches the grammar")),
        }
    }

    /// A parser at the beginning, which learns with the others.
    pub(super) fn parser(&self) -> TokenParser {
        self.shared().get_or_insert_with(|| self.pristine.deep_clone()).clone()
    }

    /// A parser at the beginning, whose lexer has learned nothing. Those that come later share it.
    pub(super) fn renewed_parser(&self) -> TokenParser {
        self.shared().insert(self.pristine.deep_clone()).clone()
    }

    /// A generation with it has ended: what its lexer has learned is kept for the next ones unless it is much.
    pub(super) fn forget(&self) {
        let mut shared = self.shared();
        let learned = |parser: &mut TokenParser| parser.parser.lexer_stats().num_bytes.saturating_sub(self.bytes);
        if shared.as_mut().is_some_and(|parser| learned(parser) > limits::GRAMMAR_LEARNED_BYTES) {
            *shared = None;
        }
    }

    fn shared(&self) -> MutexGuard<'_, Option<TokenParser>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compile(factory: &ParserFactory, spec: &GrammarSpec) -> Result<TokenParser, GrammarError> {
    let lark = match spec {
        GrammarSpec::JsonSchema { schema } => return schema_parser(factory, schema),
        GrammarSpec::JsonObject => return schema_parser(factory, r#"{ "type": "object" }"#),
        GrammarSpec::Lark { text } => lark::check(text)?,
        GrammarSpec::Gbnf { text } => gbnf::to_lark(text)?,
        GrammarSpec::Regex { pattern } if pattern.is_empty() => return Err(GrammarError::invalid("an empty pattern")),
        GrammarSpec::Regex { pattern } => format!("start: /{}/", regex_to_lark(pattern, "")),
        GrammarSpec::Choice { texts } => choice_terminal(texts)?,
    };
    // Whoever did not write Lark knows no places in it.
    let has_places = matches!(spec, GrammarSpec::Lark { .. });
    parser(factory, TopLevelGrammar::from_lark(lark), has_places)
}

fn parser(factory: &ParserFactory, grammar: TopLevelGrammar, has_places: bool) -> Result<TokenParser, GrammarError> {
    let parser = factory.create_parser(grammar);
    parser.map_err(|error| GrammarError::invalid(compiler_reason(&error.to_string(), has_places)))
}

/// As `parser`, and where that fails, with the path of the innermost schema that fails by itself.
fn schema_parser(factory: &ParserFactory, text: &str) -> Result<TokenParser, GrammarError> {
    let try_schema = |schema: Value| {
        let schema = schema::with_spacing(schema, &Value::Null);
        parser(factory, TopLevelGrammar::from_json_schema(schema), false)
    };
    let written = schema::parse(text)?;
    let schema = schema::check(&written)?;
    let error = match try_schema(schema.clone()) {
        Ok(parser) => return Ok(parser),
        Err(error) => error,
    };
    let mut tries = 0;
    let mut try_part = |path: &str, part: &Value| {
        tries += 1;
        if tries > PARTS {
            return Ok(());
        }
        let mut part = part.clone();
        if let (Some(map), Some(definitions)) = (part.as_object_mut(), schema.get("$defs")) {
            map.insert("$defs".to_owned(), definitions.clone());
        }
        try_schema(part).map(drop).map_err(|error| error.at(path))
    };
    schema::check_each(&written, false, &mut try_part)?;
    Err(error)
}

/// One terminal, so that no choice is split in two where one begins another.
fn choice_terminal(texts: &[String]) -> Result<String, GrammarError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(GrammarError::invalid("at least one choice, and none of them empty"));
    }
    let texts: Vec<String> = texts.iter().map(|text| lark_string(text)).collect();
    Ok(format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")))
}

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
pub(super) fn parser_factory(vocabulary: &Vocabulary) -> Result<ParserFactory, GrammarError> {
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
    // Patterns of tokens. Where a grammar allows all texts of one, a mask has all of its tokens without looking at any.
    let mut slices = SlicedBiasComputer::general_slices();
    // Most identifiers, and what formats such as `email` are made of.
    slices.push("[a-zA-Z0-9]+".to_owned());
    let factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|error| refused(error.to_string()))?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        max_lexer_states: limits::GRAMMAR_LEXER_STATES,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    Ok(factory)
}

/// What a grammar may spell with a token. No text has a byte of 255, which begins the names of control tokens here: one without any
/// could not be forced.
fn word(vocabulary: &Vocabulary, token: TokenId) -> Vec<u8> {
    let bytes = vocabulary.token_bytes(Token(token)).unwrap_or_default();
    if bytes.is_empty() {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("[{token}]").as_bytes()].concat();
    }
    let usable = bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
    if usable { bytes.to_vec() } else { Vec::new() }
}
