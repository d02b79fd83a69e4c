//! Finds a vocabulary's special tokens in a text, as llama.cpp's `tokenizer_st_partition` does, but in linear time.
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
    Token(Token),
}

#[derive(Debug)]
pub(super) struct Specials {
    /// Longest first: a longer one wins over a shorter one that it overlaps.
    list: Vec<Special>,
    finder: Option<AhoCorasick>,
    control: Option<AhoCorasick>,
}

impl Specials {
    pub(super) fn new(mut list: Vec<Special>) -> Self {
        list.retain(|special| !special.text.is_empty());
        list.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        // It fails only for lists beyond its integers; then no special token is found.
        let finder = |control: bool| {
            let texts = list.iter().filter(|special| special.control || !control);
            AhoCorasick::new(texts.map(|special| &special.text)).ok()
        };
        Self { finder: finder(false), control: finder(true), list }
    }

    /// Whether `text` spells a control token.
    pub(super) fn has_control(&self, text: &str) -> bool {
        self.control.as_ref().is_some_and(|control| control.is_match(text))
    }

    /// Splits `text` at its special tokens, at control tokens only if `control` is set.
    pub(super) fn split<'a>(&self, text: &'a str, control: bool) -> Vec<Fragment<'a>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(text)];
        for (special, _) in self.list.iter().zip(self.found(text)).filter(|&(_, found)| found) {
            if !special.control || control {
                fragments = special.split(&fragments);
            }
        }
        fragments
    }

    /// Which special tokens `text` spells.
    fn found(&self, text: &str) -> Vec<bool> {
        let mut found = vec![false; self.list.len()];
        let mut missing = found.len();
        let Some(finder) = &self.finder else { return found };
        for spelling in finder.find_overlapping_iter(text) {
            if !std::mem::replace(&mut found[spelling.pattern().as_usize()], true) {
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        found
    }
}

impl Special {
    fn split<'a>(&self, fragments: &[Fragment<'a>]) -> Vec<Fragment<'a>> {
        let mut split = Vec::with_capacity(fragments.len());
        for &fragment in fragments {
            let Fragment::Text(mut rest) = fragment else {
                split.push(fragment);
                continue;
            };
            while let Some((before, after)) = rest.split_once(&*self.text) {
                let before = if self.strips_before { before.trim_end_matches(is_space) } else { before };
                if !before.is_empty() {
                    split.push(Fragment::Text(before));
                }
                split.push(Fragment::Token(self.token));
                rest = if self.strips_after { after.trim_start_matches(is_space) } else { after };
            }
            if !rest.is_empty() {
                split.push(Fragment::Text(rest));
            }
        }
        split
    }
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ')
}
