//! Translates llama.cpp's grammars (its `grammars/README.md`) to Lark.
//!
//! Both have the same groups, alternatives and repetitions, so that a rule is translated word by word. One that refers to no rule which
//! refers back to it is a terminal, which `llguidance` matches as one piece: quickly, and character by character as llama.cpp does.
//! Where a terminal could end or go on, it goes on.
use std::collections::HashMap;
use std::fmt::Write;

use super::error::{GrammarError, line_and_column, shown};
use super::lark::lark_string;

/// Any character.
const ANY: &str = " /(?s:.)/";

/// The grammar in Lark.
///
/// # Errors
/// It is none. Errors name line and column.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let mut parser = GbnfParser { text, at: 0, rules: Vec::new(), numbers: HashMap::new() };
    parser.skip(true);
    while parser.peek().is_some() {
        parser.rule()?;
        parser.skip(true);
    }
    let Some(root) = parser.numbers.get("root") else {
        return Err(GrammarError::invalid("no rule is called \"root\""));
    };
    let rules = &parser.rules;
    if let Some(rule) = rules.iter().find(|rule| rule.body.is_none()) {
        let position = line_and_column(text, rule.at);
        return Err(GrammarError::invalid(format!("{position}: no rule is called \"{}\"", shown(rule.name))));
    }
    let terminals = terminals(rules);
    let name = |rule: usize| format!("{}{rule}", if terminals[rule] { 'T' } else { 'r' });
    let mut out = format!("start: {}\n", name(*root));
    for (number, rule) in rules.iter().enumerate() {
        out.push_str(&name(number));
        out.push(':');
        for word in rule.body.iter().flatten() {
            match word {
                Word::Lark(text) => out.push_str(text),
                Word::Rule(rule) => out.extend([" ", &name(*rule)]),
            }
        }
        out.push('\n');
    }
    Ok(out)
}

/// A rule, in the order in which they are met.
struct Rule<'a> {
    name: &'a str,
    /// Where it was met first.
    at: usize,
    /// `None`: it was not defined.
    body: Option<Vec<Word>>,
}

impl Rule<'_> {
    /// The rules that it refers to.
    fn uses(&self) -> impl Iterator<Item = usize> {
        self.body.iter().flatten().filter_map(|word| match word {
            Word::Rule(rule) => Some(*rule),
            Word::Lark(_) => None,
        })
    }
}

/// A part of a rule's body.
enum Word {
    Lark(String),
    Rule(usize),
}

/// For each rule, whether it is a terminal: all that it refers to are terminals, and none refers back.
fn terminals(rules: &[Rule<'_>]) -> Vec<bool> {
    let mut terminals = vec![false; rules.len()];
    loop {
        let before = terminals.clone();
        // Most rules refer to later ones.
        for (number, rule) in rules.iter().enumerate().rev() {
            terminals[number] = rule.uses().all(|used| terminals[used]);
        }
        if terminals == before {
            return terminals;
        }
    }
}

struct GbnfParser<'a> {
    text: &'a str,
    at: usize,
    rules: Vec<Rule<'a>>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> GbnfParser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.text[self.at..].starts_with(expected);
        self.at += if found { expected.len() } else { 0 };
        found
    }

    /// Takes all characters of a kind.
    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let taken = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn error<T>(&self, why: &str) -> Result<T, GrammarError> {
        let found = self.peek().map_or("the end".to_owned(), |c| format!("\"{}\"", shown(&c.to_string())));
        let position = line_and_column(self.text, self.at);
        Err(GrammarError::invalid(format!("{position}: {why}, found {found}")))
    }

    /// Skips spaces and comments, and line breaks where those mean nothing.
    fn skip(&mut self, lines: bool) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t') || (lines && matches!(c, '\r' | '\n')));
            if self.peek() != Some('#') {
                return;
            }
            self.take_while(|c| !matches!(c, '\r' | '\n'));
        }
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let position = line_and_column(self.text, self.at);
        let Some(rule) = self.name() else { return self.error("expected the name of a rule") };
        if self.rules[rule].body.is_some() {
            let name = shown(self.rules[rule].name);
            return Err(GrammarError::invalid(format!("{position}: rule \"{name}\" was defined before")));
        }
        self.skip(false);
        if !self.take("::=") {
            return self.error("expected \"::=\"");
        }
        self.skip(true);
        let body = self.body()?;
        self.rules[rule].body = Some(body);
        Ok(())
    }

    /// The rule whose name stands here.
    fn name(&mut self) -> Option<usize> {
        let at = self.at;
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        if name.is_empty() {
            return None;
        }
        Some(*self.numbers.entry(name).or_insert_with(|| {
            self.rules.push(Rule { name, at, body: None });
            self.rules.len() - 1
        }))
    }

    /// All up to the end of a rule.
    fn body(&mut self) -> Result<Vec<Word>, GrammarError> {
        let mut words = Vec::new();
        let (mut groups, mut repeatable) = (0usize, false);
        loop {
            self.skip(groups > 0);
            let Some(next) = self.peek() else { break };
            let may_repeat = repeatable;
            repeatable = !matches!(next, '(' | '|' | '*' | '+' | '?' | '{');
            let word = match next {
                '"' => self.string()?,
                '[' => self.class()?,
                '.' => self.one(ANY),
                '(' => {
                    groups += 1;
                    self.one(" (")
                }
                ')' if groups > 0 => {
                    groups -= 1;
                    self.one(")")
                }
                '|' => {
                    let word = self.one(" |");
                    self.skip(true);
                    word
                }
                '*' | '+' | '?' | '{' if !may_repeat => return self.error("there is nothing to repeat"),
                '*' | '+' | '?' => self.one(&next.to_string()),
                '{' => self.count()?,
                '<' | '!' => {
                    let position = line_and_column(self.text, self.at);
                    let why = format!("{position}: tokens are not supported in GBNF; use Lark");
                    return Err(GrammarError::unsupported(why));
                }
                '\r' | '\n' => break,
                _ => match self.name() {
                    Some(rule) => Word::Rule(rule),
                    None => return self.error("expected the end of the rule"),
                },
            };
            words.push(word);
        }
        if groups > 0 { self.error("expected \")\"") } else { Ok(words) }
    }

    /// A character that becomes this.
    fn one(&mut self, lark: &str) -> Word {
        self.at += 1;
        Word::Lark(lark.to_owned())
    }

    /// Repetitions by number.
    fn count(&mut self) -> Result<Word, GrammarError> {
        self.at += 1;
        let min = self.digits();
        let max = if self.take(",") { self.digits() } else { min };
        if min.is_empty() || !self.take("}") {
            return self.error("expected a count");
        }
        Ok(Word::Lark(format!("{{{min},{max}}}")))
    }

    /// Digits, with the spaces around.
    fn digits(&mut self) -> &'a str {
        self.skip(true);
        let digits = self.take_while(|c| c.is_ascii_digit());
        self.skip(true);
        digits
    }

    fn string(&mut self) -> Result<Word, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        while !self.take("\"") {
            text.push(self.char()?);
        }
        Ok(Word::Lark(format!(" {}", lark_string(&text))))
    }

    fn class(&mut self) -> Result<Word, GrammarError> {
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = String::new();
        while !self.take("]") {
            let from = self.char()?;
            let rest = &self.text[self.at..];
            let to = if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                self.char()?
            } else {
                from
            };
            let _ = write!(ranges, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(from), u32::from(to));
        }
        Ok(Word::Lark(match (negated, ranges.as_str()) {
            (true, "") => ANY.to_owned(),
            (true, ranges) => format!(" /[^{ranges}]/"),
            (false, ranges) => format!(" /[{ranges}]/"),
        }))
    }

    /// A character, or an escape for one.
    fn char(&mut self) -> Result<char, GrammarError> {
        let Some(c) = self.peek() else { return self.error("expected a character") };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let Some(escape) = self.peek() else { return self.error("expected an escape") };
        self.at += escape.len_utf8();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return self.error("an unknown escape"),
        };
        let hex = self.text.get(self.at..self.at + digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let Some(c) = code else { return self.error("an escape that is no character") };
        self.at += digits;
        Ok(c)
    }
}

#[cfg(test)]
#[path = "gbnf_tests.rs"]
mod tests;
