//! The patterns as automata, and what a text that may go on has of matches.
use std::ops::Range;

use regex_automata::hybrid::dfa::{Cache, Config as CacheConfig, DFA};
use regex_automata::nfa::thompson::{BuildError, Compiler, Config, NFA, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::Error;
use regex_syntax::hir::{ErrorKind, Hir};

use crate::automaton;

const MAX_PATTERNS: usize = 64;
const MAX_BYTES: usize = 512;
/// Of all patterns together.
const AUTOMATON_BYTES: usize = 1 << 20;
/// Of the states that each automaton has at once.
const CACHE_BYTES: usize = 3 << 20;
/// Characters of a pattern that a message repeats.
const SHOWN_CHARACTERS: usize = 128;
/// Steps that may go into trying one beginning after the other, for each byte of the text. Text that is no pattern's has one.
const TRIED_STEPS: usize = 4;

/// Compiled patterns.
#[derive(Debug)]
pub struct Patterns {
    onwards: Automaton,
    backwards: Automaton,
    max_match_bytes: usize,
    /// Of the automata since the beginning of the last search.
    steps: usize,
}

#[derive(Debug)]
struct Automaton {
    states: DFA,
    cache: Cache,
}

impl Automaton {
    fn new(nfa: Result<NFA, BuildError>, config: CacheConfig) -> Result<Self, String> {
        let too_large = |error: &dyn std::fmt::Display| format!("settings.patterns are too large together: {error}");
        let nfa = nfa.map_err(|error| too_large(&error))?;
        let config = config.cache_capacity(CACHE_BYTES);
        let states = DFA::builder().configure(config).build_from_nfa(nfa).map_err(|error| too_large(&error))?;
        Ok(Self { cache: states.create_cache(), states })
    }
}

/// The first thing that a text has of a pattern, in bytes of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// What begins here may become a match, or a longer one than what has matched so far.
    Open {
        start: usize,
        matched: Option<usize>,
    },
    /// Whatever follows, this is a match.
    Match {
        start: usize,
        end: usize,
    },
}

/// # Errors
/// What is wrong with it, to be said of it.
fn parse(pattern: &str, ignore_case: bool) -> Result<Hir, String> {
    // Without Unicode's tables, its classes and its case are not to be had.
    let plain = pattern.is_ascii();
    if ignore_case && !plain {
        return Err("has characters beyond ASCII, which settings.ignore-case = true does not support".to_owned());
    }
    let syntax = syntax::Config::new().unicode(!plain).utf8(false).case_insensitive(ignore_case).nest_limit(32);
    let hir = syntax::parse_with(pattern, &syntax).map_err(|error| match error {
        Error::Parse(error) => format!("is not a pattern ({} at byte {})", error.kind(), error.span().start.offset),
        Error::Translate(error) => {
            let why = unsupported(error.kind());
            format!("is not supported ({why}, at byte {})", error.span().start.offset)
        }
        _ => "is not a pattern".to_owned(),
    })?;
    if hir.properties().look_set().contains_word_unicode() {
        return Err(format!("is not supported ({UNICODE_BORDERS})"));
    }
    Ok(hir)
}

fn unsupported(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::UnicodePropertyNotFound
        | ErrorKind::UnicodePropertyValueNotFound
        | ErrorKind::UnicodePerlClassNotFound => UNICODE_CLASSES.to_owned(),
        ErrorKind::UnicodeCaseUnavailable => UNICODE_CASE.to_owned(),
        kind => kind.to_string(),
    }
}

const UNICODE_CLASSES: &str = r"there are no classes of Unicode; beside characters beyond ASCII, write (?-u:\w) for \w";
const UNICODE_CASE: &str = "the case of letters cannot be ignored beside characters beyond ASCII";
const UNICODE_BORDERS: &str = r"beside characters beyond ASCII, \b and \B know no words: write (?-u:\b)";

/// A pattern in a message: up to 128 characters in one line.
fn shown(pattern: &str) -> String {
    let cut = pattern.char_indices().nth(SHOWN_CHARACTERS).map(|(at, _)| at);
    let mut shown = String::new();
    for character in pattern[..cut.unwrap_or(pattern.len())].chars() {
        if character.is_control() { shown.extend(character.escape_default()) } else { shown.push(character) }
    }
    if cut.is_some() {
        shown.push('…');
    }
    shown
}

impl Patterns {
    /// # Errors
    /// A sentence that names the pattern that is none, or the number that is out of bounds.
    pub fn new(patterns: &[String], ignore_case: bool, max_match_bytes: usize) -> Result<Self, String> {
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            return Err(format!("settings.patterns has {} patterns, 1 to {MAX_PATTERNS} are allowed", patterns.len()));
        }
        let mut parsed = Vec::with_capacity(patterns.len());
        for (index, pattern) in patterns.iter().enumerate() {
            if pattern.is_empty() || pattern.len() > MAX_BYTES {
                let bytes = pattern.len();
                return Err(format!("settings.patterns[{index}] has {bytes} bytes, 1 to {MAX_BYTES} are allowed"));
            }
            let hir = parse(pattern, ignore_case);
            parsed.push(hir.map_err(|why| format!("settings.patterns[{index}] {why}: {}", shown(pattern)))?);
        }
        let size = Config::new().utf8(false).nfa_size_limit(Some(AUTOMATON_BYTES));
        let size = size.which_captures(WhichCaptures::None);
        let nfa = Compiler::new().configure(size).build_many_from_hir(&parsed);
        let nfa = nfa.map_err(|error| format!("settings.patterns are too large together: {error}"))?;
        let onwards = Automaton::new(automaton::onwards(&nfa), DFA::config())?;
        let backwards = Automaton::new(automaton::backwards(&nfa), DFA::config().match_kind(MatchKind::All))?;
        Ok(Self { onwards, backwards, max_match_bytes, steps: 0 })
    }

    /// The first match in `text`, or what may become one before it. `before`: a few bytes that precede it. `last`: nothing
    /// follows. Takes a number of steps that is linear in the text's bytes.
    pub fn find(&mut self, before: &str, text: &str, last: bool) -> Found {
        self.steps = 0;
        self.search(before, text, last, TRIED_STEPS * text.len())
    }

    /// Spends `tries` steps on the beginnings one by one, then looks for the next beginning of anything.
    fn search(&mut self, before: &str, text: &str, last: bool, tries: usize) -> Found {
        let all = [before, text].concat();
        // What begins before is not open: it would become too long.
        let short = all.len().saturating_sub(self.max_match_bytes);
        let mut start = before.len();
        while start < all.len() {
            if self.steps >= tries {
                match self.next_beginning(&all, start, short, last) {
                    Some(next) => start = next,
                    None => return Found::Nothing,
                }
            }
            let (matched, open) = self.at(&all, start, last);
            let begins = start - before.len();
            if open && start >= short {
                return Found::Open { start: begins, matched: matched.map(|end| end - before.len()) };
            }
            if let Some(end) = matched {
                return Found::Match { start: begins, end: end - before.len() };
            }
            start = next_character(&all, start + 1);
        }
        Found::Nothing
    }

    /// Where from `start` on a match begins or, unless this is `last`, something open from `short` on.
    fn next_beginning(&mut self, all: &str, start: usize, short: usize, last: bool) -> Option<usize> {
        if last {
            return self.first_beginning(all, start..all.len(), Anchored::No);
        }
        if start < short {
            // Whether a match ends at the end of the text, what follows decides.
            let long = self.first_beginning(all, start..all.len() - 1, Anchored::No).filter(|at| *at < short);
            if long.is_some() {
                return long;
            }
        }
        self.first_beginning(all, start.max(short)..all.len(), Anchored::Yes)
    }

    /// The first beginning in a range of what ends in it; `Anchored::Yes`: or is open at its end.
    fn first_beginning(&mut self, all: &str, range: Range<usize>, anchored: Anchored) -> Option<usize> {
        let Automaton { states, cache } = &mut self.backwards;
        let input = Input::new(all).range(range.clone()).anchored(anchored);
        let mut state = states.start_state_reverse(cache, &input).ok()?;
        let mut first = None;
        for at in range.clone().rev() {
            state = states.next_state(cache, state, all.as_bytes()[at]).ok()?;
            self.steps += 1;
            // A state says of the byte behind it whether something begins there.
            if state.is_match() && all.is_char_boundary(at + 1) {
                first = Some(at + 1);
            }
        }
        let edge = match range.start.checked_sub(1) {
            Some(before) => states.next_state(cache, state, all.as_bytes()[before]),
            None => states.next_eoi_state(cache, state),
        };
        let begins = all.is_char_boundary(range.start) && edge.is_ok_and(|edge| edge.is_match());
        if begins { Some(range.start) } else { first }
    }

    /// The end of the match that begins at `start`, and whether what follows the text may change it.
    fn at(&mut self, all: &str, start: usize, last: bool) -> (Option<usize>, bool) {
        let Automaton { states, cache } = &mut self.onwards;
        let input = Input::new(all).range(start..).anchored(Anchored::Yes);
        // An error means that the cache is too small for even one state, which the construction has ruled out.
        let Ok(mut state) = states.start_state_forward(cache, &input) else { return (None, false) };
        let mut matched = None;
        for (at, &byte) in all.as_bytes().iter().enumerate().skip(start) {
            self.steps += 1;
            match states.next_state(cache, state, byte) {
                Ok(next) => state = next,
                Err(_) => return (matched, false),
            }
            // A state says of the byte before it whether that ended a match.
            if state.is_match() {
                matched = Some(next_character(all, at));
            } else if state.is_dead() || state.is_quit() {
                return (matched, false);
            }
        }
        if last && states.next_eoi_state(cache, state).is_ok_and(|end| end.is_match()) {
            matched = Some(all.len());
        }
        (matched, !last)
    }
}

/// Where the character ends that byte `at` lies in, or `at` between two.
fn next_character(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests;
