//! The patterns as one automaton, and what a text that may go on has of matches.
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

const MAX_PATTERNS: usize = 64;
const MAX_BYTES: usize = 512;
/// Of all patterns together.
const AUTOMATON_BYTES: usize = 1 << 20;

/// Compiled patterns.
#[derive(Debug)]
pub struct Patterns {
    automaton: DFA,
    cache: Cache,
    max_match_bytes: usize,
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
            // Without Unicode's tables, its classes and its case are not to be had.
            let plain = pattern.is_ascii();
            let syntax = syntax::Config::new().unicode(!plain).utf8(false).case_insensitive(ignore_case && plain);
            let hir = syntax::parse_with(pattern, &syntax.nest_limit(32));
            parsed.push(hir.map_err(|error| format!("settings.patterns[{index}] is not a pattern: {error}"))?);
        }
        let size = thompson::Config::new().utf8(false).nfa_size_limit(Some(AUTOMATON_BYTES));
        let too_large = |error: &dyn std::fmt::Display| format!("settings.patterns are too large together: {error}");
        let nfa = thompson::Compiler::new().configure(size).build_many_from_hir(&parsed);
        let nfa = nfa.map_err(|error| too_large(&error))?;
        let config = DFA::config().cache_capacity(AUTOMATON_BYTES);
        let automaton = DFA::builder().configure(config).build_from_nfa(nfa).map_err(|error| too_large(&error))?;
        let cache = automaton.create_cache();
        Ok(Self { automaton, cache, max_match_bytes })
    }

    /// The first match in `text`, or what may become one before it. `before`: a few bytes that precede it. `last`: nothing
    /// follows.
    pub fn find(&mut self, before: &str, text: &str, last: bool) -> Found {
        let all = [before, text].concat();
        let mut start = before.len();
        while start < all.len() {
            let (matched, open) = self.at(&all, start, last);
            let begins = start - before.len();
            let long = all.len() - start > self.max_match_bytes;
            if open && !long {
                return Found::Open { start: begins, matched: matched.map(|end| end - before.len()) };
            }
            if let Some(end) = matched {
                return Found::Match { start: begins, end: end - before.len() };
            }
            start = next_character(&all, start + 1);
        }
        Found::Nothing
    }

    /// The end of the match that begins at `start`, and whether what follows the text may change it.
    fn at(&mut self, all: &str, start: usize, last: bool) -> (Option<usize>, bool) {
        let (automaton, cache) = (&self.automaton, &mut self.cache);
        let input = Input::new(all).range(start..).anchored(Anchored::Yes);
        // An error means that the cache is too small for even one state, which the construction has ruled out.
        let Ok(mut state) = automaton.start_state_forward(cache, &input) else { return (None, false) };
        let mut matched = None;
        // A state says of the byte before it whether that ended a match.
        let ends = |at: usize| (at > start).then(|| next_character(all, at));
        for (at, &byte) in all.as_bytes().iter().enumerate().skip(start) {
            match automaton.next_state(cache, state, byte) {
                Ok(next) => state = next,
                Err(_) => return (matched, false),
            }
            if state.is_match() {
                matched = ends(at).or(matched);
            } else if state.is_dead() || state.is_quit() {
                return (matched, false);
            }
        }
        if last && automaton.next_eoi_state(cache, state).is_ok_and(|end| end.is_match()) {
            matched = ends(all.len()).or(matched);
        }
        (matched, !last)
    }
}

/// Where the character ends that byte `at` lies in, or `at` between two.
fn next_character(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}
