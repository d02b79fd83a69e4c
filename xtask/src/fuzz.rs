//! `cargo xtask fuzz`: runs the fuzz targets under libFuzzer, one after another, with a table of what they found.
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{self, Done, Failure, cargo, root, say, target};
use crate::setup;

/// Set for the compiler processes that cargo starts through this program.
const COMPILES: &str = "CAMSHAFT_FUZZ_COMPILES";
/// Read by the fuzzer: which target it runs.
const TARGET: &str = "CAMSHAFT_FUZZ_TARGET";
/// Coverage as libFuzzer reads it, and the checks of a debug build. Only our own packages have them, so that
/// dependencies, llama.cpp among them, are shared with the ordinary build.
const FLAGS: [&str; 9] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
    "--cfg=fuzzing",
];
const DEFAULT_MINUTES: u64 = 10;
/// An input that takes longer counts as found.
const INPUT_SECONDS: u32 = 20;
const MEMORY_MIB: u32 = 4096;
const INPUT_BYTES: u32 = 8192;

/// What one target did.
struct Row {
    target: String,
    runs: u64,
    new_entries: usize,
    /// Inputs on which it crashed, hung or took too much memory.
    found: Vec<PathBuf>,
    /// It ended otherwise than well.
    failed: bool,
}

/// `[--minutes N] [TARGET...]`: the time is for all targets together.
pub(crate) fn run(arguments: &[String]) -> Done {
    let (minutes, targets) = parse(arguments)?;
    setup::run()?;
    let fuzzer = build()?;
    let all = targets_of(&fuzzer)?;
    if let Some(unknown) = targets.iter().find(|target| !all.contains(target)) {
        return Err(Failure(format!("there is no fuzz target {unknown:?}, only {}", all.join(", "))));
    }
    let targets = if targets.is_empty() { all } else { targets };
    let seconds = (minutes * 60 / targets.len() as u64).max(1);
    let mut rows = Vec::new();
    for target in &targets {
        say(&format!("fuzzing {target} for {seconds} s"));
        let work = command::target().join("fuzz").join(target);
        rows.push(fuzz(&fuzzer, target, seconds, &work)?);
    }
    report(&rows)
}

fn parse(arguments: &[String]) -> Result<(u64, Vec<String>), Failure> {
    let (mut minutes, mut targets) = (DEFAULT_MINUTES, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--minutes" {
            let number = arguments.next().and_then(|number| number.parse().ok()).filter(|&number| number > 0);
            minutes = number.ok_or_else(|| Failure("--minutes wants a whole number from 1 on".to_owned()))?;
        } else if argument.starts_with('-') {
            return Err(Failure(format!("unknown option {argument:?}: cargo xtask fuzz [--minutes N] [TARGET...]")));
        } else {
            targets.push(argument.clone());
        }
    }
    Ok((minutes, targets))
}

/// Builds the fuzzer, and returns its path.
fn build() -> Result<PathBuf, Failure> {
    say("building the fuzzer");
    // The whole workspace, so that dependencies have the features they have in tests.
    let build = ["build", "--release", "--workspace", "--features", "camshaft-fuzz/libfuzzer", "--bin", "fuzz"];
    let wrapper = std::env::current_exe()?;
    command::run(cargo(&build).env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(COMPILES, "1"))?;
    Ok(target().join("release/fuzz"))
}

/// Becomes the compiler if cargo called this program as one.
pub(crate) fn compile_if_asked() -> Done {
    if std::env::var_os(COMPILES).is_none() {
        return Ok(());
    }
    let mut arguments = std::env::args_os().skip(1);
    let compiler = arguments.next().ok_or_else(|| Failure("no compiler was named".to_owned()))?;
    let arguments: Vec<_> = arguments.collect();
    let mut command = Command::new(compiler);
    command.args(&arguments);
    // Cargo's questions about the compiler name no crate, and build scripts run without libFuzzer.
    let names_crate = arguments.iter().any(|argument| argument == "--crate-name");
    if names_crate && !arguments.iter().any(|argument| argument == "build_script_build") {
        command.args(FLAGS);
    }
    Err(Failure(format!("cannot start the compiler: {}", command.exec())))
}

/// The targets, as the fuzzer lists them.
fn targets_of(fuzzer: &Path) -> Result<Vec<String>, Failure> {
    let output = Command::new(fuzzer).env(TARGET, "").arg("-help=1").output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let list = text.lines().find_map(|line| line.strip_prefix("fuzz targets: "));
    let list = list.ok_or_else(|| Failure(format!("{} lists no targets", fuzzer.display())))?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

/// Runs one target. Corpus, failing inputs and log are kept below `work`.
fn fuzz(fuzzer: &Path, target: &str, seconds: u64, work: &Path) -> Result<Row, Failure> {
    let (corpus, found, log) = (work.join("corpus"), work.join("found"), work.join("log"));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&found)?;
    let (entries_before, found_before) = (files(&corpus)?, files(&found)?);
    let mut command = Command::new(fuzzer);
    command.env(TARGET, target).current_dir(root());
    // New entries go to the first folder.
    command.arg(&corpus).arg(root().join("fuzz/corpus").join(target));
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={INPUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB}")).arg(format!("-max_len={INPUT_BYTES}"));
    command.arg(format!("-artifact_prefix={}/", found.display())).arg("-print_final_stats=1");
    let status = command.stdout(Stdio::null()).stderr(fs::File::create(&log)?).status()?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    let new = |now: Vec<PathBuf>, before: &[PathBuf]| now.into_iter().filter(|file| !before.contains(file)).collect();
    let entries: Vec<PathBuf> = new(files(&corpus)?, &entries_before);
    let found = new(files(&found)?, &found_before);
    if !status.success() {
        say(&format!("{target} ended with {status}; see {}", log.display()));
    }
    let runs = statistic(&text, "number_of_executed_units");
    Ok(Row { target: target.to_owned(), runs, new_entries: entries.len(), found, failed: !status.success() })
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// One of libFuzzer's final statistics; zero if it wrote none.
fn statistic(log: &str, name: &str) -> u64 {
    let prefix = format!("stat::{name}:");
    let value = log.lines().find_map(|line| line.strip_prefix(&prefix));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

fn report(rows: &[Row]) -> Done {
    say("\n| target | runs | new corpus entries | crashes |\n|---|---|---|---|");
    for Row { target, runs, new_entries, found, failed } in rows {
        // A run that fails without an input is one, too.
        let crashes = found.len().max(usize::from(*failed));
        say(&format!("| {target} | {runs} | {new_entries} | {crashes} |"));
    }
    let failed: Vec<&str> = rows.iter().filter(|row| row.failed).map(|row| row.target.as_str()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    for row in rows {
        for input in &row.found {
            say(&format!("{} fails on {}", row.target, input.display()));
        }
    }
    Err(Failure(format!("found something: {}", failed.join(", "))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn takes_minutes_and_targets_and_nothing_else() {
        assert_eq!(parse(&words("gguf --minutes 3 event")).unwrap(), (3, words("gguf event")));
        assert_eq!(parse(&[]).unwrap(), (DEFAULT_MINUTES, Vec::new()));
        for wrong in ["--minutes", "--minutes 0", "--minutes x", "--jobs 3"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    /// What is made of a fuzzer that behaves like this script.
    fn run_script(name: &str, body: &str) -> Row {
        let work = std::env::temp_dir().join(format!("camshaft-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&work).unwrap();
        let fuzzer = work.join("fuzzer");
        fs::write(&fuzzer, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&fuzzer, fs::Permissions::from_mode(0o755)).unwrap();
        let row = fuzz(&fuzzer, "event", 1, &work).unwrap();
        fs::remove_dir_all(&work).unwrap();
        row
    }

    #[test]
    fn a_crash_is_reported_with_its_input() {
        let found = r#"for a; do case $a in -artifact_prefix=*) echo x > "${a#*=}crash-1";; esac; done; exit 77"#;
        let row = run_script("found", found);
        assert!(row.failed && row.found.len() == 1 && row.found[0].ends_with("found/crash-1"), "{:?}", row.found);
        assert!(report(&[row]).is_err());
        let died = run_script("died", "kill -9 $$");
        assert!(died.failed && died.found.is_empty() && report(&[died]).is_err());
    }

    #[test]
    fn counts_runs_and_new_entries() {
        let quiet = r#"echo x > "$1/new"; echo "stat::number_of_executed_units: 42" >&2"#;
        let row = run_script("quiet", quiet);
        assert_eq!((row.runs, row.new_entries, row.found.len(), row.failed), (42, 1, 0, false));
        assert!(report(&[row]).is_ok());
    }
}
