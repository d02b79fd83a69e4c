//! `camshaft check` and `camshaft plugin check`: the verdict without serving.
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use crate::config::Config;
use crate::error::ServerError;
use crate::weights::Engines;

/// Loads every model and examines every policy, says what it found, and fails with the worst of it.
pub(crate) fn configuration(config: &Config) -> Result<(), ServerError> {
    let mut report = String::from("configuration: ok\n");
    let mut failure = None;
    for model in &config.models {
        let tried = Engines::Llama.load(model, false).and_then(|weights| weights.try_out().map(|()| weights.info()));
        match tried {
            Ok(info) => {
                let (name, kind, parameters) = (&info.name, info.kind, info.parameters);
                let _ = writeln!(report, "model {}: ok ({name}, {kind}, {parameters} parameters)", model.id);
            }
            Err(error) => {
                let _ = writeln!(report, "model {}: {error}", model.id);
                failure.get_or_insert(error);
            }
        }
    }
    if config.policy.dir.is_dir() {
        let dir = &config.policy.dir;
        let statuses = camshaft_policy::check_dir(dir).map_err(|error| ServerError::BadData(error.to_string()))?;
        for status in statuses {
            let verdict = status.error.as_deref().unwrap_or(status.state.as_str());
            let _ = writeln!(report, "policy {}/{}: {verdict}", status.hook, status.file);
            if let Some(error) = &status.error {
                failure.get_or_insert(ServerError::BadData(format!("policy {}/{}: {error}", status.hook, status.file)));
            }
        }
    } else {
        let _ = writeln!(report, "policies: no directory {}; native defaults serve", config.policy.dir.display());
    }
    print(&report)?;
    failure.map_or(Ok(()), Err)
}

/// Says what each component is; fails if one cannot serve.
pub(crate) fn plugins(files: &[PathBuf]) -> Result<(), ServerError> {
    let mut report = String::new();
    let mut failure = None;
    for file in files {
        if !file.is_file() {
            failure.get_or_insert(ServerError::MissingInput { path: file.clone(), why: "no such file".to_owned() });
            continue;
        }
        match camshaft_policy::inspect(file) {
            Ok(found) => {
                describe(&mut report, &found);
            }
            Err(error) => {
                let _ = writeln!(report, "{}: {error}", file.display());
                failure.get_or_insert(ServerError::BadData(format!("{}: {error}", file.display())));
            }
        }
    }
    print(&report)?;
    failure.map_or(Ok(()), Err)
}

fn describe(report: &mut String, found: &camshaft_policy::PluginReport) {
    let _ = writeln!(report, "{}: ok", found.file.display());
    let schema = if found.settings_schema.is_empty() { "none" } else { &found.settings_schema };
    for (what, value) in [
        ("hook", found.hook.to_string()),
        ("api", format!("camshaft:policy@{}", found.api_version)),
        ("plugin", format!("{} {}", found.name, found.version)),
        ("size", format!("{} bytes", found.size_bytes)),
        ("sha256", found.sha256.clone()),
        ("imports", found.imports.join(" ")),
        ("settings", schema.to_owned()),
    ] {
        let _ = writeln!(report, "  {what}: {value}");
    }
}

pub(crate) fn print(text: &str) -> Result<(), ServerError> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| ServerError::internal("write to standard output", error))
}
