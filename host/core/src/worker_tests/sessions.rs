//! Sessions keep what they left in the prefix cache.
use super::kv::cached;
use super::*;

const TURN: &str = "a turn of some length that is worth keeping";

fn turn(id: u64, text: &str, session: &str) -> Start {
    let session = (!session.is_empty()).then(|| session.into());
    Start { max_tokens: 1, ignore_eos: true, session, ..start(id, text) }
}

/// Capacity for about three turns.
fn bench() -> Bench {
    let cache = PrefixCache::new(3 * 4 * TURN.len() as u64 + 64).with_session_ttl(Duration::from_secs(60));
    Bench::with(LIMITS, Arc::new(Native), Reserve::Full, cache)
}

fn close(bench: &mut Bench, id: u64, namespace: Namespace, session: &str) {
    bench.command(Command::CloseSession { id: RequestId(id), namespace, session: session.into() });
}

/// Other requests that fill the cache.
fn crowd(bench: &mut Bench) {
    for (id, letter) in (10..).zip("ABCDEF".chars()) {
        bench.begin(turn(id, &format!("{letter} {TURN}"), ""));
        bench.run();
    }
}

#[test]
fn what_a_session_left_outlives_what_others_leave() {
    let mut bench = bench();
    bench.begin(turn(1, TURN, "s"));
    bench.run();
    assert_eq!(bench.worker.cache_facts().sessions, 1);
    crowd(&mut bench);
    bench.begin(turn(2, &format!("{TURN}, and on"), "s"));
    bench.begin(turn(3, &format!("A {TURN}"), ""));
    bench.run();
    assert_eq!((cached(&bench, 2), cached(&bench, 3)), (TURN.len() as u32, 0));
    // The session holds its latest turn now.
    assert_eq!(bench.worker.cache_facts().sessions, 1);
}

#[test]
fn a_session_that_was_closed_or_is_past_its_time_is_evicted_like_the_rest() {
    for closed in [true, false] {
        let mut bench = bench();
        bench.begin(turn(1, TURN, "s"));
        bench.run();
        if closed {
            let namespace = Namespace::Tenant("t".into());
            close(&mut bench, 90, namespace.clone(), "other");
            assert_eq!(bench.worker.cache_facts().sessions, 1);
            close(&mut bench, 91, namespace, "s");
        } else {
            bench.now += Duration::from_secs(61);
            bench.step();
        }
        assert_eq!(bench.worker.cache_facts().sessions, 0);
        crowd(&mut bench);
        bench.begin(turn(2, &format!("{TURN}, and on"), ""));
        bench.run();
        assert_eq!(cached(&bench, 2), 0);
    }
}

#[test]
fn sessions_go_when_nothing_else_is_left_to_go_and_the_oldest_first() {
    let mut bench = bench();
    for id in 0..6 {
        bench.now += Duration::from_secs(1);
        bench.begin(turn(id, &format!("{id} {TURN}"), &format!("session {id}")));
        bench.run();
    }
    let facts = bench.worker.cache_facts();
    assert!((2..=3).contains(&facts.sessions), "{facts:?}");
    let counters = bench.worker.take_counters();
    assert!(counters.evicted_from_ram >= 3 && counters.evicted_from_cold == 0, "{counters:?}");
    assert_eq!(bench.worker.take_counters(), Default::default(), "each is told once");
    bench.begin(turn(10, &format!("5 {TURN}"), ""));
    bench.begin(turn(11, &format!("0 {TURN}"), ""));
    bench.run();
    assert!(cached(&bench, 10) > 0 && cached(&bench, 11) == 0);
}

#[test]
fn the_number_of_sessions_is_bounded() {
    let mut bench = Bench::with(LIMITS, Arc::new(Native), Reserve::Full, PrefixCache::new(1 << 24));
    for id in 0..1025 {
        bench.now += Duration::from_millis(1);
        bench.begin(turn(id, TURN, &format!("{id}")));
        bench.run();
        assert_eq!(bench.worker.cache_facts().sessions, (id + 1).min(1024));
    }
}

#[test]
fn a_session_belongs_to_its_namespace() {
    let mut bench = bench();
    bench.begin(turn(1, TURN, "s"));
    bench.run();
    close(&mut bench, 90, Namespace::Shared, "s");
    assert_eq!(bench.worker.cache_facts().sessions, 1);
    bench.begin(Start { namespace: Namespace::Shared, ..turn(2, TURN, "s") });
    bench.run();
    assert_eq!((cached(&bench, 2), bench.worker.cache_facts().sessions), (0, 2));
}

#[test]
fn regression_closing_a_session_says_whether_there_was_one() {
    let mut bench = bench();
    bench.begin(turn(1, TURN, "s"));
    bench.run();
    let namespace = Namespace::Tenant("t".into());
    for (id, session) in [(90, "other"), (91, "s"), (92, "s")] {
        close(&mut bench, id, namespace.clone(), session);
    }
    let closed = |id, existed| Event::SessionClosed { id: RequestId(id), existed };
    let answers = bench.events.iter().filter(|event| matches!(event, Event::SessionClosed { .. }));
    assert!(answers.eq(&[closed(90, false), closed(91, true), closed(92, false)]));
}

#[test]
fn a_worker_tells_of_the_sessions_of_a_whole_namespace_and_of_no_other() {
    let mut bench = Bench::native();
    let whole = Namespace::Tenant("t".into());
    let ask = |id: u64, namespace: &Namespace, text: &str| Start {
        namespace: namespace.clone(),
        ..turn(id, text, &format!("s{id}"))
    };
    let text = "a text that is long enough to be kept";
    bench.begin(ask(1, &whole, text));
    bench.run();
    bench.now = Duration::from_secs(7);
    bench.begin(ask(2, &whole.keyed("k"), text));
    bench.begin(ask(3, &Namespace::Tenant("u".into()), text));
    bench.run();
    bench.command(Command::ListSessions { id: RequestId(99), namespace: whole.clone() });
    let Some(Event::Sessions { id: RequestId(99), sessions }) = bench.events.last() else {
        panic!("{:?}", bench.events)
    };
    let got: Vec<_> = sessions.iter().map(|open| (open.session.as_str(), &open.namespace, open.tokens)).collect();
    let tokens = text.len() as u32;
    assert_eq!(got, [("s1", &whole, tokens), ("s2", &whole.keyed("k"), tokens)], "the next to expire first");
    let seconds: Vec<u64> = sessions.iter().map(|open| open.expires_in.as_secs()).collect();
    assert_eq!(seconds[1] - seconds[0], 7);
}
