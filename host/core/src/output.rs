//! What a client gets of the tokens that are drawn for it: text without stop strings, through the filters of its request.
use std::collections::VecDeque;

use compact_str::CompactString;

use crate::filter::TextFilter;
use crate::filter_stage::{End, FilterStage, Mark, Released};
use crate::ids::Token;
use crate::message::{Delta, FinishReason, TokenLogprob};
use crate::text::TextStream;

/// A token that adds text.
#[derive(Debug)]
pub(crate) struct TextToken<'a> {
    pub(crate) token: Token,
    pub(crate) bytes: &'a [u8],
    /// If it was asked for.
    pub(crate) logprob: Option<TokenLogprob>,
    /// Its own log-probability, if anybody asked for it.
    pub(crate) own: Option<f32>,
    /// No other token may follow.
    pub(crate) full: bool,
}

/// See the module.
pub(crate) struct Output {
    text: TextStream,
    /// Tokens whose text is held back: the offset at which each begins, and its log probability if one was asked for. Of a
    /// request without filters.
    unreported: VecDeque<(usize, Option<TokenLogprob>)>,
    /// `None`: the request has none.
    filters: Option<FilterStage>,
}

impl Output {
    pub(crate) fn new(stop: &[String], filters: Vec<Box<dyn TextFilter>>) -> Self {
        let filters = (!filters.is_empty()).then(|| FilterStage::new(filters));
        Self { text: TextStream::new(stop), unreported: VecDeque::new(), filters }
    }

    /// A token was drawn.
    pub(crate) fn token(&mut self, TextToken { token, bytes, logprob, own, full }: TextToken<'_>) -> Released {
        let (received, emitted) = (self.text.received(), self.text.emitted());
        let pushed = self.text.push(bytes);
        let mut text = pushed.text;
        let end = if pushed.stopped {
            Some(End { reason: FinishReason::Stop, all_tokens: false })
        } else if full {
            text.push_str(&self.text.flush());
            Some(End { reason: FinishReason::Length, all_tokens: true })
        } else {
            None
        };
        let Some(filters) = &mut self.filters else {
            self.unreported.push_back((received, logprob));
            return match end {
                None => Released::GoesOn(self.delta(text, false)),
                Some(end) => Released::Ended(self.delta(text, end.all_tokens), end.reason),
            };
        };
        let given = filters.text_len();
        let (begins, open) = (given + (received - emitted), self.text.received() - self.text.emitted());
        let ends = begins.max(given + text.len() + open);
        filters.drawn(Mark { token, given, begins, ends, received, emitted, logprob }, own);
        filters.advance(&text, end)
    }

    /// Whether a filter reads the log-probabilities of tokens.
    pub(crate) fn reads_logprobs(&self) -> bool {
        self.filters.as_ref().is_some_and(FilterStage::reads_logprobs)
    }

    /// An end token was drawn, or a sampler ended the generation.
    pub(crate) fn ended(&mut self, reason: FinishReason) -> Released {
        let text = self.text.flush();
        let end = End { reason, all_tokens: true };
        match &mut self.filters {
            None => Released::Ended(self.delta(text, true), end.reason),
            Some(filters) => filters.advance(&text, Some(end)),
        }
    }

    /// Goes on as when this token was drawn. `open`: bytes of the tokens before it that are not text yet.
    pub(crate) fn resume(&mut self, mark: &Mark, open: Vec<u8>) {
        self.text.resume(mark.received, mark.emitted, open);
    }

    /// The text with the tokens that it comes from; all remaining tokens if `all`. `None` for no text and no tokens.
    fn delta(&mut self, text: CompactString, all: bool) -> Option<Delta> {
        let given = self.text.emitted();
        let mut delta = Delta { text, ..Delta::default() };
        while self.unreported.front().is_some_and(|(begins, _)| all || *begins < given) {
            if let Some((_, logprob)) = self.unreported.pop_front() {
                delta.tokens += 1;
                delta.logprobs.extend(logprob);
            }
        }
        (!delta.text.is_empty() || delta.tokens > 0).then_some(delta)
    }
}
