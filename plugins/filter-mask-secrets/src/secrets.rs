//! Finds the first secret of a word.
use crate::words::{is_letter, separator};

/// Before these many more characters, a prefix is none of a key.
const MIN_KEY_BYTES: usize = 16;
/// Prefixes of keys and tokens of services that many use.
const KEY_PREFIXES: [&str; 20] = [
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "pk_live_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "hf_",
    "npm_",
    "eyJ",
];
/// What goes out instead of a key.
pub(crate) const KEY_MASK: &str = "[key]";
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;

/// What is masked.
#[derive(Debug, Clone, Default)]
pub struct Kinds {
    pub keys: bool,
    pub email_addresses: bool,
    pub card_numbers: bool,
    pub key_prefixes: Vec<String>,
}

/// A range of bytes, and what goes out in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    pub start: usize,
    pub end: usize,
    pub mask: &'static str,
}

impl Kinds {
    /// The first secret of a word; of two that begin together, the longer one.
    pub fn find(&self, word: &str) -> Option<Secret> {
        let found = [
            self.keys.then(|| self.key(word.as_bytes())).flatten(),
            self.email_addresses.then(|| email_address(word)).flatten(),
            self.card_numbers.then(|| card_number(word.as_bytes())).flatten(),
        ];
        found.into_iter().flatten().min_by_key(|secret| (secret.start, usize::MAX - secret.end))
    }

    fn prefixes(&self) -> impl Iterator<Item = &str> + Clone {
        KEY_PREFIXES.iter().copied().chain(self.key_prefixes.iter().map(String::as_str))
    }

    fn key(&self, word: &[u8]) -> Option<Secret> {
        // One that begins first, wherever its prefix stands in the lists.
        beginnings(word).find_map(|start| {
            let rest = &word[start..];
            let fitting = self.prefixes().filter(|prefix| rest.starts_with(prefix.as_bytes()));
            let prefix = fitting.max_by_key(|prefix| prefix.len())?;
            let more = part_of_key(&rest[prefix.len()..], prefix);
            (more >= MIN_KEY_BYTES).then_some(Secret { start, end: start + prefix.len() + more, mask: KEY_MASK })
        })
    }

    /// Where that begins at the end of a word which may become a key with what follows.
    pub(crate) fn begun_key(&self, word: &[u8]) -> Option<usize> {
        let begun = |rest: &[u8], prefix: &str| match rest.strip_prefix(prefix.as_bytes()) {
            Some(more) => part_of_key(more, prefix) == more.len(),
            None => prefix.as_bytes().starts_with(rest),
        };
        // From the second byte on, so that something passes.
        let mut found = beginnings(word).skip_while(|at| *at == 0);
        if self.keys { found.find(|&at| self.prefixes().any(|prefix| begun(&word[at..], prefix))) } else { None }
    }
}

/// Where a key may begin in a word.
fn beginnings(word: &[u8]) -> impl Iterator<Item = usize> {
    (0..word.len()).filter(|&at| at == 0 || !word[at - 1].is_ascii_alphanumeric())
}

/// How much of the text belongs to the key with this prefix that stands before it.
fn part_of_key(text: &[u8], prefix: &str) -> usize {
    let is_key = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // The parts of a web token have points between them.
    text.iter().take_while(|byte| is_key(byte) || (prefix == "eyJ" && **byte == b'.')).count()
}

/// How much of the text belongs to the key that was cut before it: whatever is in a key of any kind.
pub(crate) fn rest_of_key(text: &[u8]) -> usize {
    part_of_key(text, "eyJ")
}

/// `local@domain.tld`.
fn email_address(word: &str) -> Option<Secret> {
    word.match_indices('@').find_map(|(at, _)| {
        let is_local = |character: &char| {
            is_letter(*character) || character.is_ascii_digit() || matches!(character, '.' | '_' | '%' | '+' | '-')
        };
        let mut start = at - word[..at].chars().rev().take_while(is_local).map(char::len_utf8).sum::<usize>();
        while word.as_bytes()[start] == b'.' {
            start += 1;
        }
        let end = at + 1 + domain(&word[at + 1..])?;
        (start < at).then_some(Secret { start, end, mask: "[email]" })
    })
}

/// The length of the longest domain that a text begins with: labels with points between them, the last of letters alone.
fn domain(text: &str) -> Option<usize> {
    let length = |text: &str, belongs: fn(&char) -> bool| text.chars().take_while(belongs).map(char::len_utf8).sum();
    let (mut at, mut longest, mut labels) = (0, None, 0);
    loop {
        let rest = &text[at..];
        let label: usize =
            length(rest, |character| is_letter(*character) || character.is_ascii_digit() || *character == '-');
        if label == 0 {
            return longest;
        }
        labels += 1;
        let letters: usize = length(rest, |character| is_letter(*character));
        if labels > 1 && rest[..letters].chars().nth(1).is_some() {
            // `a@b.com-x`: what follows the letters belongs to something else.
            longest = Some(at + letters);
        }
        at += label;
        if text.as_bytes().get(at) != Some(&b'.') {
            return longest;
        }
        at += 1;
    }
}

/// 13 to 19 digits, with single separators, of which the last one checks the others.
fn card_number(word: &[u8]) -> Option<Secret> {
    let is_digit = |at: usize| word.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while at < word.len() {
        let begins = is_digit(at) && (at == 0 || !word[at - 1].is_ascii_alphanumeric());
        if !begins {
            at += 1;
            continue;
        }
        // All of the groups from here on, and where each digit is.
        let (mut digits, mut end) = (Vec::new(), at);
        loop {
            if is_digit(end) {
                digits.push((word[end] - b'0', end));
                end += 1;
                continue;
            }
            let between = separator(&word[end..]);
            if between == 0 || !is_digit(end + between) {
                break;
            }
            end += between;
        }
        let joined = word.get(end).is_some_and(u8::is_ascii_alphabetic);
        // Groups that belong to something else may stand around it: every run of whole groups is tried, the longest first.
        let group_begins = |index: usize| index == 0 || digits[index].1 > digits[index - 1].1 + 1;
        let group_ends = |index: usize| match digits.get(index + 1) {
            Some(next) => next.1 > digits[index].1 + 1,
            None => !joined,
        };
        for first in (0..digits.len()).filter(|&index| group_begins(index)) {
            for count in CARD_DIGITS.rev().filter(|count| first + count <= digits.len()) {
                let last = first + count - 1;
                if group_ends(last) && luhn(digits[first..=last].iter().map(|digit| digit.0)) {
                    return Some(Secret { start: digits[first].1, end: digits[last].1 + 1, mask: "[card]" });
                }
            }
        }
        at = end;
    }
    None
}

/// Whether the last digit checks the others (ISO/IEC 7812-1). Zeros alone are no number.
fn luhn(digits: impl DoubleEndedIterator<Item = u8>) -> bool {
    let (mut sum, mut any) = (0, false);
    for (index, digit) in digits.rev().enumerate() {
        any |= digit != 0;
        let twice = u32::from(digit) * if index % 2 == 1 { 2 } else { 1 };
        sum += if twice > 9 { twice - 9 } else { twice };
    }
    any && sum % 10 == 0
}
