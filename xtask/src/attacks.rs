//! `cargo xtask attacks`: runs every attack on the server one by one, and prints a table of what they found.
use crate::command::{self, Done, Failure, cargo, say, target};
use crate::{build, setup};

/// `names` select attacks whose names contain one of them.
pub(crate) fn run(names: &[String]) -> Done {
    setup::run_for_tests()?;
    build::all()?;
    let table = target().join("attacks.md");
    match std::fs::remove_file(&table) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure(format!("{}: {error}", table.display())));
        }
        _ => {}
    }
    let attacks = ["test", "--release", "--workspace", "--test", "attacks", "--"];
    // One by one: some measure memory or time.
    let options = ["--test-threads", "1"];
    let done = command::run(cargo(&attacks).args(options).args(names).env("CAMSHAFT_ATTACKS", &table));
    // Those that need to look inside.
    let inside = ["test", "--release", "--workspace", "--test", "policies", "--", "long_attack"];
    let done = done.and_then(|()| command::run(cargo(&inside).args(options)));
    let rows = std::fs::read_to_string(&table).unwrap_or_default();
    say(&format!("\n| attack | found | took |\n|---|---|---|\n{rows}"));
    done
}
