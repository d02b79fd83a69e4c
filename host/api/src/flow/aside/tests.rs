use camshaft_core::ids::TenantId;
use crossbeam_channel::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{advance, sleep};

use super::*;
use crate::flow::budget::Budget;
use crate::flow::turns::Turns;

/// The memory for all. A tenant may take half of it.
const BUDGET: u64 = 1000;

/// A reading that goes on for as long as the test wants it to, and has the last turn.
struct Reading {
    budget: Arc<Budget>,
    turns: Arc<Turns>,
    template: Arc<TemplateUse>,
    task: JoinHandle<Result<((), Share), FlowError>>,
    /// Dropped, the reading ends.
    hold: Sender<()>,
    others: Vec<Turn>,
}

impl Reading {
    async fn begin(read: impl FnOnce(&Aside, &Arc<TemplateUse>, Receiver<()>) + Send + 'static) -> Self {
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
        let task = tokio::spawn(run(turn_of_it, share, move |aside| {
            begun.try_send(()).unwrap();
            read(aside, &used, held);
            Ok(())
        }));
        begins.recv().await.unwrap();
        Self { budget, turns, template, task, hold, others }
    }

    async fn rendering() -> Self {
        let (watched, mut watches) = mpsc::channel(1);
        let reading = Self::begin(move |aside, template, held| {
            let _place = template.enter().unwrap();
            let _watched = aside.rendering(template);
            watched.try_send(()).unwrap();
            let _ = held.recv();
        });
        let reading = reading.await;
        watches.recv().await.unwrap();
        reading
    }

    /// Lets so many looks pass.
    async fn look(&self, looks: u32) {
        for _ in 0..looks {
            advance(LOOK + Duration::from_millis(1)).await;
            settle().await;
        }
    }

    async fn has_turn(&self) -> bool {
        turn(&self.turns).await.is_none()
    }

    fn has_share(&self) -> bool {
        self.budget.share(&tenant()).grow(200).is_err()
    }

    fn is_stopped(&self) -> bool {
        self.template.enter().is_err()
    }
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
    reading.look(LOOKS).await;
    assert!(
        !reading.task.is_finished() && !reading.is_stopped() && reading.has_turn().await,
        "the bound itself is fine"
    );
    reading.look(1).await;
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
    reading.look(LOOKS).await;
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
    reading.look(LOOKS + 1).await;
    assert!(reading.is_stopped() && !reading.has_turn().await);
    drop(reading);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_rendering_may_take_long() {
    let reading = Reading::begin(|_, _, held| {
        let _ = held.recv();
    });
    let mut reading = reading.await;
    reading.look(3 * LOOKS).await;
    assert!(!reading.task.is_finished() && !reading.is_stopped());
    drop(std::mem::replace(&mut reading.hold, crossbeam_channel::bounded(0).0));
    assert!((&mut reading.task).await.unwrap().is_ok());
}
