//! Text in llguidance's dialect of Lark: <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>.
use std::collections::BTreeSet;
use std::fmt::Write;

pub(crate) use crate::grammar::lark_string as string;
use crate::limits;

/// Finds the control token that a vocabulary has for a text.
pub(crate) type TokenOf<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// The grammar would have more bytes than [`limits::GRAMMAR_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A grammar under construction.
pub(crate) struct Lark<'a> {
    special: &'static [&'static str],
    token: TokenOf<'a>,
    text: String,
    names: BTreeSet<String>,
    rules: usize,
}

impl std::fmt::Debug for Lark<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lark").field("text", &self.text).finish_non_exhaustive()
    }
}

impl<'a> Lark<'a> {
    /// `special`: parts of texts that may be control tokens.
    pub(crate) fn new(special: &'static [&'static str], token: TokenOf<'a>) -> Self {
        Self { special, token, text: String::new(), names: BTreeSet::new(), rules: 0 }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// A rule or terminal of this name, if there is none yet.
    pub(crate) fn define(&mut self, name: &str, body: &str) -> Result<(), Full> {
        if self.names.insert(name.to_owned()) { self.line(name, "", body) } else { Ok(()) }
    }

    /// A rule with a name of its own, which it returns.
    pub(crate) fn rule(&mut self, body: &str) -> Result<String, Full> {
        self.numbered("", body)
    }

    /// A terminal with a name of its own, which it returns.
    pub(crate) fn terminal(&mut self, body: &str) -> Result<String, Full> {
        let name = format!("T{}", self.rules);
        self.rules += 1;
        self.line(&name, "", body)?;
        Ok(name)
    }

    /// A rule that matches as little text as it can.
    pub(crate) fn lazy(&mut self, body: &str) -> Result<String, Full> {
        self.numbered("[lazy]", body)
    }

    fn numbered(&mut self, options: &str, body: &str) -> Result<String, Full> {
        let name = format!("r{}", self.rules);
        self.rules += 1;
        self.line(&name, options, body)?;
        Ok(name)
    }

    fn line(&mut self, name: &str, options: &str, body: &str) -> Result<(), Full> {
        // A colon, a space and a line break.
        if self.text.len() + name.len() + options.len() + body.len() + 3 > limits::GRAMMAR_BYTES {
            return Err(Full);
        }
        let _ = writeln!(self.text, "{name}{options}: {body}");
        Ok(())
    }

    /// Control tokens as tokens, everything else as strings.
    pub(crate) fn spelled(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, special, id)) = self.first_token(rest) {
            if at > 0 {
                parts.push(string(&rest[..at]));
            }
            parts.push(format!("<[{id}]>"));
            rest = &rest[at + special.len()..];
        }
        if !rest.is_empty() {
            parts.push(string(rest));
        }
        parts.join(" ")
    }

    /// Text of a terminal up to a marker, with the marker. `some` and `any`: terminals of at least one character, and of any
    /// number, both without the marker.
    pub(crate) fn until(&mut self, some: &str, any: &str, marker: &str) -> Result<String, Full> {
        if self.begins_with_token(marker) {
            // Control tokens are no part of any terminal.
            Ok(format!("{some}? {}", self.spelled(marker)))
        } else {
            self.lazy(&format!("{any} {}", string(marker)))
        }
    }

    pub(crate) fn begins_with_token(&self, text: &str) -> bool {
        self.first_token(text).is_some_and(|(at, ..)| at == 0)
    }

    fn first_token(&self, text: &str) -> Option<(usize, &'static str, u32)> {
        let found =
            self.special.iter().filter_map(|special| Some((text.find(special)?, *special, (self.token)(special)?)));
        found.min_by_key(|(at, ..)| *at)
    }
}

/// Text as a regular expression that matches it.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '#' | '&' | '-'
            | '~' | '/' => {
                out.push('\\');
                out.push(character);
            }
            _ => out.push(character),
        }
    }
    out
}

/// A part of a terminal: not with any of these regular expressions anywhere.
pub(crate) fn without(patterns: &[String]) -> String {
    if patterns.is_empty() { String::new() } else { format!(" & ~/(?s:.*)(?:{})(?s:.*)/", patterns.join("|")) }
}

/// A part of a terminal: not with any of these regular expressions at its beginning.
pub(crate) fn not_first(patterns: &[String]) -> String {
    if patterns.is_empty() { String::new() } else { format!(" & ~/(?:{})(?s:.*)/", patterns.join("|")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spells_control_tokens_as_tokens_and_the_rest_as_strings() {
        let token = |text: &str| (text == "<|a|>").then_some(7);
        let lark = Lark::new(&["<|a|>", "<|b|>"], &token);
        assert_eq!(lark.spelled("<|a|>x\n\"<|b|><|a|>"), r#"<[7]> "x\n\"<|b|>" <[7]>"#);
        assert_eq!(lark.spelled(""), "");
        assert!(
            lark.begins_with_token("<|a|>x") && !lark.begins_with_token("<|b|>") && !lark.begins_with_token("x<|a|>")
        );
        assert_eq!(string("\u{7f}é"), "\"\\u007fé\"");
    }

    #[test]
    fn a_grammar_has_256_kib_and_not_one_byte_more() {
        let filled = |bytes: usize| {
            let mut lark = Lark::new(&[], &|_| None);
            lark.define("start", "r0")?;
            lark.rule(&"x".repeat(bytes - "start: r0\nr0: \n".len()))?;
            Ok(lark.into_text().len())
        };
        assert_eq!(filled(256 << 10), Ok(256 << 10));
        assert_eq!(filled((256 << 10) + 1), Err(Full));
    }
}
