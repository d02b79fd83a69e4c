//! `camshaft plugin check`: what components are, and whether this host takes them.
use std::fmt::Write as _;
use std::path::PathBuf;

use camshaft_policy::PluginReport;

use crate::check::print;
use crate::error::{BadPlugin, ServerError};
use crate::policies::{cache_dir, compiler};

/// Says what each component is on standard output. What is wrong with the others is the error.
pub(crate) fn plugins(files: &[PathBuf]) -> Result<(), ServerError> {
    let (mut report, mut wrong, mut missing) = (String::new(), Vec::new(), None);
    let cache_dir = cache_dir();
    for file in files {
        if !file.exists() {
            missing.get_or_insert(ServerError::NoFile { path: file.clone() });
            continue;
        }
        match camshaft_policy::inspect(file, cache_dir.as_deref(), compiler()) {
            Ok(found) => describe(&mut report, &found),
            Err(source) => wrong.push(BadPlugin { file: file.clone(), source }),
        }
    }
    print(&report)?;
    match missing {
        _ if !wrong.is_empty() => Err(ServerError::BadPlugins(wrong)),
        Some(missing) => Err(missing),
        None => Ok(()),
    }
}

fn describe(report: &mut String, found: &PluginReport) {
    let _ = writeln!(report, "{}: ok", found.file.display());
    let schema = if found.settings_schema.is_empty() { "none" } else { &found.settings_schema };
    let settings = match (&found.settings_file, &found.needs) {
        (Some(file), _) => format!("{}: ok", file.display()),
        (None, Some(why)) => format!("none, but the plugin refuses to run without: {why}"),
        (None, None) => "none".to_owned(),
    };
    for (what, value) in [
        ("hook", found.hook.to_string()),
        ("api", format!("camshaft:{}@{}", found.hook, found.api_version)),
        ("plugin", format!("{} {}", found.name, found.version)),
        ("size", format!("{} bytes", found.size_bytes)),
        ("sha256", found.sha256.clone()),
        ("imports", found.imports.join(" ")),
        ("also exports", if found.exports.is_empty() { "none".to_owned() } else { found.exports.join(" ") }),
        ("settings file", settings),
        ("mode", found.mode.to_string()),
        ("settings schema", schema.to_owned()),
    ] {
        let _ = writeln!(report, "  {what}: {value}");
    }
}
