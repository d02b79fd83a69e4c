//! The monitored filters of one generation: they see the text as the model wrote it, and what they say of it is only counted.
//!
//! Nothing is held, changed or taken back for them. One that would have ended the generation is asked no more: what it would
//! say of text that it would not have let come says nothing. One that would have taken tokens back goes on behind them.
use crate::filter::{FilterVerdict, Piece, TextFilter, TextWindow};
use crate::filter_verdicts::{HELD_BYTES, KEPT_BYTES, VERDICTS, check};
use crate::policy::{Difference, Refusal};

/// Bytes that are kept of what is decided: filters look at some of it, and what an enforced filter holds may be taken back.
const KEPT: usize = KEPT_BYTES + HELD_BYTES;

struct Link {
    filter: Box<dyn TextFilter>,
    /// The text before this byte has its verdict.
    decided: usize,
    /// The text before this byte was shown.
    seen: usize,
}

/// See the module.
pub(crate) struct FilterMonitor {
    links: Vec<Link>,
    window: TextWindow,
    /// How often the filters that are enforced had tokens taken back.
    rewinds: u32,
}

impl FilterMonitor {
    pub(crate) fn new(filters: Vec<Box<dyn TextFilter>>) -> Self {
        let link = |filter| Link { filter, decided: 0, seen: 0 };
        Self { links: filters.into_iter().map(link).collect(), window: TextWindow::default(), rewinds: 0 }
    }

    /// Shows new text. `last`: nothing follows.
    pub(crate) fn advance(&mut self, text: &str, last: bool) {
        if self.links.is_empty() {
            return;
        }
        self.window.push(text);
        let (window, rewinds) = (&mut self.window, self.rewinds);
        self.links.retain_mut(|link| link.see(window, last, rewinds));
        let decided = self.links.iter().map(|link| link.decided).min();
        self.window.forget(decided.unwrap_or(self.window.end()), KEPT);
    }

    /// The tokens behind byte `at` were taken back by a filter that is enforced.
    pub(crate) fn cut(&mut self, at: usize) {
        self.rewinds += 1;
        if !self.window.is_boundary(at) {
            // The text from there on is not kept: nothing more can be told of this generation.
            self.links.clear();
        }
        self.window.cut(at);
        for link in &mut self.links {
            (link.decided, link.seen) = (link.decided.min(at), link.seen.min(at));
        }
    }
}

impl Link {
    /// Asks the filter until it has decided, or waits for more. False where it is asked no more.
    fn see(&mut self, window: &mut TextWindow, last: bool, rewinds: u32) -> bool {
        let mut again = false;
        for asked in 0..VERDICTS {
            let len = window.end();
            if self.decided >= len || !(last || again || self.seen < len) {
                return true;
            }
            let (fresh, goes_on) = (self.seen.clamp(self.decided, len), asked > 0);
            let piece = Piece { start: self.decided, fresh, last, rewinds, goes_on };
            self.seen = len;
            let Ok(verdict) = self.filter.check(piece, window) else { return false };
            if let FilterVerdict::Pass(at) = verdict
                && last
                && check(&verdict, self.decided, window, false).is_ok()
                && at < len
            {
                self.differs(Difference::HoldAtEnd, None);
                return false;
            }
            if let Err(why) = check(&verdict, self.decided, window, last) {
                self.filter.refused(why);
                return false;
            }
            match verdict {
                FilterVerdict::Pass(at) => {
                    self.decided = at;
                    return true;
                }
                FilterVerdict::Replace(replaced) => {
                    self.differs(Difference::Replace, None);
                    self.decided = replaced.end;
                    again = true;
                }
                FilterVerdict::Rewind(_) => {
                    self.differs(Difference::Rewind, None);
                    self.decided = len;
                }
                FilterVerdict::Finish { .. } => {
                    self.differs(Difference::Finish, None);
                    return false;
                }
                FilterVerdict::Refuse(refusal) => {
                    self.differs(Difference::Refuse, Some(&refusal));
                    return false;
                }
            }
        }
        self.filter.refused(format!("gave {VERDICTS} verdicts on one piece of text"));
        false
    }

    fn differs(&mut self, kind: Difference, refusal: Option<&Refusal>) {
        self.filter.differs(kind, refusal);
    }
}

#[cfg(test)]
#[path = "filter_monitor_tests.rs"]
mod tests;
