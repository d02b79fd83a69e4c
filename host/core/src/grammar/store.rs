//! Compiled grammars of one model, shared by those who check requests and by its workers.
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::ParserFactory;

use super::compile::Compiled;
use super::error::{GrammarError, GrammarFault};
use super::matcher::Matcher;
use super::spec::Grammar;
use super::trie;
use crate::ids::GrammarDigest;
use crate::limits;
use crate::threads::on_stack;
use crate::vocabulary::Vocabulary;

/// The compiler recurses over what it compiles: once for each property of an object, for one. Memory is taken as the stack is used.
const COMPILER_STACK: usize = 64 << 20;

/// See the module. There is one for each vocabulary, so that a grammar's digest names what is compiled.
pub struct GrammarStore {
    vocabulary: Arc<Vocabulary>,
    /// Made when the first grammar comes: most models see none.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// The latest used last.
    compiled: Mutex<Vec<(GrammarDigest, Arc<Compiled>)>>,
}

impl fmt::Debug for GrammarStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarStore").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl GrammarStore {
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { vocabulary, factory: OnceLock::new(), compiled: Mutex::default() }
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Makes ready for the first grammar, which takes a second with a large vocabulary.
    ///
    /// # Errors
    /// The vocabulary cannot be constrained.
    pub fn prepare(&self) -> Result<(), GrammarError> {
        self.factory().map(drop)
    }

    /// Compiles a grammar unless it is here, on a thread of its own for its stack. That takes up to some hundred milliseconds.
    ///
    /// # Errors
    /// The grammar is not supported, or over a bound.
    pub fn compile(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        self.get(grammar).map(drop)
    }

    /// A matcher at the beginning of a grammar, which is compiled unless it is here.
    ///
    /// # Errors
    /// The grammar is not supported, or over a bound.
    pub fn matcher(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        self.get(grammar).map(Matcher::new)
    }

    /// Whether a grammar is kept.
    pub fn has(&self, grammar: &Grammar) -> bool {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.iter().any(|(kept, _)| *kept == grammar.digest())
    }

    /// Grammars that are kept, and the bytes that they take, about.
    pub fn kept(&self) -> (usize, usize) {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        (compiled.len(), compiled.iter().map(|(_, compiled)| compiled.bytes()).sum())
    }

    fn get(&self, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        let digest = grammar.digest();
        if let Some(found) = self.find(digest) {
            return Ok(found);
        }
        // Not under the lock: two threads may compile the same, and others go on.
        let factory = self.factory()?;
        let compile = || Compiled::new(factory, &self.vocabulary, grammar.spec());
        let new = Arc::new(on_stack(COMPILER_STACK, compile).unwrap_or_else(|| Err(no_thread()))?);
        self.keep(digest, &new);
        Ok(new)
    }

    fn find(&self, digest: GrammarDigest) -> Option<Arc<Compiled>> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let at = compiled.iter().position(|(kept, _)| *kept == digest)?;
        let found = compiled.remove(at);
        let grammar = found.1.clone();
        compiled.push(found);
        Some(grammar)
    }

    /// What was not used for longest goes. A generation keeps its grammar as long as it runs.
    fn keep(&self, digest: GrammarDigest, new: &Arc<Compiled>) {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.retain(|(kept, _)| *kept != digest);
        compiled.push((digest, new.clone()));
        let mut bytes: usize = compiled.iter().map(|(_, compiled)| compiled.bytes()).sum();
        while compiled.len() > limits::GRAMMARS || (bytes > limits::GRAMMARS_BYTES && compiled.len() > 1) {
            bytes = bytes.saturating_sub(compiled.remove(0).1.bytes());
        }
    }

    fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        self.factory.get_or_init(|| trie::factory(&self.vocabulary)).as_ref().map_err(Clone::clone)
    }
}

fn no_thread() -> GrammarError {
    GrammarError::new(GrammarFault::Busy, "no thread can be started to compile the grammar")
}
