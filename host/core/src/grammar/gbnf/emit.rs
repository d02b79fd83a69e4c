//! Writes the rules of a GBNF grammar in Lark.
//!
//! A rule that refers to no rule which refers back to it is a terminal, which `llguidance` matches as one piece: quickly, and
//! character by character as llama.cpp does. Where a terminal could end or go on, it goes on.
use std::fmt::Write;

use super::parse::{Node, Rule};
use crate::grammar::error::GrammarError;
use crate::limits;

/// # Errors
/// The Lark grammar would be too long.
pub(super) fn emit(rules: &[Rule]) -> Result<String, GrammarError> {
    let terminals = terminals(rules);
    let root = rules.iter().position(|rule| rule.name == "root");
    let mut out = Writer { out: String::new(), terminals: &terminals };
    if let Some(root) = root {
        out.out.push_str("start: ");
        out.name(root);
        out.out.push('\n');
    }
    for (place, rule) in rules.iter().enumerate() {
        out.name(place);
        out.out.push_str(": ");
        out.node(&rule.body);
        out.out.push('\n');
        let max = limits::GRAMMAR_BYTES;
        if out.out.len() > max {
            return Err(GrammarError::too_large(format!("a grammar of over {max} bytes in Lark")));
        }
    }
    Ok(out.out)
}

/// For each rule, whether it is a terminal: all that it refers to are terminals, and none refers back.
fn terminals(rules: &[Rule]) -> Vec<bool> {
    let uses: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let mut used = Vec::new();
            collect(&rule.body, &mut used);
            used
        })
        .collect();
    let mut users = vec![Vec::new(); rules.len()];
    let mut open: Vec<usize> = uses.iter().map(Vec::len).collect();
    for (user, used) in uses.iter().enumerate() {
        used.iter().for_each(|&used| users[used].push(user));
    }
    // From the leaves on.
    let mut ready: Vec<usize> = (0..rules.len()).filter(|&rule| open[rule] == 0).collect();
    let mut terminals = vec![false; rules.len()];
    while let Some(rule) = ready.pop() {
        terminals[rule] = true;
        for &user in &users[rule] {
            open[user] -= 1;
            if open[user] == 0 {
                ready.push(user);
            }
        }
    }
    terminals
}

fn collect(node: &Node, used: &mut Vec<usize>) {
    match node {
        Node::Rule(place) => used.push(*place),
        Node::Sequence(all) | Node::Alternatives(all) => all.iter().for_each(|node| collect(node, used)),
        Node::Repeat { node, .. } => collect(node, used),
        Node::Text(_) | Node::Class { .. } | Node::Any => {}
    }
}

struct Writer<'a> {
    out: String,
    terminals: &'a [bool],
}

impl Writer<'_> {
    fn name(&mut self, place: usize) {
        let letter = if self.terminals.get(place).copied().unwrap_or_default() { 'T' } else { 'r' };
        let _ = write!(self.out, "{letter}{place}");
    }

    fn node(&mut self, node: &Node) {
        match node {
            Node::Text(text) => self.out.push_str(&crate::grammar::quoted::quoted(text)),
            Node::Any => self.out.push_str("/(?s:.)/"),
            Node::Class { negated, ranges } => self.class(*negated, ranges),
            Node::Rule(place) => self.name(*place),
            Node::Sequence(all) if all.is_empty() => self.out.push_str("\"\""),
            Node::Sequence(all) => self.list(all, " "),
            Node::Alternatives(all) => self.list(all, " | "),
            Node::Repeat { node, min, max } => {
                self.out.push('(');
                self.node(node);
                self.out.push(')');
                let _ = match (min, max) {
                    (0, None) => write!(self.out, "*"),
                    (1, None) => write!(self.out, "+"),
                    (0, Some(1)) => write!(self.out, "?"),
                    (min, None) => write!(self.out, "{{{min},}}"),
                    (min, Some(max)) => write!(self.out, "{{{min},{max}}}"),
                };
            }
        }
    }

    fn list(&mut self, all: &[Node], between: &str) {
        for (at, node) in all.iter().enumerate() {
            if at > 0 {
                self.out.push_str(between);
            }
            let group = matches!(node, Node::Alternatives(_) | Node::Sequence(_));
            self.out.push_str(if group { "(" } else { "" });
            self.node(node);
            self.out.push_str(if group { ")" } else { "" });
        }
    }

    fn class(&mut self, negated: bool, ranges: &[(char, char)]) {
        self.out.push_str(if negated { "/[^" } else { "/[" });
        for (from, to) in ranges {
            let _ = write!(self.out, "\\x{{{:x}}}", u32::from(*from));
            if to != from {
                let _ = write!(self.out, "-\\x{{{:x}}}", u32::from(*to));
            }
        }
        self.out.push_str("]/");
    }
}
