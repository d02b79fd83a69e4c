//! Teams that are kept on cores, and let go.
use super::*;

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

#[test]
fn a_team_is_kept_on_its_cores_until_it_is_another() {
    let before = sched_getaffinity(None).unwrap();
    let (end, team) = Team::keep(&[any(), any(), any()], || start(2));
    let team = team.unwrap().checked().unwrap();
    assert_eq!(sched_getaffinity(None).unwrap(), any());
    assert_eq!(team.others.len(), 2);
    let gone = team.others[0].0;
    drop(end);
    wait_for_end(gone);
    assert!(team.checked().is_none());
    assert_eq!(sched_getaffinity(None).unwrap(), before, "what it starts next runs anywhere");
    // A thread that another one placed elsewhere is no longer the team's.
    let (_end, team) = Team::keep(&[any(), any()], || start(1));
    let team = team.unwrap();
    sched_setaffinity(Some(team.others[0].0), &before).unwrap();
    let other = team.others[0].0;
    assert_eq!(team.checked().is_some(), before == any());
    assert_eq!(sched_getaffinity(Some(other)).unwrap(), before);
    assert_eq!(sched_getaffinity(None).unwrap(), any(), "nor does the team move any more");
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn regression_threads_stay_where_somebody_puts_them() {
    let before = sched_getaffinity(None).unwrap();
    if before == any() {
        return; // There is no other place.
    }
    // All of them on the core that is the first one's, as by `taskset -a`; the first one moved, or the other one.
    let (_end, team) = Team::keep(&[any(), before], || start(1));
    let team = team.unwrap();
    let other = team.others[0].0;
    let mask = |thread| sched_getaffinity(thread).unwrap();
    sched_setaffinity(Some(other), &any()).unwrap();
    assert!(team.checked().is_none());
    assert_eq!([mask(None), mask(Some(other))], [any(); 2]);
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn regression_threads_that_came_in_the_place_of_others_are_let_go_with_the_team() {
    let before = sched_getaffinity(None).unwrap();
    let (end, team) = Team::keep(&[any(), any()], || start(1));
    let team = team.unwrap();
    let gone = team.others[0].0;
    drop(end);
    wait_for_end(gone);
    let (began, begun) = crossbeam_channel::bounded(1);
    let (end, ends) = crossbeam_channel::bounded::<()>(0);
    let other = std::thread::spawn(move || {
        began.send(gettid()).unwrap();
        let _ = ends.recv();
    });
    let thread = begun.recv().unwrap();
    assert_eq!(sched_getaffinity(Some(thread)).unwrap(), any(), "it has the core of the one that started it");
    assert!(team.checked().is_none());
    assert_eq!(sched_getaffinity(Some(thread)).unwrap(), before);
    drop(end);
    other.join().unwrap();
}

#[test]
fn regression_a_thread_whose_first_step_panics_has_its_name_again() {
    let named = || fs::read_to_string("/proc/thread-self/comm").unwrap();
    let panics = || Team::keep(&[any(), any()], || std::panic::panic_any("on purpose"));
    let run = move || {
        assert!(std::panic::catch_unwind(panics).is_err());
        named()
    };
    let name = std::thread::Builder::new().name("worker-x".to_owned()).spawn(run).unwrap().join().unwrap();
    assert_eq!(name, "worker-x\n");
}

#[test]
fn as_many_threads_as_cores_are_kept_and_no_others() {
    let before = sched_getaffinity(None).unwrap();
    for (cores, threads) in [(3, 1), (2, 2), (2, 0), (0, 2)] {
        let (_end, team) = Team::keep(&vec![any(); cores], || start(threads));
        assert!(team.is_none(), "{threads} more threads for {cores} cores");
    }
    // What the system does not take: of the other thread, and of the one that computes with it.
    for cores in [[any(), CpuSet::new()], [CpuSet::new(), any()]] {
        let known = threads().unwrap();
        let (_end, team) = Team::keep(&cores, || start(1));
        assert!(team.is_none());
        let new = threads().unwrap().into_iter().filter(|thread| !known.contains(thread));
        for thread in new.map(Some).chain([None]) {
            assert_eq!(sched_getaffinity(thread).unwrap(), before);
        }
    }
}

#[test]
fn cores_are_given_once() {
    let cores = Cores { all: (0..5).map(on).collect(), free: Mutex::new((0..5).map(on).collect()) };
    assert_eq!(cores.take(2), [on(0), on(1)]);
    assert!(cores.take(4).is_empty());
    assert_eq!(cores.take(3), [on(2), on(3), on(4)]);
    assert!(cores.take(2).is_empty());
}
