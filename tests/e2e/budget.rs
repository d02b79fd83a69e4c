//! Memory that a control group bounds: sizes that fit are chosen, it is said what does not, and load takes no more.
use std::fs;
use std::path::{Path, PathBuf};

use camshaft_tests::Setup;
use serde_json::json;

const GIB: u64 = 1 << 30;

/// A control group with a bound on memory, below the one of this process.
struct Group {
    dir: PathBuf,
    /// Of the first version: its files have other names.
    is_first: bool,
}

impl Group {
    fn new(bytes: u64) -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = |controller: &str| {
            let of = own.lines().filter_map(|line| line.split_once(':')).filter_map(|(_, rest)| rest.split_once(':'));
            of.filter(|(name, _)| *name == controller).map(|(_, path)| path.trim_start_matches('/').to_owned()).next()
        };
        let is_first = path("memory").is_some();
        let top = if is_first { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
        // A container may see only its own part of the tree, as if it were all.
        let seen = Path::new(top).join(path(if is_first { "memory" } else { "" }).unwrap_or_default());
        let above = if seen.is_dir() { seen } else { top.into() };
        let group = Self { dir: above.join(format!("camshaft-test-{bytes}-{}", std::process::id())), is_first };
        fs::create_dir(&group.dir).expect("root may make control groups");
        let bound = if is_first { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(group.dir.join(bound), bytes.to_string()).unwrap();
        group
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.dir.join(file)).unwrap().trim().parse().unwrap()
    }

    /// A number of a file of many.
    fn among(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.dir.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |number| number.trim().parse().unwrap())
    }

    /// The most it took at once, in bytes; how often it was refused more; and bytes that were swapped out.
    fn use_of_memory(&self) -> (u64, u64, u64) {
        match self.is_first {
            true => (
                self.number("memory.max_usage_in_bytes"),
                self.number("memory.failcnt"),
                self.among("memory.stat", "swap"),
            ),
            false => (
                self.number("memory.peak"),
                self.among("memory.events", "max") + self.among("memory.events", "oom_kill"),
                self.number("memory.swap.current"),
            ),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It stays if something still runs in it.
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn given_cgroup_of_two_gib_a_model_that_wants_more_gets_what_fits_and_survives_load() {
    let group = Group::new(2 * GIB);
    let enter = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.dir.display());
    let wishes = "[[model]]\nid = \"demo\"\ncontext-tokens = 16777216\nsequences = 16\n[cache]\nram = \"8GiB\"\n";
    let mut server = Setup::new().config(wishes).started_by(&["/bin/sh", "-c", &enter]).start();
    let log = server.settled_log();
    for row in ["memory available ", "demo: weights ", "demo: KV cache ", "demo: batches ", "prefix cache ", "left "] {
        assert!(log.contains(&format!("memory: {row}")), "{row} in {log}");
    }
    assert!(log.contains("context-tokens = 16777216 is more than its 16 sequences can use"), "{log}");
    assert!(
        log.contains("cache.ram = 8.0 GiB is cut to ") || log.contains("cache.ram = 8192.0 MiB is cut to "),
        "{log}"
    );
    // More prefixes than the cache has room for, while all sequences are in use.
    std::thread::scope(|scope| {
        for client in 0..24 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..4 {
                    let words = format!("story {client} of round {round} ").repeat(110);
                    let body = json!({"model": "demo", "prompt": words, "max_tokens": 8, "ignore_eos": true});
                    let answer = server.client.post("/v1/completions", &body);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                }
            });
        }
    });
    let (most, refused, swapped) = group.use_of_memory();
    assert!(most > GIB / 4 && most <= 2 * GIB, "{most}");
    assert_eq!((refused, swapped), (0, 0), "{most}");
    server.assert_runs();
    assert_eq!(server.client.get("/readyz").status, 200);
    drop(server);
}

#[test]
fn given_cgroup_of_two_gib_models_without_room_for_both_take_turns_and_do_not_thrash() {
    /// How long a model stays that has just come.
    const RESIDENCE: u64 = 10;
    let group = Group::new(2 * GIB);
    let enter = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.dir.display());
    let model = |id: &str| {
        format!(
            "[[model]]\nid = \"{id}\"\nload = \"on-demand\"\nworkers = 32\nsequences = 32\ncontext-tokens = 32768\nthreads = 1\n"
        )
    };
    let config = format!("{}{}[cache]\nram = \"0\"\n", model("a"), model("b"));
    let mut server = Setup::new().config(&config).started_by(&["/bin/sh", "-c", &enter]).start();
    let begun = std::time::Instant::now();
    let ask = |id: &str| {
        let body = json!({"model": id, "prompt": "Once", "max_tokens": 4, "ignore_eos": true});
        server.client.post("/v1/completions", &body).status
    };
    for round in 0..2 {
        for id in ["a", "b"] {
            assert_eq!(ask(id), 200, "{id} in round {round}");
        }
    }
    let passed = begun.elapsed().as_secs();
    let operations = server.admin.get("/admin/operations").json();
    let of = |what: &str| {
        let operations = operations["operations"].as_array().expect("a list").iter();
        operations.filter(|operation| operation["operation"] == what).count() as u64
    };
    let (loads, sleeps) = (of("load"), of("sleep"));
    assert!(sleeps > 0 && loads > sleeps, "there is no room for both: {operations}");
    assert!(loads <= passed / RESIDENCE + 2, "{loads} loads in {passed} s: {operations}");
    let states = server.client.get("/healthz").json();
    assert_eq!((&states["models"]["a"], &states["models"]["b"]), (&json!("asleep"), &json!("ready")), "{states}");
    let (_, refused, _) = group.use_of_memory();
    assert_eq!(refused, 0);
    server.assert_runs();
    drop(server);
}
