//! What the watcher notices by itself, however files come to be there.
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::time::Duration;

use camshaft_core::policy::{Mode, Policies, PolicyState};

use crate::rig::{NEVER, Rig, behave, component, put, rig, rig_polling};

fn active(rig: &Rig, file: &str) -> bool {
    let path = rig.path(file).display().to_string();
    rig.host.status().iter().any(|status| status.file == path && status.state == PolicyState::Active)
}

#[test]
fn notices_a_file_that_is_renamed_into_place() {
    let rig = rig(&[]);
    put(rig.dir.path(), "auth/10-x.wasm", &component("guests/misbehave-auth"));
    rig.wait("the new policy", |rig| active(rig, "auth/10-x.wasm"));
    assert!(rig.host.current().has_auth());
    assert_eq!(rig.metric("camshaft_policy_swap_duration_seconds_count"), 1.0);
}

#[test]
fn waits_for_a_file_that_is_written_slowly_in_place() {
    let old = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-x.wasm", &old)]);
    let serving = rig.status("auth/10-x.wasm").serving;
    let new = component("plugins/auth-api-keys");
    let mut file = OpenOptions::new().write(true).truncate(true).open(rig.path("auth/10-x.wasm")).unwrap();
    for part in new.chunks(new.len() / 8 + 1) {
        assert_eq!(rig.status("auth/10-x.wasm").serving, serving, "half a file does not serve");
        file.write_all(part).unwrap();
        std::thread::sleep(Duration::from_millis(150));
    }
    drop(file);
    rig.wait("the complete file", |rig| rig.status("auth/10-x.wasm").serving != serving);
    assert_eq!(rig.swaps("auth", "rejected"), 0.0, "a pause in the writing is no broken file");
    assert_eq!(rig.status("auth/10-x.wasm").error, None);
}

#[test]
fn a_file_that_stays_truncated_is_rejected() {
    let good = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-x.wasm", &good)]);
    fs::write(rig.path("auth/10-x.wasm"), &good[..1000]).unwrap();
    // It is counted before it is told.
    rig.wait("the rejection", |rig| rig.status("auth/10-x.wasm").error.is_some());
    assert_eq!(rig.swaps("auth", "rejected"), 1.0);
    assert!(rig.error("auth/10-x.wasm").starts_with("file is truncated or corrupt: "));
    assert!(rig.host.current().has_auth());
}

#[test]
fn a_burst_of_rewrites_ends_on_the_last_content() {
    let rig = rig(&[("auth/10-x.wasm", &component("guests/misbehave-auth"))]);
    let before = rig.generation();
    for i in 0..49 {
        let how = if i % 2 == 0 { "trap-at-start" } else { "well" };
        fs::write(rig.path("auth/10-x.toml"), behave(how, &format!("deadline = \"{}ms\"", 100 + i))).unwrap();
    }
    fs::write(rig.path("auth/10-x.toml"), "[policy]\nmode = \"monitor\"").unwrap();
    rig.wait("the last content", |rig| rig.status("auth/10-x.wasm").mode == Mode::Monitor);
    let published = rig.generation().0 - before.0;
    assert!((1..=10).contains(&published), "{published} generations for one burst");
    assert_eq!(rig.status("auth/10-x.wasm").error, None);
}

#[test]
fn notices_that_a_file_is_deleted() {
    let good = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-x.wasm", &good), ("auth/20-y.wasm", &component("plugins/auth-api-keys"))]);
    fs::remove_file(rig.path("auth/10-x.wasm")).unwrap();
    rig.wait("the removal", |rig| rig.host.status().len() == 1);
}

#[test]
fn notices_edited_settings() {
    let rig = rig(&[("auth/10-x.wasm", &component("guests/misbehave-auth"))]);
    fs::write(rig.path("auth/10-x.toml"), "[policy]\nmode = \"off\"").unwrap();
    rig.wait("the policy to be off", |rig| rig.status("auth/10-x.wasm").state == PolicyState::Off);
    fs::remove_file(rig.path("auth/10-x.toml")).unwrap();
    rig.wait("the policy to be on again", |rig| active(rig, "auth/10-x.wasm"));
}

#[test]
fn notices_a_swapped_link_as_mounted_volumes_make_it() {
    let rig = rig(&[]);
    let auth = rig.path("auth");
    fs::create_dir_all(auth.join("..one")).unwrap();
    fs::create_dir_all(auth.join("..two")).unwrap();
    fs::write(auth.join("..one/10-x.wasm"), component("guests/misbehave-auth")).unwrap();
    fs::write(auth.join("..two/10-x.wasm"), component("plugins/auth-api-keys")).unwrap();
    symlink("..one", auth.join("..data")).unwrap();
    symlink("..data/10-x.wasm", auth.join("10-x.wasm")).unwrap();
    rig.wait("the first volume", |rig| active(rig, "auth/10-x.wasm"));
    let first = rig.status("auth/10-x.wasm").serving;
    symlink("..two", auth.join("..data_tmp")).unwrap();
    fs::rename(auth.join("..data_tmp"), auth.join("..data")).unwrap();
    rig.wait("the second volume", |rig| rig.status("auth/10-x.wasm").serving != first);
}

#[test]
fn notices_directories_that_appear_later() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("later/policy.d");
    let config = camshaft_policy::PolicyConfig {
        dir: Some(dir.clone()),
        allow_empty: true,
        compiler: None,
        poll: NEVER,
        cache_dir: None,
        allow_anonymous: false,
        grants: camshaft_policy::Grants::default(),
    };
    let host = camshaft_policy::PolicyHost::start(config, &prometheus::Registry::new()).unwrap();
    assert!(host.status().is_empty());
    put(&dir, "auth/10-x.wasm", &component("guests/misbehave-auth"));
    let rig = Rig { dir: above, host, metrics: prometheus::Registry::new() };
    rig.wait("the policy in the new directory", |rig| rig.host.current().has_auth());
}

#[test]
fn a_slow_poll_finds_what_no_event_told() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("deep");
    fs::create_dir(&target).unwrap();
    let rig = rig_polling(&[], Duration::from_millis(50));
    fs::create_dir_all(rig.path("auth")).unwrap();
    symlink(elsewhere.path().join("deep/x"), rig.path("auth/10-x.wasm")).unwrap();
    rig.wait("the dangling link to be noticed", |rig| rig.swaps("auth", "rejected") == 1.0);
    // Nothing in a directory that is not watched makes an event.
    fs::write(target.join("x"), component("guests/misbehave-auth")).unwrap();
    rig.wait("the link's new target", |rig| active(rig, "auth/10-x.wasm"));
}
