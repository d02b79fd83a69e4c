//! What a client gets of the tokens that are drawn for it: text without stop strings, through the filters of its request.
use std::collections::VecDeque;

use compact_str::CompactString;

use crate::filter::TextFilter;
use crate::filter_monitor::FilterMonitor;
use crate::filter_stage::{End, FilterStage, Mark, Released};
use crate::ids::Token;
use crate::message::{Delta, FinishReason, TokenLogprob};
use crate::text::{Pushed, TextStream};

/// A token that adds text.
#[derive(Debug)]
pub(crate) struct TextToken<'a> {
    pub(crate) token: Token,
    pub(crate) bytes: &'a [u8],
    /// If it was asked for.
    pub(crate) logprob: Option<TokenLogprob>,
    /// Its own log-probability, if anybody asked for it.
    pub(crate) own: Option<f32>,
    /// Why no other token may follow, if none may.
    pub(crate) end: Option<FinishReason>,
    /// It is too early for stop strings.
    pub(crate) early: bool,
}

/// See the module.
pub(crate) struct Output {
    text: TextStream,
    /// Tokens whose text is held back: the offset at which each begins, and its log probability if one was asked for. Of a
    /// request without filters.
    unreported: VecDeque<(usize, Option<TokenLogprob>)>,
    /// `None`: the request has none.
    filters: Option<FilterStage>,
    /// `None`: none is monitored.
    monitor: Option<FilterMonitor>,
}

impl Output {
    pub(crate) fn new(stop: &[String], filters: Vec<Box<dyn TextFilter>>) -> Self {
        let (monitored, filters): (Vec<_>, Vec<_>) = filters.into_iter().partition(|filter| filter.is_monitored());
        let filters = (!filters.is_empty()).then(|| FilterStage::new(filters));
        let monitor = (!monitored.is_empty()).then(|| FilterMonitor::new(monitored));
        Self { text: TextStream::new(stop), unreported: VecDeque::new(), filters, monitor }
    }

    /// A token was drawn.
    pub(crate) fn token(&mut self, TextToken { token, bytes, logprob, own, end, early }: TextToken<'_>) -> Released {
        let (received, emitted) = (self.text.received(), self.text.emitted());
        let pushed = match early {
            true => Pushed { text: self.text.pass(bytes), stopped: None },
            false => self.text.push(bytes),
        };
        let mut text = pushed.text;
        let end = if let Some(stop) = pushed.stopped {
            // Requests have 16 at most.
            let reason = FinishReason::StopString(u8::try_from(stop).unwrap_or(u8::MAX));
            Some(End { reason, all_tokens: false })
        } else {
            if end.is_some() {
                text.push_str(&self.text.flush());
            }
            end.map(|reason| End { reason, all_tokens: true })
        };
        if let Some(monitor) = &mut self.monitor {
            monitor.advance(&text, end.is_some());
        }
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
        let released = filters.advance(&text, end);
        self.follow(&released, end.is_some());
        released
    }

    /// Whether a filter reads the log-probabilities of tokens.
    pub(crate) fn reads_logprobs(&self) -> bool {
        self.filters.as_ref().is_some_and(FilterStage::reads_logprobs)
    }

    /// An end token was drawn, or a sampler ended the generation.
    pub(crate) fn ended(&mut self, reason: FinishReason) -> Released {
        let text = self.text.flush();
        let end = End { reason, all_tokens: true };
        if let Some(monitor) = &mut self.monitor {
            monitor.advance(&text, true);
        }
        let Some(filters) = &mut self.filters else {
            return Released::Ended(self.delta(text, true), end.reason);
        };
        let released = filters.advance(&text, Some(end));
        self.follow(&released, true);
        released
    }

    /// Tells the monitored filters what those that are enforced did with the text. `ended`: they know that none follows.
    fn follow(&mut self, released: &Released, ended: bool) {
        let Some(monitor) = &mut self.monitor else { return };
        match released {
            Released::Rewound(rewound) => monitor.cut(rewound.mark.given),
            Released::Ended(..) if !ended => monitor.advance("", true),
            Released::Ended(..) | Released::GoesOn(_) | Released::Failed(_) => {}
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
