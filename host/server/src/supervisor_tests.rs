//! Threads that panic, threads that hang, and the order in which they end.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Longer than anything takes that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn gauges() -> Gauges {
    let up = IntGauge::new("up", "up").unwrap();
    let restarts = IntCounter::new("restarts", "restarts").unwrap();
    Gauges { up, restarts, health: Health::default() }
}

/// Takes one message an incarnation and does what it says; tells what becomes of it.
struct Puppet {
    orders: Receiver<&'static str>,
    told: Sender<&'static str>,
    makes: Arc<AtomicUsize>,
}

impl Service for Puppet {
    type Incarnation = ();
    type Handle = &'static str;

    fn make(&mut self) -> Result<((), &'static str), ServerError> {
        match self.makes.fetch_add(1, Ordering::Relaxed) {
            0 => Err(ServerError::internal("make it", anyhow::anyhow!("no memory at the moment"))),
            1 => panic!("making may panic, too"),
            _ => Ok(((), "up")),
        }
    }

    fn run(&mut self, (): &mut (), stop: &Stop) -> Ending {
        crossbeam_channel::select! {
            recv(self.orders) -> order => match order {
                Ok("panic") => panic!("as the test asked"),
                Ok("lose") => Ending::Lost,
                _ => Ending::Done,
            },
            recv(stop.receiver()) -> _ => Ending::Done,
        }
    }

    fn down(&mut self, (): ()) -> bool {
        self.told.send("down").is_ok()
    }

    fn up(&mut self, handle: &'static str) -> bool {
        self.told.send(handle).is_ok()
    }
}

#[test]
fn pauses_double_until_it_is_a_loop() {
    let mut pauses = Pauses::default();
    let all: Vec<u128> = (0..10).map(|_| pauses.next().as_millis()).collect();
    assert_eq!(all, [100, 200, 400, 800, 1600, 3200, 6400, 60_000, 60_000, 60_000]);
    assert!((0..100).map(|_| jittered(MAX_PAUSE)).all(|pause| (MAX_PAUSE * 3 / 4..=MAX_PAUSE).contains(&pause)));
}

#[test]
fn a_service_that_panics_comes_back_and_is_counted() {
    let supervisor = Supervisor::new();
    let ((orders_in, orders), (told, heard)) = (bounded(4), bounded(16));
    let (gauges, makes) = (gauges(), Arc::new(AtomicUsize::new(0)));
    supervisor.supervise("puppet", gauges.clone(), Puppet { orders, told, makes: makes.clone() }, ()).unwrap();
    assert!(gauges.health.is_up());
    orders_in.send("panic").unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Ok("down"));
    assert_eq!(heard.recv_timeout(PATIENCE), Ok("up"));
    assert_eq!((makes.load(Ordering::Relaxed), gauges.restarts.get(), gauges.up.get()), (3, 1, 1));
    assert!(gauges.health.is_up());
    orders_in.send("lose").unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Ok("down"));
    assert_eq!(heard.recv_timeout(PATIENCE), Ok("up"));
    // What ended in order is not restarted.
    orders_in.send("end").unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Ok("down"));
    assert_eq!(heard.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    assert!(!gauges.health.is_up());
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn a_service_that_waits_for_its_restart_ends_at_once() {
    let supervisor = Supervisor::new();
    let ((orders_in, orders), (told, heard)) = (bounded(4), bounded(16));
    struct Broken(Puppet);
    impl Service for Broken {
        type Incarnation = ();
        type Handle = &'static str;
        fn make(&mut self) -> Result<((), &'static str), ServerError> {
            Err(ServerError::internal("make it", anyhow::anyhow!("never again")))
        }
        fn run(&mut self, (): &mut (), stop: &Stop) -> Ending {
            self.0.run(&mut (), stop)
        }
        fn down(&mut self, (): ()) -> bool {
            self.0.down(())
        }
        fn up(&mut self, handle: &'static str) -> bool {
            self.0.up(handle)
        }
    }
    let puppet = Puppet { orders, told, makes: Arc::default() };
    supervisor.supervise("broken", gauges(), Broken(puppet), ()).unwrap();
    orders_in.send("panic").unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Ok("down"));
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn whoever_hands_out_work_ends_before_whoever_does_it() {
    let supervisor = Supervisor::new();
    let (told, heard) = bounded(16);
    for (stage, name) in [(ShutdownStage::Compute, "compute"), (ShutdownStage::Dispatch, "dispatch")] {
        let told = told.clone();
        let body = move |stop: &Stop| {
            assert!(stop.wait(PATIENCE));
            told.send(name).unwrap();
        };
        supervisor.spawn(stage, name, body).unwrap();
    }
    assert!(supervisor.end(PATIENCE));
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["dispatch", "compute"]);
}

#[test]
fn a_thread_that_hangs_is_not_waited_for_past_the_bound() {
    let supervisor = Supervisor::new();
    let (release, hangs) = bounded::<Infallible>(0);
    let hang = move |_: &Stop| assert!(hangs.recv().is_err());
    supervisor.spawn(ShutdownStage::Dispatch, "hangs", hang).unwrap();
    assert!(!supervisor.end(Duration::from_millis(10)));
    drop(release);
    assert!(supervisor.end(PATIENCE), "it ended late");
}

#[tokio::test]
async fn a_thread_that_cannot_be_restarted_is_named_when_it_panics() {
    let supervisor = Supervisor::new();
    supervisor.spawn(ShutdownStage::Dispatch, "pool-demo", |_| panic!("as the test asked")).unwrap();
    assert_eq!(supervisor.failed().await, "pool-demo");
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn regression_threads_of_other_packages_are_counted_and_joined_at_the_end() {
    let supervisor = Arc::new(Supervisor::new());
    let metrics = crate::metrics::threads(&prometheus::Registry::new()).unwrap();
    supervisor.count_in(metrics.clone());
    let spawner = supervisor.spawner(ShutdownStage::Policies);
    let running = |name| metrics.running.with_label_values(&[name]).get();
    let ((release, hangs), done) = (bounded::<()>(0), Arc::new(AtomicUsize::new(0)));
    let counted = done.clone();
    let compile = move || {
        hangs.recv().unwrap();
        counted.fetch_add(1, Ordering::SeqCst);
    };
    spawner.spawn("policy-compile", Box::new(compile)).unwrap();
    let (told, heard) = bounded::<()>(0);
    let dies = move || {
        let _told_at_the_end = told;
        panic!("as the test asked");
    };
    spawner.spawn("disk-cache", Box::new(dies)).unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    assert_eq!(running("policy-compile"), 1);
    assert!(!supervisor.end(Duration::from_millis(10)), "it compiles");
    assert_eq!(done.load(Ordering::SeqCst), 0);
    release.send(()).unwrap();
    assert!(supervisor.end(PATIENCE));
    assert_eq!((done.load(Ordering::SeqCst), running("policy-compile"), running("disk-cache")), (1, 0, 0));
    assert!(spawner.spawn("policy-compile", Box::new(|| {})).is_err(), "the server ends");
}
