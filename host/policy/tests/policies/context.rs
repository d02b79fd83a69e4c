//! What a scheduler's component learns from its context, and what becomes of one that asks for too much.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::ids::{RequestId, SessionId, WorkerId};
use camshaft_core::message::Event;
use camshaft_core::policy::{Attributes, CancelReason, Hints, PolicyState, Rejection};
use camshaft_core::pool::NewRequest;

use crate::desk::{Desk, request};
use crate::rig::{Rig, behave, component, rig};

const FILE: &str = "scheduler/10-bad.wasm";

fn rig_that(behaves: &str) -> Rig {
    let settings = behave(behaves, "deadline = \"2s\"");
    rig(&[(FILE, &component("guests/misbehave-scheduler")), ("scheduler/10-bad.toml", settings.as_bytes())])
}

/// One that is rejected, with what the scheduler was told in the message.
fn telling(id: u64, tenant: &str, prompt: usize) -> NewRequest {
    let hints = Arc::new(Hints::new(vec![("tell".to_owned(), "me".to_owned())]));
    NewRequest { hints, ..request(id, tenant, prompt) }
}

#[test]
fn a_component_is_told_what_the_pool_knows() {
    let rig = rig_that("tell-pool");
    let mut desk = Desk::new(&rig, "one", 2);
    let mut first = telling(1, "t", 100);
    let mut attributes = Attributes::default();
    attributes.set("tier", "gold".to_owned()).unwrap();
    attributes.set("target.per-token-ms", "40".to_owned()).unwrap();
    first.start.context.attributes = Arc::new(attributes);
    desk.submit_as(first);
    desk.submit_as(NewRequest { first_choice: RequestId(1), ..request(2, "t", 100) });
    let (began, rejected) = desk.schedule(1);
    assert_eq!(began, [(2, 0)]);
    let message = "needs [110] cached [0, 0] blocks 3 turns [0] targets ([0], [40]) hint Some(\"me\") attribute \
                   Some(\"gold\"); 2 alike; resumed [] finished [] failed [] cancelled []";
    let (code, retry_after) = ("told".to_owned(), Duration::from_millis(2500));
    assert_eq!(rejected, [(1, Rejection { code, message: message.to_owned(), retry_after })]);

    // What has happened since, and what worker 0 probably has cached of the same prompt.
    desk.tell(0, Event::Preempted { id: RequestId(2) });
    desk.tell(0, Event::Admitted { id: RequestId(2) });
    let session = Some(SessionId::from("s"));
    let turn = |id: u64| {
        let mut turn = telling(id, "t", 100);
        turn.start.session.clone_from(&session);
        turn
    };
    desk.submit_as(turn(3));
    let (_, rejected) = desk.schedule(2);
    assert!(rejected[0].1.message.contains("cached [96, 0] blocks 3 turns [0]"), "{rejected:?}");
    assert!(
        rejected[0].1.message.ends_with("resumed [2] finished [] failed [] cancelled [\"rejected\"]"),
        "{rejected:?}"
    );

    desk.submit(4, "t", 10);
    desk.submit(5, "t", 10);
    desk.schedule(3);
    desk.pool.cancel(RequestId(5), CancelReason::Client);
    desk.finish(0, 2);
    desk.pool.worker_lost(WorkerId(1));
    desk.submit_as(turn(6));
    let (_, rejected) = desk.schedule(4);
    let (_, message) = &rejected[0];
    assert!(message.message.contains("turns [1]"), "the second of its session: {rejected:?}");
    assert!(message.message.contains("finished [\"stop\", \"error\"] failed [4]"), "{rejected:?}");
    assert_eq!(rig.status(FILE).state, PolicyState::Active);
}

#[test]
fn a_scheduler_that_asks_for_what_it_may_not_is_replaced_and_the_pool_serves_on() {
    for (behaves, says) in [
        ("needs-unknown", "needs: request 18446744073709551615 is unknown"),
        ("needs-many", "needs: 1000000 ids, over the 2 requests"),
        ("reject-twice", "is named twice"),
        ("reject-nonsense", "reject: the code \"As asked!\""),
    ] {
        let rig = rig_that(behaves);
        let mut desk = Desk::new(&rig, "one", 1);
        // An instance without requests has nothing to reject.
        desk.submit(1, "t", 10);
        desk.submit(2, "t", 10);
        assert_eq!(desk.schedule(1), (vec![(1, 0), (2, 0)], vec![]), "{behaves}: the native scheduler answers");
        assert_eq!(rig.status(FILE).state, PolicyState::Replaced, "{behaves}");
        assert!(rig.error(FILE).contains(says), "{behaves}: {}", rig.error(FILE));
        assert_eq!(rig.calls("scheduler", "bad", "invalid_output"), 1.0, "{behaves}");
        desk.finish(0, 1);
        desk.submit(3, "t", 10);
        assert_eq!(desk.schedule(2).0, [(3, 0)], "{behaves}");
    }
}

#[test]
fn a_scheduler_that_asks_for_ever_runs_into_its_deadline() {
    let settings = behave("ask-forever", "");
    let rig = rig(&[(FILE, &component("guests/misbehave-scheduler")), ("scheduler/10-bad.toml", settings.as_bytes())]);
    let mut desk = Desk::new(&rig, "one", 1);
    (1..=500).for_each(|id| desk.submit(id, "t", 10));
    assert_eq!(desk.schedule(1).0.len(), 2);
    assert_eq!(rig.calls("scheduler", "bad", "deadline"), 1.0);
}

#[test]
fn a_scheduler_that_always_asks_to_be_called_is_called_every_ten_milliseconds() {
    let rig = rig_that("wake-loop");
    let mut desk = Desk::new(&rig, "one", 1);
    desk.submit(1, "t", 10);
    assert_eq!(desk.schedule(100).0, [(1, 0)]);
    let calls = || rig.calls("scheduler", "bad", "actions");
    // The dispatch is news.
    desk.schedule(101);
    let before = calls();
    (102..=150).for_each(|ms| drop(desk.schedule(ms)));
    assert_eq!(calls() - before, 4.0, "at 111, 121, 131 and 141");
    assert_eq!(desk.pool.next_call(), Some(Duration::from_millis(151)));
    assert_eq!(rig.status(FILE).state, PolicyState::Active);
}
