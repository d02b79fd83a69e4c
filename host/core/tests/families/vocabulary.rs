//! A vocabulary of bytes and control tokens, and grammars over it.
use std::sync::Arc;

use camshaft_core::family::constraint::{Content, constraint};
use camshaft_core::family::description::{Family, ThinkingState};
use camshaft_core::family::tools::Tools;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

/// Tokens of single bytes, then the end of text, then control tokens.
pub(crate) const END: u32 = 256;

/// A vocabulary that has a family's special markers as control tokens, or has only their bytes.
pub(crate) struct Vocabulary {
    control: &'static [&'static str],
    factory: ParserFactory,
}

impl Vocabulary {
    pub(crate) fn new(control: &'static [&'static str]) -> Self {
        let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| if byte == 0xff { vec![] } else { vec![byte] }).collect();
        words.push(b"\xff<end>".to_vec());
        words.extend(control.iter().map(|token| [b"\xff".as_slice(), token.as_bytes()].concat()));
        let trie = TokTrie::from(&TokRxInfo::new(u32::try_from(words.len()).expect("a few"), END), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities =
            InferenceCapabilities { ff_tokens: false, backtrack: false, conditional_ff_tokens: false, fork: false };
        Self { control, factory: ParserFactory::new(&env, capabilities, &[]).expect("a factory") }
    }

    fn token(&self, text: &str) -> Option<u32> {
        let at = self.control.iter().position(|token| *token == text)?;
        Some(END + 1 + u32::try_from(at).expect("a few"))
    }

    pub(crate) fn grammar(&self, family: &'static Family, tools: &Tools, thinking: ThinkingState) -> String {
        self.grammar_with(family, tools, Content::Text, thinking)
    }

    pub(crate) fn grammar_with(
        &self,
        family: &'static Family,
        tools: &Tools,
        content: Content<'_>,
        thinking: ThinkingState,
    ) -> String {
        let grammar = constraint(family, tools, content, thinking, &|text| self.token(text));
        grammar.expect("a constraint").expect("there are tools or JSON")
    }

    pub(crate) fn matcher(&self, grammar: &str) -> Matcher {
        let matcher = Matcher::new(self.factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned())));
        assert!(!matcher.is_error(), "{:?}\n{grammar}", matcher.get_error());
        matcher
    }

    /// Control tokens where the text has their names, and bytes.
    pub(crate) fn tokens(&self, mut text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        while let Some(&byte) = text.as_bytes().first() {
            let control = self.control.iter().find(|token| text.starts_with(**token));
            match control {
                Some(token) => {
                    tokens.extend(self.token(token));
                    text = &text[token.len()..];
                }
                None => {
                    let character = text.chars().next().map_or(1, char::len_utf8);
                    tokens.extend(text.as_bytes()[..character].iter().map(|byte| u32::from(*byte)));
                    debug_assert!(character > 0 && byte == text.as_bytes()[0]);
                    text = &text[character..];
                }
            }
        }
        tokens
    }

    /// The text of tokens, with the names of control tokens.
    pub(crate) fn text(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            match u8::try_from(token) {
                Ok(byte) => bytes.push(byte),
                Err(_) if token == END => {}
                Err(_) => bytes.extend(self.control[(token - END - 1) as usize].as_bytes()),
            }
        }
        String::from_utf8(bytes).expect("text")
    }
}
