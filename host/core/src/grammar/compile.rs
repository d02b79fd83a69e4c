//! Compiles a grammar for a vocabulary.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{ParserFactory, TokenParser, regex_to_lark};
use serde_json::map::Entry;
use serde_json::{Value, json};

use super::error::{GrammarError, compiler_reason, pattern_reason};
use super::guarded::{Guarded, ParserFault};
use super::lexers::{LexerSize, Lexers};
use super::quoted::quoted;
use super::schema::Checked;
use super::spec::GrammarSpec;
use super::{gbnf, lark, schema};
use crate::limits;
use crate::vocabulary::Vocabulary;

/// A compiled grammar. Its lexer learns states while it is used, which all generations with the grammar share.
pub(super) struct Compiled {
    /// Never used, so that it has learned nothing and failed at nothing.
    pristine: TokenParser,
    pristine_size: Arc<LexerSize>,
    /// The lexer that generations share; another one once it has learned much, or failed.
    shared: Mutex<Shared>,
    lexers: Arc<Lexers>,
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Of the grammar's text.
    source_bytes: usize,
}

struct Shared {
    parser: TokenParser,
    size: Arc<LexerSize>,
}

impl Shared {
    fn new(pristine: &TokenParser, lexers: &Arc<Lexers>) -> Self {
        let parser = pristine.deep_clone();
        let size = LexerSize::new(lexers, lexer_size(&parser));
        Self { parser, size }
    }

    fn parser(&self) -> Guarded {
        Guarded::new(self.parser.clone(), self.size.clone())
    }
}

impl Compiled {
    /// # Errors
    /// The grammar is not supported, over a bound, or nothing matches it; or all grammars take too much memory.
    pub(super) fn new(
        factory: &ParserFactory,
        lexers: &Arc<Lexers>,
        vocabulary: &Arc<Vocabulary>,
        spec: &GrammarSpec,
    ) -> Result<Self, GrammarError> {
        let mut pristine = match spec {
            GrammarSpec::JsonSchema { schema } => schema_parser(factory, &schema::check(schema)?)?,
            GrammarSpec::Regex { .. } => {
                let of_pattern = |error: GrammarError| GrammarError { reason: pattern_reason(&error.reason), ..error };
                parser(factory, top_level(spec)?).map_err(of_pattern)?
            }
            spec => parser(factory, top_level(spec)?)?,
        };
        pristine.start_without_prompt();
        let shared = Mutex::new(Shared::new(&pristine, lexers));
        let pristine_size = LexerSize::new(lexers, lexer_size(&pristine));
        let (lexers, vocabulary, source_bytes) = (lexers.clone(), vocabulary.clone(), spec.text_bytes());
        let compiled = Self { pristine, pristine_size, shared, lexers, vocabulary, source_bytes };
        let mut first = compiled.parser();
        let begins = first.is_accepting().and_then(|accepts| if accepts { Ok(()) } else { first.mask().map(drop) });
        match begins {
            Ok(()) => Ok(compiled),
            Err(ParserFault::NoToken) => {
                Err(GrammarError::invalid("no text that this model can write matches the grammar"))
            }
            Err(ParserFault::Memory) => Err(GrammarError::no_memory()),
            Err(ParserFault::Failed(why)) => Err(GrammarError::too_large(compiler_reason(&why))),
        }
    }

    /// A parser at the beginning, which learns with the others.
    pub(super) fn parser(&self) -> Guarded {
        let mut shared = self.shared();
        if shared.size.states() > limits::GRAMMAR_LEXER_STATES / 2 {
            *shared = Shared::new(&self.pristine, &self.lexers);
        }
        shared.parser()
    }

    /// A parser at the beginning, which has a lexer to itself.
    pub(super) fn own_parser(&self) -> Guarded {
        Shared::new(&self.pristine, &self.lexers).parser()
    }

    /// A lexer is not to be used any more. If generations share it, they share a new one from now on.
    pub(super) fn retire(&self, lexer: &Arc<LexerSize>) {
        let mut shared = self.shared();
        if Arc::ptr_eq(&shared.size, lexer) {
            *shared = Shared::new(&self.pristine, &self.lexers);
        }
    }

    /// Memory that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        2 * self.source_bytes + self.pristine_size.bytes() + self.shared().size.bytes()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// States of the lexer of a parser that nobody has used yet, and their bytes.
fn lexer_size(parser: &TokenParser) -> (usize, usize) {
    let stats = parser.parser.lexer_stats();
    (stats.num_states, stats.num_bytes)
}

/// What the compiler is to know of a JSON schema: between its parts a space may stand, a line break with an indent, or nothing. More
/// would let a model that lost its way write whitespace up to `max_tokens`.
fn dress(schema: &mut Value) {
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    if let Value::Object(map) = schema {
        // A grammar that writes JSON into another notation has its own.
        let Entry::Vacant(options) = map.entry(lark::JSON_OPTIONS) else { return };
        let whitespace = format!(r"\x20|\x0D?\x0A[\x20\x09]{{0,{}}}", limits::JSON_INDENT);
        options.insert(json!({ "whitespace_pattern": whitespace }));
    }
}

fn top_level(spec: &GrammarSpec) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match spec {
        GrammarSpec::JsonSchema { schema } => schema_grammar(schema::check(schema)?.schema),
        GrammarSpec::JsonObject => schema_grammar(json!({ "type": "object" })),
        GrammarSpec::Lark { text } => TopLevelGrammar::from_lark(lark::check(text, dress)?),
        GrammarSpec::Gbnf { text } => TopLevelGrammar::from_lark(lark::check(&gbnf::to_lark(text)?, dress)?),
        GrammarSpec::Regex { pattern } => {
            if pattern.is_empty() {
                return Err(GrammarError::invalid("an empty pattern"));
            }
            TopLevelGrammar::from_lark(format!("start: /{}/", regex_to_lark(pattern, "")))
        }
        GrammarSpec::Choice { texts } => TopLevelGrammar::from_lark(choice(texts)?),
    })
}

fn schema_grammar(mut schema: Value) -> TopLevelGrammar {
    if let Value::Object(map) = &mut schema {
        map.remove(lark::JSON_OPTIONS);
    }
    dress(&mut schema);
    TopLevelGrammar::from_json_schema(schema)
}

fn parser(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<TokenParser, GrammarError> {
    let parser = factory.create_parser(grammar);
    let parser = parser.map_err(|error| GrammarError::invalid(compiler_reason(&error.to_string())))?;
    if parser.parser.grammar().lexer_spec().can_rollback() {
        Ok(parser)
    } else {
        Err(GrammarError::unsupported("stop= and max_tokens= are not supported"))
    }
}

/// What the compiler says of a text that is no pattern, or none that it supports.
const BAD_PATTERN: &str = "regex parse error";

/// As `parser`, and where that fails, with the path of the innermost schema that fails by itself.
fn schema_parser(factory: &ParserFactory, checked: &Checked) -> Result<TokenParser, GrammarError> {
    if checked.schema == Value::Bool(false) {
        return Err(GrammarError::invalid("no value matches the schema false"));
    }
    let whole = parser(factory, schema_grammar(checked.schema.clone()));
    let error = match whole {
        Ok(parser) => return Ok(parser),
        Err(error) => error,
    };
    let defs = checked.schema.get("$defs");
    let failing = checked.parts.iter().find_map(|(path, part)| {
        let mut part = part.clone();
        if let (Some(map), Some(defs)) = (part.as_object_mut(), defs) {
            map.insert("$defs".to_owned(), defs.clone());
        }
        let pattern = part.get("pattern").is_some();
        parser(factory, schema_grammar(part)).err().map(|error| match path.as_str() {
            _ if !(pattern && error.reason.starts_with(BAD_PATTERN)) => error.at(path),
            "" => error.at("pattern"),
            path => error.at(&format!("{path}.pattern")),
        })
    });
    Err(failing.unwrap_or(error))
}

/// One terminal, so that no choice is split in two where one begins another.
fn choice(texts: &[String]) -> Result<String, GrammarError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(GrammarError::invalid("at least one choice, and none of them empty"));
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    let max = limits::GRAMMAR_BYTES;
    if bytes > max {
        return Err(GrammarError::too_large(format!("choices of {bytes} bytes in all, at most {max}")));
    }
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    Ok(format!("start: CHOICE\nCHOICE: {}", quoted.join(" | ")))
}
