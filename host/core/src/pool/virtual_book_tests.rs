use proptest::prelude::*;

use super::*;
use crate::fcfs::Fcfs;
use crate::policy::{EmptyBooks, Rejection, Scheduler};

const W: WorkerId = WorkerId(0);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn arrival(id: u64, arrived: Duration, max_tokens: u32, deadline: Option<Duration>) -> Arrival {
    Arrival {
        id: RequestId(id),
        arrived,
        tenant: "t".into(),
        priority: Default::default(),
        weight: 1.0,
        deadline,
        prompt_tokens: 8,
        max_tokens,
        need: 10,
        cached: Vec::new(),
        attributes: Default::default(),
    }
}

fn worker(sequences: u32) -> WorkerFacts {
    WorkerFacts {
        worker: W,
        healthy: true,
        free_sequences: sequences,
        running_sequences: 0,
        kv_free: 100,
        kv_used: 0,
        kv_total: 100,
        prefilling_tokens: 0,
        tokens_per_second: 0.0,
        can_preempt: true,
    }
}

fn book(sequences: u32) -> VirtualBook {
    let mut book = VirtualBook::of(&[], ms(0));
    book.set_workers(vec![worker(sequences)]);
    book.point(ms(0), Arc::new(EmptyBooks));
    book
}

fn enter(book: &mut VirtualBook, id: u64, now: u64) {
    book.note(&SchedulerEvent::Arrived(arrival(id, ms(now), 30, None)), ms(now));
}

fn dispatch(id: u64) -> Action {
    Action::Dispatch { id: RequestId(id), worker: W }
}

fn finish(book: &mut VirtualBook, id: u64, now: u64) {
    book.note(&SchedulerEvent::Finished { id: RequestId(id), generated_tokens: 30, ending: Ending::Stop }, ms(now));
}

fn running(book: &VirtualBook) -> u32 {
    book.loads.get(&W).map_or(0, |load| load.running)
}

#[test]
fn a_request_takes_as_long_here_as_it_took_in_reality() {
    let mut book = book(1);
    (1..=2).for_each(|id| enter(&mut book, id, 0));
    book.dispatched(RequestId(1), ms(0));
    assert!(book.carry_out(&[dispatch(1)], ms(5)).is_empty());
    finish(&mut book, 1, 20);
    book.advance(ms(24));
    assert_eq!(running(&book), 1, "it began 5 ms later here");
    book.advance(ms(25));
    assert_eq!(running(&book), 0);
    assert_eq!(book.take_compared(), [Waits { monitored: ms(5), enforced: ms(0) }]);
    assert!(book.check());
}

#[test]
fn what_is_served_here_before_reality_takes_as_long_as_others_of_its_size_until_that_is_known() {
    let mut book = book(2);
    (1..=3).for_each(|id| enter(&mut book, id, 0));
    book.dispatched(RequestId(1), ms(0));
    book.carry_out(&[dispatch(1), dispatch(2)], ms(0));
    book.advance(ms(1000));
    assert_eq!(running(&book), 2, "nothing is known yet");
    // 100 ms for 1 + 8 / 8 + 30 tokens of work.
    let mut book = self::book(2);
    (1..=3).for_each(|id| enter(&mut book, id, 0));
    book.dispatched(RequestId(1), ms(0));
    book.carry_out(&[dispatch(1), dispatch(2)], ms(0));
    finish(&mut book, 1, 100);
    book.advance(ms(100));
    assert_eq!(running(&book), 0, "two of one size take equally long");
    // The real one turns out to be longer.
    book.carry_out(&[dispatch(3)], ms(100));
    book.dispatched(RequestId(3), ms(150));
    book.advance(ms(199));
    assert_eq!(running(&book), 1);
    finish(&mut book, 3, 450);
    book.advance(ms(399));
    assert_eq!(running(&book), 1, "300 ms in reality");
    book.advance(ms(400));
    assert_eq!((running(&book), book.check()), (0, true));
}

#[test]
fn another_first_choice_is_one_before_whom_reality_preferred() {
    let mut book = book(2);
    (1..=4).for_each(|id| enter(&mut book, id, 0));
    assert!(book.carry_out(&[dispatch(3)], ms(0)).is_empty(), "reality has not chosen");
    book.dispatched(RequestId(1), ms(1));
    assert_eq!(book.carry_out(&[dispatch(2)], ms(1)), [Difference::FirstChoice]);
    book.dispatched(RequestId(4), ms(2));
    assert!(book.carry_out(&[dispatch(1), dispatch(4)], ms(2)).is_empty(), "in the order of reality");
    assert!(book.check());
}

#[test]
fn preempted_requests_give_their_place_and_come_back_first_for_the_time_that_is_left() {
    let mut book = book(1);
    (1..=2).for_each(|id| enter(&mut book, id, 0));
    book.dispatched(RequestId(1), ms(0));
    book.carry_out(&[dispatch(1)], ms(0));
    let preempt = Action::Preempt { id: RequestId(1) };
    let actions = [preempt.clone(), dispatch(2)];
    assert_eq!(book.check_actions(&actions), Ok(()));
    book.dispatched(RequestId(2), ms(4));
    assert_eq!(book.carry_out(&actions, ms(4)), [Difference::Preempt]);
    assert!(book.check_actions(&[preempt]).is_ok(), "it frees nothing now");
    (1..=2).for_each(|id| finish(&mut book, id, 10));
    book.advance(ms(10));
    assert_eq!((running(&book), book.preempted.len()), (1, 0), "6 ms of the second, then the first again");
    book.advance(ms(15));
    assert_eq!(running(&book), 1);
    book.advance(ms(16));
    assert_eq!((running(&book), book.requests.len(), book.check()), (0, 0, true));
}

#[test]
fn actions_that_this_book_does_not_allow_are_refused() {
    let mut book = book(1);
    (1..=3).for_each(|id| enter(&mut book, id, 0));
    book.carry_out(&[dispatch(1)], ms(0));
    let reject = |id| Action::Reject { id: RequestId(id), rejection: Rejection::new("") };
    for (actions, why) in [
        (vec![dispatch(2)], "full"),
        (vec![dispatch(9)], "unknown"),
        (vec![dispatch(1)], "not waiting"),
        (vec![reject(2), reject(2)], "twice"),
        (vec![Action::Preempt { id: RequestId(2) }], "does not run"),
        (vec![Action::Dispatch { id: RequestId(2), worker: WorkerId(7) }], "worker 7"),
    ] {
        let refused = book.check_actions(&actions).unwrap_err();
        assert!(refused.contains(why), "{refused} says {why}");
    }
    assert_eq!(book.carry_out(&[reject(2)], ms(0)), [Difference::Reject]);
    assert_eq!((book.waiting(), book.check()), (1, true));
}

#[test]
fn what_waits_past_its_deadline_ends_and_counts_if_it_was_served_in_reality() {
    let mut book = book(1);
    for id in 1..=2 {
        book.note(&SchedulerEvent::Arrived(arrival(id, ms(0), 30, Some(ms(50)))), ms(0));
    }
    book.dispatched(RequestId(1), ms(1));
    assert_eq!((book.advance(ms(49)), book.advance(ms(50))), (0, 1));
    book.note(&SchedulerEvent::Cancelled { id: RequestId(2), reason: CancelReason::Client }, ms(50));
    assert_eq!((book.waiting(), book.requests.len(), book.check()), (0, 1, true));
    finish(&mut book, 1, 60);
    assert!(book.requests.is_empty());
}

#[test]
fn a_worker_that_is_lost_ends_what_it_has_here() {
    let mut book = book(2);
    (1..=2).for_each(|id| enter(&mut book, id, 0));
    book.carry_out(&[dispatch(1)], ms(0));
    book.point(ms(0), Arc::new(EmptyBooks));
    book.set_workers(vec![WorkerFacts { healthy: false, ..worker(2) }]);
    assert_eq!((running(&book), book.waiting(), book.check()), (0, 1, true));
    let point = book.point(ms(1), Arc::new(EmptyBooks));
    assert_eq!(
        point.events,
        [SchedulerEvent::Finished { id: RequestId(1), generated_tokens: 0, ending: Ending::Stop }]
    );
}

#[test]
fn a_book_is_full_one_past_its_bound_and_tells_all_when_events_were_lost() {
    let mut book = book(1);
    (0..VIRTUAL_WAITING as u64).for_each(|id| enter(&mut book, id, 0));
    assert!(!book.is_full() && book.events.len() <= EVENTS);
    let point = book.point(ms(1), Arc::new(EmptyBooks));
    assert!(point.replay && point.events.len() == VIRTUAL_WAITING);
    enter(&mut book, u64::MAX, 0);
    assert!(book.is_full());
    let point = book.point(ms(1), Arc::new(EmptyBooks));
    assert!(!point.replay && point.events.len() == 1);
}

#[test]
fn a_book_that_is_opened_later_begins_as_the_real_one() {
    let replay = [
        SchedulerEvent::Arrived(arrival(1, ms(0), 30, None)),
        SchedulerEvent::Dispatched { id: RequestId(1), worker: W },
        SchedulerEvent::Arrived(arrival(2, ms(5), 30, None)),
    ];
    let mut book = VirtualBook::of(&replay, ms(10));
    book.set_workers(vec![worker(1)]);
    let point = book.point(ms(10), Arc::new(EmptyBooks));
    assert_eq!((point.replay, &point.events[..]), (true, &replay[..]));
    finish(&mut book, 1, 30);
    book.advance(ms(30));
    book.dispatched(RequestId(2), ms(30));
    book.carry_out(&[dispatch(2)], ms(32));
    assert_eq!(book.take_compared(), [Waits { monitored: ms(27), enforced: ms(25) }], "only of what waited");
    assert!(book.check());
}

/// Serves requests of these lengths for real, in order of arrival, one every millisecond, and lets another scheduler do so
/// in a virtual book. Returns the waits.
fn simulate(lengths: &[u32], sequences: u32, mut candidate: impl Scheduler) -> Vec<Waits> {
    let mut book = book(sequences);
    let (mut real, mut waits) = (Fcfs::default(), Vec::new());
    let mut news = Vec::new();
    let mut ends: BTreeSet<(Duration, u64)> = BTreeSet::new();
    let mut left = lengths.len();
    for tick in 0.. {
        let now = ms(tick);
        if let Some(&length) = lengths.get(tick as usize) {
            news.push(SchedulerEvent::Arrived(arrival(tick, now, length, None)));
        }
        while let Some(&(at, id)) = ends.first()
            && at <= now
        {
            ends.pop_first();
            news.push(SchedulerEvent::Finished {
                id: RequestId(id),
                generated_tokens: lengths[id as usize],
                ending: Ending::Stop,
            });
        }
        news.iter().for_each(|event| book.note(event, now));
        let busy = ends.len() as u32;
        let facts = WorkerFacts { free_sequences: sequences - busy, running_sequences: busy, ..worker(sequences) };
        let events = std::mem::take(&mut news);
        let point =
            SchedulingPoint { now, replay: false, events, workers: vec![facts.clone()], books: Arc::new(EmptyBooks) };
        for action in real.schedule(&point).unwrap() {
            let Action::Dispatch { id, worker } = action else { continue };
            news.push(SchedulerEvent::Dispatched { id, worker });
            book.dispatched(id, now);
            ends.insert((now + ms(u64::from(lengths[id.0 as usize])), id.0));
        }
        book.set_workers(vec![facts]);
        book.advance(now);
        let point = book.point(now, Arc::new(EmptyBooks));
        let actions = candidate.schedule(&point).unwrap();
        assert_eq!(book.check_actions(&actions), Ok(()));
        book.carry_out(&actions, now);
        assert!(book.check());
        let compared = book.take_compared();
        left -= compared.len();
        waits.extend(compared);
        if left == 0 && ends.is_empty() {
            return waits;
        }
    }
    waits
}

/// Dispatches those first that ask for the fewest tokens.
#[derive(Default)]
struct Shortest(BTreeMap<u64, u32>);

impl Scheduler for Shortest {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, crate::policy::Fault> {
        for event in &point.events {
            match event {
                SchedulerEvent::Arrived(arrival) => _ = self.0.insert(arrival.id.0, arrival.max_tokens),
                SchedulerEvent::Dispatched { id, .. }
                | SchedulerEvent::Cancelled { id, reason: CancelReason::Client } => _ = self.0.remove(&id.0),
                _ => {}
            }
        }
        let mut waiting: Vec<(u32, u64)> = self.0.iter().map(|(id, tokens)| (*tokens, *id)).collect();
        waiting.sort_unstable();
        Ok(waiting.into_iter().take(point.workers[0].free_sequences as usize).map(|(_, id)| dispatch(id)).collect())
    }
}

#[test]
fn shortest_first_would_have_let_requests_wait_for_less() {
    let lengths: Vec<u32> = (0..60).map(|n| if n % 5 == 0 { 100 } else { 4 }).collect();
    let waits = simulate(&lengths, 2, Shortest::default());
    let sum = |of: fn(&Waits) -> Duration| waits.iter().map(of).sum::<Duration>();
    let (monitored, enforced) = (sum(|waits| waits.monitored), sum(|waits| waits.enforced));
    assert!(monitored * 2 < enforced, "{monitored:?} {enforced:?}");
}

proptest! {
    #[test]
    fn the_scheduler_in_force_would_have_done_as_it_did(
        lengths in prop::collection::vec(1u32..30, 1..40),
        sequences in 1u32..5,
    ) {
        let waits = simulate(&lengths, sequences, Fcfs::default());
        prop_assert_eq!(waits.len(), lengths.len());
        for Waits { monitored, enforced } in waits {
            prop_assert_eq!(monitored, enforced);
        }
    }

    #[test]
    fn the_counts_agree_whatever_comes(
        steps in prop::collection::vec((0u8..9, 0u64..12, 0u64..20), 1..200),
        sequences in 1u32..4,
    ) {
        let mut book = book(sequences);
        let mut now = 0;
        for (what, id, later) in steps {
            now += later;
            let request = RequestId(id);
            match what {
                0 | 1 => {
                    let deadline = (id % 3 == 0).then(|| ms(now + 30));
                    book.note(&SchedulerEvent::Arrived(arrival(id, ms(now), 30, deadline)), ms(now));
                }
                2 => book.dispatched(request, ms(now)),
                3 => finish(&mut book, id, now),
                4 => book.note(&SchedulerEvent::Cancelled { id: request, reason: CancelReason::Client }, ms(now)),
                5 => {
                    let healthy = id > 2;
                    book.set_workers(vec![WorkerFacts { healthy, ..worker(sequences) }]);
                }
                6 => _ = book.advance(ms(now)),
                _ => {
                    let actions = match id % 4 {
                        0 => vec![Action::Preempt { id: request }, dispatch(id + 1)],
                        1 => vec![Action::Reject { id: request, rejection: Rejection::new("") }],
                        _ => vec![dispatch(id)],
                    };
                    if book.check_actions(&actions).is_ok() {
                        book.carry_out(&actions, ms(now));
                    }
                }
            }
            prop_assert!(book.check());
            prop_assert!(running(&book) <= sequences);
        }
        // Whatever is told as the whole state, is.
        book.events_lost = true;
        let (point, again) = (book.point(ms(now), Arc::new(EmptyBooks)), book.replay());
        prop_assert_eq!(point.events, again);
    }
}
