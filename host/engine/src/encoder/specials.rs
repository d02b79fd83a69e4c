//! Finds a vocabulary's special tokens in a text, as llama.cpp's `tokenizer_st_partition` does, but without reading the text
//! once for each of them: once for all, and once more for each length of those that are in it.
use std::ops::Range;

use aho_corasick::AhoCorasick;
use camshaft_core::ids::Token;

/// A token that is found in a text by its spelling.
#[derive(Debug, Clone)]
pub(super) struct Special {
    pub(super) token: Token,
    pub(super) text: String,
    /// Controls the model. A client's text never becomes such a token.
    pub(super) control: bool,
    /// Takes the white space before or after it along.
    pub(super) strips_before: bool,
    pub(super) strips_after: bool,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    /// A special token, and what spelled it.
    Token(Token, &'a str),
}

#[derive(Debug)]
pub(super) struct Specials {
    /// Longest first: a longer one wins over a shorter one that it overlaps.
    list: Vec<Special>,
    /// Those of one length each, longest first.
    lengths: Vec<Length>,
    finder: AhoCorasick,
    control: AhoCorasick,
}

/// The special tokens of one length. Of two that overlap, the first in the list wins; of one that overlaps itself, the
/// leftmost.
#[derive(Debug)]
struct Length {
    /// In the list.
    of: Range<usize>,
    /// Numbers them from the first of them on.
    finder: AhoCorasick,
}

/// Where a special token was found, with the white space that it takes along.
type Cut = (Range<usize>, Token);

impl Specials {
    /// # Errors
    /// There are too many, or they are too long together. In words about the file.
    pub(super) fn new(mut list: Vec<Special>) -> Result<Self, String> {
        list.retain(|special| !special.text.is_empty());
        list.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let mut lengths = Vec::new();
        for same in list.chunk_by(|a, b| a.text.len() == b.text.len()) {
            let first = lengths.last().map_or(0, |length: &Length| length.of.end);
            lengths.push(Length { of: first..first + same.len(), finder: finder(same.iter())? });
        }
        let control = finder(list.iter().filter(|special| special.control))?;
        Ok(Self { finder: finder(list.iter())?, control, lengths, list })
    }

    /// Whether `text` spells a control token.
    pub(super) fn has_control(&self, text: &str) -> bool {
        self.control.is_match(text)
    }

    /// Where `text` can be cut, ascending, so that no part spells a control token of several characters: behind the first
    /// character of each that is spelled.
    pub(super) fn cuts(&self, text: &str) -> Vec<usize> {
        let behind_first = |start: usize| start + text[start..].chars().next().map_or(0, char::len_utf8);
        let mut cuts: Vec<usize> =
            self.control.find_overlapping_iter(text).map(|spelled| behind_first(spelled.start())).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Splits `text` at its special tokens, at control tokens only if `control` is set.
    pub(super) fn split<'a>(&self, text: &'a str, control: bool) -> Vec<Fragment<'a>> {
        self.split_reading(text, control, &mut 0)
    }

    /// The same. `read` grows by the bytes that were searched.
    fn split_reading<'a>(&self, text: &'a str, control: bool, read: &mut usize) -> Vec<Fragment<'a>> {
        if text.is_empty() {
            return Vec::new();
        }
        *read += text.len();
        let found = self.found(text, control);
        let mut fragments = vec![Fragment::Text(text)];
        for (length, _) in self.lengths.iter().zip(found).filter(|&(_, found)| found) {
            let mut split = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Token(..) => split.push(fragment),
                    Fragment::Text(text) => {
                        *read += text.len();
                        put(text, &length.cuts(&self.list, text, control), &mut split);
                    }
                }
            }
            fragments = split;
        }
        fragments
    }

    /// Of which lengths `text` spells special tokens.
    fn found(&self, text: &str, control: bool) -> Vec<bool> {
        let mut found = vec![false; self.lengths.len()];
        let mut missing = found.len();
        for spelling in self.finder.find_overlapping_iter(text) {
            let index = spelling.pattern().as_usize();
            if self.list[index].control && !control {
                continue;
            }
            let length = self.lengths.partition_point(|length| length.of.end <= index);
            if found.get_mut(length).is_some_and(|found| !std::mem::replace(found, true)) {
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        found
    }
}

impl Length {
    /// Where `text` is cut, from left to right.
    fn cuts(&self, list: &[Special], text: &str, control: bool) -> Vec<Cut> {
        let list = &list[self.of.clone()];
        let spellings = self.finder.find_overlapping_iter(text);
        let spellings = spellings.map(|spelling| (spelling.pattern().as_u32(), spelling.start() as u32));
        let mut found: Vec<_> = spellings.filter(|&(index, _)| control || !list[index as usize].control).collect();
        // One special token after another, each from left to right.
        found.sort_unstable();
        let (bytes, mut taken) = (text.as_bytes(), vec![false; if found.is_empty() { 0 } else { text.len() }]);
        let mut cuts = Vec::new();
        for (index, start) in found {
            let (special, start) = (&list[index as usize], start as usize);
            let (mut from, mut to) = (start, start + special.text.len());
            // What was taken before is at least as long: it has one of the ends.
            if taken[from] || taken[to - 1] {
                continue;
            }
            let is_free_blank = |at: usize| !taken[at] && is_space(char::from(bytes[at]));
            while special.strips_before && from > 0 && is_free_blank(from - 1) {
                from -= 1;
            }
            while special.strips_after && to < bytes.len() && is_free_blank(to) {
                to += 1;
            }
            taken[from..to].fill(true);
            cuts.push((from..to, special.token));
        }
        cuts.sort_unstable_by_key(|(cut, _)| cut.start);
        cuts
    }
}

/// Finds the spellings of these, which it numbers from 0 on.
fn finder<'a>(specials: impl Iterator<Item = &'a Special>) -> Result<AhoCorasick, String> {
    let finder = AhoCorasick::new(specials.map(|special| &special.text));
    finder.map_err(|error| format!("its special tokens cannot be told apart in a text: {error}"))
}

/// Appends a text and the special tokens at which it is cut.
fn put<'a>(text: &'a str, cuts: &[Cut], fragments: &mut Vec<Fragment<'a>>) {
    let mut end = 0;
    for (cut, token) in cuts {
        fragments.extend(Some(&text[end..cut.start]).filter(|text| !text.is_empty()).map(Fragment::Text));
        fragments.push(Fragment::Token(*token, &text[cut.clone()]));
        end = cut.end;
    }
    fragments.extend(Some(&text[end..]).filter(|text| !text.is_empty()).map(Fragment::Text));
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn special(token: u32, text: &str) -> Special {
        let (text, token) = (text.to_owned(), Token(token));
        Special { token, text, control: false, strips_before: false, strips_after: false }
    }

    /// What llama.cpp does: reads everything once for each special token, the longest first.
    fn one_by_one<'a>(list: &[Special], text: &'a str, control: bool) -> Vec<Fragment<'a>> {
        let mut list: Vec<&Special> = list.iter().filter(|special| !special.control || control).collect();
        list.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let mut fragments: Vec<Fragment<'a>> =
            Some(text).filter(|text| !text.is_empty()).map(Fragment::Text).into_iter().collect();
        for special in list {
            let mut split = Vec::new();
            for fragment in fragments {
                let Fragment::Text(mut rest) = fragment else {
                    split.push(fragment);
                    continue;
                };
                while let Some((before, after)) = rest.split_once(&*special.text) {
                    let before = if special.strips_before { before.trim_end_matches(is_space) } else { before };
                    split.extend(Some(before).filter(|text| !text.is_empty()).map(Fragment::Text));
                    let after = if special.strips_after { after.trim_start_matches(is_space) } else { after };
                    let spelled = &rest[before.len()..rest.len() - after.len()];
                    split.push(Fragment::Token(special.token, spelled));
                    rest = after;
                }
                split.extend(Some(rest).filter(|text| !text.is_empty()).map(Fragment::Text));
            }
            fragments = split;
        }
        fragments
    }

    proptest! {
        #[test]
        fn splits_as_one_pass_for_each_special_token_would(
            list in prop::collection::vec(("[ab \n]{1,4}", any::<bool>(), any::<bool>(), any::<bool>()), 0..8),
            text in "[ab \né]{0,40}",
            control in any::<bool>(),
        ) {
            let numbered = (0..).zip(list);
            let list: Vec<Special> = numbered
                .map(|(number, (text, control, strips_before, strips_after))| Special {
                    control,
                    strips_before,
                    strips_after,
                    ..special(number, &text)
                })
                .collect();
            prop_assert_eq!(Specials::new(list.clone()).unwrap().split(&text, control), one_by_one(&list, &text, control));
        }
    }

    #[test]
    fn no_part_of_a_text_that_is_cut_spells_a_control_token() {
        let control = |token, text: &str| Special { control: true, ..special(token, text) };
        let specials =
            Specials::new(vec![control(0, "<a>"), control(1, "<a><a>"), control(2, "\u{e9}x"), special(3, "b")]);
        let specials = specials.unwrap();
        for text in ["", "plain b", "<a>", "x<a><a><a>", "<a\u{e9}x>\u{e9}x", "<<a>>"] {
            let (mut begin, mut parts) = (0, Vec::new());
            for cut in specials.cuts(text).into_iter().chain([text.len()]) {
                parts.push(&text[begin..cut]);
                begin = cut;
            }
            assert_eq!(parts.concat(), text);
            assert!(parts.iter().all(|part| !specials.has_control(part)), "{text}: {parts:?}");
            assert_eq!(parts.len() > 1, specials.has_control(text), "{text}: {parts:?}");
        }
    }

    #[test]
    fn regression_a_text_is_not_read_once_for_each_special_token_in_it() {
        let list: Vec<Special> = (0..5000).map(|number| special(number, &format!("<unused{number}>"))).collect();
        let every: String = list.iter().map(|special| special.text.as_str()).collect();
        let specials = Specials::new(list).unwrap();
        let filler = "a<".repeat(256 << 10);
        for text in [format!("{every}{filler}"), format!("{filler}{every}")] {
            let mut read = 0;
            assert_eq!(specials.split_reading(&text, false, &mut read).len(), 5001);
            // Once, and once for each of the four lengths, where it was 5000 times.
            assert!(read <= 5 * text.len(), "{read} of {}", text.len());
        }
    }
}
