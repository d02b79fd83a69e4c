//! Compiles a grammar for a vocabulary.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{ParserFactory, TokenParser, regex_to_lark};
use serde_json::map::Entry;
use serde_json::{Value, json};

use super::error::{GrammarError, compiler_reason, pattern_reason};
use super::matcher::{Matcher, MatcherError};
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
    /// Its clones share a lexer; another one once a generation failed with it.
    shared: Mutex<TokenParser>,
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Memory that it took when it was compiled, about.
    pub(super) bytes: usize,
}

impl Compiled {
    /// # Errors
    /// The grammar is not supported, over a bound, or nothing matches it.
    pub(super) fn new(
        factory: &ParserFactory,
        vocabulary: &Arc<Vocabulary>,
        spec: &GrammarSpec,
    ) -> Result<Arc<Self>, GrammarError> {
        let mut pristine = match spec {
            GrammarSpec::JsonSchema { schema } => schema_parser(factory, &schema::check(schema)?)?,
            GrammarSpec::Regex { .. } => {
                let of_pattern = |error: GrammarError| GrammarError { reason: pattern_reason(&error.reason), ..error };
                parser(factory, top_level(spec)?).map_err(of_pattern)?
            }
            spec => parser(factory, top_level(spec)?)?,
        };
        pristine.start_without_prompt();
        let bytes = 2 * spec.text_bytes() + pristine.parser.lexer_stats().num_bytes;
        let shared = Mutex::new(pristine.deep_clone());
        let compiled = Arc::new(Self { pristine, shared, vocabulary: vocabulary.clone(), bytes });
        match Matcher::new(compiled.clone()).mask() {
            Ok(_) => Ok(compiled),
            Err(MatcherError::TooComplex(why)) => Err(GrammarError::too_large(why)),
            Err(_) => Err(GrammarError::invalid("no text that this model can write matches the grammar")),
        }
    }

    /// A parser at the beginning, which learns with the others.
    pub(super) fn parser(&self) -> TokenParser {
        self.shared().clone()
    }

    /// A parser at the beginning, whose lexer has learned nothing. Those that come later share it.
    pub(super) fn renewed_parser(&self) -> TokenParser {
        let mut shared = self.shared();
        *shared = self.pristine.deep_clone();
        shared.clone()
    }

    fn shared(&self) -> MutexGuard<'_, TokenParser> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
