//! Estimates how many tokens of a prompt each worker's prefix cache already holds.
//!
//! The pool does not see the caches. It remembers which prompts it sent where: in blocks of [`BLOCK_TOKENS`], each named
//! by one hash over the namespace and all tokens up to the block's end, so that a block is known only behind the same
//! prefix in the same namespace. A worker may have evicted a prompt, or may not share
//! prefixes at all, so estimates are scaled by the share of the last ones that came true.
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash, Hasher};

use crate::ids::{RequestId, Token, WorkerId};
use crate::policy::CachedPrefix;
use crate::segments::Namespace;

const BLOCK_TOKENS: usize = 32;
/// Blocks of one prompt that are estimated: 32 768 tokens.
const MAX_PROMPT_BLOCKS: usize = 1024;
/// Blocks remembered for each worker (524 288 tokens, about 1 MiB of memory); the least recently used are forgotten.
const MAX_WORKER_BLOCKS: usize = 16_384;
/// Weight of one started request in [`Known::precision`].
const PRECISION_WEIGHT: f32 = 0.2;

/// The full blocks of a prompt, each as a hash of everything up to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct PromptBlocks(Box<[u64]>);

impl PromptBlocks {
    /// The hash of each block, comparable only within one pool.
    pub(super) fn hashes(&self) -> &[u64] {
        &self.0
    }
}

/// The prompts that each worker was sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Affinity {
    /// Random in each process, so that nobody can construct prompts whose hashes collide.
    hashing: RandomState,
    workers: BTreeMap<WorkerId, Known>,
    /// Requests that were sent with an estimate above 0 and have not started.
    expected: HashMap<RequestId, CachedPrefix>,
}

/// The blocks that one worker probably holds, in order of use.
#[derive(Debug, Clone)]
struct Known {
    last_use: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    /// Share of the estimated tokens that the worker found in its cache, averaged over recent requests.
    precision: f32,
}

impl Affinity {
    /// Names the blocks of a prompt. The last token is never cached: a request computes it for its logits.
    pub(super) fn blocks(&self, namespace: &Namespace, prompt: &[Token]) -> PromptBlocks {
        let mut hasher = self.hashing.build_hasher();
        namespace.hash(&mut hasher);
        let cacheable = &prompt[..prompt.len().saturating_sub(1)];
        let blocks = cacheable.chunks_exact(BLOCK_TOKENS).take(MAX_PROMPT_BLOCKS);
        let name = |block: &[Token]| {
            block.hash(&mut hasher);
            hasher.finish()
        };
        PromptBlocks(blocks.map(name).collect())
    }

    /// Prompt tokens that workers probably hold; workers that probably hold none are left out.
    pub(super) fn estimate(&self, prompt: &PromptBlocks) -> Vec<CachedPrefix> {
        let cached = |(&worker, known): (&WorkerId, &Known)| {
            let tokens = known.estimate(prompt);
            (tokens > 0).then_some(CachedPrefix { worker, tokens })
        };
        self.workers.iter().filter_map(cached).collect()
    }

    /// Prompt tokens that a worker probably holds.
    pub(super) fn estimate_on(&self, worker: WorkerId, prompt: &PromptBlocks) -> u32 {
        self.workers.get(&worker).map_or(0, |known| known.estimate(prompt))
    }

    /// A request was sent to a worker, which computes and keeps its prompt.
    pub(super) fn dispatched(&mut self, id: RequestId, worker: WorkerId, prompt: &PromptBlocks) {
        let known = self.workers.entry(worker).or_insert_with(Known::new);
        let tokens = known.held(prompt);
        if tokens > 0 {
            self.expected.insert(id, CachedPrefix { worker, tokens });
        }
        known.learn(prompt);
    }

    /// A request began, with this many tokens from its worker's cache.
    pub(super) fn started(&mut self, id: RequestId, cached_tokens: u32) {
        let Some(CachedPrefix { worker, tokens }) = self.expected.remove(&id) else { return };
        if let Some(known) = self.workers.get_mut(&worker) {
            let share = cached_tokens.min(tokens) as f32 / tokens as f32;
            known.precision += (share - known.precision) * PRECISION_WEIGHT;
        }
    }

    /// A request ended, perhaps before it started.
    pub(super) fn ended(&mut self, id: RequestId) {
        self.expected.remove(&id);
    }

    /// A worker was lost, and its cache with it.
    pub(super) fn lost(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        self.expected.retain(|_, expected| expected.worker != worker);
    }
}

impl Known {
    fn new() -> Self {
        Self { last_use: HashMap::new(), by_use: BTreeMap::new(), uses: 0, precision: 1.0 }
    }

    fn estimate(&self, prompt: &PromptBlocks) -> u32 {
        (self.held(prompt) as f32 * self.precision) as u32
    }

    /// Tokens of the prompt's known beginning. No block is forgotten before its continuations, so the known ones come first.
    fn held(&self, prompt: &PromptBlocks) -> u32 {
        let blocks = prompt.0.partition_point(|block| self.last_use.contains_key(block));
        (blocks * BLOCK_TOKENS) as u32
    }

    fn learn(&mut self, prompt: &PromptBlocks) {
        // From the end, so that a prefix is never forgotten before its continuations.
        for &block in prompt.0.iter().rev() {
            if let Some(before) = self.last_use.insert(block, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, block);
            self.uses += 1;
        }
        while self.by_use.len() > MAX_WORKER_BLOCKS {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.last_use.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::TenantId;

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(1);

    fn tenant(name: &str) -> Namespace {
        Namespace::Tenant(TenantId::from(name))
    }

    fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
        range.map(Token).collect()
    }

    fn cached(worker: WorkerId, tokens: u32) -> CachedPrefix {
        CachedPrefix { worker, tokens }
    }

    #[test]
    fn estimates_whole_blocks_of_the_common_beginning_for_each_worker() {
        let mut affinity = Affinity::default();
        let blocks = |affinity: &Affinity, range| affinity.blocks(&tenant("t"), &tokens(range));
        let long = blocks(&affinity, 0..1000);
        assert_eq!(affinity.estimate(&long), []);
        affinity.dispatched(RequestId(1), A, &long);
        let short = blocks(&affinity, 0..100);
        affinity.dispatched(RequestId(2), B, &short);
        assert_eq!(affinity.estimate(&long), [cached(A, 31 * 32), cached(B, 3 * 32)]);
        assert_eq!(
            affinity.estimate(&blocks(&affinity, 0..64)),
            [cached(A, 32), cached(B, 32)],
            "never the last token"
        );
        assert_eq!(affinity.estimate(&blocks(&affinity, 32..200)), [], "the same tokens at another position");
        let mut other_end = tokens(0..96);
        other_end.extend(tokens(500..600));
        let other_end = affinity.blocks(&tenant("t"), &other_end);
        assert_eq!(affinity.estimate(&other_end), [cached(A, 96), cached(B, 96)]);
    }

    #[test]
    fn tenants_never_see_what_others_sent() {
        let mut affinity = Affinity::default();
        let prompt = tokens(0..500);
        affinity.dispatched(RequestId(1), A, &affinity.blocks(&tenant("a"), &prompt));
        for other in [tenant("b"), Namespace::Shared] {
            assert_eq!(affinity.estimate(&affinity.blocks(&other, &prompt)), [], "{other:?}");
        }
        assert_eq!(affinity.estimate(&affinity.blocks(&tenant("a"), &prompt)), [cached(A, 480)]);
    }

    #[test]
    fn a_lost_worker_holds_nothing() {
        let mut affinity = Affinity::default();
        let prompt = affinity.blocks(&tenant("t"), &tokens(0..200));
        for worker in [A, B] {
            affinity.dispatched(RequestId(1), worker, &prompt);
        }
        affinity.lost(A);
        assert_eq!(affinity.estimate(&prompt), [cached(B, 192)]);
    }

    #[test]
    fn estimates_that_do_not_come_true_shrink_and_recover() {
        let mut affinity = Affinity::default();
        let prompt = affinity.blocks(&tenant("t"), &tokens(0..321));
        affinity.dispatched(RequestId(0), A, &prompt);
        let mut estimates = Vec::new();
        for id in 1..60 {
            affinity.dispatched(RequestId(id), A, &prompt);
            affinity.started(RequestId(id), if id < 30 { 0 } else { 320 });
            estimates.push(affinity.estimate(&prompt).first().map_or(0, |cached| cached.tokens));
        }
        assert_eq!(estimates[28], 0, "a worker that shares nothing");
        assert!(estimates[..29].is_sorted_by(|a, b| a >= b) && estimates[28..].is_sorted(), "{estimates:?}");
        assert!(estimates[58] > 300, "{estimates:?}");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_beginnings_are_forgotten_last() {
        let mut affinity = Affinity::default();
        let count = |affinity: &Affinity| affinity.workers[&A].last_use.len();
        let prompt =
            |affinity: &Affinity, n: u32| affinity.blocks(&tenant("t"), &tokens(n * 100_000..(n + 1) * 100_000));
        assert_eq!(prompt(&affinity, 0).0.len(), MAX_PROMPT_BLOCKS);
        let sent = (MAX_WORKER_BLOCKS / MAX_PROMPT_BLOCKS) as u32;
        for n in 0..sent {
            affinity.dispatched(RequestId(u64::from(n)), A, &prompt(&affinity, n));
        }
        assert_eq!(count(&affinity), MAX_WORKER_BLOCKS);
        let half = affinity.blocks(&tenant("t"), &tokens(9_000_000..9_000_000 + 512 * 32 + 1));
        affinity.dispatched(RequestId(99), A, &half);
        assert_eq!(count(&affinity), MAX_WORKER_BLOCKS);
        assert_eq!(affinity.estimate(&prompt(&affinity, 0)), [cached(A, 512 * 32)], "half of the oldest is left");
        assert_eq!(affinity.estimate(&prompt(&affinity, 1)), [cached(A, 1024 * 32)]);
        (1..200).for_each(|id| affinity.ended(RequestId(id)));
        assert!(affinity.expected.is_empty());
    }

    proptest! {
        #[test]
        fn estimates_what_the_likest_prompt_of_the_namespace_shares(
            prompts in prop::collection::vec((0u32..2, 0usize..3, 0u32..200, 0usize..60), 1..20),
        ) {
            let mut affinity = Affinity::default();
            let mut sent: Vec<(WorkerId, usize, Vec<Token>)> = Vec::new();
            for (id, (worker, name, common, own)) in (0..).zip(prompts) {
                // A beginning that many have, and an end of its own.
                let mut prompt = tokens(0..common);
                prompt.extend(vec![Token(1_000_000 + id); own]);
                let blocks = affinity.blocks(&tenant(["a", "b", "c"][name]), &prompt);
                let shared = |on: WorkerId| {
                    let earlier = sent.iter().filter(|(worker, of, _)| (*worker, *of) == (on, name));
                    let common = earlier.map(|(_, _, before)| {
                        let most = before.len().min(prompt.len()).saturating_sub(1);
                        before.iter().zip(&prompt).take(most).take_while(|(a, b)| a == b).count() / BLOCK_TOKENS
                    });
                    common.max().unwrap_or(0) * BLOCK_TOKENS
                };
                let expected: Vec<CachedPrefix> =
                    [A, B].map(|on| cached(on, shared(on) as u32)).into_iter().filter(|c| c.tokens > 0).collect();
                prop_assert_eq!(affinity.estimate(&blocks), expected);
                affinity.dispatched(RequestId(u64::from(id)), WorkerId(worker), &blocks);
                sent.push((WorkerId(worker), name, prompt));
            }
        }
    }
}
