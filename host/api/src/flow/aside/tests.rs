use camshaft_core::ids::TenantId;
use crossbeam_channel::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{advance, sleep};

use super::*;
use crate::flow::budget::Budget;
use crate::flow::template_use::Place;
use crate::flow::turns::Turns;

/// The memory for all. A tenant alone may take half of it.
const BUDGET: u64 = 1000;
/// What a rendering may not take.
const PAST: Duration = RENDERING.saturating_add(Duration::from_nanos(1));

/// A reading that goes on for as long as the test wants it to, and has the last turn.
struct Reading {
    time: Arc<Mutex<Duration>>,
    budget: Arc<Budget>,
    turns: Arc<Turns>,
    template: Arc<TemplateUse>,
    task: JoinHandle<Result<((), Share), FlowError>>,
    /// Dropped, the reading ends.
    hold: Sender<()>,
    others: Vec<Turn>,
}

impl Reading {
    async fn begin(read: impl FnOnce(&Aside, &Arc<TemplateUse>, Clock, Receiver<()>) + Send + 'static) -> Self {
        let (budget, turns) = (Budget::new(BUDGET), Arc::new(Turns::of_short_bodies()));
        let template = Arc::new(TemplateUse::new("a"));
        let mut others = Vec::new();
        while let Some(turn) = turn(&turns).await {
            others.push(turn);
        }
        let turn_of_it = others.pop().unwrap();
        let mut share = budget.share(&tenant());
        share.grow(400).unwrap();
        let (hold, held) = crossbeam_channel::bounded(0);
        let (begun, mut begins) = mpsc::channel(1);
        let used = template.clone();
        let time = Arc::default();
        let told = Clock::Told(Arc::clone(&time));
        let task = tokio::spawn(run(tenant(), turn_of_it, share, move |aside| {
            begun.try_send(()).unwrap();
            read(aside, &used, told, held);
            Ok(())
        }));
        begins.recv().await.unwrap();
        Self { time, budget, turns, template, task, hold, others }
    }

    async fn rendering() -> Self {
        let (watched, mut watches) = mpsc::channel(1);
        let reading = Self::begin(move |aside, template, clock, held| {
            let _place = enter(template).unwrap();
            let _watched = aside.rendering_by(template, clock);
            watched.try_send(()).unwrap();
            let _ = held.recv();
        });
        let reading = reading.await;
        watches.recv().await.unwrap();
        reading
    }

    /// Lets a look pass that finds this CPU time.
    async fn look(&self, taken: Duration) {
        *self.time.lock().unwrap() = taken;
        advance(LOOK + Duration::from_millis(1)).await;
        settle().await;
    }

    async fn has_turn(&self) -> bool {
        turn(&self.turns).await.is_none()
    }

    fn has_share(&self) -> bool {
        self.budget.share(&tenant()).grow(200).is_err()
    }

    fn is_stopped(&self) -> bool {
        enter(&self.template).is_err()
    }
}

/// A place where one is free.
fn enter(template: &TemplateUse) -> Result<Place<'_>, FlowError> {
    template.enter(&tenant(), false, |mut turn| turn.try_recv().map_err(|_| FlowError::TemplateStopped))
}

fn tenant() -> TenantId {
    TenantId::from("a")
}

/// A turn, if there is one.
async fn turn(turns: &Arc<Turns>) -> Option<Turn> {
    let tenant = tenant();
    tokio::select! {
        biased;
        turn = turns.take(&tenant, 1) => Some(turn.unwrap()),
        () = settle() => None,
    }
}

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn regression_a_rendering_that_runs_away_is_answered_and_stops_its_template() {
    let mut reading = Reading::rendering().await;
    reading.look(RENDERING).await;
    assert!(
        !reading.task.is_finished() && !reading.is_stopped() && reading.has_turn().await,
        "the bound itself is fine"
    );
    reading.look(PAST).await;
    assert!(matches!((&mut reading.task).await.unwrap(), Err(FlowError::TemplateStopped)));
    assert!(reading.is_stopped() && !reading.has_turn().await);
    assert!(reading.has_share(), "its thread still holds the memory");
    drop(std::mem::replace(&mut reading.hold, crossbeam_channel::bounded(0).0));
    // The paused time goes on when no thread runs aside.
    sleep(LOOK).await;
    assert!(!reading.has_share() && !reading.is_stopped(), "it has ended");
    assert_eq!(reading.others.len(), 31);
}

#[tokio::test(start_paused = true)]
async fn a_rendering_that_ends_at_the_bound_is_read() {
    let mut reading = Reading::rendering().await;
    reading.look(RENDERING).await;
    drop(std::mem::replace(&mut reading.hold, crossbeam_channel::bounded(0).0));
    let ((), share) = (&mut reading.task).await.unwrap().unwrap();
    assert_eq!(share.bytes(), 400);
    assert!(!reading.is_stopped() && !reading.has_turn().await);
}

#[tokio::test(start_paused = true)]
async fn regression_a_rendering_whose_client_has_left_is_watched_all_the_same() {
    let reading = Reading::rendering().await;
    reading.task.abort();
    settle().await;
    assert!(reading.has_turn().await && reading.has_share(), "it goes on");
    reading.look(PAST).await;
    assert!(reading.is_stopped() && !reading.has_turn().await);
    drop(reading);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_rendering_may_take_long() {
    let reading = Reading::begin(|_, _, _, held| {
        let _ = held.recv();
    });
    let mut reading = reading.await;
    for _ in 0..100 {
        reading.look(PAST).await;
    }
    assert!(!reading.task.is_finished() && !reading.is_stopped());
    drop(std::mem::replace(&mut reading.hold, crossbeam_channel::bounded(0).0));
    assert!((&mut reading.task).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn regression_a_rendering_that_is_given_no_cpu_takes_no_time() {
    let mut reading = Reading::rendering().await;
    for _ in 0..1000 {
        reading.look(RENDERING).await;
    }
    assert!(!reading.task.is_finished() && !reading.is_stopped());
    drop(std::mem::replace(&mut reading.hold, crossbeam_channel::bounded(0).0));
    assert!((&mut reading.task).await.unwrap().is_ok());
}

#[test]
fn where_the_system_tells_no_time_the_looks_count() {
    let (aside, template) = (Aside::default(), Arc::new(TemplateUse::new("a")));
    let _watched = aside.rendering_by(&template, Clock::Looks(0));
    let looks = (0..1000).position(|_| aside.runs_away());
    assert_eq!(looks, Some(50), "5 s are 50 looks");
}

#[tokio::test]
async fn regression_who_waits_for_a_place_lets_others_have_its_turn() {
    let (turns, places) = (Arc::new(Turns::new(1, 100)), Arc::new(Turns::new(1, 100)));
    let own = turns.take(&tenant(), 1).await.unwrap();
    let taken = places.take(&tenant(), 0).await.unwrap();
    let asked = places.ask(&tenant(), 0).unwrap();
    let aside = Arc::new(Aside::new(tenant(), Some(own)));
    let waits = tokio::task::spawn_blocking({
        let aside = aside.clone();
        move || aside.wait_for(asked).map(drop)
    });
    let others = turns.take(&TenantId::from("b"), 1).await.unwrap();
    assert!(aside.turn().is_none() && !waits.is_finished());
    drop(taken);
    // It has a place, and waits for nothing more.
    waits.await.unwrap().unwrap();
    assert!(aside.turn().is_none() && turns.taken() == 1);
    drop(others);
    assert_eq!(turns.taken(), 0);
}

/// Readings that wait for a place must not take the threads without which those that have one cannot go on.
#[test]
fn regression_as_many_wait_without_their_turns_as_the_bound_and_others_keep_theirs() {
    const RESTING: usize = 64;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().max_blocking_threads(RESTING + 8).enable_all().build().unwrap();
    runtime.block_on(async {
        let (turns, places) = (Arc::new(Turns::new(4, 100)), Arc::new(Turns::new(1, 100)));
        let taken = places.take(&tenant(), 0).await.unwrap();
        let budget = Budget::new(BUDGET);
        let mut readings = Vec::new();
        for _ in 0..4 * RESTING {
            let (turns, places, share) = (turns.clone(), places.clone(), budget.share(&tenant()));
            readings.push(tokio::spawn(async move {
                let turn = turns.take(&tenant(), 1).await?;
                run(tenant(), turn, share, move |aside| {
                    let place = aside.wait_for(places.ask(aside.tenant(), 0)?)?;
                    drop(place);
                    Ok(())
                })
                .await
            }));
        }
        // Four keep their turns, and no more threads wait than may.
        while places.waiting() < RESTING + 4 {
            tokio::task::yield_now().await;
        }
        assert_eq!((places.waiting(), turns.taken()), (RESTING + 4, 4));
        drop(taken);
        for reading in readings {
            reading.await.unwrap().unwrap();
        }
        assert_eq!((turns.taken(), places.taken()), (0, 0));
    });
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn only_very_long_bodies_are_read_by_a_thread_that_lets_others_go_first() {
    let nice = || rustix::process::getpriority_process(None).unwrap();
    let before = nice();
    for (bytes, expected) in [(PROMPT_BYTES, before), (PROMPT_BYTES + 1, before.max(POLITE))] {
        let turn = Arc::new(Turns::of_short_bodies()).take(&tenant(), bytes).await.unwrap();
        let share = Budget::new(BUDGET).share(&tenant());
        let read = run(tenant(), turn, share, move |aside| Ok((nice(), aside.is_polite()))).await.unwrap();
        assert_eq!(read.0, (expected, bytes > PROMPT_BYTES), "{bytes}");
        assert_eq!(nice(), before, "this thread is as it was");
    }
}
