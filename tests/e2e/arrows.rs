//! Checks the dependencies of packages, as cargo reports them, and of their folders, as the paths in their files show them,
//! against ARCHITECTURE.md.
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use camshaft_tests::repository;
use files::graph;
use serde_json::Value;

#[test]
fn packages_depend_on_each_other_only_as_drawn() {
    let packages = packages();
    let all: BTreeSet<&str> = packages.iter().map(name).collect();
    for package in &packages {
        let here: BTreeSet<&str> = dependencies(package).filter(|name| all.contains(name)).collect();
        let (allowed, in_tests) = (allowed(package), allowed_in_tests(package));
        let tests = test_dependencies(package);
        let fits = |name: &str| allowed.contains(&name) || (tests.contains(name) && in_tests.contains(&name));
        let wrong: Vec<_> = here.iter().filter(|name| !fits(name)).collect();
        assert!(wrong.is_empty(), "{} depends on {wrong:?}; it may depend on {allowed:?}", name(package));
    }
    let server = packages.iter().find(|package| name(package) == "camshaft").expect("there is a server");
    let server: BTreeSet<&str> = dependencies(server).collect();
    let parts = ["core", "engine", "policy", "registry", "tensor", "api", "process", "reader"];
    for part in parts {
        assert!(server.contains(&*format!("camshaft-{part}")), "the server is not made of {part}");
    }
}

/// Packages of the workspace on which this one may depend, in any way.
fn allowed(package: &Value) -> &'static [&'static str] {
    match folder(package).as_str() {
        "host/core" | "host/process" | "sdk/rust" | "xtask" => &[],
        "host/engine" | "host/policy" | "host/registry" | "host/tensor" | "host/template" => &["camshaft-core"],
        "host/reader" => &["camshaft-core", "camshaft-template"],
        "host/api" => &["camshaft-core", "camshaft-template", "camshaft-reader"],
        "host/server" => &[
            "camshaft-core",
            "camshaft-engine",
            "camshaft-policy",
            "camshaft-registry",
            "camshaft-tensor",
            "camshaft-api",
            "camshaft-process",
            "camshaft-reader",
        ],
        "tests" => &["camshaft"],
        "fuzz" => &["camshaft-core", "camshaft-engine", "camshaft-policy", "camshaft-api", "camshaft"],
        folder if folder.starts_with("plugins/") => &["camshaft-plugin"],
        // The bad guests share the package with their misbehaviours.
        folder if folder.starts_with("tests/guests/") => &["camshaft-plugin", "misbehave"],
        other => panic!("{} lies in {other}, of which the drawing says nothing", name(package)),
    }
}

/// Packages of the workspace on which only the tests of this one may depend, besides those of [`allowed`].
fn allowed_in_tests(package: &Value) -> &'static [&'static str] {
    match folder(package).as_str() {
        // The shipped schedulers run in their native builds against a real pool and real workers.
        "host/policy" => &[
            "camshaft-plugin",
            "scheduler-fair",
            "scheduler-fcfs",
            "scheduler-least-loaded",
            "scheduler-memory-aware",
            "scheduler-priority",
            "scheduler-round-robin",
            "scheduler-shortest-first",
        ],
        _ => &[],
    }
}

/// [`files`] says what counts as a use, and what a folder is.
#[test]
fn no_folders_of_a_package_use_each_other_in_a_circle() {
    let (mut seen, mut circles) = (0, Vec::new());
    for package in packages() {
        let folder = folder(&package);
        if !["host/", "sdk/", "plugins/", "xtask"].iter().any(|part| folder.starts_with(part)) {
            continue;
        }
        for root in roots(&package) {
            let graph = graph(Path::new(&root));
            seen += graph.len();
            circles.extend(files::circles(&files::folders(&graph)).into_iter().map(|circle| (folder.clone(), circle)));
        }
    }
    assert!(circles.is_empty(), "folders that use each other in a circle: {circles:#?}");
    assert!(seen > 150, "only {seen} files were looked at");
}

#[test]
fn the_layers_of_the_api_use_only_those_below_them() {
    let graph = graph(&repository().join("host/api/src/lib.rs"));
    let layer = |file: &str| ["wire", "flow", "http"].iter().position(|layer| file.starts_with(layer));
    for (file, used) in &graph {
        let above = |other: &&String| layer(file).is_some_and(|here| layer(other).is_none_or(|there| there > here));
        let wrong: Vec<_> = used.iter().filter(above).collect();
        assert!(wrong.is_empty(), "{file} uses {wrong:?}, which lies above it");
    }
    assert!(["wire/", "flow/", "http/"].iter().all(|layer| graph.keys().any(|file| file.starts_with(layer))));
}

#[test]
fn the_core_knows_no_runtime_no_guest_and_no_engine() {
    let packages = packages();
    let core = packages.iter().find(|package| name(package) == "camshaft-core").expect("there is a core");
    let banned = ["tokio", "wasmtime", "llama-cpp-sys-2", "axum", "hyper", "notify", "crossbeam-channel"];
    let wrong: Vec<_> = dependencies(core).filter(|name| banned.contains(name)).collect();
    assert!(wrong.is_empty(), "camshaft-core depends on {wrong:?}");
}

/// A crate that has other features in a build of the server alone is compiled twice, with everything that depends on it.
#[test]
fn the_server_alone_is_built_with_the_same_dependencies_as_the_workspace() {
    let built = [
        ("normal,build", &["-p", "camshaft"][..]),
        ("normal,build", &["-p", "camshaft", "--features", "burn,onnx"]),
        ("normal,build", &["--workspace"]),
        ("normal,build,dev", &["--workspace"]),
    ];
    let [server, with_tensors, workspace, tests] = built.map(|(edges, selection)| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let tree = ["tree", "--offline", "--edges", edges, "--prefix", "none", "--format", "{p}|{f}"];
        let output =
            Command::new(cargo).args(tree).args(selection).current_dir(repository()).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut features: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (package, on) in String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.split_once('|')) {
            // Ours come with a path.
            if !package.contains('/') {
                features.entry(package.to_owned()).or_default().insert(on.replace(" (*)", ""));
            }
        }
        features
    });
    for (server, all) in
        [(&server, &workspace), (&server, &tests), (&with_tensors, &workspace), (&with_tensors, &tests)]
    {
        let differs = |(name, on): &(&String, &BTreeSet<String>)| !all.get(*name).is_some_and(|all| on.is_subset(all));
        let wrong: Vec<_> = server.iter().filter(differs).map(|(name, on)| (name, on, all.get(name))).collect();
        assert!(server.len() > 200, "only {} packages", server.len());
        assert!(wrong.is_empty(), "add these features in host/server/Cargo.toml or host/tensor/Cargo.toml: {wrong:#?}");
    }
}

#[test]
fn every_package_has_the_same_licence() {
    for package in packages() {
        assert_eq!(package["license"], "Apache-2.0", "{}", name(&package));
    }
}

#[test]
fn unsafe_code_is_forbidden_everywhere_but_in_the_engine_and_where_compiled_code_is_loaded() {
    for (package, files) in [("policy", &["code.rs"][..]), ("process", &["fork.rs", "memory.rs"])] {
        let folder = repository().join("host").join(package).join("src");
        let speaks = |file: &String| {
            let source = std::fs::read_to_string(folder.join(file)).expect("a file can be read");
            let (allowed, blocks) = (source.contains("unsafe_code"), source.matches("unsafe {").count());
            (allowed || blocks > 0).then(|| (file.clone(), blocks))
        };
        let allowed: BTreeMap<String, usize> = graph(&folder.join("lib.rs")).keys().filter_map(speaks).collect();
        let expected = files.iter().map(|file| (*file, 1)).chain([("lib.rs", 0)]);
        assert_eq!(allowed, expected.map(|(file, blocks)| (file.to_owned(), blocks)).collect());
    }
    let mut seen = 0;
    for package in packages() {
        if folder(&package) == "host/engine" {
            continue;
        }
        for path in roots(&package) {
            let source = std::fs::read_to_string(&path).expect("a root can be read");
            // The SDK's macros and libFuzzer's expand to exports, which contain generated `unsafe`.
            // Policy's denies it, and one file expects it.
            let denied = ["sdk/rust", "fuzz", "host/policy", "host/process"].contains(&folder(&package).as_str())
                && source.contains("#![deny(unsafe_code)]");
            assert!(denied || source.contains("#![forbid(unsafe_code)]"), "{path} does not forbid unsafe code");
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} crate roots were looked at");
}

/// The root files of a package's libraries and binaries.
fn roots(package: &Value) -> Vec<String> {
    let kinds = ["lib", "rlib", "cdylib", "bin"];
    let targets = package["targets"].as_array().expect("a package has targets").iter();
    let targets = targets.filter(|target| kinds.iter().any(|kind| target["kind"][0] == *kind));
    targets.map(|target| target["src_path"].as_str().expect("a target has a root").to_owned()).collect()
}

fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(repository()).output().expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("there are packages").clone();
    assert!(packages.len() > 10, "only {} packages", packages.len());
    packages
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a package has a name")
}

fn dependencies(package: &Value) -> impl Iterator<Item = &str> {
    package["dependencies"].as_array().into_iter().flatten().filter_map(|dependency| dependency["name"].as_str())
}

/// Dependencies of a package's tests only.
fn test_dependencies(package: &Value) -> BTreeSet<&str> {
    let list = || package["dependencies"].as_array().into_iter().flatten();
    let of_kind = |tests| {
        let kind = move |dependency: &&Value| (dependency["kind"] == "dev") == tests;
        list().filter(kind).filter_map(|dependency| dependency["name"].as_str()).collect::<BTreeSet<&str>>()
    };
    of_kind(true).difference(&of_kind(false)).copied().collect()
}

/// The folder of a package, relative to the root.
fn folder(package: &Value) -> String {
    let manifest = Path::new(package["manifest_path"].as_str().expect("a package has a manifest"));
    let root = repository().canonicalize().expect("the root is there");
    let folder = manifest.parent().and_then(|dir| dir.strip_prefix(&root).ok()).expect("a package lies below the root");
    folder.to_string_lossy().into_owned()
}
