use camshaft_core::answering::wait;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::*;

/// A call that runs until it is let go.
fn held(lanes: &Lanes, lane: LaneId) -> (oneshot::Receiver<()>, Sender<()>) {
    let (go, waits) = bounded::<()>(1);
    let (begun, begins) = bounded(1);
    let answer = lanes.put(lane, move || {
        begun.send(()).unwrap();
        let _ = waits.recv();
    });
    begins.recv().unwrap();
    (answer.unwrap(), go)
}

fn named(lanes: &Lanes, lane: LaneId, order: &Sender<u64>) -> Result<oneshot::Receiver<()>, LaneFull> {
    let order = order.clone();
    lanes.put(lane, move || order.send(lane.0).unwrap())
}

fn all(order: &Receiver<u64>, count: usize) -> Vec<u64> {
    (0..count).map(|_| order.recv().unwrap()).collect()
}

#[test]
fn a_version_with_many_calls_waits_and_another_one_with_one_does_not() {
    let lanes = Lanes::new(1, 1, Spawner::detached());
    let [busy, quiet] = [lanes.lane(), lanes.lane()];
    let (_held, go) = held(&lanes, busy);
    let (order, done) = bounded(2 * WAITING);
    let _busy: Vec<_> = (0..5).map(|_| named(&lanes, busy, &order).unwrap()).collect();
    let _quiet = named(&lanes, quiet, &order).unwrap();
    drop(go);
    assert_eq!(all(&done, 6), [busy.0, quiet.0, busy.0, busy.0, busy.0, busy.0]);
}

#[test]
fn as_many_calls_of_a_version_wait_as_the_bound_and_no_call_of_another_is_refused_for_it() {
    let lanes = Lanes::new(1, 1, Spawner::detached());
    let [full, other] = [lanes.lane(), lanes.lane()];
    let (_held, go) = held(&lanes, full);
    let (order, done) = bounded(2 * WAITING);
    let mut waiting: Vec<_> = (0..WAITING).map(|_| named(&lanes, full, &order).unwrap()).collect();
    assert_eq!(named(&lanes, full, &order).err(), Some(LaneFull));
    let _other = named(&lanes, other, &order).unwrap();
    // A client that leaves makes room.
    drop(waiting.pop());
    waiting.push(named(&lanes, full, &order).unwrap());
    assert_eq!(named(&lanes, full, &order).err(), Some(LaneFull));
    drop(go);
    assert_eq!(all(&done, WAITING + 1).iter().filter(|lane| **lane == full.0).count(), WAITING);
}

#[test]
fn a_call_whose_client_has_left_is_not_made() {
    let lanes = Lanes::new(1, 1, Spawner::detached());
    let lane = lanes.lane();
    let (_held, go) = held(&lanes, lane);
    let (order, done) = bounded(2 * WAITING);
    drop(named(&lanes, lane, &order).unwrap());
    let last = named(&lanes, lane, &order).unwrap();
    drop((go, order));
    wait(last).unwrap();
    assert_eq!(done.iter().count(), 1);
}

#[test]
fn no_more_calls_of_a_version_run_at_once_than_may_nor_more_of_all_than_there_are_threads() {
    let lanes = Lanes::new(2, 3, Spawner::detached());
    let [slow, other, last] = [lanes.lane(), lanes.lane(), lanes.lane()];
    let (first, second) = (held(&lanes, slow), held(&lanes, slow));
    let (order, done) = bounded(2 * WAITING);
    let _third = named(&lanes, slow, &order).unwrap();
    assert_eq!(lanes.shared.state().threads, 2, "its third call waits for its first ones, not for a thread");
    // What came later is made all the same, as often as it comes.
    for _ in 0..3 {
        wait(named(&lanes, other, &order).unwrap()).unwrap();
    }
    assert_eq!((all(&done, 3), lanes.shared.state().threads), (vec![other.0; 3], 3));
    let third_thread = held(&lanes, other);
    let _waits = named(&lanes, last, &order).unwrap();
    assert!(lanes.shared.state().threads == 3 && done.try_recv().is_err(), "three calls run");
    drop(third_thread);
    assert_eq!(all(&done, 1), [last.0]);
    drop(first);
    assert_eq!(all(&done, 1), [slow.0]);
    drop(second);
}

#[test]
fn regression_a_version_whose_calls_take_long_delays_no_other_one() {
    // On any machine, as the server makes them.
    let lanes = Lanes::default();
    let [slow, good] = [lanes.lane(), lanes.lane()];
    let running: Vec<_> = (0..lanes.shared.at_once).map(|_| held(&lanes, slow)).collect();
    let others: Vec<_> = (1..SLOW_VERSIONS).map(|_| lanes.lane()).collect();
    let at_once = lanes.shared.at_once;
    let _others: Vec<_> = others.iter().flat_map(|other| (0..at_once).map(|_| held(&lanes, *other))).collect();
    let (order, done) = bounded(2 * WAITING);
    let _waiting: Vec<_> = (0..WAITING).map(|_| named(&lanes, slow, &order).unwrap()).collect();
    for _ in 0..WAITING {
        wait(named(&lanes, good, &order).unwrap()).unwrap();
    }
    assert_eq!(all(&done, WAITING), vec![good.0; WAITING], "though none of the slow ones has ended");
    drop(running);
}

#[test]
fn slow_versions_leave_threads_whatever_the_cores() {
    assert_eq!([1, 2, 3, 4, 16, 17, 64].map(sizes), [(1, 8), (1, 8), (1, 8), (2, 10), (8, 40), (8, 40), (8, 40)]);
    assert!((0..200).map(sizes).all(|(at_once, threads)| threads > SLOW_VERSIONS * at_once));
}

#[test]
fn its_threads_run_anywhere_whoever_starts_them() {
    let all = sched_getaffinity(Some(getpid())).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|&processor| all.is_set(processor)).unwrap());
    // On a thread of its own: the test's may be the first one of the process.
    let started = std::thread::spawn(move || {
        sched_setaffinity(None, &one).unwrap();
        let lanes = Lanes::new(1, 1, Spawner::detached());
        wait(lanes.put(lanes.lane(), || sched_getaffinity(None).unwrap()).unwrap())
    });
    assert_eq!(started.join().unwrap(), Ok(all));
}

#[test]
fn a_call_that_panics_has_no_answer_and_the_next_one_has() {
    let lanes = Lanes::new(1, 1, Spawner::detached());
    let lane = lanes.lane();
    let panics = lanes.put(lane, || std::panic::panic_any("on purpose")).unwrap();
    assert!(wait::<Result<(), _>>(panics).is_err());
    assert_eq!(wait(lanes.put(lane, || 7).unwrap()), Ok(7));
}

#[test]
fn one_call_at_a_time_runs_on_threads_that_serve_connections() {
    let lanes = Lanes::new(1, 1, Spawner::detached());
    let first = lanes.inline().unwrap();
    assert!(lanes.inline().is_none());
    drop(first);
    assert!(lanes.inline().is_some());
}
