//! A generation's text for unit tests: shows a filter what the host would, and does what the host does with its verdicts.
use super::about::AboutRequest;
use super::{Ending, Facts, Piece, Policy, Refusal, Replacement, Source, Verdict};

/// The text of one choice, and how far the filter has decided.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
    decided: usize,
    seen: usize,
    out: String,
    rewinds: u32,
    request: AboutRequest,
}

/// What new text led to.
#[derive(Debug, PartialEq)]
pub enum Step {
    GoesOn,
    Finished(Ending),
    /// The text ends before this byte now: add other text there.
    Rewound(u64),
    Refused(Refusal),
}

impl Text {
    /// Of a request with this attribute.
    #[must_use]
    pub fn with_attribute(mut self, name: &str, value: &str) -> Self {
        self.request.attributes.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Of this request.
    #[must_use]
    pub fn of_request(mut self, body: serde_json::Value) -> Self {
        self.request.body = body;
        self
    }

    /// What has gone out.
    pub fn out(&self) -> &str {
        &self.out
    }

    /// Bytes that the filter holds.
    pub fn held(&self) -> usize {
        self.text.len() - self.decided
    }

    /// Adds text and asks the filter about what it has not decided on. A rewind goes to the very byte that the filter names.
    ///
    /// # Panics
    /// The verdict is one that the host takes for a fault.
    pub fn add(&mut self, filter: &mut impl Policy, text: &str, last: bool) -> Step {
        self.text.push_str(text);
        let mut again = self.seen < self.text.len() || last;
        while again && self.decided < self.text.len() {
            let facts = Facts {
                text: self.text[self.decided..].to_owned(),
                start: self.decided as u64,
                fresh: self.seen.max(self.decided) as u64,
                last,
            };
            self.seen = self.text.len();
            let source =
                Source::Test { before: &self.text[..self.decided], rewinds: self.rewinds, request: &self.request };
            let verdict = filter.check(&Piece { facts, source });
            match verdict {
                Err(refusal) => return Step::Refused(refusal),
                Ok(Verdict::Pass(at)) => {
                    self.pass(at);
                    assert!(!last || self.held() == 0, "it holds {} bytes at the end", self.held());
                    assert!(self.held() <= 65536, "it holds {} bytes", self.held());
                    again = false;
                }
                Ok(Verdict::Replace(Replacement { start, end, text })) => {
                    assert!(start < end && text.len() <= 1024, "{start} to {end}: {text}");
                    self.pass(start);
                    self.out.push_str(&text);
                    self.decided = self.position(end);
                }
                Ok(Verdict::Finish(ending)) => {
                    self.pass(ending.at);
                    return Step::Finished(ending);
                }
                Ok(Verdict::Rewind(at)) => {
                    let cut = self.position(at);
                    assert!(cut < self.text.len(), "it takes back nothing");
                    self.text.truncate(cut);
                    (self.seen, self.rewinds) = (cut, self.rewinds + 1);
                    return Step::Rewound(at);
                }
            }
        }
        Step::GoesOn
    }

    fn position(&self, at: u64) -> usize {
        let byte = usize::try_from(at).unwrap_or(usize::MAX);
        assert!((self.decided..=self.text.len()).contains(&byte), "byte {at}, {} are decided", self.decided);
        assert!(self.text.is_char_boundary(byte), "byte {at} lies inside a character");
        byte
    }

    fn pass(&mut self, at: u64) {
        let end = self.position(at);
        self.out.push_str(&self.text[self.decided..end]);
        self.decided = end;
    }
}
