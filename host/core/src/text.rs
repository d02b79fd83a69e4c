//! From token bytes to text: whole UTF-8 characters, nothing of a stop string.
use compact_str::CompactString;

/// Assembles the bytes of a generation and holds back what may still change its meaning: an unfinished character, or
/// the beginning of a stop string.
#[derive(Debug, Default)]
pub struct TextStream {
    stops: Vec<Vec<u8>>,
    held: Vec<u8>,
    /// Bytes taken in and given out so far; a token's place is the count when its first byte came in.
    taken: usize,
    given: usize,
}

/// What came of pushing bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Text that is final now.
    pub text: CompactString,
    /// A stop string was completed; nothing more comes.
    pub stopped: bool,
}

impl TextStream {
    /// `stops` are not empty strings.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().map(|stop| stop.as_bytes().to_vec()).collect(), ..Self::default() }
    }

    /// Bytes taken in so far: the place where the next token begins.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Bytes of the generation given out as text so far. A token that began before this place is (partly) visible.
    pub fn given(&self) -> usize {
        self.given
    }

    pub fn push(&mut self, bytes: &[u8]) -> Pushed {
        self.taken += bytes.len();
        self.held.extend_from_slice(bytes);
        if let Some(at) = self.first_stop() {
            self.held.truncate(at);
            return Pushed { text: self.rest(), stopped: true };
        }
        let safe = self.held.len() - self.longest_stop_beginning();
        Pushed { text: self.take(safe, false), stopped: false }
    }

    /// Everything held back; what is not UTF-8 becomes U+FFFD. For the end of a generation.
    pub fn rest(&mut self) -> CompactString {
        self.take(self.held.len(), true)
    }

    fn first_stop(&self) -> Option<usize> {
        self.stops.iter().filter_map(|stop| self.held.windows(stop.len()).position(|window| window == stop)).min()
    }

    /// Length of the longest end of `held` that begins a stop string.
    fn longest_stop_beginning(&self) -> usize {
        let longest = self.stops.iter().map(|stop| (stop.len() - 1).min(self.held.len())).max().unwrap_or(0);
        (1..=longest)
            .rev()
            .find(|&n| {
                let end = &self.held[self.held.len() - n..];
                self.stops.iter().any(|stop| stop.len() > n && stop.starts_with(end))
            })
            .unwrap_or(0)
    }

    /// Takes up to `len` bytes as text, stopping before an unfinished character unless `all`.
    fn take(&mut self, len: usize, all: bool) -> CompactString {
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
                        Some(bad) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            at = valid + bad;
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
        self.given += at;
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
            if pushed.stopped {
                ended = true;
                break;
            }
        }
        if !ended {
            out.push(stream.rest());
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

    proptest! {
        #[test]
        fn text_before_the_first_stop_comes_out_whole(
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
                stopped = pushed.stopped;
                rest = tail;
            }
            if !stopped {
                out.push_str(&stream.rest());
            }
            // A later, longer stop can be met before an earlier one that is still incomplete; what was seen as whole
            // text is then still a beginning of the text that holds no stop.
            prop_assert_eq!(stopped, end.is_some());
            prop_assert!(text.starts_with(&out));
            prop_assert!(!stops.iter().any(|stop| out.contains(stop.as_str())));
            if !stopped { prop_assert_eq!(out, text) }
        }
    }
}
