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

/// A team whose threads were started in its first step, which returns what ends them.
fn team(cores: &[CpuSet], others: usize) -> (crossbeam_channel::Sender<()>, Team) {
    let mut team = Team::new(cores.to_vec());
    let end = team.step(cores.len() as u32, || start(others));
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
    team.step(2, || assert_eq!(all(), [before; 3]));
    team.step(3, || ());
    assert_eq!(all(), [any(); 3]);
    // Those that end meanwhile are started again, at the next step that computes.
    team.step(1, || drop(end));
    others.iter().for_each(|other| wait_for_end(*other));
    team.step(3, || ());
    assert!(!team.is_placed);
    let _end = team.step(3, || start(2));
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
    team.step(2, || ());
    assert_eq!([mask(None), mask(Some(other))], [any(); 2]);
    sched_setaffinity(None, &before).unwrap();
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
fn regression_a_thread_whose_first_step_panics_has_its_name_again() {
    let named = || fs::read_to_string("/proc/thread-self/comm").unwrap();
    let panics = || Team::new(vec![any(), any()]).step(2, || std::panic::panic_any("on purpose"));
    let run = move || {
        assert!(std::panic::catch_unwind(panics).is_err());
        named()
    };
    let name = std::thread::Builder::new().name("worker-x".to_owned()).spawn(run).unwrap().join().unwrap();
    assert_eq!(name, "worker-x\n");
}

#[test]
fn as_many_threads_as_cores_are_kept_and_no_others() {
    let before = mask(None);
    for (cores, threads) in [(3, 1), (2, 2), (2, 0), (0, 2)] {
        let (_end, mut team) = team(&vec![any(); cores], threads);
        (0..STEPS_TO_COMPLETE).for_each(|_| team.step(cores as u32, || ()));
        assert!(!team.is_placed && team.cores.is_empty(), "{threads} more threads for {cores} cores");
    }
    // What the system does not take: of the other thread, and of the one that computes with it.
    for cores in [[any(), CpuSet::new()], [CpuSet::new(), any()]] {
        let known = threads().unwrap();
        let (_end, team) = team(&cores, 1);
        assert!(!team.is_placed);
        let new = threads().unwrap().into_iter().filter(|thread| !known.contains(thread));
        new.map(Some).chain([None]).for_each(|thread| assert_eq!(mask(thread), before));
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
