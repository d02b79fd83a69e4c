use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::ids::Token;

/// A change that the property test makes to the cache. Indices are taken modulo the length of their list.
#[derive(Debug, Clone)]
enum Act {
    Enter(Vec<u8>),
    Store(usize),
    Leave(usize),
    Preempt(usize),
    Resume(usize),
    Abandon(usize),
    Pin(usize, u8),
    Close(u8),
    Load(usize),
    Limit(u64),
    Wait(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let any = any::<usize>;
    prop_oneof![
        5 => prop::collection::vec(0..3u8, 1..12).prop_map(Act::Enter),
        5 => any().prop_map(Act::Store),
        2 => any().prop_map(Act::Leave),
        2 => any().prop_map(Act::Preempt),
        1 => any().prop_map(Act::Resume),
        1 => any().prop_map(Act::Abandon),
        3 => (any(), 0..4u8).prop_map(|(i, name)| Act::Pin(i, name)),
        1 => (0..5u8).prop_map(Act::Close),
        2 => any().prop_map(Act::Load),
        1 => (0..400u64).prop_map(Act::Limit),
        1 => (0..30u8).prop_map(Act::Wait),
    ]
}

/// A cold tier that never fails.
#[derive(Default)]
struct Memory(std::collections::HashMap<SegmentId, State>);

impl ColdTier for Memory {
    fn put(&mut self, segment: SegmentId, _: &SegmentInfo, state: &State) {
        self.0.insert(segment, state.clone());
    }
    fn get(&mut self, segment: SegmentId) -> Option<State> {
        self.0.get(&segment).cloned()
    }
    fn remove(&mut self, segment: SegmentId) {
        self.0.remove(&segment);
    }
    fn lost(&mut self, _: &mut Vec<SegmentId>) {}
}

const A: RequestId = RequestId(1);
const BYTES_PER_TOKEN: u32 = 4;

/// A cache and the leaves that sequences hold in it.
struct Bench {
    cache: PrefixCache,
    namespace: Namespace,
    running: Vec<NodeId>,
    preempted: Vec<NodeId>,
    now: Duration,
}

fn remove(list: &mut Vec<NodeId>, index: usize) -> Option<NodeId> {
    (!list.is_empty()).then(|| list.swap_remove(index % list.len()))
}

impl Bench {
    fn new(capacity_bytes: u64) -> Self {
        let cache = PrefixCache::new(capacity_bytes).with_session_ttl(Duration::from_secs(20));
        Self { cache, namespace: Namespace::Shared, running: Vec::new(), preempted: Vec::new(), now: Duration::ZERO }
    }

    fn enter(&mut self, text: &str) -> NodeId {
        let tokens: Vec<Token> = text.bytes().map(|b| Token(u32::from(b))).collect();
        self.cache.tree.enter(&self.namespace, &tokens)
    }

    fn store(&mut self, leaf: NodeId) {
        let bare: Vec<_> = self.cache.tree.path(leaf).filter(|piece| piece.segment.is_none()).collect();
        for piece in bare {
            let state = vec![0; ((piece.end - piece.start) * BYTES_PER_TOKEN) as usize];
            self.cache.store(&[piece.node], &self.namespace, state);
        }
    }

    /// Runs a request to its end, in a session or in none.
    fn request(&mut self, text: &str, session: Option<&str>) {
        let leaf = self.enter(text);
        self.store(leaf);
        match session {
            Some(session) => self.cache.pin(&self.namespace, &session.into(), leaf, A),
            None => self.cache.tree.leave(leaf, A),
        }
        self.cache.enforce_limits();
    }

    /// Runs a request and preempts it.
    fn preempt(&mut self, text: &str) {
        let leaf = self.enter(text);
        self.store(leaf);
        self.cache.tree.preempt(leaf, A);
        self.preempted.push(leaf);
        self.cache.enforce_limits();
    }

    fn cached(&self, text: &str) -> u32 {
        let tokens: Vec<Token> = text.bytes().map(|b| Token(u32::from(b))).collect();
        self.cache.tree.probe(&self.namespace, &tokens).cached
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Enter(text) => {
                let text: String = text.iter().map(|&b| char::from(b'a' + b)).collect();
                let leaf = self.enter(&text);
                self.running.push(leaf);
            }
            Act::Store(i) => {
                if let Some(&leaf) = self.running.get(i % self.running.len().max(1)) {
                    self.store(leaf);
                }
            }
            Act::Leave(i) => {
                remove(&mut self.running, i).into_iter().for_each(|leaf| self.cache.tree.leave(leaf, A));
            }
            Act::Preempt(i) => {
                let leaf = remove(&mut self.running, i);
                leaf.into_iter().for_each(|leaf| self.cache.tree.preempt(leaf, A));
                self.preempted.extend(leaf);
            }
            Act::Resume(i) => {
                let leaf = remove(&mut self.preempted, i);
                leaf.into_iter().for_each(|leaf| self.cache.tree.resume(leaf));
                self.running.extend(leaf);
            }
            Act::Abandon(i) => {
                remove(&mut self.preempted, i).into_iter().for_each(|leaf| self.cache.tree.abandon(leaf));
            }
            Act::Pin(i, name) => {
                if let Some(leaf) = remove(&mut self.running, i) {
                    self.cache.pin(&self.namespace, &name.to_string().as_str().into(), leaf, A);
                }
            }
            Act::Close(name) => {
                self.cache.close_session(&self.namespace, &name.to_string().as_str().into());
            }
            Act::Load(i) => {
                let mut all: Vec<SegmentId> = self.cache.index.segments().collect();
                all.sort_unstable();
                if let Some(&segment) = all.get(i % all.len().max(1)) {
                    self.cache.load(segment, &self.namespace);
                }
            }
            Act::Limit(bytes) => self.cache.capacity_bytes = bytes,
            Act::Wait(seconds) => {
                self.now += Duration::from_secs(seconds.into());
                self.cache.tick(self.now);
            }
        }
    }

    /// Segments on the paths to these leaves.
    fn on_paths(&self, leaves: impl Iterator<Item = NodeId>) -> HashSet<SegmentId> {
        leaves.flat_map(|leaf| self.cache.tree.path(leaf)).filter_map(|piece| piece.segment).collect()
    }

    fn pinned(&self) -> HashSet<SegmentId> {
        self.on_paths(self.cache.sessions.leaves())
    }

    fn in_ram(&self) -> HashSet<SegmentId> {
        self.cache.index.segments().filter(|&segment| self.cache.store.ram_bytes_of(segment) > 0).collect()
    }

    /// Enforces the limits and checks which segments and sessions that cost.
    fn enforce_limits_and_check(&mut self) -> Result<(), TestCaseError> {
        let (pinned, before, open) = (self.pinned(), self.in_ram(), self.cache.sessions.len());
        let preempted = self.on_paths(self.preempted.iter().copied());
        let running = self.on_paths(self.running.iter().copied());
        let pinned_bytes: u64 = pinned.difference(&preempted).map(|&s| self.cache.store.ram_bytes_of(s)).sum();
        self.cache.enforce_limits();
        let after = self.in_ram();
        let gone: HashSet<SegmentId> = before.difference(&after).copied().collect();
        prop_assert!(gone.is_disjoint(&preempted), "a preempted sequence lost a segment");
        let free = |segment: &&SegmentId| !pinned.contains(segment) && !preempted.contains(segment);
        if !gone.is_disjoint(&pinned) {
            let passed_over: Vec<_> = after.iter().filter(free).filter(|segment| !running.contains(segment)).collect();
            prop_assert!(passed_over.is_empty(), "{:?} have no holder and outlived a pinned segment", passed_over);
        }
        let capacity = self.cache.capacity_bytes;
        if self.cache.store.ram_bytes() > capacity {
            let still = self.pinned();
            let pinned = after.iter().filter(|segment| still.contains(segment) && !preempted.contains(segment));
            let bytes: u64 = pinned.filter(|s| !running.contains(s)).map(|&s| self.cache.store.ram_bytes_of(s)).sum();
            prop_assert!(bytes <= capacity, "{} bytes are pinned, above the capacity of {}", bytes, capacity);
            let free: Vec<_> = after.iter().filter(free).filter(|segment| !running.contains(segment)).collect();
            prop_assert!(free.is_empty(), "{:?} have no holder and were not evicted", free);
        }
        if self.cache.sessions.len() < open {
            prop_assert!(
                pinned_bytes > capacity,
                "sessions were closed although they pinned only {pinned_bytes} bytes of {capacity}"
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn evicts_unheld_segments_before_pinned_ones(
        acts in prop::collection::vec(act(), 1..80),
        cold in any::<bool>(),
    ) {
        let mut bench = Bench::new(120);
        if cold {
            bench.cache = bench.cache.with_cold(Box::new(Memory::default()), Vec::new());
        }
        for act in acts {
            bench.act(act);
            bench.enforce_limits_and_check()?;
            prop_assert!(bench.cache.check());
        }
        bench.running.drain(..).for_each(|leaf| bench.cache.tree.leave(leaf, A));
        bench.preempted.drain(..).for_each(|leaf| bench.cache.tree.abandon(leaf));
        bench.enforce_limits_and_check()?;
        prop_assert!(bench.cache.store.ram_bytes() <= bench.cache.capacity_bytes);
    }
}

#[test]
fn regression_a_session_keeps_the_segment_that_it_uses_the_smaller_part_of() {
    let mut bench = Bench::new(300);
    bench.request("shared, then a long end that nobody asks for again", None);
    bench.request("shared", Some("s"));
    for other in ["another one of some length", "a third one of some length", "yet another of some length"] {
        bench.request(other, None);
    }
    assert_eq!((bench.cached("shared"), bench.cache.sessions.len()), (6, 1));
}

#[test]
fn regression_preempted_sequences_over_the_bound_close_no_session() {
    let mut bench = Bench::new(100);
    bench.request("one session", Some("s"));
    bench.preempt("what is preempted is longer than all that fits");
    assert_eq!((bench.cached("one session"), bench.cache.sessions.len()), (11, 1));
    assert!(bench.cache.store.ram_bytes() > 100);
    // The bound still holds for sessions.
    bench.request("two sessions are too many", Some("t"));
    assert_eq!((bench.cached("one session"), bench.cache.sessions.len()), (0, 1));
}

#[test]
fn closes_only_sessions_whose_segments_no_sequence_holds() {
    let mut bench = Bench::new(100);
    bench.request("held by a sequence", Some("older"));
    bench.preempt("held by a sequence");
    bench.request("not held by any sequence", Some("newer"));
    bench.request("and the last session", Some("newest"));
    let oldest = bench.cache.close_session(&bench.namespace, &"older".into());
    assert_eq!((oldest, bench.cached("and the last session"), bench.cache.sessions.len()), (true, 20, 1));
}

#[test]
fn pinned_segments_move_to_the_cold_tier_and_stay_pinned() {
    let mut bench = Bench::new(60);
    bench.cache = bench.cache.with_cold(Box::new(Memory::default()), Vec::new());
    bench.request("the first session", Some("s"));
    bench.request("the second session", Some("t"));
    assert_eq!((bench.cached("the first session"), bench.cache.sessions.len()), (17, 2));
    assert!(bench.cache.store.ram_bytes() <= 60);
}

/// A cache with segments of 40 bytes each, all of one namespace.
fn filled(capacity: u64, count: usize) -> Bench {
    let mut bench = Bench::new(capacity);
    (0..count).for_each(|n| bench.request(&format!("{n:010}"), None));
    bench
}

fn of(name: &str) -> Namespace {
    Namespace::Tenant(name.into())
}

#[test]
fn regression_lowering_the_bound_evicts_a_bounded_number_of_segments_at_a_time() {
    let mut bench = filled(1 << 20, 2000);
    let all = bench.cache.facts();
    bench.cache.index.updates = 0;
    bench.cache.set_limits(0, Duration::from_secs(20));
    let mut rounds = 1;
    while bench.cache.has_backlog() {
        let evicted = all.segments - bench.cache.facts().segments;
        assert!(evicted <= rounds * MAX_EVICTED as u64, "{evicted} after {rounds}");
        bench.cache.tick(bench.now);
        rounds += 1;
    }
    assert_eq!((bench.cache.facts().segments, bench.cache.facts().ram_bytes), (0, 0));
    assert!(rounds >= 2000 / MAX_EVICTED as u64 && bench.cache.tree.is_empty());
    // Splits of the roots' first tokens are all that is indexed anew.
    assert!(bench.cache.index.updates <= 4000, "{}", bench.cache.index.updates);
}

#[test]
fn regression_a_request_on_a_full_cache_costs_the_same_however_much_it_holds() {
    let updates = |count: usize| {
        let mut bench = Bench::new(40 * count as u64);
        // Nothing in common, not even the first token.
        let request = |bench: &mut Bench, n: usize| {
            let tokens: Vec<Token> = (0..10).map(|i| Token((10 * n + i) as u32)).collect();
            let leaf = bench.cache.tree.enter(&bench.namespace, &tokens);
            bench.store(leaf);
            bench.cache.tree.leave(leaf, A);
            bench.cache.enforce_limits();
        };
        (0..2 * count).for_each(|n| request(&mut bench, n));
        let evicted = bench.cache.store.evicted_from_ram;
        bench.cache.index.updates = 0;
        request(&mut bench, 9 * count);
        assert_eq!(bench.cache.store.evicted_from_ram, evicted + 1);
        bench.cache.index.updates
    };
    assert_eq!(updates(5000), updates(50));
}

#[test]
fn regression_one_tenant_fills_the_cache_and_the_others_keep_their_shares() {
    for session in [None, Some("pinned")] {
        let mut bench = Bench::new(40 * 100);
        bench.namespace = of("polite");
        (0..20).for_each(|n| bench.request(&format!("{n:010}"), None));
        bench.namespace = of("greedy");
        for n in 0..500 {
            let name = session.map(|name| format!("{name} {n}"));
            bench.request(&format!("{n:010}"), name.as_deref());
            assert!(bench.cache.facts().ram_bytes <= 4000);
        }
        bench.namespace = of("polite");
        let kept = (0..20).filter(|n| bench.cached(&format!("{n:010}")) == 10).count();
        assert_eq!(kept, 20, "{session:?}");
        // A third tenant gets its share of what the first took.
        bench.namespace = of("third");
        (0..30).for_each(|n| bench.request(&format!("{n:010}"), None));
        assert_eq!((0..30).filter(|n| bench.cached(&format!("{n:010}")) == 10).count(), 30, "{session:?}");
    }
}

#[test]
fn what_nobody_used_for_as_long_as_a_session_lasts_goes_first_whoever_left_it() {
    let mut bench = Bench::new(40 * 10);
    let pass = |bench: &mut Bench, seconds: u64| {
        for _ in 0..seconds {
            bench.now += Duration::from_secs(1);
            bench.cache.tick(bench.now);
        }
    };
    bench.cache.tick(bench.now);
    bench.namespace = of("gone");
    (0..4).for_each(|n| bench.request(&format!("{n:010}"), None));
    pass(&mut bench, 30);
    bench.namespace = of("here");
    (0..10).for_each(|n| bench.request(&format!("{n:010}"), None));
    assert_eq!((0..10).filter(|n| bench.cached(&format!("{n:010}")) == 10).count(), 10);
}

#[test]
fn regression_one_tenant_opens_all_sessions_and_the_others_keep_theirs() {
    let mut bench = Bench::new(1 << 20);
    bench.cache = bench.cache.with_session_ttl(Duration::from_secs(600));
    let open = |bench: &mut Bench, owner: &str, name: &str| {
        bench.namespace = of(owner);
        bench.now += Duration::from_millis(1);
        bench.cache.tick(bench.now);
        bench.request("some text", Some(name));
    };
    open(&mut bench, "polite", "first");
    (0..1100).for_each(|n| open(&mut bench, "greedy", &n.to_string()));
    open(&mut bench, "polite", "second");
    (0..50).for_each(|n| open(&mut bench, "greedy", &format!("again {n}")));
    assert_eq!(bench.cache.sessions.len(), 1024);
    for name in ["first", "second"] {
        assert!(bench.cache.close_session(&of("polite"), &name.into()), "{name} is still open");
    }
    assert!(!bench.cache.close_session(&of("greedy"), &"0".into()), "the greedy one's oldest went");
}
