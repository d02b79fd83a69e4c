//! Cuts a text into words, pass by pass, in time and memory linear in the text's length.
use regex::bytes::Regex;

use super::classes::{self, Set};
use super::kinds::{Blanks, Kind, Pass};

/// The longest run of white space that [`Blanks::Powers`] leaves whole.
const LONGEST_BLANKS: usize = 512;

#[derive(Debug)]
pub(super) struct Words(Vec<Compiled>);

#[derive(Debug)]
enum Compiled {
    Pattern { regex: Regex, sets: Vec<Set>, blanks: Blanks },
    Thousands,
    AsciiThousands,
}

impl Words {
    /// # Errors
    /// A pattern does not compile, which the tests of all kinds exclude.
    pub(super) fn new(kind: &Kind) -> Result<Self, regex::Error> {
        let compile = |pass: &Pass| {
            Ok(match *pass {
                Pass::Pattern { pattern, sets, blanks } => Compiled::Pattern {
                    regex: classes::compile(pattern)?,
                    sets: sets.iter().map(|set| Set::new(set)).collect(),
                    blanks,
                },
                Pass::Thousands => Compiled::Thousands,
                Pass::AsciiThousands => Compiled::AsciiThousands,
            })
        };
        kind.passes.iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// The lengths of the words of `text` in characters. Their sum is the text's.
    pub(super) fn lengths(&self, text: &str) -> Vec<u32> {
        let categories = classes::by_category(text);
        let mut words = vec![u32::try_from(categories.len()).unwrap_or(u32::MAX)];
        for pass in &self.0 {
            let by_set = match pass {
                Compiled::Pattern { sets, .. } if !sets.is_empty() => Some(classes::by_set(text, sets)),
                _ => None,
            };
            let mut rest = by_set.as_deref().unwrap_or(&categories);
            let mut cut = Cut { lengths: Vec::with_capacity(words.len()), end: 0 };
            for length in words {
                let (word, after) = rest.split_at(rest.len().min(length as usize));
                rest = after;
                cut.end = 0;
                pass.cut(word, &mut cut);
                cut.at(word.len());
            }
            words = cut.lengths;
        }
        words
    }
}

/// Where a word is cut.
struct Cut {
    lengths: Vec<u32>,
    /// End of the last part.
    end: usize,
}

impl Cut {
    /// Ends a part at `end`, unless one ends there.
    fn at(&mut self, end: usize) {
        if end > self.end {
            self.lengths.push((end - self.end) as u32);
            self.end = end;
        }
    }
}

impl Compiled {
    fn cut(&self, word: &[u8], cut: &mut Cut) {
        match self {
            Self::Pattern { regex, blanks, .. } => {
                while let Some(found) = regex.find_at(word, cut.end) {
                    cut.at(found.start());
                    blanks.cut(word, found.end(), cut);
                }
            }
            Self::Thousands => runs(word, classes::is_number, |start, length| {
                let first = length % 3;
                if first > 0 {
                    cut.at(start + first);
                }
                (first..length).step_by(3).for_each(|group| cut.at(start + group + 3));
            }),
            Self::AsciiThousands => runs(
                word,
                |byte| byte.is_ascii_digit(),
                |start, length| {
                    (length % 3..length).step_by(3).for_each(|group| cut.at(start + group));
                },
            ),
        }
    }
}

/// Calls `each` with the start and the length of every run of digits.
fn runs(word: &[u8], is_digit: fn(u8) -> bool, mut each: impl FnMut(usize, usize)) {
    let mut at = 0;
    for run in word.chunk_by(|&a, &b| is_digit(a) == is_digit(b)) {
        if is_digit(run[0]) {
            each(at, run.len());
        }
        at += run.len();
    }
}

impl Blanks {
    /// Ends the word that a pattern matched from the last cut to `end`.
    fn cut(self, word: &[u8], end: usize, cut: &mut Cut) {
        let run = &word[cut.end..end];
        let on_line = !matches!(run.last(), Some(b'\n' | b'\r'));
        let applies = match self {
            Self::Keep => false,
            Self::LeaveOne => true,
            Self::LeaveOneOnLine | Self::Powers => on_line,
        };
        if !applies || !run.iter().all(|&byte| classes::is_blank(byte)) {
            return cut.at(end);
        }
        // `\s+(?!\S)`: white space, and behind it more of it or the end.
        let leaves = end < word.len();
        match self {
            Self::Powers if run.len() > 1 => {
                let mut power = LONGEST_BLANKS;
                while power > 0 {
                    let left = end - cut.end;
                    if left > power || (left == power && !leaves) {
                        cut.at(cut.end + power);
                    } else {
                        power /= 2;
                    }
                }
                // If one is left before a word, the pattern decides whether it belongs to it.
            }
            _ if leaves && run.len() > 1 => cut.at(end - 1),
            _ => cut.at(end),
        }
    }
}
