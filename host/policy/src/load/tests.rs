//! What waits for a component that is being compiled, and what does not. Compiling is blocked and counted by the tests.
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use camshaft_core::ids::Generation;
use camshaft_core::policy::{Hook, Mode, ModeError, PolicySet, PolicyState};
use camshaft_core::threads::Spawner;
use crossbeam_channel::bounded;

use super::bench::{Bench, component, put, variant};
use super::compile::{Compile, CompileJob, Compiler};
use super::*;
use crate::error::PolicyError;
use crate::grants::Grants;
use crate::loaded::Loaded;
use crate::store::Subject;
use crate::task::Task;
use crate::view::View;

#[test]
fn regression_settings_and_removals_do_not_wait_for_components_that_are_compiled() {
    let (good, slow) = (component("guests/misbehave-auth"), component("plugins/validator-limits"));
    let mut bench = Bench::new();
    bench.put("auth/10-keys.wasm", &good);
    bench.put("auth/20-other.wasm", variant(&good, 1));
    bench.put("auth/30-more.wasm", variant(&good, 2));
    bench.loader.start().unwrap();
    assert_eq!(bench.compiled.load(Ordering::SeqCst), 3);
    bench.hold(&slow);
    bench.put("validator/10-slow.wasm", &slow);
    let scan = bench.loader.scan_settled();
    bench.begun.recv().unwrap();
    assert!(scan.compiling && !scan.published);
    assert_eq!(bench.state("slow"), None, "nothing is known of it yet");

    bench.put("auth/10-keys.toml", "[policy]\ndeadline = \"20ms\"");
    let scan = bench.loader.scan_settled();
    assert!(scan.published && scan.compiling, "the settings serve, the component is still being compiled");
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"off\"");
    assert!(bench.loader.scan_settled().published);
    assert_eq!(bench.state("keys"), Some(PolicyState::Off));
    fs::remove_file(bench.dir.path().join("auth/20-other.wasm")).unwrap();
    assert!(bench.loader.scan_settled().published);
    assert_eq!(bench.state("other"), None);
    let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Monitor);
    let status = change.attempt(&mut bench.loader).unwrap().unwrap();
    assert_eq!(
        (status.mode, status.state),
        (Mode::Monitor, PolicyState::Active),
        "and neither does an operator's mode"
    );

    let scan = bench.finish();
    assert!(!scan.compiling);
    assert_eq!(bench.state("slow"), Some(PolicyState::Active));
    assert_eq!(View::stable(bench.loader.registry.current()).validators(), 1);
}

#[test]
fn settings_that_come_while_a_new_guard_is_compiled_hold_from_its_first_request() {
    let new = component("guests/misbehave-auth");
    let mut bench = Bench::new();
    bench.put("validator/10-limits.wasm", component("plugins/validator-limits"));
    bench.loader.start().unwrap();
    bench.hold(&new);
    bench.put("auth/10-door.wasm", &new);
    assert!(bench.loader.scan_settled().compiling);
    bench.begun.recv().unwrap();
    bench.put("auth/10-door.toml", "[policy]\nmode = \"monitor\"");
    assert!(bench.loader.scan_settled().compiling);
    assert!(bench.finish().published);
    assert_eq!(
        bench.status("door").map(|status| (status.mode, status.state)),
        Some((Mode::Monitor, PolicyState::Active))
    );
}

#[test]
fn a_guard_leaves_only_when_its_replacement_is_compiled() {
    let (old, new) = (component("guests/misbehave-auth"), component("plugins/auth-api-keys"));
    let mut bench = Bench::new();
    bench.put("auth/10-old.wasm", &old);
    bench.loader.start().unwrap();
    bench.hold(&new);
    bench.put("auth/10-new.wasm", &new);
    fs::remove_file(bench.dir.path().join("auth/10-old.wasm")).unwrap();
    assert!(bench.loader.scan_settled().compiling);
    bench.begun.recv().unwrap();
    assert!(bench.loader.registry.current().has_auth(), "there is no moment without a guard");
    assert_eq!(bench.state("old"), Some(PolicyState::Active));
    assert!(bench.finish().published);
    assert_eq!((bench.state("old"), bench.state("new")), (None, Some(PolicyState::Active)));
    // A policy that guards nothing goes at once, and so does a guard beside another one.
    bench.put("auth/20-other.wasm", variant(&old, 1));
    bench.settle();
    bench.put("scheduler/10-old.wasm", component("plugins/scheduler-fcfs"));
    assert!(bench.loader.scan_settled().compiling);
    assert!(bench.compile().published);
    fs::remove_file(bench.dir.path().join("auth/10-new.wasm")).unwrap();
    assert!(bench.loader.scan_settled().published);
    assert_eq!((bench.state("new"), bench.state("other")), (None, Some(PolicyState::Active)));
}

#[test]
fn regression_a_guard_stays_while_the_file_that_came_instead_is_rejected() {
    let (old, new) = (component("guests/misbehave-auth"), component("plugins/auth-api-keys"));
    let mut bench = Bench::new();
    bench.put("auth/10-old.wasm", &old);
    bench.put("auth/20-other.wasm", variant(&old, 1));
    bench.loader.start().unwrap();
    bench.put("auth/15-broken.wasm", b"\0asm\x01\0\0\0");
    bench.settle();
    fs::remove_file(bench.dir.path().join("auth/20-other.wasm")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(bench.state("other"), None, "what was rejected before is no replacement");

    bench.put("auth/11-new.wasm", &new);
    bench.put("auth/11-new.toml", "[policy]\nmode = 1");
    fs::remove_file(bench.dir.path().join("auth/10-old.wasm")).unwrap();
    for _ in 0..2 {
        bench.loader.scan_settled();
        assert!(bench.loader.registry.current().has_auth());
        let (old, new) = (bench.status("old").unwrap(), bench.status("new").unwrap());
        assert_eq!((old.state, new.state), (PolicyState::Active, PolicyState::Rejected));
        assert!(old.error.is_some_and(|why| why.contains("removed") && why.contains("11-new.wasm")));
    }
    bench.hold(&new);
    fs::remove_file(bench.dir.path().join("auth/11-new.toml")).unwrap();
    assert!(bench.loader.scan_settled().compiling);
    assert_eq!(bench.state("old"), Some(PolicyState::Active), "and while its correction is compiled");
    bench.finish();
    assert_eq!((bench.state("old"), bench.state("new")), (None, Some(PolicyState::Active)));

    bench.put("auth/30-last.wasm", variant(&old, 2));
    bench.settle();
    bench.put("auth/12-cut.wasm", &old[..1000]);
    fs::remove_file(bench.dir.path().join("auth/11-new.wasm")).unwrap();
    bench.settle();
    assert_eq!(bench.state("new"), Some(PolicyState::Active));
    fs::remove_file(bench.dir.path().join("auth/12-cut.wasm")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(bench.state("new"), None, "nothing is to replace it any more");
}

#[test]
fn regression_a_panic_does_not_replace_what_serves_by_files_that_were_rejected() {
    let mut bench = Bench::new();
    let good = component("plugins/auth-api-keys");
    bench.put("auth/10-keys.wasm", &good);
    bench.loader.start().unwrap();
    let serving = bench.status("keys").unwrap().serving;
    assert!(serving.is_some());
    bench.put("auth/10-keys.toml", "[policy]\nmode = 1");
    bench.loader.scan_settled();
    bench.put("validator/10-limits.wasm", component("plugins/validator-limits"));
    bench.loader.panic_in_scan();
    bench.loader.recover();
    bench.settle();
    let status = bench.status("keys").unwrap();
    assert_eq!((status.state, status.serving), (PolicyState::Rejected, serving.clone()));

    // Nor is the policy itself lost that was examined at that moment.
    bench.put("auth/10-keys.wasm", variant(&good, 1));
    fs::remove_file(bench.dir.path().join("auth/10-keys.toml")).unwrap();
    bench.loader.panic_in_scan();
    bench.loader.recover();
    bench.put("auth/10-keys.wasm", b"\0asm\x01\0\0\0");
    bench.loader.scan_settled();
    let status = bench.status("keys").unwrap();
    assert_eq!((status.state, status.serving), (PolicyState::Rejected, serving));
}

#[test]
fn regression_a_guard_that_stays_for_its_replacement_stays_after_a_panic() {
    let mut bench = Bench::new();
    bench.put("auth/10-old.wasm", component("guests/misbehave-auth"));
    bench.loader.start().unwrap();
    bench.put("auth/11-new.wasm", b"\0asm\x01\0\0\0");
    fs::remove_file(bench.dir.path().join("auth/10-old.wasm")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(bench.state("old"), Some(PolicyState::Active));
    bench.put("validator/10-limits.wasm", component("plugins/validator-limits"));
    bench.loader.panic_in_scan();
    bench.loader.recover();
    bench.settle();
    let status = bench.status("old").expect("nothing valid replaces it");
    assert_eq!(status.state, PolicyState::Active);
    assert!(status.error.is_some_and(|why| why.contains("11-new.wasm")));
}

#[test]
fn another_directory_is_compiled_beside_the_one_that_serves() {
    let (here, there) = (component("guests/misbehave-auth"), component("plugins/auth-api-keys"));
    let mut bench = Bench::new();
    bench.put("auth/10-keys.wasm", &here);
    bench.loader.start().unwrap();
    let other = tempfile::tempdir().unwrap();
    put(other.path(), "auth/10-keys.wasm", &there);
    bench.hold(&there);
    let mut relocation = Relocation::new(
        other.path().to_path_buf(),
        Demands { auth: true, same_guards: true },
        Grants::default(),
        Claim::default(),
    )
    .unwrap();
    assert!(relocation.attempt(&mut bench.loader).is_none());
    bench.begun.recv().unwrap();
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"");
    assert!(bench.loader.scan_settled().published, "what serves follows its files meanwhile");
    bench.finish();
    relocation.attempt(&mut bench.loader).unwrap().unwrap();
    let status = bench.status("keys").unwrap();
    assert_eq!((status.mode, status.generation), (Mode::Enforce, Some(Generation(3))));
    assert_eq!(bench.loader.dir(), other.path());
}

#[test]
fn regression_modes_set_by_an_operator_move_with_their_files() {
    let keys = component("plugins/auth-api-keys");
    for (settings, kept) in [("[policy]\nmode = \"monitor\"", true), ("[policy]\nmode = \"monitor\"\n", false)] {
        let mut bench = Bench::new();
        bench.put("auth/10-keys.wasm", &keys);
        bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"");
        bench.loader.start().unwrap();
        let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Enforce);
        change.attempt(&mut bench.loader).unwrap().unwrap();
        let other = tempfile::tempdir().unwrap();
        put(other.path(), "auth/10-keys.wasm", &keys);
        put(other.path(), "auth/10-keys.toml", settings.as_bytes());
        let demands = Demands { auth: false, same_guards: false };
        let mut relocation =
            Relocation::new(other.path().to_path_buf(), demands, Grants::default(), Claim::default()).unwrap();
        relocation.attempt(&mut bench.loader).unwrap().unwrap();
        let status = bench.status("keys").unwrap();
        assert_eq!((status.mode == Mode::Enforce, status.overridden), (kept, kept), "{settings:?}");
        assert_eq!(bench.loader.directory.overrides.len(), usize::from(kept));
    }
}

#[test]
fn regression_a_mode_set_while_another_directory_compiles_moves_too() {
    let (keys, slow) = (component("plugins/auth-api-keys"), component("plugins/validator-limits"));
    let mut bench = Bench::new();
    let other = tempfile::tempdir().unwrap();
    bench.put("auth/10-keys.wasm", &keys);
    put(other.path(), "auth/10-keys.wasm", &keys);
    put(other.path(), "validator/10-limits.wasm", &slow);
    bench.loader.start().unwrap();
    bench.hold(&slow);
    let demands = Demands { auth: false, same_guards: false };
    let mut relocation =
        Relocation::new(other.path().to_path_buf(), demands, Grants::default(), Claim::default()).unwrap();
    assert!(relocation.attempt(&mut bench.loader).is_none());
    bench.begun.recv().unwrap();
    let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Monitor);
    change.attempt(&mut bench.loader).unwrap().unwrap();
    bench.finish();
    relocation.attempt(&mut bench.loader).unwrap().unwrap();
    let status = bench.status("keys").unwrap();
    assert_eq!((status.mode, status.overridden), (Mode::Monitor, true));
}

#[test]
fn a_policy_turned_off_while_it_is_compiled_is_off_at_once() {
    let slow = component("plugins/auth-api-keys");
    let mut bench = Bench::new();
    bench.loader.start().unwrap();
    bench.hold(&slow);
    bench.put("auth/10-keys.wasm", &slow);
    assert!(bench.loader.scan_settled().compiling);
    bench.begun.recv().unwrap();
    let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Off);
    let status = change.attempt(&mut bench.loader).unwrap().unwrap();
    assert_eq!((status.mode, status.state, status.overridden), (Mode::Off, PolicyState::Off, true));
    let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Enforce);
    assert!(change.attempt(&mut bench.loader).is_none(), "to be on it must be compiled");
    bench.finish();
    let status = change.attempt(&mut bench.loader).unwrap().unwrap();
    assert_eq!((status.state, bench.compiled.load(Ordering::SeqCst)), (PolicyState::Active, 1), "it is compiled once");
}

#[test]
fn regression_a_mode_whose_files_change_meanwhile_is_not_said_to_be_set() {
    let slow = component("plugins/auth-api-keys");
    let mut bench = Bench::new();
    bench.loader.start().unwrap();
    bench.hold(&slow);
    bench.put("auth/10-keys.wasm", &slow);
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"off\"");
    bench.loader.scan_settled();
    let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Enforce);
    assert!(change.attempt(&mut bench.loader).is_none());
    bench.begun.recv().unwrap();
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"");
    bench.finish();
    let answer = change.attempt(&mut bench.loader).unwrap();
    assert!(matches!(&answer, Err(ModeError::FilesChanged { mode: Mode::Monitor })), "{answer:?}");
    let status = bench.status("keys").unwrap();
    assert_eq!((status.mode, status.overridden), (Mode::Monitor, false));
}

#[test]
fn regression_settings_that_change_while_a_new_component_compiles_hold_at_once() {
    let serving = component("plugins/auth-api-keys");
    let newer = variant(&serving, 1);
    let mode = |bench: &Bench| bench.loader.status("keys").unwrap().mode;
    let mut bench = Bench::new();
    bench.put("auth/10-keys.wasm", &serving);
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"enforce\"");
    bench.loader.start().unwrap();
    let digest = bench.status("keys").unwrap().serving;
    bench.hold(&newer);
    // What comes together waits: the settings may be for the new component alone.
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"");
    bench.put("auth/10-keys.wasm", &newer);
    assert!(bench.loader.scan_settled().compiling);
    bench.begun.recv().unwrap();
    assert_eq!(mode(&bench), Mode::Enforce);

    bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"\ndeadline = \"6ms\"");
    let scan = bench.loader.scan_settled();
    assert!(scan.published && scan.compiling, "{scan:?}");
    assert_eq!((mode(&bench), bench.status("keys").unwrap().serving), (Mode::Monitor, digest.clone()));
    // Settings that it refuses leave it as it is.
    bench.put("auth/10-keys.toml", "[settings]\nnone-such = 1");
    assert!(!bench.loader.scan_settled().published);
    assert_eq!(mode(&bench), Mode::Monitor);
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"");
    assert!(bench.loader.scan_settled().published);
    // And so does a mode that an operator chooses.
    let mut change = ModeChange::new(Hook::Auth, "keys".to_owned(), Mode::Enforce);
    let status = change.attempt(&mut bench.loader).unwrap().unwrap();
    assert_eq!((status.mode, status.overridden, status.serving), (Mode::Enforce, true, digest.clone()));

    bench.finish();
    let status = bench.status("keys").unwrap();
    assert_eq!((status.mode, status.overridden, status.error), (Mode::Enforce, true, None));
    assert_ne!(status.serving, digest);
}

#[test]
fn components_are_compiled_side_by_side_the_oldest_change_first() {
    let (began, begun) = bounded::<Vec<u8>>(16);
    let (release, released) = bounded::<()>(0);
    let compile: Compile = Box::new(move |task: &Task<'_>| {
        let bytes = task.bytes;
        began.send(bytes.to_vec()).unwrap();
        released.recv().unwrap();
        Err(PolicyError::NoHook)
    });
    let mut compiler = Compiler::new(compile, Spawner::detached());
    compiler.threads_max = 2;
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let mut jobs: Vec<Arc<CompileJob>> = Vec::new();
    for (name, changed) in [("first", 9), ("second", 8)] {
        jobs.push(compiler.compile(Hook::Auth, name, name.as_bytes(), at(changed)).unwrap());
    }
    let mut both = [begun.recv().unwrap(), begun.recv().unwrap()];
    both.sort();
    assert_eq!(both, [b"first".to_vec(), b"second".to_vec()], "two at once");
    for (name, changed) in [("young", 7), ("old", 1), ("dropped", 2), ("middle", 3)] {
        jobs.push(compiler.compile(Hook::Auth, name, name.as_bytes(), at(changed)).unwrap());
    }
    let same = compiler.compile(Hook::Auth, "old", b"old", at(99)).unwrap();
    assert!(Arc::ptr_eq(&same, &jobs[3]), "one component is one job");
    drop(jobs.remove(4));
    assert!(begun.is_empty(), "no more than two");
    for expected in ["old", "middle", "young"] {
        release.send(()).unwrap();
        assert_eq!(begun.recv().unwrap(), expected.as_bytes(), "what nobody wants any more is left out");
    }
    release.send(()).unwrap();
    release.send(()).unwrap();
}

#[test]
fn what_waits_to_be_compiled_is_bounded() {
    let (release, released) = bounded::<()>(0);
    let compile: Compile = Box::new(move |_: &Task<'_>| {
        released.recv().unwrap();
        Err(PolicyError::NoHook)
    });
    let mut compiler = Compiler::new(compile, Spawner::detached());
    compiler.threads_max = 0;
    let now = SystemTime::now();
    let large = vec![0; super::compile::QUEUED_MAX_BYTES / 2];
    let jobs = ["a", "b"].map(|name| compiler.compile(Hook::Auth, name, &large, now));
    assert!(jobs.iter().all(Option::is_some), "as much as the bound");
    assert!(compiler.compile(Hook::Auth, "c", &[0], now).is_none(), "one byte past it");
    drop(jobs);
    assert!(compiler.compile(Hook::Auth, "c", &[0], now).is_some());
    drop(release);
}

#[test]
fn regression_a_component_that_could_not_be_read_for_a_while_is_examined_again() {
    type Hide = fn(&Path);
    let hides: [(&str, Hide); 2] = [
        ("a link to itself", |file| std::os::unix::fs::symlink(file, file).unwrap()),
        ("a pipe", |file| {
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }),
    ];
    for (what, hide) in hides {
        let (mut bench, elsewhere) = (Bench::new(), tempfile::tempdir().unwrap());
        bench.put("auth/10-keys.wasm", component("guests/misbehave-auth"));
        bench.loader.start().unwrap();
        assert_eq!(bench.state("keys"), Some(PolicyState::Active));
        let (file, kept) = (bench.dir.path().join("auth/10-keys.wasm"), elsewhere.path().join("keys"));
        fs::rename(&file, &kept).unwrap();
        hide(&file);
        bench.settle();
        assert_eq!(bench.state("keys"), Some(PolicyState::Rejected), "{what}");
        assert!(bench.loader.has_auth(), "{what}: it goes on serving");
        fs::remove_file(&file).unwrap();
        fs::rename(&kept, &file).unwrap();
        bench.settle();
        assert_eq!(bench.state("keys"), Some(PolicyState::Active), "{what}: the same bytes");
    }
}

#[test]
fn regression_a_component_does_not_wait_for_a_thread_that_panicked() {
    let compile: Compile = Box::new(|task: &Task<'_>| match task.bytes {
        [0] => panic!("as a defect would"),
        _ => Err(PolicyError::NoHook),
    });
    let mut compiler = Compiler::new(compile, Spawner::detached());
    compiler.threads_max = 1;
    let finished = compiler.finished();
    let mut outcome = |name, bytes: &[u8]| {
        let job = compiler.compile(Hook::Auth, name, bytes, SystemTime::now()).unwrap();
        finished.recv_timeout(Duration::from_secs(60)).expect("it ends");
        job.outcome().expect("it has an outcome").unwrap_err().sentence()
    };
    assert!(outcome("a", &[0]).contains("panicked"));
    assert_eq!(outcome("b", &[1]), PolicyError::NoHook.sentence(), "another thread, or the same one, goes on");
}

#[test]
fn regression_a_load_that_was_replaced_keeps_no_idle_instances() {
    let mut bench = Bench::new();
    bench.put("auth/10-x.toml", "[settings]\nreuse = true\n");
    bench.put("auth/10-x.wasm", component("guests/misbehave-auth"));
    bench.loader.start().unwrap();
    let serving = |bench: &Bench| bench.loader.registry.current().ready(Hook::Auth).next().unwrap().clone();
    let use_once = |loaded: &Loaded| loaded.kept.put(loaded.instance(Subject::None).unwrap());
    let first = serving(&bench);
    use_once(&first);
    assert_eq!(first.kept.len(), 1);
    let running = first.instance(Subject::None).unwrap();
    use_once(&first);
    bench.put("auth/10-x.toml", "[policy]\ndeadline = \"20ms\"\n[settings]\nreuse = true\n");
    bench.settle();
    assert_eq!(first.kept.len(), 0, "a stream may hold the generation for long");
    first.kept.put(running);
    assert_eq!(first.kept.len(), 0, "nor does it keep what comes back");
    let second = serving(&bench);
    use_once(&second);
    assert_eq!(second.kept.len(), 1);
}
