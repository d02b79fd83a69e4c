//! What lies in a policy directory besides policies, and the cache of compiled code beside it.
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use camshaft_core::policy::{Policies, PolicyState};
use camshaft_policy::{PolicyConfig, PolicyHost};

use crate::rig::{NEVER, component, put, rig};

#[test]
fn leaves_other_peoples_files_alone() {
    let good = component("guests/misbehave-auth");
    let rig = rig(&[
        ("auth/.10-x.wasm.swp", &good),
        ("auth/10-x.wasm~", &good),
        ("auth/x.wasm", &good),
        ("auth/README", b"hello"),
        ("auth/30-alone.toml", b"not even toml"),
        ("10-x.wasm", &good),
        ("other/10-x.wasm", &good),
    ]);
    assert!(rig.host.status().is_empty());
    assert!(!rig.host.current().has_auth());
}

#[test]
fn an_unreadable_directory_is_no_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("auth"), "in the way").unwrap();
    let config = PolicyConfig {
        dir: Some(dir.path().to_path_buf()),
        allow_empty: true,
        poll: NEVER,
        cache_dir: None,
        allow_anonymous: true,
    };
    let error = PolicyHost::start(config, &prometheus::Registry::new()).unwrap_err().to_string();
    assert!(error.contains("auth"), "{error}");
}

#[test]
fn compiled_code_is_kept_where_nobody_else_can_write() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    put(&dir.path().join("policy.d"), "auth/10-x.wasm", &component("guests/misbehave-auth"));
    let start = || {
        let config = PolicyConfig {
            dir: Some(dir.path().join("policy.d")),
            allow_empty: true,
            poll: NEVER,
            cache_dir: Some(cache.clone()),
            allow_anonymous: false,
        };
        let host = PolicyHost::start(config, &prometheus::Registry::new()).unwrap();
        assert_eq!(host.status()[0].state, PolicyState::Active);
    };
    start();
    assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
    let files = walk(&cache);
    assert!(files > 0, "something was kept");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    start();
    assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
}

fn walk(dir: &std::path::Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walk(&path) } else { 1 }).sum()
}

#[test]
fn a_status_is_written_in_lower_case_words() {
    let rig = rig(&[
        ("scheduler/10-first.wasm", &component("plugins/scheduler-fcfs")),
        ("scheduler/20-second.wasm", &component("plugins/scheduler-fcfs")),
        ("sampler/10-off.wasm", &component("plugins/sampler-standard")),
        ("sampler/10-off.toml", b"[policy]\nmode = \"off\""),
        ("validator/10-bad.wasm", b""),
    ]);
    let json = serde_json::to_value(rig.host.status()).unwrap();
    let words = |key: &str| json.as_array().unwrap().iter().map(|status| status[key].clone()).collect::<Vec<_>>();
    assert_eq!(words("hook"), ["validator", "scheduler", "scheduler", "sampler"]);
    assert_eq!(words("mode"), ["enforce", "enforce", "enforce", "off"]);
    assert_eq!(words("state"), ["rejected", "standby", "active", "off"]);
}
