use std::path::PathBuf;
use std::process::Command;

use camshaft_core::policy::{Policies, PolicyState};
use camshaft_policy::PolicyConfig;

use super::*;
use crate::config::Overrides;

/// Longer than anything takes that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn sources(file: &Path) -> Sources {
    Sources::new(Some(file), std::iter::empty(), Overrides::default()).unwrap()
}

fn reloader(sources: Sources, snapshot: ConfigSnapshot) -> Arc<Reloader> {
    reloader_of(sources, snapshot, None)
}

/// With the policies of a directory.
fn reloader_of(sources: Sources, snapshot: ConfigSnapshot, dir: Option<PathBuf>) -> Arc<Reloader> {
    let registry = prometheus::Registry::new();
    let policies = PolicyConfig {
        dir,
        allow_empty: true,
        compiler: None,
        poll: PATIENCE,
        cache_dir: None,
        allow_anonymous: true,
        grants: camshaft_policy::Grants::default(),
    };
    let setup = Setup {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        sources,
        log: LogHandle::silent(),
        policies: PolicyHost::start(policies, &registry).unwrap(),
        certificate: None,
        access: Arc::default(),
        reloads: reloads(&registry).unwrap(),
    };
    Reloader::new(snapshot, setup)
}

fn value(live: &Reloader, key: &str) -> Value {
    live.config()["keys"][key]["value"].clone()
}

async fn becomes(live: &Reloader, holds: impl Fn(&Reloader) -> bool) {
    let waits = async {
        while !holds(live) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waits).await.expect("it is noticed");
}

#[tokio::test]
async fn regression_an_edit_while_the_server_loads_is_put_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("camshaft.toml");
    std::fs::write(&file, "[queue]\ntimeout = \"7s\"\n[limits]\nconnections = 7\n").unwrap();
    let sources = sources(&file);
    let snapshot = sources.snapshot().unwrap();
    std::fs::write(&file, "[queue]\ntimeout = \"8s\"\n[limits]\nconnections = 8\n").unwrap();
    let live = reloader(sources, snapshot);
    assert_eq!((value(&live, "queue.timeout"), value(&live, "limits.connections")), (json!("7s"), json!(7)));
    let watch = tokio::spawn(live.clone().watch());
    becomes(&live, |live| value(live, "queue.timeout") == "8s").await;
    assert_eq!(value(&live, "limits.connections"), 7, "it takes a restart");
    assert_eq!(live.config()["last_reload"]["needs_restart"], json!(["limits.connections"]));
    watch.abort();
}

#[tokio::test]
async fn regression_a_pipe_in_the_place_of_the_file_does_not_end_the_watch() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("camshaft.toml");
    std::fs::write(&file, "[queue]\ntimeout = \"7s\"\n").unwrap();
    let sources = sources(&file);
    let snapshot = sources.snapshot().unwrap();
    let live = reloader(sources, snapshot);
    let watch = tokio::spawn(live.clone().watch());
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let why = |live: &Reloader| live.config()["last_reload"]["error"].as_str().map(str::to_owned);
    becomes(&live, |live| why(live).is_some_and(|why| why.contains("is not a regular file"))).await;
    assert_eq!(value(&live, "queue.timeout"), "7s");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "[queue]\ntimeout = \"8s\"\n").unwrap();
    becomes(&live, |live| value(live, "queue.timeout") == "8s").await;
    watch.abort();
}

/// Writes the file in the place of the one that is there, as those do who cut it, and reads it again.
fn reread(live: &Reloader, file: &Path, text: &str) -> Reloaded {
    std::fs::write(file, text).unwrap();
    live.reread()
}

#[tokio::test]
async fn regression_a_configuration_that_was_cut_is_not_put_in_force() {
    const WHOLE: &str = "[policy]\nallow-empty = true\ndir = \"p\"\n[queue]\ntimeout = \"7s\"\n[limits]\nbody = \"64KiB\"\nmax-tokens = 4\n";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("camshaft.toml");
    std::fs::write(&file, WHOLE).unwrap();
    let sources = sources(&file);
    let snapshot = sources.snapshot().unwrap();
    let live = reloader(sources, snapshot);
    let is_as_before = |live: &Reloader| {
        let whole = [("queue.timeout", json!("7s")), ("limits.body", json!("64KiB")), ("limits.max-tokens", json!(4))];
        whole.iter().all(|(key, expected)| value(live, key) == *expected)
    };
    for (cut, word) in [
        ("", "sets nothing any more"),
        ("\n# only this\n", "sets nothing any more"),
        (&WHOLE[..WHOLE.find("[limits]").unwrap()], "lacks [limits] now"),
        (&WHOLE[..WHOLE.find("dir").unwrap()], "lacks [limits], [queue] now"),
        (&WHOLE.replace("dir = \"p\"\n", ""), "lacks policy.dir now"),
        (&WHOLE[..WHOLE.find("max-tokens").unwrap()], "ends where the one in force goes on"),
    ] {
        // Whoever asks twice does not make it any better.
        for _ in 0..2 {
            let error = reread(&live, &file, cut).error.unwrap_or_default();
            assert!(error.contains(word) && error.contains("camshaft.toml"), "{cut}: {error}");
            assert!(is_as_before(&live), "{cut}");
        }
        assert_eq!(reread(&live, &file, WHOLE).error, None);
    }
    // Whoever means it says so.
    let edited = WHOLE.replace("timeout = \"7s\"\n", "").replace("max-tokens = 4\n", "# none\n");
    assert_eq!(reread(&live, &file, &edited).error, None);
    assert_eq!((value(&live, "queue.timeout"), value(&live, "limits.max-tokens")), (json!("1m"), json!(4096)));
}

/// A component that the tests' host can run. This test runs from `<target>/<profile>/deps`.
fn guest(name: &str) -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(3).unwrap().join(format!("guests/{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run cargo xtask plugins", path.display()))
}

#[tokio::test]
async fn regression_a_rejected_reload_changes_no_grants() {
    let dir = tempfile::tempdir().unwrap();
    let (file, policies) = (dir.path().join("camshaft.toml"), dir.path().join("p"));
    std::fs::create_dir_all(policies.join("auth")).unwrap();
    std::fs::write(policies.join("auth/10-a.wasm"), guest("misbehave-auth")).unwrap();
    std::fs::write(policies.join("auth/10-a.toml"), "[secrets]\nkey = { env = \"PATH\" }\n").unwrap();
    let whole = format!("[policy]\ndir = {policies:?}\n");
    std::fs::write(&file, &whole).unwrap();
    let sources = sources(&file);
    let snapshot = sources.snapshot().unwrap();
    let live = reloader_of(sources, snapshot, Some(policies.clone()));
    let state = || live.setup.policies.status()[0].state;
    assert_eq!(state(), PolicyState::Active);
    // Another directory, which is not there.
    let none = "default-grants = \"none\"\n";
    let moved = format!("[policy]\ndir = {:?}\n{none}", dir.path().join("missing"));
    assert!(reread(&live, &file, &moved).error.is_some());
    assert_eq!(state(), PolicyState::Active);
    assert_eq!(reread(&live, &file, &whole).error, None);
    assert_eq!(reread(&live, &file, &format!("{whole}{none}")).error, None);
    assert_eq!(state(), PolicyState::Rejected);
    assert_eq!(reread(&live, &file, &format!("{whole}# no more\n")).error, None);
    assert_eq!(state(), PolicyState::Active);
}
