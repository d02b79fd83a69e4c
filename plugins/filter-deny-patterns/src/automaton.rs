//! Builds the two automata of a set of patterns: one reads onwards from where a match may begin, the other one reads a whole text
//! backwards and tells where anything begins.
//!
//! In both, each state of the patterns' own automaton stands twice: as it is before the first byte of a match, and behind it. Only
//! the latter ends a match, so none is empty.
#![allow(clippy::result_large_err, reason = "the library's own error, which ends the making of a filter")]
use regex_automata::nfa::thompson::{BuildError, Builder, NFA, State, Transition};
use regex_automata::util::primitives::StateID;

/// Reads onwards from the beginning of a match. What comes first in the patterns is preferred.
pub(crate) fn onwards(patterns: &NFA) -> Result<NFA, BuildError> {
    let mut build = Build::new(patterns)?;
    for (id, state) in states(patterns) {
        let (fresh, begun) = (build.fresh(id), build.begun(id));
        for range in ranges(state) {
            let next = build.begun(range.next);
            for from in [fresh, begun] {
                let to = build.builder.add_range(Transition { next, ..range })?;
                build.builder.patch(from, to)?;
            }
        }
        for next in steps(state) {
            for (from, next) in [(fresh, build.fresh(next)), (begun, build.begun(next))] {
                build.step(state, from, next, false)?;
            }
        }
        if let State::Match { .. } = state {
            build.builder.patch(begun, build.end)?;
        }
    }
    let start = build.fresh(patterns.start_anchored());
    build.builder.build(start, start)
}

/// Reads backwards, and is in a match state one byte behind where something begins. What ends anywhere in the text counts
/// always. Anchored, so does what is not over at the end of the text; the other start does not count it.
pub(crate) fn backwards(patterns: &NFA) -> Result<NFA, BuildError> {
    let mut build = Build::new(patterns)?;
    build.builder.set_reverse(true);
    let (mut open, mut ends) = (Vec::new(), Vec::new());
    for (id, state) in states(patterns) {
        let (fresh, begun) = (build.fresh(id), build.begun(id));
        for range in ranges(state) {
            for from in [build.fresh(range.next), build.begun(range.next)] {
                let to = build.builder.add_range(Transition { next: begun, ..range })?;
                build.builder.patch(from, to)?;
            }
        }
        for next in steps(state) {
            for (from, next) in [(build.fresh(next), fresh), (build.begun(next), begun)] {
                build.step(state, from, next, true)?;
            }
        }
        match state {
            State::Fail => {}
            State::Match { .. } => ends.push(fresh),
            _ => open.push(fresh),
        }
    }
    build.builder.patch(build.begun(patterns.start_anchored()), build.end)?;
    let ends = build.builder.add_union(ends)?;
    let any = build.builder.add_range(Transition { start: 0, end: 255, next: ends })?;
    build.builder.patch(ends, any)?;
    open.push(ends);
    let open = build.builder.add_union(open)?;
    build.builder.build(open, ends)
}

struct Build {
    builder: Builder,
    fresh: Vec<StateID>,
    begun: Vec<StateID>,
    end: StateID,
}

impl Build {
    fn new(patterns: &NFA) -> Result<Self, BuildError> {
        let mut builder = Builder::new();
        builder.start_pattern()?;
        let end = builder.add_match()?;
        let mut layer =
            || patterns.states().iter().map(|_| builder.add_union(Vec::new())).collect::<Result<Vec<_>, _>>();
        let (fresh, begun) = (layer()?, layer()?);
        builder.finish_pattern(end)?;
        Ok(Self { builder, fresh, begun, end })
    }

    fn fresh(&self, id: StateID) -> StateID {
        self.fresh[id.as_usize()]
    }

    fn begun(&self, id: StateID) -> StateID {
        self.begun[id.as_usize()]
    }

    /// A way that reads nothing; one that looks around looks the other way where the text is read `backwards`.
    fn step(&mut self, state: &State, from: StateID, to: StateID, backwards: bool) -> Result<(), BuildError> {
        let to = match state {
            State::Look { look, .. } => self.builder.add_look(to, if backwards { look.reversed() } else { *look })?,
            _ => to,
        };
        self.builder.patch(from, to)
    }
}

fn states(nfa: &NFA) -> impl Iterator<Item = (StateID, &State)> {
    nfa.states().iter().enumerate().map(|(index, state)| (StateID::must(index), state))
}

/// The bytes that a state reads, and where they lead.
fn ranges(state: &State) -> Vec<Transition> {
    match state {
        State::ByteRange { trans } => vec![*trans],
        State::Sparse(sparse) => sparse.transitions.to_vec(),
        State::Dense(dense) => {
            let leads = (0..=u8::MAX).zip(dense.transitions.iter()).filter(|(_, next)| **next != StateID::ZERO);
            leads.map(|(byte, next)| Transition { start: byte, end: byte, next: *next }).collect()
        }
        _ => Vec::new(),
    }
}

/// Where a state leads without a byte, the preferred way first.
fn steps(state: &State) -> Vec<StateID> {
    match state {
        State::Look { next, .. } | State::Capture { next, .. } => vec![*next],
        State::Union { alternates } => alternates.to_vec(),
        State::BinaryUnion { alt1, alt2 } => vec![*alt1, *alt2],
        _ => Vec::new(),
    }
}
