//! What an instance of a scheduler leaves to the next one, and when nothing is left.
use super::*;

fn well() -> Answer {
    Box::new(|_| Ok(Vec::new()))
}

fn checkpoint() -> Checkpoint {
    Checkpoint(b"state".to_vec())
}

fn hook_that(leaves: Option<Checkpoint>, answers: Restored) -> (Arc<Scripted>, Arc<Mutex<Legacy>>) {
    let legacy = Legacy { lineage: "fair".to_owned(), leaves, answers, saved: 0, given: Vec::new() };
    let legacy = Arc::new(Mutex::new(legacy));
    let hook = Scripted { legacy: Some(legacy.clone()), ..Scripted::default() };
    (Arc::new(hook), legacy)
}

/// Swaps the scheduler of a pool that has answered once. Returns how many instances were opened by then.
fn swap(hook: &Arc<Scripted>, first: Answer, change: impl FnOnce()) -> u32 {
    hook.answers.lock().unwrap().extend([well(), well(), first]);
    let mut pool = pool(hook);
    pool.schedule(ms(0));
    change();
    *hook.generation.lock().unwrap() = 1;
    pool.schedule(ms(1));
    assert!(pool.check());
    *hook.opened.lock().unwrap()
}

/// Checkpoints that were saved, and that were given to an instance.
fn counts(legacy: &Mutex<Legacy>) -> (u32, usize) {
    let legacy = legacy.lock().unwrap();
    (legacy.saved, legacy.given.len())
}

#[test]
fn the_next_instance_of_a_plugin_gets_what_the_last_one_saved_before_its_replay() {
    let (hook, legacy) = hook_that(Some(checkpoint()), Restored::Taken);
    assert_eq!(swap(&hook, well(), || {}), 2);
    assert_eq!(counts(&legacy), (1, 1));
    assert_eq!(legacy.lock().unwrap().given, [checkpoint()]);
}

#[test]
fn an_instance_that_refuses_a_checkpoint_gives_way_to_a_fresh_one() {
    let (hook, legacy) = hook_that(Some(checkpoint()), Restored::Refused);
    assert_eq!(swap(&hook, well(), || {}), 3, "the one that refused is not asked anything else");
    assert_eq!(legacy.lock().unwrap().given.len(), 1, "the fresh one is given nothing");
}

#[test]
fn nothing_is_handed_over_where_nothing_was_saved_or_the_plugin_is_another_one() {
    let (hook, legacy) = hook_that(None, Restored::Taken);
    assert_eq!(swap(&hook, well(), || {}), 2);
    assert_eq!(counts(&legacy), (1, 0));
    let (hook, legacy) = hook_that(Some(checkpoint()), Restored::Taken);
    assert_eq!(swap(&hook, well(), || legacy.lock().unwrap().lineage = "other".to_owned()), 2);
    assert_eq!(counts(&legacy), (0, 0));
}

#[test]
fn an_instance_that_faulted_is_never_asked_to_save() {
    let (hook, legacy) = hook_that(Some(checkpoint()), Restored::Taken);
    let trap: Answer = Box::new(|_| Err(Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() }));
    assert_eq!(swap(&hook, trap, || {}), 2);
    assert_eq!(counts(&legacy), (0, 0));
    // Nor one whose actions were refused.
    let (hook, legacy) = hook_that(Some(checkpoint()), Restored::Taken);
    let nonsense: Answer = Box::new(|_| Ok(vec![Action::Dispatch { id: RequestId(9), worker: W }]));
    assert_eq!(swap(&hook, nonsense, || {}), 2);
    assert_eq!(legacy.lock().unwrap().saved, 0);
}
