//! Compiled grammars of one model, shared by those who check requests and by its workers.
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use llguidance::ParserFactory;

use super::compile::{Compiled, parser_factory};
use super::error::{GrammarError, GrammarFault};
use super::matcher::Matcher;
use super::schema;
use super::spec::{Grammar, GrammarSpec};
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
    known: Mutex<Known>,
    /// Grammars that are kept though nobody uses them.
    most: usize,
    /// `None`: they are compiled here.
    elsewhere: Option<Box<Elsewhere>>,
}

/// Has a grammar compiled where it is used.
type Elsewhere = dyn Fn(&Grammar) -> Result<Box<dyn CompiledElsewhere>, GrammarError> + Send + Sync;

/// A grammar that is compiled elsewhere, and to be kept there as long as somebody has this.
pub trait CompiledElsewhere: fmt::Debug + Send + Sync {
    /// Whether it is there still.
    fn is_there(&self) -> bool;
    /// About the bytes that it takes there.
    fn bytes(&self) -> usize;
}

/// A grammar that is compiled.
enum Kept {
    Here(Arc<Compiled>),
    Elsewhere(Box<dyn CompiledElsewhere>),
}

/// What was compiled, and what came of it.
#[derive(Default)]
struct Known {
    /// Those that were wanted more than once, the latest used last.
    kept: Vec<(GrammarDigest, Arc<Kept>)>,
    /// Those that somebody still uses, kept or not.
    used: HashMap<GrammarDigest, Weak<Kept>>,
    /// The latest last.
    verdicts: VecDeque<Verdict>,
}

/// Whether a grammar can be compiled.
struct Verdict {
    digest: GrammarDigest,
    found: Result<(), GrammarError>,
    /// It was compiled for somebody.
    was_used: bool,
}

/// A grammar that is compiled as long as this is held, whatever else the store must keep.
#[derive(Debug, Clone)]
pub struct InUse {
    _compiled: Arc<dyn Any + Send + Sync>,
    /// About the bytes that it takes.
    pub bytes: usize,
}

impl fmt::Debug for GrammarStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarStore").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

impl GrammarStore {
    pub fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { vocabulary, factory: OnceLock::new(), known: Mutex::default(), most: limits::GRAMMARS, elsewhere: None }
    }

    /// Where somebody else says what is kept, and holds that.
    pub fn of_worker(vocabulary: Arc<Vocabulary>) -> Self {
        Self { most: 0, ..Self::new(vocabulary) }
    }

    /// What is compiled by somebody else, who has the workers.
    pub fn elsewhere(
        vocabulary: Arc<Vocabulary>,
        compile: impl Fn(&Grammar) -> Result<Box<dyn CompiledElsewhere>, GrammarError> + Send + Sync + 'static,
    ) -> Self {
        Self { elsewhere: Some(Box::new(compile)), ..Self::new(vocabulary) }
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
    pub fn compile(&self, grammar: &Grammar) -> Result<InUse, GrammarError> {
        self.get(grammar).map(|compiled| InUse { bytes: compiled.bytes(), _compiled: compiled })
    }

    /// A matcher at the beginning of a grammar, which is compiled unless it is here.
    ///
    /// # Errors
    /// The grammar is not supported, or over a bound.
    pub fn matcher(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        match &*self.get(grammar)? {
            Kept::Here(compiled) => Ok(Matcher::new(compiled.clone())),
            Kept::Elsewhere(_) => Err(GrammarError::busy("the grammar is compiled elsewhere")),
        }
    }

    /// Whether a grammar's JSON schema is one that this server supports, as far as reading it shows. Others have nothing to read.
    ///
    /// # Errors
    /// The schema is not supported, or over a bound.
    pub fn read(grammar: &Grammar) -> Result<(), GrammarError> {
        grammar.spec().check_size()?;
        if let GrammarSpec::JsonSchema { schema } = grammar.spec() {
            schema::check(&schema::parse(schema)?)?;
        }
        Ok(())
    }

    /// Whether a grammar can be compiled, as far as that is known.
    pub fn verdict(&self, grammar: &Grammar) -> Option<Result<(), GrammarError>> {
        let known = self.known();
        known.live(grammar.digest()).map(|_| Ok(())).or_else(|| known.verdict(grammar.digest()))
    }

    /// Somebody else has found out whether it can be compiled.
    pub fn judge(&self, grammar: &Grammar, verdict: &Result<(), GrammarError>) {
        self.known().judge(grammar.digest(), verdict.clone());
    }

    /// Whether [`GrammarStore::compile`] answers at once: it is compiled, or known to be refused.
    pub fn has(&self, grammar: &Grammar) -> bool {
        let known = self.known();
        known.live(grammar.digest()).is_some()
            || known.verdict(grammar.digest()).is_some_and(|verdict| verdict.is_err())
    }

    fn get(&self, grammar: &Grammar) -> Result<Arc<Kept>, GrammarError> {
        let digest = grammar.digest();
        let mut known = self.known();
        if let Some(found) = known.live(digest) {
            known.keep(digest, &found, self.most);
            return Ok(found);
        }
        if let Some(Err(error)) = known.verdict(digest) {
            return Err(error);
        }
        drop(known);
        let new = Arc::new(self.make(grammar)?);
        self.known().keep(digest, &new, self.most);
        Ok(new)
    }

    /// Compiles a grammar. Not under the lock: two threads may compile the same, and others go on.
    fn make(&self, grammar: &Grammar) -> Result<Kept, GrammarError> {
        let made = match &self.elsewhere {
            Some(compile) => compile(grammar).map(Kept::Elsewhere),
            None => self.compile_here(grammar).map(Kept::Here),
        };
        match &made {
            Err(error) if error.fault == GrammarFault::Busy => {}
            made => self.known().judge(grammar.digest(), made.as_ref().map(drop).map_err(Clone::clone)),
        }
        made
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        let factory = self.factory()?;
        let compile = || Compiled::new(factory, &self.vocabulary, grammar.spec());
        let no_thread = || Err(GrammarError::busy("no thread can be started to compile the grammar"));
        on_stack(COMPILER_STACK, compile).unwrap_or_else(no_thread)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        self.factory.get_or_init(|| parser_factory(&self.vocabulary)).as_ref().map_err(Clone::clone)
    }
}

impl Kept {
    /// About the bytes that it takes.
    fn bytes(&self) -> usize {
        match self {
            Self::Here(compiled) => compiled.bytes,
            Self::Elsewhere(compiled) => compiled.bytes(),
        }
    }

    /// Where it was compiled may have ended.
    fn is_there(&self) -> bool {
        !matches!(self, Self::Elsewhere(compiled) if !compiled.is_there())
    }
}

impl Known {
    fn live(&self, digest: GrammarDigest) -> Option<Arc<Kept>> {
        self.used.get(&digest)?.upgrade().filter(|used| used.is_there())
    }

    /// What is wanted for the first time is not kept beyond its use: whoever sends a new one each time leaves nothing behind. Of the
    /// others, what was not used for longest goes.
    fn keep(&mut self, digest: GrammarDigest, compiled: &Arc<Kept>, most: usize) {
        self.kept.retain(|(_, kept)| kept.is_there());
        match self.kept.iter().position(|(kept, _)| *kept == digest) {
            Some(at) => self.kept[at..].rotate_left(1),
            None => {
                self.used.retain(|_, used| used.strong_count() > 0);
                self.used.insert(digest, Arc::downgrade(compiled));
                let verdict = self.verdicts.iter_mut().find(|verdict| verdict.digest == digest);
                if verdict.is_some_and(|verdict| std::mem::replace(&mut verdict.was_used, true)) {
                    self.kept.push((digest, compiled.clone()));
                }
            }
        }
        let mut bytes: usize = self.kept.iter().map(|(_, compiled)| compiled.bytes()).sum();
        while self.kept.len() > most || (bytes > limits::GRAMMARS_BYTES && self.kept.len() > 1) {
            bytes = bytes.saturating_sub(self.kept.remove(0).1.bytes());
        }
    }

    fn verdict(&self, digest: GrammarDigest) -> Option<Result<(), GrammarError>> {
        self.verdicts.iter().find(|verdict| verdict.digest == digest).map(|verdict| verdict.found.clone())
    }

    fn judge(&mut self, digest: GrammarDigest, found: Result<(), GrammarError>) {
        let before = self.verdicts.iter().position(|verdict| verdict.digest == digest);
        let was_used = before.and_then(|at| self.verdicts.remove(at)).is_some_and(|verdict| verdict.was_used);
        self.verdicts.push_back(Verdict { digest, found, was_used });
        if self.verdicts.len() > limits::GRAMMAR_VERDICTS {
            self.verdicts.pop_front();
        }
    }
}
