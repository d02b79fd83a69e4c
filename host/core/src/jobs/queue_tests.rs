use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ids::Token;

type Queue<T> = JobQueue<Arc<[Token]>, T>;

const WINDOW: Duration = Duration::from_millis(4);
const BATCH: BatchLimits = BatchLimits { size: 100, inputs: 5, window: WINDOW };
const MARKS: Watermarks = Watermarks { high: 8, low: 4 };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn queue() -> Queue<char> {
    Queue::new(BATCH, MARKS)
}

/// A request of tenant `t` with inputs of these lengths.
fn job(owner: char, arrived: Duration, lengths: &[usize]) -> NewJob<Arc<[Token]>, char> {
    NewJob {
        tenant: "t".into(),
        priority: Priority::Normal,
        weight: 1.0,
        queue_share: None,
        arrived,
        deadline: None,
        inputs: lengths.iter().map(|&len| vec![Token(1); len].into()).collect(),
        owner,
    }
}

/// Takes a batch and computes it. Returns the owners of its inputs.
fn batch(queue: &mut Queue<char>, now: Duration) -> Vec<char> {
    let batch = queue.take(now);
    queue.computed(&batch);
    assert!(queue.check());
    batch.into_iter().map(|input| input.owner).collect()
}

#[test]
fn a_batch_is_due_at_once_when_idle_and_after_the_window_when_busy() {
    let mut queue = queue();
    assert_eq!(queue.due(ms(0), None), None);
    queue.submit(job('a', ms(10), &[7])).unwrap();
    assert_eq!(queue.due(ms(10), None), Some(ms(10)));
    queue.submit(job('x', ms(11), &[7])).unwrap();
    queue.submit(job('y', ms(11), &[7])).unwrap();
    assert_eq!(batch(&mut queue, ms(12)), ['a', 'x', 'y']);
    queue.submit(job('b', ms(13), &[7])).unwrap();
    queue.submit(job('c', ms(15), &[7])).unwrap();
    let busy_until = Some(ms(12));
    assert_eq!(queue.due(ms(15), busy_until), Some(ms(17)));
    assert_eq!(queue.due(ms(15), None), Some(ms(15)), "for a worker that was idle all the time");
    queue.submit(job('d', ms(16), &[86])).unwrap();
    assert_eq!(queue.due(ms(16), busy_until), Some(ms(16)), "a full batch does not wait");
    assert_eq!(batch(&mut queue, ms(17)), ['b', 'c', 'd']);
    queue.submit(job('e', ms(21), &[7])).unwrap();
    assert_eq!(queue.due(ms(21), Some(ms(17))), Some(ms(21)), "idle again");
}

#[test]
fn higher_classes_go_first_until_the_others_have_waited_for_long() {
    let mut queue = queue();
    let classes =
        [('a', Priority::Low, 10), ('b', Priority::Normal, 60), ('c', Priority::High, 30), ('d', Priority::Normal, 20)];
    for (owner, priority, tokens) in classes {
        queue.submit(NewJob { priority, ..job(owner, ms(0), &[tokens]) }).unwrap();
    }
    assert_eq!(batch(&mut queue, ms(0)), ['c', 'b', 'a'], "what fits goes along");
    assert_eq!((batch(&mut queue, ms(0)), queue.waiting()), (vec!['d'], 0));
    queue.submit(NewJob { priority: Priority::Low, ..job('l', ms(0), &[80]) }).unwrap();
    queue.submit(NewJob { priority: Priority::Normal, ..job('n', ms(59_000), &[80]) }).unwrap();
    assert_eq!(batch(&mut queue, ms(60_000)), ['l']);
}

#[test]
fn regression_a_large_request_alternates_with_those_that_come_after_it() {
    let mut queue = queue();
    queue.submit(job('L', ms(0), &[20; 1000])).unwrap();
    assert_eq!(batch(&mut queue, ms(0)), ['L'; 5]);
    // One of the same tenant, and one of another.
    queue.submit(job('s', ms(1), &[20])).unwrap();
    queue.submit(NewJob { tenant: "other".into(), ..job('o', ms(1), &[20, 20]) }).unwrap();
    let next = batch(&mut queue, ms(1));
    assert!(next.contains(&'s') && next.iter().filter(|&&owner| owner == 'o').count() == 2, "{next:?}");
    assert_eq!((queue.waiting(), queue.running()), (1, 1), "both are answered, and most of the large one waits");
}

#[test]
fn tenants_share_batches_by_weight_however_many_requests_they_send() {
    let mut queue = Queue::new(BATCH, Watermarks { high: 100, low: 1 });
    for _ in 0..50 {
        queue.submit(job('a', ms(0), &[10; 20])).unwrap();
    }
    queue.submit(NewJob { tenant: "b".into(), weight: 3.0, ..job('b', ms(0), &[10; 1000]) }).unwrap();
    let taken: Vec<char> = (0..40).flat_map(|_| batch(&mut queue, ms(0))).collect();
    let of_a = taken.iter().filter(|&&owner| owner == 'a').count();
    assert!((48..=52).contains(&of_a), "{of_a} of {}", taken.len());
}

#[test]
fn a_tenant_that_was_away_gets_no_credit_and_one_that_leaves_and_returns_no_new_start() {
    let mut queue = queue();
    queue.submit(job('a', ms(0), &[10; 500])).unwrap();
    (0..50).for_each(|_| _ = batch(&mut queue, ms(0)));
    let other = |owner| NewJob { tenant: "b".into(), ..job(owner, ms(0), &[10; 20]) };
    queue.submit(other('b')).unwrap();
    let count = |queue: &mut Queue<char>, of: char| {
        let taken: Vec<char> = (0..4).flat_map(|_| batch(queue, ms(0))).collect();
        taken.iter().filter(|&&owner| owner == of).count()
    };
    let first = count(&mut queue, 'b');
    assert!((9..=11).contains(&first), "half of 20: {first}");
    // One that takes its request back and comes again goes on where it was.
    let mut queue = self::queue();
    queue.submit(job('a', ms(0), &[10; 500])).unwrap();
    let mut of_b = 0;
    for round in 0..20 {
        queue.submit(other('b')).unwrap();
        of_b += batch(&mut queue, ms(round)).into_iter().filter(|&owner| owner == 'b').count();
        queue.retain(|&owner| owner != 'b');
    }
    assert!((48..=52).contains(&of_b), "half of 100: {of_b}");
}

#[test]
fn regression_who_is_refused_because_the_queue_is_full_finds_a_full_queue_in_the_gauges() {
    let mut queue = queue();
    for owner in 'a'..'i' {
        queue.submit(job(owner, ms(0), &[10; 100])).unwrap();
    }
    (0..4).for_each(|round| _ = batch(&mut queue, ms(round)));
    assert_eq!(queue.submit(job('x', ms(5), &[1])), Err(QueueFull));
    assert_eq!((queue.waiting(), queue.queue().count(), queue.running()), (MARKS.high, MARKS.high, 8));
}

#[test]
fn regression_the_number_of_waiting_requests_is_bounded_as_for_generations() {
    let mut queue = queue();
    for owner in 'a'..'i' {
        assert!(queue.accepts());
        queue.submit(job(owner, ms(0), &[60])).unwrap();
    }
    assert_eq!((queue.submit(job('x', ms(0), &[1])), queue.waiting()), (Err(QueueFull), 8), "one past the mark");
    // It accepts again at the low watermark.
    (0..3).for_each(|_| _ = batch(&mut queue, ms(0)));
    assert!(!queue.accepts());
    batch(&mut queue, ms(0));
    assert!(queue.accepts() && queue.submit(job('x', ms(0), &[1])).is_ok());
    let mut queue = Queue::new(BATCH, MARKS);
    let share = |owner| NewJob { queue_share: Some(0.25), ..job(owner, ms(0), &[1]) };
    assert!(queue.submit(share('a')).is_ok() && queue.submit(share('b')).is_ok());
    assert_eq!(queue.submit(share('c')), Err(QueueFull));
    assert!(queue.submit(NewJob { tenant: "other".into(), ..share('d') }).is_ok());
    queue.set_watermarks(Watermarks { high: 16, low: 4 });
    assert!(queue.submit(share('c')).is_ok());
}

#[test]
fn waiting_inputs_are_bounded_and_tenants_of_which_none_waits_may_add_as_many_again() {
    let mut queue = Queue::new(BATCH, Watermarks { high: 100, low: 1 });
    let full = [1; EMBED_INPUTS];
    (0..8).for_each(|_| _ = queue.submit(job('a', ms(0), &full)).unwrap());
    assert_eq!(queue.submit(job('a', ms(0), &[1])), Err(QueueFull));
    let of = |tenant: &str, lengths: &[usize]| NewJob { tenant: tenant.into(), ..job('p', ms(0), lengths) };
    assert!(queue.submit(of("polite", &[1; 10])).is_ok());
    assert_eq!(queue.submit(of("polite", &[1; 10])), Err(QueueFull));
    (0..7).for_each(|n| _ = queue.submit(of(&n.to_string(), &full)).unwrap());
    assert!(queue.submit(of("almost", &full[10..])).is_ok(), "at the bound for all");
    assert_eq!((queue.inputs, queue.submit(of("one more", &[1]))), (2 * MAX_INPUTS, Err(QueueFull)));
    batch(&mut queue, ms(0));
    assert!(queue.submit(of("one more", &[1])).is_ok());
}

#[test]
fn regression_a_full_queue_takes_one_request_of_a_tenant_of_which_none_waits() {
    let mut queue = queue();
    (0..MARKS.high).for_each(|_| _ = queue.submit(job('a', ms(0), &[60])).unwrap());
    let polite = |owner| NewJob { tenant: "polite".into(), ..job(owner, ms(0), &[1]) };
    assert!(queue.submit(polite('p')).is_ok());
    assert_eq!((queue.submit(polite('q')), queue.submit(job('a', ms(0), &[1]))), (Err(QueueFull), Err(QueueFull)));
}

#[test]
fn regression_a_deadline_binds_until_the_last_input_is_computed() {
    let mut queue = queue();
    let late = |owner, at| NewJob { deadline: Some(ms(at)), ..job(owner, ms(0), &[20; 8]) };
    queue.submit(late('a', 50)).unwrap();
    queue.submit(NewJob { priority: Priority::Low, ..late('b', 40) }).unwrap();
    assert_eq!(queue.next_deadline(), Some(ms(40)));
    let on_board = queue.take(ms(1));
    assert!(queue.expired(ms(39)).is_empty());
    assert_eq!(queue.expired(ms(40)), ['b'], "a low class under load, of which nothing was computed");
    assert_eq!((queue.expired(ms(50)), queue.has_inputs()), (vec!['a'], false));
    queue.computed(&on_board);
    assert!(
        queue.check() && queue.running() == 0 && queue.lanes.iter().map(|lane| lane.tenants.len()).sum::<usize>() <= 1
    );
}

#[test]
fn what_nobody_wants_any_more_is_dropped_wherever_it_is() {
    let mut queue = queue();
    for owner in ['a', 'b', 'c'] {
        queue.submit(job(owner, ms(0), &[30, 30])).unwrap();
    }
    let on_board = queue.take(ms(0));
    assert_eq!(on_board.iter().map(|input| input.owner).collect::<Vec<_>>(), ['a', 'b', 'c']);
    assert!(on_board.iter().all(|input| input.waited == Some(ms(0))));
    queue.retain(|&owner| owner != 'b');
    queue.computed(&on_board);
    assert!(queue.check());
    assert_eq!(batch(&mut queue, ms(1)), ['a', 'c']);
    assert_eq!((queue.running(), queue.waiting()), (0, 0));
}

#[test]
fn a_client_that_is_alone_waits_for_nobody_and_several_wait_until_all_are_there() {
    let mut queue = queue();
    let mut busy_until = None;
    for at in [0, 1, 2, 3] {
        queue.submit(job('a', ms(at), &[7])).unwrap();
        assert_eq!(queue.due(ms(at), busy_until), Some(ms(at)), "one after the other");
        batch(&mut queue, ms(at));
        busy_until = Some(ms(at));
    }
    for owner in ['a', 'b', 'c'] {
        queue.submit(job(owner, ms(4), &[7])).unwrap();
    }
    assert_eq!(batch(&mut queue, ms(4)), ['a', 'b', 'c']);
    for owner in ['a', 'b'] {
        queue.submit(job(owner, ms(5), &[7])).unwrap();
        assert_eq!(queue.due(ms(5), Some(ms(4))), Some(ms(5) + WINDOW), "of three");
    }
    queue.submit(job('c', ms(6), &[7])).unwrap();
    assert_eq!(queue.due(ms(6), Some(ms(4))), Some(ms(6)), "all are there");
}

/// Owners of all inputs of a batch each second.
fn batches(queue: &mut Queue<char>, seconds: std::ops::Range<u64>) -> Vec<char> {
    seconds.flat_map(|second| batch(queue, ms(second * 1000))).collect()
}

fn count(taken: &[char], of: char) -> usize {
    taken.iter().filter(|&&owner| owner == of).count()
}

#[test]
fn regression_an_old_backlog_keeps_no_other_tenant_from_its_share() {
    for lengths in [&[20; 100][..], &[90; 100]] {
        let mut queue = queue();
        (0..4).for_each(|_| _ = queue.submit(job('a', ms(0), &[20; 1000])).unwrap());
        let before = batches(&mut queue, 0..200);
        assert_eq!(count(&before, 'a'), 1000);
        queue.submit(NewJob { tenant: "other".into(), ..job('o', ms(200_000), lengths) }).unwrap();
        let after = batches(&mut queue, 200..240);
        let (tokens, of_a) = (count(&after, 'o') * lengths[0], count(&after, 'a') * 20);
        // Large inputs do not fit the rest of a batch; one begins a batch as soon as the others had as much.
        assert!(tokens + 100 >= of_a, "{tokens} of the other tenant, {of_a} of the backlog");
        assert!(after[..10].contains(&'o'), "in one of the next two batches: {after:?}");
    }
}

#[test]
fn regression_what_a_higher_class_takes_is_no_debt_of_whoever_comes_later() {
    let mut queue = queue();
    queue.submit(job('a', ms(0), &[20; 1000])).unwrap();
    batches(&mut queue, 0..2);
    queue.submit(NewJob { tenant: "h".into(), priority: Priority::High, ..job('h', ms(2000), &[20; 100]) }).unwrap();
    assert_eq!(count(&batches(&mut queue, 2..22), 'h'), 100, "20 batches of its own");
    queue.submit(NewJob { tenant: "other".into(), ..job('o', ms(22_000), &[20; 10]) }).unwrap();
    let after = batches(&mut queue, 22..26);
    assert!((9..=10).contains(&count(&after, 'o')), "half of four batches: {after:?}");
}

#[test]
fn a_tenant_from_which_nothing_was_taken_for_long_has_its_share_of_a_batch_in_a_higher_class() {
    let check = |priority, weight, waited: u64, expected: [char; 5]| {
        let mut queue = queue();
        queue.submit(NewJob { tenant: "h".into(), priority: Priority::High, ..job('h', ms(0), &[20; 3000]) }).unwrap();
        let late = queue.submit(NewJob { priority, weight, ..job('n', ms(0), &[20; 10]) }).unwrap();
        // It has had an input, for which it owes by its weight.
        let first = queue.take_input(late, ms(0)).unwrap();
        queue.computed(&[first]);
        assert_eq!(batch(&mut queue, ms(waited)), expected, "{priority:?} after {waited} ms");
        if expected.contains(&'n') {
            assert_eq!(batch(&mut queue, ms(waited + 29_999)), ['h'; 5], "once in that time");
        }
    };
    let shared = ['h', 'n', 'h', 'n', 'h'];
    check(Priority::Normal, 1.0, 29_999, ['h'; 5]);
    check(Priority::Normal, 1.0, 30_000, shared);
    check(Priority::Low, 1.0, 59_999, ['h'; 5]);
    check(Priority::Low, 1.0, 60_000, shared);
    check(Priority::Normal, 0.001, 30_000, ['h', 'n', 'h', 'h', 'h']);
}

proptest! {
    #[test]
    fn every_input_comes_out_once_within_the_bounds(
        jobs in prop::collection::vec((0u8..3, 0u8..3, prop::collection::vec(1usize..100, 1..8)), 0..20)
    ) {
        let mut queue = Queue::new(BATCH, Watermarks { high: 100, low: 1 });
        for (i, (class, tenant, lengths)) in jobs.iter().enumerate() {
            let priority = [Priority::High, Priority::Normal, Priority::Low][*class as usize];
            let tenant = TenantId::from(["x", "y", "z"][*tenant as usize]);
            let new = job('-', ms(i as u64), lengths);
            let new = NewJob { tenant, priority, weight: 1.0 + f64::from(*class), ..new };
            let NewJob { tenant, priority, weight, queue_share, arrived, deadline, inputs, .. } = new;
            let new = NewJob { tenant, priority, weight, queue_share, arrived, deadline, inputs, owner: i };
            prop_assert!(queue.submit(new).is_ok());
        }
        let mut next = vec![0; jobs.len()];
        while queue.has_inputs() {
            prop_assert!(queue.due(ms(100), None).is_some());
            let batch = queue.take(ms(100));
            prop_assert!(!batch.is_empty() && batch.len() <= 5);
            prop_assert!(batch.len() == 1 || batch.iter().map(|input| input.input.len()).sum::<usize>() <= 100);
            for input in &batch {
                prop_assert_eq!(input.index, next[input.owner]);
                prop_assert_eq!(input.input.len(), jobs[input.owner].2[input.index]);
                next[input.owner] += 1;
            }
            queue.computed(&batch);
            prop_assert!(queue.check());
        }
        prop_assert!(jobs.iter().zip(next).all(|((_, _, lengths), next)| next == lengths.len()));
        prop_assert_eq!((queue.due(ms(100), None), queue.waiting(), queue.running()), (None, 0, 0));
    }
}

#[test]
fn regression_inputs_that_fill_a_batch_put_nobody_who_comes_later_behind() {
    let mut queue = queue();
    let new = |tenant: &str, weight, owner, at: u64, lengths: &[usize]| NewJob {
        tenant: tenant.into(),
        weight,
        ..job(owner, ms(at), lengths)
    };
    queue.submit(new("heavy", 2.0, 'h', 0, &[60; 1000])).unwrap();
    queue.submit(new("small", 1.0, 's', 0, &[20; 2000])).unwrap();
    // The rest of each batch goes to the small ones, whose position runs ahead.
    batches(&mut queue, 0..300);
    queue.submit(new("new", 1.0, 'n', 300_000, &[60; 100])).unwrap();
    let after = batches(&mut queue, 300..312);
    assert!((3..=5).contains(&count(&after, 'n')), "a third of twelve batches: {after:?}");
}

#[test]
fn regression_a_weight_of_next_to_nothing_leaves_positions_that_others_can_reach() {
    let mut queue = queue();
    let new = |tenant: &str, weight, owner| NewJob { tenant: tenant.into(), weight, ..job(owner, ms(0), &[20; 100]) };
    queue.submit(new("tiny", f64::MIN_POSITIVE, 't')).unwrap();
    batches(&mut queue, 0..3);
    for owner in ['a', 'b'] {
        queue.submit(new(&owner.to_string(), 1.0, owner)).unwrap();
    }
    let after = batches(&mut queue, 3..11);
    assert_eq!((count(&after, 'a'), count(&after, 'b')), (20, 20), "{after:?}");
}

/// A queue of several classes, tenants and requests, as in the last seconds of a long wait.
fn mixed(jobs: &[(u8, u8, Vec<usize>)]) -> Queue<char> {
    let mut queue = Queue::new(BATCH, Watermarks { high: 100, low: 1 });
    for (i, (class, tenant, lengths)) in jobs.iter().enumerate() {
        let priority = CLASSES[*class as usize];
        let tenant = TenantId::from(["x", "y", "z"][*tenant as usize]);
        let weight = 1.0 + f64::from(*class);
        queue.submit(NewJob { tenant, priority, weight, ..job('a', ms(i as u64 * 7000), lengths) }).unwrap();
    }
    queue
}

/// The next batch by its definition: all requests are compared for each input.
fn take_by_definition(queue: &mut Queue<char>, now: Duration) -> Vec<(JobId, usize)> {
    CLASSES.into_iter().for_each(|class| queue.lanes[class as usize].begin(class, now));
    let (mut batch, mut left) = (Vec::new(), BATCH.size);
    while batch.len() < BATCH.inputs {
        let max = if batch.is_empty() { u32::MAX } else { left };
        let fitting = queue.jobs.iter().filter(|(_, job)| job.next_size().is_some_and(|size| size <= max));
        let first = fitting.min_by_key(|(id, job)| {
            let standing = queue.lanes[job.priority as usize].standing(&job.tenant);
            (standing, crate::jobs::order::Position(job.served), **id)
        });
        let Some(id) = first.map(|(&id, _)| id) else { break };
        let input = queue.take_input(id, now).unwrap();
        left = left.saturating_sub(input.input.len() as u32);
        batch.push((id, input.index));
    }
    batch
}

proptest! {
    #[test]
    fn batches_are_what_comparing_all_requests_for_each_input_gives(
        jobs in prop::collection::vec((0u8..3, 0u8..3, prop::collection::vec(1usize..60, 1..12)), 0..20)
    ) {
        let (mut queue, mut slow) = (mixed(&jobs), mixed(&jobs));
        for second in (140..).step_by(9).take(300) {
            let now = ms(second * 1000);
            let batch: Vec<_> = queue.take(now).iter().map(|input| (input.job, input.index)).collect();
            prop_assert_eq!(&batch, &take_by_definition(&mut slow, now));
            for queue in [&queue, &slow] {
                prop_assert!(queue.check());
            }
            let clocks = |queue: &Queue<char>| queue.lanes.iter().map(|lane| lane.clock).collect::<Vec<_>>();
            prop_assert_eq!(clocks(&queue), clocks(&slow));
        }
        prop_assert!(!queue.has_inputs());
    }
}

#[test]
fn regression_a_batch_takes_steps_by_requests_and_inputs_not_by_their_product() {
    let steps = |tenants: usize, requests: usize, inputs: usize| {
        let batch = BatchLimits { size: u32::MAX, inputs, window: WINDOW };
        let mut queue = Queue::new(batch, Watermarks { high: requests, low: 1 });
        for i in 0..requests {
            let tenant = TenantId::from(format!("t{}", i % tenants).as_str());
            queue.submit(NewJob { tenant, ..job('a', ms(0), &[3; 8]) }).unwrap();
        }
        let mut taken = 0;
        let steps = crate::jobs::order::steps_of(|| taken = queue.take(ms(1)).len());
        assert_eq!(taken, inputs);
        steps
    };
    for tenants in [1, 32, 512] {
        let (few, many) = (steps(tenants, 512, 1), steps(tenants, 512, 512));
        // Of 512 requests, the heaps are at most ten high.
        assert!(few < 512 * 8, "{few} steps for one input, {tenants} tenants");
        assert!(many < few + 512 * 80, "{many} steps for 512 inputs, {tenants} tenants");
    }
}
