//! Where the tokens of a completion begin in its text, and those of a prompt that it echoes.
use camshaft_core::ids::Token;
use camshaft_core::message::TokenLogprob;
use camshaft_core::vocabulary::Vocabulary;

use super::WholeChoice;
use crate::flow::request::{GenerationRequest, Prompt};
use crate::wire::types::logprobs::TextLogprobs;

/// The tokens of an echoed prompt, with where each begins in its text, in characters.
#[derive(Debug, Clone)]
struct EchoedPrompt {
    /// Not told yet, the next one last.
    left: Vec<(Token, usize)>,
    began: bool,
}

impl EchoedPrompt {
    /// `text`: what the answer's text begins with.
    fn new(vocabulary: &Vocabulary, tokens: &[Token], text: &str) -> Self {
        let offsets = match vocabulary.offsets(text, tokens) {
            Some(offsets) => characters(text, offsets.iter().map(|(start, _)| *start as usize)),
            // The tokens spell another text, or nobody knows.
            None => {
                let mut offset = TextOffset::default();
                let bytes = |token: &Token| vocabulary.token_bytes(*token).unwrap_or_default();
                tokens.iter().map(|token| offset.token(bytes(token))).collect()
            }
        };
        Self { left: tokens.iter().copied().zip(offsets).rev().collect(), began: false }
    }

    /// Tells the next tokens, which these log-probabilities are of; first of all the first token, which has none. Returns the
    /// log-probabilities that are none of the prompt.
    fn tell<'l>(
        &mut self,
        vocabulary: &Vocabulary,
        logprobs: &'l [TokenLogprob],
        out: &mut TextLogprobs,
    ) -> &'l [TokenLogprob] {
        if !std::mem::replace(&mut self.began, true)
            && let Some((token, offset)) = self.left.pop()
        {
            out.push_first(vocabulary, token, offset);
        }
        let (of_prompt, rest) = logprobs.split_at(logprobs.len().min(self.left.len()));
        for scored in of_prompt {
            let offset = self.left.pop().map_or(0, |(_, offset)| offset);
            out.push(vocabulary, scored, offset);
        }
        rest
    }
}

/// The places of byte offsets that ascend, in characters.
fn characters(text: &str, offsets: impl Iterator<Item = usize>) -> Vec<usize> {
    let (mut at, mut count) = (0, 0);
    let one = |offset: usize| {
        let passed = text.as_bytes().get(at..offset).unwrap_or_default();
        // A token that begins inside a character counts as behind it.
        count += passed.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        at = at.max(offset);
        count
    };
    offsets.map(one).collect()
}

/// Where in a choice's text the next token begins, in characters. One that several tokens spell counts where it is complete.
#[derive(Debug, Clone, Default)]
struct TextOffset {
    characters: usize,
    /// Of a character that is not complete.
    open: Vec<u8>,
}

impl TextOffset {
    /// Behind a text.
    fn after(text: &str) -> Self {
        Self { characters: text.chars().count(), open: Vec::new() }
    }

    /// Text that no token spells, and that completes what was open.
    fn skip(&mut self, characters: u32) {
        if characters > 0 {
            self.characters += characters as usize;
            self.open.clear();
        }
    }

    /// Where a token begins that has these bytes.
    fn token(&mut self, bytes: &[u8]) -> usize {
        let begins = self.characters;
        self.open.extend_from_slice(bytes);
        while !self.open.is_empty() {
            let (valid, invalid) = match std::str::from_utf8(&self.open) {
                Ok(text) => (text.len(), Some(0)),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            self.characters += self.open[..valid].iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            let Some(invalid) = invalid else {
                self.open.drain(..valid);
                break;
            };
            // U+FFFD takes its place.
            self.characters += usize::from(invalid > 0);
            self.open.drain(..valid + invalid);
        }
        begins
    }
}

/// The log-probabilities of a completion's choice as it comes, and the prompt that it echoes.
#[derive(Debug, Clone)]
pub(super) struct TextProgress {
    offset: TextOffset,
    /// Of the prompt that it echoes, if that has log-probabilities.
    scored: Option<EchoedPrompt>,
}

impl TextProgress {
    pub(super) fn new(request: &GenerationRequest, prompt: &Prompt) -> Self {
        let scores = || EchoedPrompt::new(&request.vocabulary, &prompt.tokens, &prompt.echo);
        Self { offset: TextOffset::after(&prompt.echo), scored: request.scores_prompts.then(scores) }
    }

    /// What the choice begins with: the prompt if it is echoed, and the first token of one that is scored, which has no
    /// log-probability.
    pub(super) fn opening(
        &mut self,
        request: &GenerationRequest,
        index: usize,
    ) -> Option<(String, Option<TextLogprobs>)> {
        let echo = request.choices().nth(index).map(|prompt| prompt.echo.clone()).unwrap_or_default();
        let is_scored = self.scored.is_some();
        (is_scored || !echo.is_empty()).then(|| (echo, is_scored.then(|| self.logprobs(&request.vocabulary, &[]))))
    }

    pub(super) fn logprobs(&mut self, vocabulary: &Vocabulary, tokens: &[TokenLogprob]) -> TextLogprobs {
        text(vocabulary, tokens, &mut self.offset, self.scored.as_mut())
    }
}

/// Of a whole completion's choice, which is one of those that are answered, if they are wanted.
pub(super) fn of_text(request: &GenerationRequest, index: usize, choice: &WholeChoice) -> Option<TextLogprobs> {
    let prompt = request.prompts.get(index / request.settings.n as usize)?;
    let wanted = request.logprobs.is_some();
    wanted.then(|| TextProgress::new(request, prompt).logprobs(&request.vocabulary, &choice.logprobs))
}

/// `offset` is where the first token begins; this moves it behind the last one. Before them come the tokens of an echoed
/// `prompt`, if it is scored.
fn text(
    vocabulary: &Vocabulary,
    tokens: &[TokenLogprob],
    offset: &mut TextOffset,
    prompt: Option<&mut EchoedPrompt>,
) -> TextLogprobs {
    let mut out = TextLogprobs::default();
    let tokens = prompt.map_or(tokens, |prompt| prompt.tell(vocabulary, tokens, &mut out));
    for drawn in tokens {
        offset.skip(drawn.skipped);
        let begins = offset.token(vocabulary.token_bytes(drawn.token).unwrap_or_default());
        out.push(vocabulary, drawn, begins);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::types::logprobs::ChatLogprobs;
    use serde_json::json;

    fn drawn() -> (Vocabulary, Vec<TokenLogprob>) {
        let vocabulary = Vocabulary::new([&b"a"[..], &[0xE2, 0x82], &[0xAC]], Vec::new());
        let top = vec![(Token(0), -0.25), (Token(1), f32::NEG_INFINITY)];
        let tokens = vec![
            TokenLogprob { token: Token(0), logprob: -0.25, top, skipped: 0 },
            TokenLogprob { token: Token(2), logprob: f32::NEG_INFINITY, top: Vec::new(), skipped: 0 },
        ];
        (vocabulary, tokens)
    }

    #[test]
    fn chat_tokens_carry_exact_bytes_where_text_is_partial() {
        let (vocabulary, tokens) = drawn();
        let got = serde_json::to_value(ChatLogprobs::new(&vocabulary, &tokens)).unwrap();
        let expected = json!({"content": [
            {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": [
                {"token": "a", "logprob": -0.25, "bytes": [97]},
                {"token": "\u{FFFD}", "logprob": -9999.0, "bytes": [0xE2, 0x82]},
            ]},
            {"token": "\u{FFFD}", "logprob": -9999.0, "bytes": [0xAC], "top_logprobs": []},
        ], "refusal": null});
        assert_eq!(got, expected);
    }

    fn at(characters: usize) -> TextOffset {
        TextOffset { characters, open: Vec::new() }
    }

    #[test]
    fn text_tokens_have_parallel_lists_and_running_offsets() {
        let (vocabulary, tokens) = drawn();
        let mut offset = at(5);
        let got = serde_json::to_value(text(&vocabulary, &tokens, &mut offset, None)).unwrap();
        let expected = json!({
            "tokens": ["a", "\u{FFFD}"], "token_logprobs": [-0.25, -9999.0], "text_offset": [5, 6],
            "top_logprobs": [{"a": -0.25, "\u{FFFD}": -9999.0}, {"\u{FFFD}": -9999.0}],
        });
        assert_eq!(got, expected);
        assert_eq!(offset.characters, 7);
    }

    #[test]
    fn offsets_count_text_that_comes_of_no_listed_token() {
        let (vocabulary, mut tokens) = drawn();
        tokens[1].skipped = 4;
        let got = serde_json::to_value(text(&vocabulary, &tokens, &mut at(5), None)).unwrap();
        assert_eq!(got["text_offset"], json!([5, 10]));
    }

    #[test]
    fn a_scored_prompt_comes_first_and_its_first_token_has_no_log_probability() {
        let (vocabulary, tokens) = drawn();
        let prompt = [Token(1), Token(2), Token(0)];
        let mut scored = EchoedPrompt::new(&vocabulary, &prompt, "\u{20ac}a");
        let told = |token, logprob| TokenLogprob { token: Token(token), logprob, top: Vec::new(), skipped: 0 };
        let mut offset = TextOffset::after("\u{20ac}a");
        // It comes in parts, of which the last one has what is generated, too.
        let first = text(&vocabulary, &[told(2, -1.0)], &mut offset, Some(&mut scored));
        let got = serde_json::to_value(first).unwrap();
        assert_eq!(got["token_logprobs"], json!([null, -1.0]));
        assert_eq!(got["top_logprobs"], json!([null, {"\u{FFFD}": -1.0}]));
        assert_eq!(got["text_offset"], json!([0, 1]), "the second token ends the character that the first begins");
        let rest = [&[told(0, -2.0)][..], &tokens[..1]].concat();
        let got = serde_json::to_value(text(&vocabulary, &rest, &mut offset, Some(&mut scored))).unwrap();
        assert_eq!((&got["tokens"], &got["text_offset"]), (&json!(["a", "a"]), &json!([1, 2])));
        assert_eq!(got["token_logprobs"], json!([-2.0, -0.25]));
    }

    #[test]
    fn a_prompt_of_one_token_is_told_without_any_log_probability() {
        let (vocabulary, _) = drawn();
        let mut scored = EchoedPrompt::new(&vocabulary, &[Token(0)], "a");
        let got = serde_json::to_value(text(&vocabulary, &[], &mut at(1), Some(&mut scored))).unwrap();
        assert_eq!(got, json!({"tokens": ["a"], "token_logprobs": [null], "top_logprobs": [null], "text_offset": [0]}));
    }

    #[test]
    fn offsets_of_a_prompt_are_those_of_the_text_that_was_sent() {
        let vocabulary = Vocabulary::new([" a", "b"], Vec::new());
        let tokens = [Token(0), Token(1), Token(1)];
        let of = |text| {
            EchoedPrompt::new(&vocabulary, &tokens, text).left.iter().rev().map(|(_, at)| *at).collect::<Vec<_>>()
        };
        assert_eq!(of("abb"), [0, 1, 2], "the vocabulary puts a space in front");
        assert_eq!(of(" abb"), [0, 2, 3]);
        assert_eq!(of("no such text"), [0, 2, 3]);
    }

    #[test]
    fn regression_offsets_count_a_character_where_it_is_complete() {
        let check = |pieces: &[&[u8]], expected: &[usize]| {
            let mut offset = TextOffset::default();
            let got: Vec<usize> = pieces.iter().map(|piece| offset.token(piece)).collect();
            assert_eq!(got, expected, "{pieces:?}");
        };
        check(&[b"t", b"\xf0", b"\x9f", b"\x8e", b"\x89", b" hel", b"lo"], &[0, 1, 1, 1, 1, 2, 6]);
        check(&[b"a\xc3", b"\xa4b", b"c"], &[0, 1, 3]);
        check(&[b"\xff", b"x\xe2\x82", b"y", b"z"], &[0, 1, 2, 4]);
    }

    #[test]
    fn regression_no_tokens_are_empty_lists() {
        let (vocabulary, _) = drawn();
        let of_chat = serde_json::to_value(ChatLogprobs::new(&vocabulary, &[])).unwrap();
        assert_eq!(of_chat, json!({"content": [], "refusal": null}));
        let of_text = serde_json::to_value(text(&vocabulary, &[], &mut at(0), None)).unwrap();
        assert_eq!(of_text, json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}));
    }
}
