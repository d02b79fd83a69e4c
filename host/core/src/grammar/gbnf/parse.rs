//! Reads GBNF, as llama.cpp's `grammars/README.md` describes it.
use std::collections::{HashMap, HashSet};

use crate::grammar::error::{GrammarError, shown};
use crate::limits;

/// A rule, in the order of the grammar.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Node,
}

/// What a rule is made of.
#[derive(Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// Any character of these ranges, or of none of them.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    /// A rule, by its place.
    Rule(usize),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat {
        node: Box<Node>,
        min: u64,
        max: Option<u64>,
    },
}

/// # Errors
/// The text is no such grammar, or over a bound.
pub(super) fn parse(text: &str) -> Result<Vec<Rule>, GrammarError> {
    let (bytes, max) = (text.len(), limits::GRAMMAR_BYTES);
    if bytes > max {
        return Err(GrammarError::too_large(format!("a grammar of {bytes} bytes, at most {max}")));
    }
    let mut parser = Parser { text, at: 0, places: HashMap::new(), names: Vec::new(), defined: HashSet::new() };
    let mut bodies: HashMap<usize, Node> = HashMap::new();
    parser.skip(true);
    while parser.peek().is_some() {
        let (place, body) = parser.rule()?;
        bodies.insert(place, body);
        parser.skip(true);
    }
    let Parser { names, places, .. } = parser;
    if !places.contains_key("root") {
        return Err(GrammarError::invalid("no rule is called \"root\""));
    }
    let rules = names.into_iter().enumerate().map(|(place, (name, at))| match bodies.remove(&place) {
        Some(body) => Ok(Rule { name, body }),
        None => {
            let position = crate::grammar::lark::position(text, at);
            Err(GrammarError::invalid(format!("{position}: no rule is called \"{}\"", shown(&name))))
        }
    });
    rules.collect()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    places: HashMap<String, usize>,
    /// With where each was met first.
    names: Vec<(String, usize)>,
    defined: HashSet<usize>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.text[self.at..].starts_with(expected);
        self.at += if found { expected.len() } else { 0 };
        found
    }

    fn expect(&mut self, expected: &str) -> Result<(), GrammarError> {
        if self.take(expected) { Ok(()) } else { Err(self.error(&format!("expected \"{expected}\""))) }
    }

    fn position(&self) -> String {
        crate::grammar::lark::position(self.text, self.at)
    }

    fn error(&self, why: &str) -> GrammarError {
        let position = self.position();
        match self.peek() {
            Some(c) => GrammarError::invalid(format!("{position}: {why}, found \"{}\"", shown(&c.to_string()))),
            None => GrammarError::invalid(format!("{position}: {why}, found the end")),
        }
    }

    /// Skips spaces and comments, and line breaks if those mean nothing here.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.text[self.at..].find(['\r', '\n']).unwrap_or(self.text.len() - self.at),
                _ => break,
            }
        }
    }

    fn rule(&mut self) -> Result<(usize, Node), GrammarError> {
        let before = self.at;
        let name = self.name()?;
        let place = self.place(name);
        if !self.defined.insert(place) {
            let before = crate::grammar::lark::position(self.text, before);
            return Err(GrammarError::invalid(format!("{before}: rule \"{}\" was defined before", shown(name))));
        }
        self.skip(false);
        self.expect("::=")?;
        self.skip(true);
        let body = self.alternatives(0)?;
        match self.peek() {
            None | Some('\r' | '\n') => Ok((place, body)),
            Some(_) => Err(self.error("expected the end of the rule")),
        }
    }

    fn name(&mut self) -> Result<&'a str, GrammarError> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        if len == 0 {
            return Err(self.error("expected the name of a rule"));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn place(&mut self, name: &str) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        let place = self.names.len();
        self.names.push((name.to_owned(), self.at));
        self.places.insert(name.to_owned(), place);
        place
    }

    fn alternatives(&mut self, depth: usize) -> Result<Node, GrammarError> {
        let mut all = vec![self.sequence(depth)?];
        while self.take("|") {
            self.skip(true);
            all.push(self.sequence(depth)?);
        }
        Ok(one_or(all, Node::Alternatives))
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, GrammarError> {
        let nested = depth > 0;
        let mut all = Vec::new();
        loop {
            self.skip(nested);
            let node = match self.peek() {
                Some('"') => Node::Text(self.text()?),
                Some('[') => self.class()?,
                Some('(') => self.group(depth)?,
                Some('.') => {
                    self.at += 1;
                    Node::Any
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '-' => {
                    let name = self.name()?;
                    Node::Rule(self.place(name))
                }
                Some('<' | '!') => {
                    let why = format!("{}: tokens are not supported in GBNF; use Lark", self.position());
                    return Err(GrammarError::unsupported(why));
                }
                _ => return Ok(one_or(all, Node::Sequence)),
            };
            self.skip(nested);
            all.push(self.repeated(node)?);
        }
    }

    fn group(&mut self, depth: usize) -> Result<Node, GrammarError> {
        let max = limits::GRAMMAR_NESTING;
        if depth >= max {
            return Err(GrammarError::too_large(format!("{}: over {max} groups within each other", self.position())));
        }
        self.expect("(")?;
        let inner = self.alternatives(depth + 1)?;
        self.expect(")")?;
        Ok(inner)
    }

    /// The node with the repetitions that follow it.
    fn repeated(&mut self, node: Node) -> Result<Node, GrammarError> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted(node),
            _ => return Ok(node),
        };
        self.at += 1;
        self.once(Node::Repeat { node: Box::new(node), min, max })
    }

    fn counted(&mut self, node: Node) -> Result<Node, GrammarError> {
        self.expect("{")?;
        let min = self.count()?;
        self.skip(true);
        let max = match self.take(",") {
            false => Some(min),
            true => {
                self.skip(true);
                if self.peek() == Some('}') { None } else { Some(self.count()?) }
            }
        };
        self.skip(true);
        self.expect("}")?;
        if max.is_some_and(|max| max < min) {
            return Err(self.error("the largest count is below the smallest"));
        }
        self.once(Node::Repeat { node: Box::new(node), min, max })
    }

    /// Two in a row say nothing that one does not say, and would nest without end.
    fn once(&self, node: Node) -> Result<Node, GrammarError> {
        match self.peek() {
            Some('*' | '+' | '?' | '{') => Err(self.error("a repetition follows another one")),
            _ => Ok(node),
        }
    }

    fn count(&mut self) -> Result<u64, GrammarError> {
        self.skip(true);
        let mut count = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            self.at += 1;
            count = Some(count.unwrap_or(0u64).saturating_mul(10).saturating_add(u64::from(digit)));
        }
        let count = count.ok_or_else(|| self.error("expected a count"))?;
        let max = limits::GRAMMAR_REPETITIONS;
        if count > max {
            let position = self.position();
            return Err(GrammarError::too_large(format!("{position}: {count} repetitions, at most {max}")));
        }
        Ok(count)
    }

    fn text(&mut self) -> Result<String, GrammarError> {
        self.expect("\"")?;
        let mut text = String::new();
        while !self.take("\"") {
            text.push(self.char()?);
        }
        Ok(text)
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.expect("[")?;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let from = self.char()?;
            let is_range = self.text[self.at..].starts_with('-') && !self.text[self.at..].starts_with("-]");
            let to = if is_range {
                self.at += 1;
                self.char()?
            } else {
                from
            };
            if to < from {
                return Err(self.error("a range whose end is before its beginning"));
            }
            ranges.push((from, to));
        }
        if ranges.is_empty() && !negated {
            return Err(self.error("a class without characters"));
        }
        Ok(if ranges.is_empty() { Node::Any } else { Node::Class { negated, ranges } })
    }

    /// A character, or an escape for one.
    fn char(&mut self) -> Result<char, GrammarError> {
        let c = self.next().ok_or_else(|| self.error("expected a character"))?;
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.next().ok_or_else(|| self.error("expected an escape"))?;
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escape),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.error("an unknown escape")),
        };
        let hex = self.text.get(self.at..self.at + digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let c = code.ok_or_else(|| self.error("an escape that is no character"))?;
        self.at += digits;
        Ok(c)
    }
}

fn one_or(mut all: Vec<Node>, many: impl FnOnce(Vec<Node>) -> Node) -> Node {
    match (all.len(), all.pop()) {
        (1, Some(only)) => only,
        (_, last) => many(all.into_iter().chain(last).collect()),
    }
}
