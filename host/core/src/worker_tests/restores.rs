//! What is restored in a step, and in how many calls.
use super::kv::cached;
use super::*;
use crate::worker::restoring::RestoreBounds;

const LARGE: EngineLimits = EngineLimits { sequences: 8, kv_tokens: 8192, batch_tokens: 2048, context_tokens: 2048 };

fn large() -> Bench {
    Bench::new(LARGE, Arc::new(Native))
}

/// A text in which no two places look alike.
fn text(len: usize) -> String {
    let words: String = (0..len).map(|i| format!("{i} ")).collect();
    words[..len].to_owned()
}

fn one(id: u64, prompt: &str) -> Start {
    Start { max_tokens: 1, ignore_eos: true, ..start(id, prompt) }
}

fn ask(bench: &mut Bench, id: u64, prompt: &str) {
    bench.begin(one(id, prompt));
    bench.run();
}

/// Leaves `count` segments of 8 tokens, one after the other, and returns the whole text.
fn small_segments(bench: &mut Bench, count: usize) -> String {
    let whole = text(16 + 8 * count);
    (1..=count).for_each(|n| ask(bench, n as u64, &whole[..16 + 8 * n]));
    whole
}

#[test]
fn regression_how_often_a_prefix_was_split_makes_no_difference_to_restoring_it() {
    let whole = text(1500);
    let restore = |splits: usize| {
        let mut bench = large();
        ask(&mut bench, 0, &whole);
        for split in 1..=splits {
            ask(&mut bench, split as u64, &format!("{}#", &whole[..1500 * split / (splits + 1)]));
        }
        bench.engine.restored.clear();
        ask(&mut bench, 1000, &whole);
        assert_eq!(cached(&bench, 1000), 1499);
        let saved = bench.worker.cache_facts().ram_bytes;
        (bench.engine.restored.clone(), saved)
    };
    let (calls, _) = restore(0);
    assert_eq!(calls.len(), 1, "the segments of a prefix are restored together");
    assert_eq!(restore(161).0, calls);
}

#[test]
fn regression_neighbours_are_shared_in_one_call() {
    let mut bench = large();
    let whole = text(1000);
    for split in 1..50 {
        bench.begin(Start { max_tokens: 40, ignore_eos: true, ..start(split, &whole[..20 * split as usize]) });
        bench.step();
        if split > 6 {
            bench.command(Command::Cancel { id: RequestId(split - 6) });
        }
    }
    bench.begin(Start { max_tokens: 40, ignore_eos: true, ..start(100, &whole) });
    bench.engine.shared = 0;
    bench.step();
    assert!((1..=2).contains(&bench.engine.shared), "{}", bench.engine.shared);
}

#[test]
fn regression_a_step_restores_a_bounded_number_of_segments_while_others_go_on() {
    let mut bench = large();
    let whole = small_segments(&mut bench, 200);
    let stream = Start { max_tokens: 100, ignore_eos: true, ..start(900, "a stream") };
    bench.begin(stream.clone());
    bench.steps(3);
    bench.engine.restored.clear();
    bench.begin(one(901, &whole));
    for step in 1..=3 {
        let before = bench.engine.decoded;
        bench.step();
        assert_eq!((bench.engine.restored.len(), bench.engine.decoded - before), (step, 1), "the stream goes on");
    }
    let largest = bench.engine.restored.iter().max().copied().unwrap();
    assert!(largest <= 64 * (4 + 4 * 9) + 200, "{largest} bytes in one step");
    bench.run();
    assert_eq!(cached(&bench, 901) as usize, whole.len() - 1, "all of it came back");
    for request in [stream, one(901, &whole)] {
        let mut single = large();
        let id = request.id.0;
        single.begin(request);
        single.run();
        assert_eq!(single.results()[&id].0, bench.results()[&id].0);
    }
}

#[test]
fn a_worker_that_has_only_to_restore_is_not_idle() {
    let mut bench = large();
    let whole = small_segments(&mut bench, 200);
    bench.begin(one(901, &whole));
    assert_eq!([bench.step(), bench.step(), bench.step()], [Step::Prepared; 3]);
    assert!(matches!(bench.step(), Step::Decoded { .. }));
}

#[test]
fn an_engine_that_copies_whole_sequences_restores_one_at_once_and_the_next_in_the_next_step() {
    let mut bench = large();
    let whole = small_segments(&mut bench, 200);
    bench.engine.restores_in_place = false;
    bench.engine.restored.clear();
    let other = format!("{}#", &whole[..1000]);
    ask(&mut bench, 900, &other);
    bench.engine.restored.clear();
    bench.begin(one(901, &whole));
    bench.step();
    assert_eq!(bench.engine.restored.len(), 1);
    bench.run();
    assert_eq!(cached(&bench, 901) as usize, whole.len() - 1);
}

#[test]
fn a_tail_is_restored_in_parts() {
    let mut bench = Bench::native();
    let request = Start { max_tokens: 120, ignore_eos: true, ..start(1, "a prompt") };
    bench.begin(request.clone());
    bench.steps(60);
    bench.worker.roster.restore_bounds = RestoreBounds { bytes: 80, segments: 64 };
    bench.command(Command::Preempt { id: RequestId(1) });
    bench.engine.restored.clear();
    let decoded = bench.engine.decoded;
    let mut prepared = 0;
    while bench.step() == Step::Prepared {
        prepared += 1;
        // Preempted once more in the middle.
        if prepared == 2 {
            bench.command(Command::Preempt { id: RequestId(1) });
        }
    }
    assert!(prepared >= 4, "{prepared}");
    assert_eq!(bench.engine.decoded, decoded + 1, "nothing was computed again");
    bench.run();
    assert_eq!(bench.results()[&1].0, alone(request).0);
}

#[test]
fn regression_roots_of_tenants_that_left_are_freed() {
    for reuse in [Reuse::Ranges, Reuse::Whole] {
        let mut bench = Bench::with(LIMITS, Arc::new(Native), Reserve::Full, PrefixCache::new(0));
        bench.engine.reuse = reuse;
        for id in 0..50 {
            let namespace = Namespace::Tenant(format!("tenant {id}").as_str().into());
            // A prompt of one token shares nothing: it ends at the root.
            let prompt = if id % 2 == 0 { "x" } else { "a prompt of some length" };
            bench.begin(Start { namespace, ..start(id, prompt) });
            bench.steps(2);
            if id % 3 == 0 {
                bench.command(Command::Preempt { id: RequestId(id) });
            }
            bench.run();
        }
        assert!(bench.worker.roster.kv.cache.tree.is_empty(), "{reuse:?}");
    }
}
