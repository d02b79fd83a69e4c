//! The filters of one generation, between its text and its client: who has decided on what, what may go out, and what is
//! taken back.
//!
//! Text goes out up to the first token that is not decided on as a whole, so that a filter can always have that token drawn
//! anew. All filters see the text as the model wrote it; where they replace overlapping ranges, these become one, with the
//! text of the one that begins first.
use std::collections::VecDeque;

use crate::filter::{FilterVerdict, Piece, Replacement, TextFilter, TextWindow, WindowToken};
use crate::filter_verdicts::{KEPT_BYTES, VERDICTS, check};
use crate::ids::Token;
use crate::message::{Delta, FinishReason, TokenLogprob, WorkerError};
use crate::policy::{Fault, Refusal};

/// Tokens that are kept of what went out, for filters to look at.
pub const KEPT_TOKENS: usize = 512;
/// Bytes by which the replacements of a generation may be longer than what they replace, together.
pub const ADDED_BYTES: usize = 64 << 10;
/// How often a generation may be rewound, and how many tokens may be taken back in all.
pub const REWINDS: u32 = 128;
pub const TAKEN_BACK_TOKENS: usize = 16 << 10;

/// A token that was drawn, and where its text is.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) token: Token,
    /// Length of the text that was there when it was drawn.
    pub(crate) given: usize,
    /// Its own bytes in the text. Before them there may be some that were held back because their meaning was open.
    pub(crate) begins: usize,
    pub(crate) ends: usize,
    /// Bytes of tokens that the text was made of when it was drawn, and of those the ones that were text already.
    pub(crate) received: usize,
    pub(crate) emitted: usize,
    pub(crate) logprob: Option<TokenLogprob>,
}

/// What a step's text led to.
#[derive(Debug)]
pub(crate) enum Released {
    GoesOn(Option<Delta>),
    Ended(Option<Delta>, FinishReason),
    /// The token was taken back with all that follow it.
    Rewound(Rewound),
    Failed(WorkerError),
}

/// The first token that was taken back.
#[derive(Debug)]
pub(crate) struct Rewound {
    /// Number of tokens of the text before it.
    pub(crate) index: usize,
    pub(crate) mark: Mark,
}

/// How the text ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) reason: FinishReason,
    /// Tokens are told although they have no visible text.
    pub(crate) all_tokens: bool,
}

struct Link {
    filter: Box<dyn TextFilter>,
    /// The text before this byte has its verdict.
    decided: usize,
    /// The text before this byte was shown.
    seen: usize,
    /// Whether it was asked about the step's text.
    asked: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FilterStage {
    links: Vec<Link>,
    window: TextWindow,
    /// The text before this byte went out.
    out: usize,
    /// Tokens that were not told.
    tokens: VecDeque<Mark>,
    /// Number of tokens before those.
    told: usize,
    /// Ascending, without overlap, none of it out.
    replacements: Vec<Replacement>,
    added: usize,
    rewinds: u32,
    taken_back: usize,
    /// Characters of replaced text since the last token that was told with its log-probability.
    skipped: u32,
    /// Where a filter ended the text. A token that went on beyond it is not spelt.
    finished_at: Option<usize>,
    reads_logprobs: bool,
}

/// What one filter's turn led to.
enum Turn {
    Over,
    /// It faulted and is gone: the one behind it is next.
    Gone,
    Finished(FinishReason),
}

/// Why no further filter is asked.
enum Interrupt {
    Rewind(usize),
    Failed(WorkerError),
}

impl FilterStage {
    pub(crate) fn new(filters: Vec<Box<dyn TextFilter>>) -> Self {
        let reads_logprobs = filters.iter().any(|filter| filter.reads_logprobs());
        let link = |filter| Link { filter, decided: 0, seen: 0, asked: false };
        Self { links: filters.into_iter().map(link).collect(), reads_logprobs, ..Self::default() }
    }

    /// Whether a filter may ask for the log-probabilities of tokens.
    pub(crate) fn reads_logprobs(&self) -> bool {
        self.reads_logprobs
    }

    /// Length of the text so far, in bytes.
    pub(crate) fn text_len(&self) -> usize {
        self.window.end()
    }

    /// A token was drawn; its text comes with the next `advance`, or later.
    pub(crate) fn drawn(&mut self, mark: Mark, logprob: Option<f32>) {
        self.window.note(WindowToken { token: mark.token, begins: mark.begins, ends: mark.ends, logprob });
        self.tokens.push_back(mark);
    }

    /// Shows new text to the filters, and does what they say.
    pub(crate) fn advance(&mut self, text: &str, end: Option<End>) -> Released {
        self.window.push(text);
        self.links.iter_mut().for_each(|link| link.asked = false);
        match self.ask_all(end) {
            Ok(None) => Released::GoesOn(self.release(None)),
            Ok(Some(end)) => Released::Ended(self.release(Some(end)), end.reason),
            Err(Interrupt::Rewind(index)) => match self.take_back(index) {
                Some(rewound) => Released::Rewound(rewound),
                None => Released::Failed(WorkerError::FilterFault { detail: "nothing to take back".to_owned() }),
            },
            Err(Interrupt::Failed(error)) => Released::Failed(error),
        }
    }

    fn ask_all(&mut self, mut end: Option<End>) -> Result<Option<End>, Interrupt> {
        let mut index = 0;
        while index < self.links.len() {
            match self.ask(index, end.is_some())? {
                Turn::Over => index += 1,
                Turn::Gone => {}
                Turn::Finished(reason) => {
                    end = Some(End { reason, all_tokens: false });
                    // Those before it have to decide on what they hold.
                    index = 0;
                }
            }
        }
        Ok(end)
    }

    /// Asks one filter until it has decided, or waits for more.
    fn ask(&mut self, index: usize, last: bool) -> Result<Turn, Interrupt> {
        let mut again = false;
        for _ in 0..VERDICTS {
            let (len, link) = (self.window.end(), &mut self.links[index]);
            if link.decided >= len || !(last || again || link.seen < len) {
                return Ok(Turn::Over);
            }
            let (start, fresh) = (link.decided, link.seen.clamp(link.decided, len));
            link.seen = len;
            let goes_on = std::mem::replace(&mut link.asked, true);
            let piece = Piece { start, fresh, last, rewinds: self.rewinds, goes_on };
            let verdict = match link.filter.check(piece, &mut self.window) {
                Ok(verdict) => verdict,
                Err(fault) => return self.faulted(index, &fault),
            };
            match self.judge(index, verdict, last) {
                Ok(Some(turn)) => return turn,
                Ok(None) => again = true,
                Err(why) => return self.refused(index, why),
            }
        }
        self.refused(index, format!("gave {VERDICTS} verdicts on one piece of text"))
    }

    /// Carries out a verdict. `None`: the filter has more to say.
    ///
    /// # Errors
    /// The verdict is none that the hook allows, and nothing was done.
    fn judge(
        &mut self,
        index: usize,
        verdict: FilterVerdict,
        last: bool,
    ) -> Result<Option<Result<Turn, Interrupt>>, String> {
        check(&verdict, self.links[index].decided, &self.window, last)?;
        match verdict {
            FilterVerdict::Pass(at) => {
                self.links[index].decided = at;
                Ok(Some(Ok(Turn::Over)))
            }
            FilterVerdict::Replace(Replacement { start, end, text }) => {
                let added = self.added.saturating_add(text.len().saturating_sub(end - start));
                if added > ADDED_BYTES {
                    return Err(format!("adds {added} bytes to the text, at most {ADDED_BYTES}"));
                }
                self.added = added;
                self.links[index].decided = end;
                self.replace(Replacement { start, end, text });
                Ok(None)
            }
            FilterVerdict::Finish { at, reason } => {
                self.finish(at);
                self.links[index].decided = at;
                Ok(Some(Ok(Turn::Finished(reason))))
            }
            FilterVerdict::Rewind(at) => {
                let first = self.first_to_draw_anew(at).ok_or("rewinds to text without tokens")?;
                self.check_rewinds(first)?;
                Ok(Some(Err(Interrupt::Rewind(first))))
            }
            FilterVerdict::Refuse(refusal) => Ok(Some(Err(Interrupt::Failed(refused(refusal))))),
        }
    }

    fn check_rewinds(&self, first: usize) -> Result<(), String> {
        if self.rewinds >= REWINDS {
            return Err(format!("rewinds more than {REWINDS} times"));
        }
        let taken_back = self.taken_back + self.tokens.len().saturating_sub(first);
        if taken_back > TAKEN_BACK_TOKENS {
            return Err(format!("takes back {taken_back} tokens, at most {TAKEN_BACK_TOKENS}"));
        }
        Ok(())
    }

    /// The verdict is none.
    fn refused(&mut self, index: usize, why: String) -> Result<Turn, Interrupt> {
        let fault = self.links[index].filter.refused(why);
        self.faulted(index, &fault)
    }

    fn faulted(&mut self, index: usize, fault: &Fault) -> Result<Turn, Interrupt> {
        if self.links[index].filter.denies() {
            return Err(Interrupt::Failed(WorkerError::FilterFault { detail: fault.to_string() }));
        }
        // What it held, nobody holds any more. What it replaced stays so.
        drop(self.links.remove(index));
        Ok(Turn::Gone)
    }

    fn replace(&mut self, new: Replacement) {
        let first = self.replacements.partition_point(|old| old.end <= new.start);
        let behind = self.replacements.partition_point(|old| old.start < new.end);
        let mut joined = new;
        for old in self.replacements.drain(first..behind) {
            if old.start <= joined.start {
                (joined.start, joined.text) = (old.start, old.text);
            }
            joined.end = joined.end.max(old.end);
        }
        self.replacements.insert(first, joined);
    }

    /// The text ends at byte `at`.
    fn finish(&mut self, at: usize) {
        self.window.cut(at);
        self.finished_at = Some(at);
        self.replacements.retain(|replaced| replaced.start < at);
        if let Some(replaced) = self.replacements.last_mut() {
            replaced.end = replaced.end.min(at);
        }
        for link in &mut self.links {
            (link.decided, link.seen) = (link.decided.min(at), link.seen.min(at));
        }
    }

    /// The first token to take back so that another one can be drawn at byte `at`, among those that were not told. It is the
    /// one that the byte comes from, unless text that was given before it went out already.
    fn first_to_draw_anew(&self, at: usize) -> Option<usize> {
        let covers = self.tokens.partition_point(|mark| mark.begins <= at).saturating_sub(1);
        (covers..self.tokens.len()).find(|&index| self.tokens[index].given >= self.out)
    }

    /// Takes back a token and all that follow it.
    fn take_back(&mut self, index: usize) -> Option<Rewound> {
        self.rewinds += 1;
        self.taken_back += self.tokens.len().saturating_sub(index);
        self.window.take_back(self.tokens.len().saturating_sub(index));
        let mark = self.tokens.drain(index.min(self.tokens.len())..).next()?;
        let cut = mark.given;
        self.window.cut(cut);
        self.finished_at = None;
        // A range that is not there as a whole has to be looked at again.
        let whole = self.replacements.partition_point(|replaced| replaced.end <= cut);
        let decided = self.replacements.drain(whole..).map(|replaced| replaced.start).fold(cut, usize::min);
        for link in &mut self.links {
            (link.decided, link.seen) = (link.decided.min(decided), link.seen.min(cut));
        }
        Some(Rewound { index: self.told + index, mark })
    }

    /// The byte up to which text may go out.
    fn limit(&self) -> usize {
        let end = self.window.end();
        let mut decided = self.links.iter().map(|link| link.decided).min().unwrap_or(end);
        loop {
            let open = self.tokens.iter().find(|mark| mark.ends > decided);
            let limit = open.map_or(decided, |mark| mark.given.min(decided));
            // A replacement goes out as a whole.
            match self.replacements.iter().find(|replaced| replaced.start < limit && limit < replaced.end) {
                Some(replaced) => decided = replaced.start,
                None => return limit,
            }
        }
    }

    /// What goes out now: text, and the tokens that it comes from.
    fn release(&mut self, end: Option<End>) -> Option<Delta> {
        let limit = if end.is_some() { self.window.end() } else { self.limit() };
        let done = self.replacements.partition_point(|replaced| replaced.end <= limit);
        let done: Vec<Replacement> = self.replacements.drain(..done).collect();
        let mut delta = Delta::default();
        for Replacement { start, end, text } in &done {
            delta.text.push_str(self.window.between(self.out, *start));
            delta.text.push_str(text);
            self.out = *end;
        }
        delta.text.push_str(self.window.between(self.out, limit));
        self.out = limit;
        self.tell(end, &done, &mut delta);
        self.window.forget(limit, KEPT_BYTES);
        self.window.forget_tokens(self.tokens.len() + KEPT_TOKENS);
        (!delta.text.is_empty() || delta.tokens > 0).then_some(delta)
    }

    /// Tells of the tokens whose text went out, or of all where the `end` says so. A token's log-probability spells its text,
    /// so that of a token whose text was replaced, or did not go out as a whole before the end, is left out.
    fn tell(&mut self, end: Option<End>, done: &[Replacement], delta: &mut Delta) {
        let chars = |text: &str| u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        let all = end.is_some_and(|end| end.all_tokens);
        let mut replaced = done.iter().peekable();
        while let Some(mark) = self.tokens.pop_front_if(|mark| all || mark.begins < self.out) {
            self.told += 1;
            delta.tokens += 1;
            while let Some(before) = replaced.next_if(|replaced| replaced.end <= mark.begins) {
                self.skipped = self.skipped.saturating_add(chars(&before.text));
            }
            let Some(logprob) = mark.logprob else { continue };
            // Its last bytes may belong to what is replaced next.
            let replacements = || done.iter().chain(&self.replacements);
            let by_filter = self.finished_at.is_some_and(|at| mark.ends > at);
            let is_cut = by_filter || (end.is_some() && mark.ends > self.out);
            if is_cut || replacements().any(|replaced| replaced.start < mark.ends && mark.begins < replaced.end) {
                let is_left = |at: usize| replacements().all(|replaced| !(replaced.start..replaced.end).contains(&at));
                // A character counts where it is complete.
                let completes = |at: &usize| is_left(*at) && self.window.is_boundary(at + 1);
                let completed = (mark.begins..mark.ends.min(self.out)).filter(completes).count();
                self.skipped = self.skipped.saturating_add(u32::try_from(completed).unwrap_or(u32::MAX));
            } else {
                delta.logprobs.push(TokenLogprob { skipped: std::mem::take(&mut self.skipped), ..logprob });
            }
        }
        for behind in replaced {
            self.skipped = self.skipped.saturating_add(chars(&behind.text));
        }
    }
}

fn refused(refusal: Refusal) -> WorkerError {
    WorkerError::Declined(Box::new(refusal))
}

#[cfg(test)]
#[path = "filter_stage_tests.rs"]
mod tests;
