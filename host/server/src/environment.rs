//! What libraries read from the environment before `main`, where their own defaults do not suit a server: its processes are started
//! with it.
//!
//! llama.cpp's threads meet after each operation, a few hundred times a token, by way of libgomp. By default libgomp waits in a
//! loop for some milliseconds before it sleeps. Where something else runs on the same cores, the thread that all wait for often
//! has none, because another one waits on it. A shorter wait helps there; one that is too short costs many streams their speed
//! (`docs/benchmarks.md`, "Threads that meet").
//!
//! mimalloc reserves a GiB of addresses at a time. Processes that compile components and that read are bounded by their addresses: what
//! is reserved there and not used would be allowed for nothing.
/// A variable, its value, and those that decide as well where somebody has set one of them.
struct Variable {
    name: &'static str,
    value: &'static str,
    other: Option<&'static str>,
}

const VARIABLES: [Variable; 3] = [
    // Rounds of the loop: the fewest that cost nothing where the cores are free.
    Variable { name: "GOMP_SPINCOUNT", value: "10000", other: Some("OMP_WAIT_POLICY") },
    // And 1,000 of them, not 100, where the models of the process together have more threads than there are cores.
    Variable { name: "OMP_WAIT_POLICY", value: "active", other: None },
    Variable { name: "MIMALLOC_ARENA_RESERVE", value: "32M", other: None },
];

/// With one of these, somebody says where the threads that compute run.
const PLACES: [&str; 3] = ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"];

/// Whether libgomp is told where the threads that compute run.
pub(crate) fn places_threads() -> bool {
    PLACES.iter().any(|name| std::env::var_os(name).is_some())
}

/// The variable, if one is set, by which libgomp starts fewer threads than it is asked for.
pub(crate) fn lessens_threads() -> Option<&'static str> {
    let is_dynamic = std::env::var("OMP_DYNAMIC").is_ok_and(|value| value.trim().eq_ignore_ascii_case("true"));
    let is_limited = std::env::var_os("OMP_THREAD_LIMIT").is_some();
    if is_dynamic { Some("OMP_DYNAMIC") } else { is_limited.then_some("OMP_THREAD_LIMIT") }
}

/// What nobody has chosen: a process is started with it, beside what there is.
pub(crate) fn missing() -> Vec<(&'static str, &'static str)> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let is_missing = |one: &&Variable| !is_set(one.name) && !one.other.is_some_and(is_set);
    VARIABLES.iter().filter(is_missing).map(|one| (one.name, one.value)).collect()
}
