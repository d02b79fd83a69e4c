//! Requests that wait for components that are being compiled while others come. Compiling is blocked by the tests.
use std::path::Path;
use std::sync::atomic::Ordering;

use camshaft_core::policy::{Hook, Mode, ModeError, PolicyState, PolicyStatus};
use crossbeam_channel::{Receiver, bounded};
use tempfile::TempDir;

use super::*;
use crate::load::bench::{Bench, component, put, variant};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(86_400);
const DEMANDS: Demands = Demands { auth: false, same_guards: true };

/// A watcher of an empty directory, and what blocks its compiler.
struct Scene {
    watcher: Watcher<'static>,
    dir: TempDir,
    compiled: Receiver<()>,
    begun: Receiver<String>,
    release: Sender<()>,
    slow: Vec<u8>,
}

impl Scene {
    /// Compiling `slow` is held until it is let go.
    fn new() -> Self {
        let mut bench = Bench::new();
        let slow = component("plugins/auth-api-keys");
        bench.hold(&slow);
        bench.put("auth/README", "");
        bench.loader.start().unwrap();
        let Bench { dir, loader, begun, release, ticker, .. } = bench;
        // It must tick as long as guests are called.
        std::mem::forget(ticker);
        let compiled = loader.compiled();
        // For the rest of the test.
        let (loader, poll) = (Box::leak(Box::new(loader)), Box::leak(Box::new(NEVER)));
        let watcher = Watcher::new(loader, bounded(1).0, poll);
        Self { watcher, dir, compiled, begun, release, slow }
    }

    fn take(&mut self, request: Request) {
        assert_eq!(self.watcher.take_all(iter::once(request)), Next::GoOn);
    }

    fn reload(&mut self) -> Receiver<Result<(), PolicyError>> {
        let (done, answer) = bounded(1);
        self.take(Request::Reload(done));
        answer
    }

    fn relocate(&mut self, dir: &Path, claim: &Claim) -> Receiver<Result<(), PolicyError>> {
        let (done, answer) = bounded(1);
        let (dir, claim) = (dir.to_owned(), claim.clone());
        self.take(Request::Relocate { dir, poll: NEVER, demands: DEMANDS, grants: Grants::default(), claim, done });
        answer
    }

    /// An order that is given now, and where its answer will be.
    fn order(&self, mode: Mode) -> (Request, Receiver<Result<PolicyStatus, ModeError>>) {
        let (done, answer) = bounded(1);
        let (name, action, who) = ("keys".to_owned(), PolicyAction::Mode(mode), "me".to_owned());
        let order = PolicyOrder { hook: Hook::Auth, name, action, who };
        let statuses: Vec<_> = self.watcher.loader.status("keys").into_iter().collect();
        (Request::order(order, &statuses, done), answer)
    }

    fn set_mode(&mut self, mode: Mode) -> Receiver<Result<PolicyStatus, ModeError>> {
        let (order, answer) = self.order(mode);
        self.take(order);
        answer
    }

    /// Lets what is held be compiled, and the watcher see it.
    fn finish(&mut self) {
        self.release.send(()).unwrap();
        self.compiled.recv().unwrap();
        self.watcher.compiled();
    }
}

fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "auth/README", b"");
    dir
}

#[test]
fn regression_an_older_relocation_does_not_overtake_a_newer_one() {
    for back in [false, true] {
        let mut scene = Scene::new();
        let (older, elsewhere) = (directory(), directory());
        put(older.path(), "auth/10-keys.wasm", &scene.slow);
        let first = scene.relocate(older.path(), &Claim::default());
        scene.begun.recv().unwrap();
        let newer = if back { scene.dir.path().to_owned() } else { elsewhere.path().to_owned() };
        let second = scene.relocate(&newer, &Claim::default());
        second.recv().unwrap().unwrap();
        let superseded = first.try_recv();
        scene.finish();
        assert_eq!(scene.watcher.loader.dir(), newer);
        assert!(matches!(superseded, Ok(Err(PolicyError::Superseded { .. }))), "{superseded:?}");
    }
}

#[test]
fn regression_a_relocation_whose_asker_gave_up_does_not_happen() {
    let mut scene = Scene::new();
    let (older, claim) = (directory(), Claim::default());
    put(older.path(), "auth/10-keys.wasm", &scene.slow);
    let answer = scene.relocate(older.path(), &claim);
    scene.begun.recv().unwrap();
    assert!(claim.take(), "nothing is done before it is compiled");
    scene.finish();
    assert_eq!(scene.watcher.loader.dir(), scene.dir.path());
    assert!(answer.recv().unwrap().is_err());
}

#[test]
fn regression_another_poll_holds_for_the_same_directory() {
    let mut scene = Scene::new();
    let (done, answer) = bounded(1);
    let (dir, poll) = (scene.dir.path().to_owned(), NEVER * 2);
    scene.take(Request::Relocate {
        dir,
        poll,
        demands: DEMANDS,
        grants: Grants::default(),
        claim: Claim::default(),
        done,
    });
    answer.recv().unwrap().unwrap();
    // Forgets the notice of the start.
    scene.watcher.scan();
    let wait = scene.watcher.pace.wait(Instant::now());
    assert!(wait.is_some_and(|wait| wait > NEVER), "{wait:?}");
}

#[test]
fn regression_the_newest_of_two_modes_that_wait_holds() {
    let mut scene = Scene::new();
    put(scene.dir.path(), "auth/10-keys.wasm", &scene.slow);
    put(scene.dir.path(), "auth/10-keys.toml", b"[policy]\nmode = \"off\"");
    scene.watcher.loader.scan_settled();
    let first = scene.set_mode(Mode::Monitor);
    scene.begun.recv().unwrap();
    let second = scene.set_mode(Mode::Enforce);
    scene.finish();
    assert_eq!(second.recv().unwrap().unwrap().mode, Mode::Enforce);
    assert!(matches!(first.recv().unwrap(), Err(ModeError::Superseded)));
}

#[test]
fn regression_a_mode_does_not_hold_for_files_that_came_after_it_was_ordered() {
    for changed in ["auth/10-keys.wasm", "auth/10-keys.toml"] {
        let mut scene = Scene::new();
        let put = |scene: &Scene, file: &str, number: u8| match file.ends_with("toml") {
            true => put(scene.dir.path(), file, format!("[policy]\nmode = \"monitor\"\n# {number}").as_bytes()),
            false => put(scene.dir.path(), file, &variant(&scene.slow, number)),
        };
        put(&scene, "auth/10-keys.wasm", 1);
        put(&scene, "auth/10-keys.toml", 1);
        let settle = |scene: &mut Scene| {
            while scene.watcher.loader.scan_settled().compiling {
                scene.compiled.recv().unwrap();
            }
        };
        settle(&mut scene);
        let (order, answer) = scene.order(Mode::Off);
        put(&scene, changed, 2);
        scene.take(order);
        let answer = answer.try_recv();
        assert!(matches!(answer, Ok(Err(ModeError::FilesChanged { mode: Mode::Monitor }))), "{changed}: {answer:?}");
        settle(&mut scene);
        let status = scene.watcher.loader.status("keys").unwrap();
        assert_eq!((status.mode, status.overridden, status.state), (Mode::Monitor, false, PolicyState::Active));
        // Of files that nobody has scanned yet, it is given for what is there.
        put(&scene, changed, 3);
        let answer = scene.set_mode(Mode::Off).try_recv();
        assert!(matches!(&answer, Ok(Ok(status)) if status.mode == Mode::Off && status.overridden), "{answer:?}");
    }
}

#[test]
fn regression_modes_that_were_refused_leave_nothing_behind() {
    let mut scene = Scene::new();
    // It compiles, and is rejected when it is introduced to its settings.
    put(scene.dir.path(), "auth/10-keys.wasm", &scene.slow);
    put(scene.dir.path(), "auth/10-keys.toml", b"[policy]\nmode = \"off\"\n[settings]\nkeys = 1\n");
    scene.watcher.loader.scan_settled();
    let first = scene.set_mode(Mode::Monitor);
    scene.begun.recv().unwrap();
    let second = scene.set_mode(Mode::Enforce);
    scene.finish();
    assert!(matches!(first.recv().unwrap(), Err(ModeError::Superseded)));
    assert!(matches!(second.recv().unwrap(), Err(ModeError::Rejected(_))));
    let status = scene.watcher.loader.status("keys").unwrap();
    assert_eq!((status.mode, status.overridden, status.error), (Mode::Off, false, None));
}

#[test]
fn regression_reloads_that_wait_are_bounded_and_answered_by_one_scan() {
    let mut scene = Scene::new();
    put(scene.dir.path(), "auth/10-keys.wasm", &scene.slow);
    let waiting: Vec<_> = (0..WAITING_MAX).map(|_| scene.reload()).collect();
    scene.begun.recv().unwrap();
    let refused = scene.reload().try_recv();
    assert!(matches!(refused, Ok(Err(PolicyError::Busy))), "{refused:?}");
    assert!(waiting.iter().all(|answer| answer.try_recv().is_err()), "they wait");
    let before = scene.watcher.loader.scans;
    scene.finish();
    assert_eq!(scene.watcher.loader.scans - before, 1);
    waiting.iter().for_each(|answer| answer.try_recv().unwrap().unwrap());
    scene.reload().try_recv().unwrap().unwrap();
}

#[test]
fn regression_requests_that_come_together_share_a_scan() {
    let mut scene = Scene::new();
    put(scene.dir.path(), "auth/10-keys.wasm", &scene.slow);
    put(scene.dir.path(), "auth/10-keys.toml", b"[policy]\nmode = \"off\"");
    scene.watcher.loader.scan_settled();
    let before = scene.watcher.loader.scans;
    let (answers, requests): (Vec<_>, Vec<_>) = (0..4)
        .map(|_| {
            let (done, answer) = bounded(1);
            (answer, Request::Reload(done))
        })
        .unzip();
    scene.watcher.take_all(requests.into_iter());
    assert_eq!(scene.watcher.loader.scans - before, 1);
    answers.iter().for_each(|answer| answer.try_recv().unwrap().unwrap());
}

#[test]
fn regression_a_directory_is_examined_anew_after_a_panic_while_what_served_goes_on() {
    let mut bench = Bench::new();
    let (good, slow) = (component("plugins/auth-api-keys"), component("plugins/validator-limits"));
    bench.put("auth/10-keys.wasm", &good);
    bench.loader.start().unwrap();
    let (serving, compiled) = (bench.status("keys").unwrap().serving, bench.compiled.load(Ordering::SeqCst));
    bench.put("validator/10-limits.wasm", &slow);
    let (_requests, received) = bounded(1);
    let Bench { loader, .. } = bench;
    let mut watch = PolicyWatch::new(loader, received, NEVER);
    watch.loader.panic_in_scan();
    watch.recover();
    bench.held.lock().unwrap().push(crate::digest::digest_of(&slow));
    assert!(watch.loader.scan_settled().compiling, "what the panic interrupted is done now");
    bench.begun.recv().unwrap();
    let status = watch.loader.status("keys").unwrap();
    assert_eq!((status.state, status.serving), (PolicyState::Active, serving));
    assert_eq!(bench.compiled.load(Ordering::SeqCst), compiled, "its code is still there");
    assert!(watch.loader.has_auth());
    let (stopper, stop) = bounded(0);
    drop(stopper);
    watch.run(&stop);
}
