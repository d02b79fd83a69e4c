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
        compiler: None,
        poll: NEVER,
        cache_dir: None,
        allow_anonymous: true,
        grants: camshaft_policy::Grants::default(),
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
            compiler: None,
            poll: NEVER,
            cache_dir: Some(cache.clone()),
            allow_anonymous: false,
            grants: camshaft_policy::Grants::default(),
        };
        let host = PolicyHost::start(config, &prometheus::Registry::new()).unwrap();
        assert_eq!(host.status()[0].state, PolicyState::Active);
    };
    start();
    assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
    let files = walk(&cache);
    assert!(files > 0, "something was kept");
    fs::remove_dir_all(&cache).unwrap();
    fs::create_dir(&cache).unwrap();
    start();
    assert_eq!((fs::metadata(&cache).unwrap().mode() & 0o777, walk(&cache) > 0), (0o700, true), "it is made private");
    // Anybody may have put code there.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    let kept = walk(&cache);
    start();
    assert_eq!((fs::metadata(&cache).unwrap().mode() & 0o777, walk(&cache)), (0o777, kept), "it is left alone");
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

/// Puts something at a path.
type Make = fn(&std::path::Path);

#[test]
fn regression_what_is_no_file_is_rejected_and_blocks_nobody() {
    let made: [(&str, Make); 6] = [
        ("pipe", |path| pipe(path)),
        ("socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
        ("folder", |path| fs::create_dir(path).unwrap()),
        ("device", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        ("terminal", |path| std::os::unix::fs::symlink("/dev/tty", path).unwrap()),
        ("sparse", |path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap()),
    ];
    let rig = rig(&[("auth/10-good.wasm", &component("guests/misbehave-auth"))]);
    for (number, (name, make)) in (20..).zip(made) {
        make(&rig.path(&format!("auth/{number}-{name}.wasm")));
        // As the settings of a component, and where a link points at it.
        put(rig.dir.path(), &format!("auth/{}-{name}-settings.wasm", number + 20), &component("guests/misbehave-auth"));
        make(&rig.path(&format!("auth/{}-{name}-settings.toml", number + 20)));
        let link = rig.path(&format!("auth/{}-{name}-link.wasm", number + 40));
        std::os::unix::fs::symlink(format!("{number}-{name}.wasm"), link).unwrap();
    }
    rig.host.reload().unwrap();
    let statuses = rig.host.status();
    assert_eq!(statuses.len(), 1 + 3 * 6, "{statuses:?}");
    for status in statuses.iter().filter(|status| status.name != "good") {
        assert_eq!(status.state, PolicyState::Rejected, "{status:?}");
    }
    assert_eq!(rig.status("auth/10-good.wasm").state, PolicyState::Active);
    for (file, words) in [("20-pipe.wasm", "not a regular file"), ("25-sparse.wasm", "1099511627776 bytes")] {
        let error = rig.error(&format!("auth/{file}"));
        assert!(error.contains(words), "{error}");
    }
    let started = PolicyConfig {
        dir: Some(rig.dir.path().to_path_buf()),
        allow_empty: false,
        compiler: None,
        poll: NEVER,
        cache_dir: None,
        allow_anonymous: false,
        grants: camshaft_policy::Grants::default(),
    };
    let host = PolicyHost::start(started, &prometheus::Registry::new()).unwrap();
    assert!(host.current().has_auth());
    // It waits for the watcher.
    host.stop();
}

fn pipe(path: &std::path::Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}
