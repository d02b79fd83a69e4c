//! Teams that are kept on cores, and let go.
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::set_name;

use super::*;

static NAMES: AtomicU32 = AtomicU32::new(0);

fn rename(name: &str) {
    set_name(&CString::new(name).unwrap()).unwrap();
}

fn on(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// One processor that this process may use.
fn any() -> CpuSet {
    let all = sched_getaffinity(None).unwrap();
    on((0..CpuSet::MAX_CPU).find(|&processor| all.is_set(processor)).unwrap())
}

/// Threads that are started as libgomp's are, and end when the sender is dropped.
fn start(count: usize) -> crossbeam_channel::Sender<()> {
    let (end, ends) = crossbeam_channel::bounded::<()>(0);
    let (up, ups) = crossbeam_channel::bounded(count);
    for _ in 0..count {
        let (ends, up) = (ends.clone(), up.clone());
        std::thread::spawn(move || {
            up.send(()).unwrap();
            let _ = ends.recv();
        });
    }
    ups.iter().take(count).for_each(drop);
    end
}

fn wait_for_end(thread: Pid) {
    while is_ours(thread) {
        std::thread::yield_now();
    }
}

/// A team whose threads were started in its first step, which returns what ends them.
fn team(cores: &[CpuSet], others: usize) -> (crossbeam_channel::Sender<()>, Team) {
    // Threads are found by their name, which tests that run at once have otherwise.
    rename(&format!("team {}", NAMES.fetch_add(1, Ordering::Relaxed)));
    let mut team = Team::new(cores.to_vec());
    let end = team.step(cores.len() as u32, || start(others), |_| true);
    (end, team)
}

fn mask(thread: Option<Pid>) -> CpuSet {
    sched_getaffinity(thread).unwrap()
}

#[test]
fn a_team_is_kept_on_its_cores_until_it_is_another() {
    let before = mask(None);
    let (end, mut of_three) = team(&[any(); 3], 2);
    of_three.check();
    assert!(of_three.is_placed);
    assert_eq!(mask(None), any());
    assert_eq!(of_three.others.len(), 2);
    let gone = of_three.others[0];
    drop(end);
    wait_for_end(gone);
    of_three.check();
    assert!(!of_three.is_placed);
    assert_eq!(mask(None), before, "what it starts next runs anywhere");
    // A thread that another one placed elsewhere is no longer the team's.
    let (_end, mut of_two) = team(&[any(); 2], 1);
    let other = of_two.others[0];
    sched_setaffinity(Some(other), &before).unwrap();
    of_two.check();
    assert_eq!(of_two.is_placed, before == any());
    assert_eq!(mask(Some(other)), before);
    assert_eq!(mask(None), any(), "nor does the team move any more");
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn a_team_of_which_only_some_compute_runs_anywhere_until_all_do() {
    let before = mask(None);
    let (end, mut team) = team(&[any(); 3], 2);
    let others = team.others.clone();
    let all = || [None, Some(others[0]), Some(others[1])].map(mask);
    assert_eq!(all(), [any(); 3]);
    team.step(2, || assert_eq!(all(), [before; 3]), |_| true);
    team.step(3, || (), |_| true);
    assert_eq!(all(), [any(); 3]);
    // Those that end meanwhile are started again, at the next step that computes.
    team.step(1, || drop(end), |_| true);
    others.iter().for_each(|other| wait_for_end(*other));
    team.step(3, || (), |_| true);
    assert!(!team.is_placed);
    // Steps that compute nothing start none of them, however many there are.
    (0..2 * STEPS_TO_COMPLETE).for_each(|_| team.step(3, || (), |()| false));
    // One comes back when two compute, and the other one when all do.
    let _one = team.step(2, || start(1), |_| true);
    let _other = team.step(3, || start(1), |_| true);
    assert!(team.is_placed);
    assert_eq!([None, Some(team.others[0]), Some(team.others[1])].map(mask), [any(); 3]);
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn regression_threads_stay_where_somebody_puts_them() {
    let before = mask(None);
    if before == any() {
        return; // There is no other place.
    }
    // All of them on the core that is the first one's, as by `taskset -a`; the first one moved, or the other one.
    let (_end, mut team) = team(&[any(), before], 1);
    let other = team.others[0];
    sched_setaffinity(Some(other), &any()).unwrap();
    team.check();
    assert!(!team.is_placed);
    team.step(2, || (), |_| true);
    assert_eq!([mask(None), mask(Some(other))], [any(); 2]);
    sched_setaffinity(None, &before).unwrap();
    // Also while the team is let go, and just before it is.
    for threads in [[1, 2], [2, 1]] {
        let (_end, mut team) = self::team(&[any(), before], 1);
        let other = team.others[0];
        team.step(threads[0], || (), |()| true);
        sched_setaffinity(Some(other), &any()).unwrap();
        team.step(threads[1], || (), |()| true);
        assert_eq!(mask(Some(other)), any(), "{threads:?}");
        sched_setaffinity(None, &before).unwrap();
    }
}

#[test]
fn regression_threads_that_came_in_the_place_of_others_are_let_go_with_the_team() {
    let before = mask(None);
    let (end, mut team) = team(&[any(); 2], 1);
    let gone = team.others[0];
    drop(end);
    wait_for_end(gone);
    let (began, begun) = crossbeam_channel::bounded(1);
    let (end, ends) = crossbeam_channel::bounded::<()>(0);
    let other = std::thread::spawn(move || {
        began.send(gettid()).unwrap();
        let _ = ends.recv();
    });
    let thread = begun.recv().unwrap();
    assert_eq!(mask(Some(thread)), any(), "it has the core of the one that started it");
    team.check();
    assert!(!team.is_placed);
    assert_eq!(mask(Some(thread)), before);
    drop(end);
    other.join().unwrap();
}

#[test]
fn as_many_threads_as_cores_are_kept_and_no_others() {
    let before = mask(None);
    for (cores, threads) in [(3, 1), (2, 2), (2, 0), (0, 2)] {
        let (_end, mut team) = team(&vec![any(); cores], threads);
        (0..STEPS_TO_COMPLETE).for_each(|_| team.step(cores as u32, || (), |()| true));
        assert!(!team.is_placed && team.cores.is_empty(), "{threads} more threads for {cores} cores");
    }
    // What the system does not take: of the other thread, and of the one that computes with it.
    for cores in [[any(), CpuSet::new()], [CpuSet::new(), any()]] {
        let (_end, team) = team(&cores, 1);
        assert!(!team.is_placed);
        named_like_me().into_iter().map(Some).chain([None]).for_each(|thread| assert_eq!(mask(thread), before));
    }
}

#[test]
fn cores_are_given_once_and_all_of_them_to_each_team_that_needs_all() {
    let all: Vec<CpuSet> = (0..5).map(on).collect();
    let cores = Cores { all: all.clone(), free: Mutex::new(all.clone()) };
    assert_eq!(cores.take(2), [on(0), on(1)]);
    assert!(cores.take(4).is_empty());
    assert_eq!(cores.take(3), [on(2), on(3), on(4)]);
    assert!(cores.take(2).is_empty());
    assert_eq!([cores.take(5), cores.take(5)], [all.clone(), all]);
    assert!(cores.take(0).is_empty());
}
