//! `camshaft model`: what is in the cache of models, without a server. Results go to standard output, progress to standard error.
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use camshaft_core::shown::on_one_line;
use camshaft_registry::{Listing, Outcome, Registry, RegistryError, Request, Source};
use indicatif::{HumanBytes, HumanDuration};

use crate::check::print;
use crate::config::Models;
use crate::error::ServerError;
use crate::pull_progress::{Lines, PullProgress};
use crate::registry;

/// What `camshaft model pull` is given.
#[derive(Debug)]
pub(crate) struct PullArgs {
    pub(crate) source: String,
    pub(crate) sha256: Option<String>,
    pub(crate) name: Option<String>,
}

/// `camshaft model pull`.
pub(crate) fn pull(models: &Models, args: PullArgs) -> Result<(), ServerError> {
    let wrong = |value: &str, why: String| RegistryError::Value { what: "--sha256", value: value.to_owned(), why };
    let parsed = args.sha256.map(|text| text.parse().map_err(|why| wrong(&text, format!("{why}"))));
    let request = Request { source: Source::parse(&args.source)?, sha256: parsed.transpose()?, name: args.name };
    let pulled = registry::open(models)?.pull(&request, &PullProgress::new(Lines::StandardError))?;
    let (held, what) = (
        &pulled.held,
        match pulled.outcome {
            Outcome::Fetched => "pulled",
            Outcome::Current => "is current",
        },
    );
    let mut out = format!("{}: {what}\n", on_one_line(held.name()));
    if let Some(revision) = &pulled.revision {
        let _ = writeln!(out, "  revision {}", on_one_line(revision));
    }
    let _ = writeln!(out, "  sha256 {}\n  bytes {}\n  path {}", held.digest(), held.bytes(), held.path().display());
    print(&out)
}

/// `camshaft model list`.
pub(crate) fn list(models: &Models, json: bool) -> Result<(), ServerError> {
    let listing = registry::open(models)?.list()?;
    if json {
        let text = serde_json::to_string_pretty(&listing);
        let text = text.map_err(|error| ServerError::internal("write the list", error))?;
        return print(&format!("{text}\n"));
    }
    print(&table(&listing))
}

fn table(listing: &Listing) -> String {
    let mut out = String::new();
    let width = listing.models.iter().map(|model| model.name.chars().count()).max().unwrap_or_default().clamp(4, 60);
    if !listing.models.is_empty() {
        let _ = writeln!(out, "{:width$}  {:>10}  {:16}  {:>14}  SHA256", "NAME", "SIZE", "STATE", "LAST USED");
    }
    for model in &listing.models {
        let (name, size) = (on_one_line(&model.name), HumanBytes(model.bytes).to_string());
        let state = if model.in_use { "in use" } else { "idle" };
        let parts =
            if model.files.len() > 1 { format!("{state}, {} files", model.files.len()) } else { state.to_owned() };
        let (used, digest) = (ago(model.last_used), model.sha256.to_string());
        let _ = writeln!(out, "{name:width$}  {size:>10}  {parts:16}  {used:>14}  {}", &digest[..12]);
    }
    for partial in &listing.partials {
        let state = if partial.running { "is being pulled" } else { "torn, the next pull resumes it" };
        let (here, total) = (HumanBytes(partial.bytes), HumanBytes(partial.total));
        let _ = writeln!(out, "{}: {here} of {total}, {state}", partial.directory.display());
    }
    listing.damaged.iter().for_each(|line| {
        let _ = writeln!(out, "damaged: {}", on_one_line(line));
    });
    let _ = writeln!(out, "{}: {} in all", listing.directory.display(), HumanBytes(listing.bytes));
    out
}

fn ago(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{} ago", HumanDuration(Duration::from_secs(now.saturating_sub(seconds))))
}

/// `camshaft model verify`.
pub(crate) fn verify(models: &Models, names: &[String]) -> Result<(), ServerError> {
    let verified = registry::open(models)?.verify(names, &PullProgress::new(Lines::StandardError))?;
    let (mut out, mut count) = (String::new(), 0);
    for one in verified {
        let name = on_one_line(&one.name);
        if one.damage.is_empty() {
            let _ = writeln!(out, "{name}: ok ({} files, {} bytes)", one.files, one.bytes);
            continue;
        }
        count += 1;
        let _ = writeln!(out, "{name}: damaged");
        one.damage.iter().for_each(|line| {
            let _ = writeln!(out, "  {}", on_one_line(line));
        });
    }
    if out.is_empty() {
        out.push_str("no model is cached\n");
    }
    print(&out)?;
    if count > 0 { Err(ServerError::DamagedModels { count }) } else { Ok(()) }
}

/// `camshaft model remove`. Removes what can be, and fails with the first error.
pub(crate) fn remove(models: &Models, names: &[String]) -> Result<(), ServerError> {
    let registry: Registry = registry::open(models)?;
    let (mut out, mut failure) = (String::new(), None);
    for name in names {
        match registry.remove(name) {
            Ok(removed) => {
                let _ = writeln!(out, "{}: removed, {} bytes freed", on_one_line(&removed.name), removed.bytes);
            }
            Err(error) => {
                let _ = writeln!(out, "{error}");
                failure.get_or_insert(error);
            }
        }
    }
    print(&out)?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}
