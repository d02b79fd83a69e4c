//! `camshaft config`: what is in force, and what could be written.
use std::fmt::Write as _;

use crate::check::print;
use crate::config::{self, Sources};
use crate::error::ServerError;

/// `camshaft config print`.
pub(crate) fn configuration(sources: &Sources, effective: bool) -> Result<(), ServerError> {
    if !effective {
        let none = "# no configuration file: see `camshaft config print --effective`\n";
        return print(sources.snapshot()?.file.as_deref().unwrap_or(none));
    }
    let mut out: String = sources
        .ignored()
        .iter()
        .map(|name| format!("# ignored: {name}, which Kubernetes sets for a Service\n"))
        .collect();
    for one in sources.snapshot()?.keys {
        let value = one.value.to_string();
        let _ = writeln!(out, "{:<28} = {value:<28} # {}", one.key, one.source);
    }
    print(&out)
}

/// `camshaft config schema`.
pub(crate) fn schema() -> Result<(), ServerError> {
    let text = serde_json::to_string_pretty(&config::schema());
    print(&(text.map_err(|error| ServerError::internal("write the schema", error))? + "\n"))
}
