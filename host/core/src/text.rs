//! Turns token bytes into text: whole UTF-8 characters, and no part of a stop string.
use compact_str::CompactString;

/// Assembles the text of one generation. Holds back bytes whose meaning the next token may still change: an incomplete
/// character, or the beginning of a stop string.
#[derive(Debug, Default)]
pub struct TextStream {
    stops: Vec<Vec<u8>>,
    held: Vec<u8>,
    received: usize,
    emitted: usize,
}

/// The result of [`TextStream::push`].
#[derive(Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Text that no later token can change.
    pub text: CompactString,
    /// The bytes completed the stop string of this index: the generation ends here.
    pub stopped: Option<usize>,
}

impl TextStream {
    /// `stops` must not contain an empty string.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().map(|stop| stop.as_bytes().to_vec()).collect(), ..Self::default() }
    }

    /// Bytes received so far: the offset at which the next token begins.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Bytes emitted as text so far. A token that begins before this offset is at least partly visible.
    pub fn emitted(&self) -> usize {
        self.emitted
    }

    pub fn push(&mut self, bytes: &[u8]) -> Pushed {
        self.received += bytes.len();
        self.held.extend_from_slice(bytes);
        if let Some((at, stop)) = self.first_stop() {
            self.held.truncate(at);
            return Pushed { text: self.flush(), stopped: Some(stop) };
        }
        let safe = self.held.len() - self.partial_stop_len();
        Pushed { text: self.emit(safe, false), stopped: None }
    }

    /// As [`TextStream::push`] without stop strings: one that these bytes complete or begin does not count.
    pub fn pass(&mut self, bytes: &[u8]) -> CompactString {
        self.received += bytes.len();
        self.held.extend_from_slice(bytes);
        self.emit(self.held.len(), false)
    }

    /// Emits everything held back, at the end of a generation. Replaces invalid UTF-8 with U+FFFD.
    pub fn flush(&mut self) -> CompactString {
        self.emit(self.held.len(), true)
    }

    /// Goes back to where so many bytes were received and emitted. `held`: those between.
    pub(crate) fn resume(&mut self, received: usize, emitted: usize, held: Vec<u8>) {
        (self.received, self.emitted, self.held) = (received, emitted, held);
    }

    /// Where the first stop string begins, and which it is.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let place = |stop: &Vec<u8>| self.held.windows(stop.len()).position(|window| window == stop);
        self.stops.iter().enumerate().filter_map(|(index, stop)| Some((place(stop)?, index))).min()
    }

    /// Length of the longest suffix of `held` that is a proper prefix of a stop string.
    fn partial_stop_len(&self) -> usize {
        let max = self.stops.iter().map(|stop| (stop.len() - 1).min(self.held.len())).max().unwrap_or(0);
        (1..=max)
            .rev()
            .find(|&n| {
                let suffix = &self.held[self.held.len() - n..];
                self.stops.iter().any(|stop| stop.len() > n && stop.starts_with(suffix))
            })
            .unwrap_or(0)
    }

    /// Removes up to `len` bytes and returns them as text. Leaves an incomplete character at the end unless `all`.
    fn emit(&mut self, len: usize, all: bool) -> CompactString {
        let mut text = CompactString::with_capacity(len);
        let mut at = 0;
        while at < len {
            match std::str::from_utf8(&self.held[at..len]) {
                Ok(valid) => {
                    text.push_str(valid);
                    at = len;
                }
                Err(error) => {
                    let valid = at + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.held[at..valid]));
                    match error.error_len() {
                        Some(invalid) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            at = valid + invalid;
                        }
                        None if all => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            at = len;
                        }
                        None => {
                            at = valid;
                            break;
                        }
                    }
                }
            }
        }
        self.held.drain(..at);
        self.emitted += at;
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pieces: &[&[u8]], stops: &[&str], expected: &[&str], stopped: bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut stream = TextStream::new(&stops);
        let mut out = Vec::new();
        let mut ended = false;
        for piece in pieces {
            let pushed = stream.push(piece);
            out.push(pushed.text);
            if pushed.stopped.is_some() {
                ended = true;
                break;
            }
        }
        if !ended {
            out.push(stream.flush());
        }
        assert_eq!((out.iter().map(CompactString::as_str).collect::<Vec<_>>(), ended), (expected.to_vec(), stopped));
    }

    #[test]
    fn never_splits_a_character() {
        check(&[b"a\xc3", b"\xa4b", b"\xf0\x9f", b"\x98", b"\x80"], &[], &["a", "äb", "", "", "😀", ""], false);
        check(&[b"\xff", b"x\xe2\x82"], &[], &["\u{fffd}", "x", "\u{fffd}"], false);
    }

    #[test]
    fn holds_back_the_beginning_of_a_stop_string_across_tokens() {
        check(&[b"one E", b"N", b"D two"], &["END"], &["one ", "", ""], true);
        check(&[b"one E", b"N", b"E"], &["END"], &["one ", "", "EN", "E"], false);
        check(&[b"aab"], &["ab"], &["a"], true);
        check(&[b"xSTOP1y"], &["STOP1", "xS"], &[""], true);
        check(&[b"aa", b"ab"], &["aab"], &["", "a"], true);
    }

    #[test]
    fn bytes_that_are_passed_neither_complete_nor_begin_a_stop_string() {
        let mut stream = TextStream::new(&["END".to_owned()]);
        assert_eq!(stream.pass(b"END E\xc3"), "END E");
        assert_eq!(stream.push(b"\xa4ND"), Pushed { text: "\u{e4}ND".into(), stopped: None });
        assert_eq!(stream.push(b" END"), Pushed { text: " ".into(), stopped: Some(0) });
    }

    proptest! {
        #[test]
        fn emits_the_text_up_to_a_stop_string_and_no_part_of_one(
            text in "[abc\u{e4}\u{20ac}]{0,40}",
            stops in prop::collection::vec("[abc\u{e4}]{1,4}", 0..3),
            cuts in prop::collection::vec(1usize..5, 0..60),
        ) {
            let end = stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
            let mut stream = TextStream::new(&stops);
            let (mut out, mut stopped, mut rest) = (String::new(), false, text.as_bytes());
            for cut in cuts.into_iter().chain(std::iter::repeat(3)) {
                if rest.is_empty() || stopped { break }
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                let pushed = stream.push(piece);
                out.push_str(&pushed.text);
                stopped = pushed.stopped.is_some();
                rest = tail;
            }
            if !stopped {
                out.push_str(&stream.flush());
            }
            // A short stop string may be complete before a long one that begins earlier. The output is then longer than
            // `text[..end]`, but still a prefix of the text without any stop string.
            prop_assert_eq!(stopped, end.is_some());
            prop_assert!(text.starts_with(&out));
            prop_assert!(!stops.iter().any(|stop| out.contains(stop.as_str())));
            if !stopped { prop_assert_eq!(out, text) }
        }
    }
}
