//! How deep the compiler goes into a grammar: rules that it meets while it compiles another one, and groups within each other.
use std::collections::{HashMap, HashSet};

use crate::grammar::error::{GrammarError, shown};
use crate::limits;

/// For each rule the rules that it names, in order, with the groups around each name.
#[derive(Debug, Default)]
pub(super) struct Chains<'a> {
    uses: HashMap<&'a str, Vec<(&'a str, usize)>>,
    /// Intersections in each rule.
    intersections: HashMap<&'a str, usize>,
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|first: char| first.is_ascii_uppercase())
}

impl<'a> Chains<'a> {
    pub(super) fn define(&mut self, rule: &'a str) {
        self.uses.entry(rule).or_default();
    }

    pub(super) fn note(&mut self, rule: &'a str, used: &'a str, groups: usize) {
        self.uses.entry(rule).or_default().push((used, groups));
    }

    pub(super) fn intersect(&mut self, rule: &'a str) {
        *self.intersections.entry(rule).or_default() += 1;
    }

    /// Counts the intersections of each terminal, with those of the terminals in it. What the compiler does doubles with each.
    ///
    /// # Errors
    /// One has too many.
    pub(super) fn check_intersections(&self) -> Result<(), GrammarError> {
        let mut known = HashMap::new();
        let terminals = self.uses.keys().filter(|name| is_terminal(name));
        terminals.copied().try_for_each(|terminal| {
            let (count, max) = (self.intersections_of(terminal, &mut known), limits::GRAMMAR_INTERSECTIONS);
            let why = || format!("terminal \"{}\" has {count} intersections (&), at most {max}", shown(terminal));
            if count > max { Err(GrammarError::too_large(why())) } else { Ok(()) }
        })
    }

    fn intersections_of(&self, terminal: &'a str, known: &mut HashMap<&'a str, usize>) -> usize {
        if let Some(count) = known.get(terminal) {
            return *count;
        }
        // A terminal may not lead back to itself, which the compiler says.
        known.insert(terminal, 0);
        let used: Vec<&str> = self.uses.get(terminal).into_iter().flatten().map(|(used, _)| *used).collect();
        let inside = used.into_iter().filter(|used| is_terminal(used)).map(|used| self.intersections_of(used, known));
        let count = inside.fold(self.intersections.get(terminal).copied().unwrap_or(0), usize::saturating_add);
        known.insert(terminal, count);
        count
    }

    /// Follows the rules in the order in which the compiler does: from `start`, each at its first name.
    ///
    /// # Errors
    /// That leads too deep.
    pub(super) fn check(&self, starts: &[&'a str]) -> Result<(), GrammarError> {
        let mut seen = HashSet::new();
        starts.iter().try_for_each(|start| self.follow(start, 0, &mut seen))
    }

    fn follow(&self, rule: &'a str, depth: usize, seen: &mut HashSet<&'a str>) -> Result<(), GrammarError> {
        let max = limits::GRAMMAR_CHAIN;
        if depth > max {
            let why = format!("rule \"{}\" lies over {max} rules and groups deep", shown(rule));
            return Err(GrammarError::too_large(why));
        }
        if !seen.insert(rule) {
            return Ok(());
        }
        let Some(uses) = self.uses.get(rule) else { return Ok(()) };
        uses.iter().try_for_each(|(used, groups)| self.follow(used, depth + 1 + groups, seen))
    }
}
