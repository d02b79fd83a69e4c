//! How deep the compiler goes into a grammar: rules that it meets while it compiles another one, and groups within each other.
use std::collections::{HashMap, HashSet};

use crate::grammar::error::{GrammarError, shown};
use crate::limits;

/// For each rule the rules that it names, in order, with the groups around each name.
#[derive(Debug, Default)]
pub(super) struct Chains<'a> {
    uses: HashMap<&'a str, Vec<(&'a str, usize)>>,
}

impl<'a> Chains<'a> {
    pub(super) fn define(&mut self, rule: &'a str) {
        self.uses.entry(rule).or_default();
    }

    pub(super) fn note(&mut self, rule: &'a str, used: &'a str, groups: usize) {
        self.uses.entry(rule).or_default().push((used, groups));
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
