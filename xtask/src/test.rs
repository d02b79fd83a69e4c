//! `cargo xtask test`: everything CI runs.
use crate::command::{self, Done, Failure, cargo, say, succeeds};
use crate::{build, clients, setup, vulkan, wgpu};

pub(crate) fn run(arguments: &[String]) -> Done {
    match arguments {
        [] => {}
        [only] if only == "--vulkan" => return vulkan::test(),
        [only] if only == "--wgpu" => return wgpu::test(),
        [first, suites @ ..] if first == "--clients" => return clients::test(suites),
        other => return Err(Failure(format!("test takes --vulkan, --wgpu or --clients: {other:?}"))),
    }
    setup::run_for_tests()?;
    say("checking format");
    command::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    build::all()?;
    say("testing");
    // What is left out counts as skipped. Long attacks are for `cargo xtask attacks`.
    // Those of a device are for `cargo xtask test --vulkan` and `--wgpu`.
    let mut left_out = vec!["long_attack", "given_vulkan", "given_wgpu"];
    for (name, is_there, why) in [
        ("given_models", std::env::var_os("CAMSHAFT_MODELS").is_some(), "CAMSHAFT_MODELS is not set"),
        ("given_systemd", succeeds("systemd-analyze", &["--version"]), "there is no systemd-analyze"),
        ("given_node", ["node", "npm"].iter().all(|name| succeeds(name, &["--version"])), "there is no Node.js"),
        ("given_cgroup", may_make_control_groups(), "control groups cannot be made here"),
        ("given_mount", may_mount(), "file systems cannot be mounted here"),
    ] {
        if !is_there {
            say(&format!("{why}: tests that need it are named {name} and count as skipped"));
            left_out.push(name);
        }
    }
    // nextest runs tests of all packages in parallel; without it plain cargo runs them.
    let tests = if succeeds("cargo", &["nextest", "--version"]) {
        let filter = left_out.iter().map(|name| format!("not test({name})")).collect::<Vec<_>>().join(" & ");
        let tests =
            command::run(cargo(&["nextest", "run", "--release", "--workspace", "--no-fail-fast", "-E"]).arg(filter));
        let examples = command::run(&mut cargo(&["test", "--release", "--workspace", "--doc", "--quiet"]));
        tests.and(examples)
    } else {
        let skip = left_out.iter().flat_map(|name| ["--skip", name]);
        command::run(cargo(&["test", "--release", "--workspace", "--no-fail-fast", "--"]).args(skip))
    };
    tests.and(lints())
}

/// Clippy comes last: it checks all dependencies again, and an editor has shown most of what it finds.
fn lints() -> Done {
    say("checking lints");
    command::run(&mut cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // The workspace is built without WebGPU, whose libraries are needed only to run.
    let wgpu = ["clippy", "--release", "-p", "camshaft-tensor", "--features", "onnx,wgpu", "--all-targets"];
    command::run(cargo(&wgpu).args(["--", "-D", "warnings"]))
}

/// Whether this process may mount a small file system in memory.
fn may_mount() -> bool {
    let dir = std::env::temp_dir().join(format!("camshaft-mount-{}", std::process::id()));
    let place = dir.to_string_lossy();
    let can = std::fs::create_dir(&dir).is_ok()
        && succeeds("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", &place])
        && succeeds("umount", &[&place]);
    // Without it there is nothing to remove.
    let _ = std::fs::remove_dir(&dir);
    can
}

/// Whether this process may make control groups that bound memory, of either version.
fn may_make_control_groups() -> bool {
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")].iter().any(|(top, bound)| {
        let group = std::path::Path::new(top).join(format!("camshaft-test-{}", std::process::id()));
        let can = std::fs::create_dir(&group).is_ok() && group.join(bound).exists();
        // Without it there is nothing to remove.
        let _ = std::fs::remove_dir(group);
        can
    })
}
