//! Log-probabilities of tokens, in the two shapes of chats and of completions.
use std::collections::BTreeMap;

use camshaft_core::ids::Token;
use camshaft_core::message::TokenLogprob;
use camshaft_core::vocabulary::Vocabulary;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

/// OpenAI's value for a probability of 0, because JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs<'a> {
    #[schemars(with = "Vec<ScoredToken>")]
    content: ChatTokens<'a>,
    refusal: Option<Vec<ScoredToken>>,
}

/// Rendered token by token as it is written: all at once would take many times the text.
#[derive(Debug)]
struct ChatTokens<'a> {
    vocabulary: &'a Vocabulary,
    tokens: &'a [TokenLogprob],
}

/// Of a response's text, as a chat lists them; empty if they were not asked for.
#[derive(Debug, Default)]
pub(crate) struct ListedTokens(Option<Box<RawValue>>);

/// A token with its log-probability before any sampler; -9999 stands for a probability of 0.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScoredToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<Alternative>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Lists of the same length.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    /// Of the first token of an echoed prompt: null.
    token_logprobs: Vec<Option<f32>>,
    #[schemars(with = "Vec<Option<BTreeMap<String, f32>>>")]
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins in the text, in characters.
    text_offset: Vec<usize>,
}

impl Serialize for ChatTokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let one = |&(token, logprob): &(Token, f32)| Alternative::new(self.vocabulary, token, logprob);
        serializer.collect_seq(self.tokens.iter().map(|drawn| {
            let Alternative { token, logprob, bytes } = one(&(drawn.token, drawn.logprob));
            ScoredToken { token, logprob, bytes, top_logprobs: drawn.top.iter().map(one).collect() }
        }))
    }
}

impl ListedTokens {
    pub(crate) fn new(vocabulary: &Vocabulary, tokens: &[TokenLogprob]) -> Self {
        let list = (!tokens.is_empty()).then_some(ChatTokens { vocabulary, tokens });
        Self(list.and_then(|list| to_raw_value(&list).ok()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Serialize for ListedTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(list) => list.serialize(serializer),
            None => serializer.collect_seq([(); 0]),
        }
    }
}

impl<'a> ChatLogprobs<'a> {
    pub(crate) fn new(vocabulary: &'a Vocabulary, tokens: &'a [TokenLogprob]) -> Self {
        Self { content: ChatTokens { vocabulary, tokens }, refusal: None }
    }
}

impl Alternative {
    fn new(vocabulary: &Vocabulary, token: Token, logprob: f32) -> Self {
        let bytes = vocabulary.token_bytes(token).unwrap_or_default().to_vec();
        Self { token: lossy(vocabulary, token), logprob: finite(logprob), bytes }
    }
}

impl TextLogprobs {
    /// The first token of a prompt, which begins at this character.
    pub(crate) fn push_first(&mut self, vocabulary: &Vocabulary, token: Token, offset: usize) {
        self.tokens.push(lossy(vocabulary, token));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(offset);
    }

    /// A token that begins at this character.
    pub(crate) fn push(&mut self, vocabulary: &Vocabulary, of: &TokenLogprob, offset: usize) {
        let text = lossy(vocabulary, of.token);
        let mut top: Map<String, Value> = Map::new();
        for &(token, logprob) in &of.top {
            top.entry(lossy(vocabulary, token)).or_insert_with(|| finite(logprob).into());
        }
        // The list always contains the token itself.
        top.entry(text.clone()).or_insert_with(|| finite(of.logprob).into());
        self.text_offset.push(offset);
        self.tokens.push(text);
        self.token_logprobs.push(Some(finite(of.logprob)));
        self.top_logprobs.push(Some(top));
    }
}

fn lossy(vocabulary: &Vocabulary, token: Token) -> String {
    String::from_utf8_lossy(vocabulary.token_bytes(token).unwrap_or_default()).into_owned()
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}
