//! What a component says of itself, read from its bytes before anything is compiled: the names and versions of what it imports
//! and exports.
use camshaft_core::policy::Hook;
use wasmparser::{Parser, Payload};

use crate::bindings::export_of;
use crate::error::PolicyError;
use crate::spec::{HookSpec, spec};
use crate::wasi;

/// Every plugin exports it.
const PLUGIN: &str = "camshaft:host/plugin";
const OWN: &str = "camshaft:";

/// The hook that a component serves, and what it needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Surface {
    pub(crate) hook: Hook,
    /// The version of the hook's package that it was built for.
    pub(crate) api_version: String,
    /// Names of the interfaces that it imports.
    pub(crate) imports: Vec<String>,
}

/// Reads the surface of a component that is to serve a hook.
///
/// # Errors
/// It is no component, no policy of this hook, or imports what the hook is not granted.
pub(crate) fn of_hook(bytes: &[u8], expected: Hook) -> Result<Surface, PolicyError> {
    let Names { imports, exports } = names(bytes)?;
    let (hook, api_version) = hook(&exports)?;
    if hook != expected {
        return Err(PolicyError::WrongHook { found: hook, expected });
    }
    imports.iter().try_for_each(|import| check_import(import, hook))?;
    Ok(Surface { hook, api_version, imports })
}

#[derive(Debug, Default)]
struct Names {
    imports: Vec<String>,
    exports: Vec<String>,
}

/// The names at the top level of a component.
fn names(bytes: &[u8]) -> Result<Names, PolicyError> {
    let corrupt = |error: wasmparser::BinaryReaderError| PolicyError::Corrupt(error.into());
    let mut names = Names::default();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(corrupt)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            // That of the component itself comes last.
            Payload::End(_) if depth > 0 => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    names.imports.push(import.map_err(corrupt)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    names.exports.push(export.map_err(corrupt)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

/// Splits `camshaft:auth/policy@1.0.0` into `camshaft:auth/policy` and `1.0.0`.
fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

/// Whether a plugin that was built for a version may run where there is another: the same major version, or the same minor
/// version of major version 0. Functions that a newer one has and this one lacks are found when the plugin is linked.
fn same_track(found: &str, spoken: &str) -> bool {
    let track = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u64>().ok());
        let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next()??);
        let _ = patch;
        (parts.next().is_none()).then_some(if major == 0 { (0, Some(minor)) } else { (major, None) })
    };
    track(found).is_some_and(|found| track(spoken) == Some(found))
}

fn check_version(name: &str, spoken: &'static str) -> Result<(), PolicyError> {
    let (interface, version) = split(name);
    if same_track(version, spoken) {
        return Ok(());
    }
    let found = if version.is_empty() { "(no version)" } else { version };
    Err(PolicyError::WrongVersion { interface: interface.to_owned(), found: found.to_owned(), spoken })
}

fn hook(exports: &[String]) -> Result<(Hook, String), PolicyError> {
    let exported = |interface: &str| exports.iter().find(|name| split(name).0 == interface);
    let mut hooks = Hook::ALL.into_iter().filter_map(|hook| exported(&export_of(hook)).map(|name| (hook, name)));
    let (hook, name) = hooks.next().ok_or_else(|| match exports.iter().find(|name| name.starts_with(OWN)) {
        Some(other) => PolicyError::UnknownExport { export: other.clone() },
        None => PolicyError::NoHook,
    })?;
    if let Some((second, _)) = hooks.next() {
        return Err(PolicyError::ManyHooks(hook, second));
    }
    check_version(name, spec(hook).version)?;
    let plugin = exported(PLUGIN).ok_or(PolicyError::MissingExport(PLUGIN, hook))?;
    check_version(plugin, HookSpec::HOST)?;
    Ok((hook, split(name).1.to_owned()))
}

fn check_import(import: &str, hook: Hook) -> Result<(), PolicyError> {
    let (plain, version) = split(import);
    if let Some(grant) = spec(hook).grant(plain) {
        return check_version(import, grant.version);
    }
    if Hook::ALL.into_iter().any(|other| spec(other).grant(plain).is_some()) {
        return Err(PolicyError::NotGrantedToHook { import: plain.to_owned(), hook });
    }
    match plain.strip_prefix("wasi:").map(|name| wasi::INTERFACES.contains(&name)) {
        Some(true) if version.starts_with("0.2.") => Ok(()),
        // Only the version is wrong.
        Some(true) => Err(PolicyError::NotGranted { import: import.to_owned() }),
        _ => Err(PolicyError::NotGranted { import: plain.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_of_one_track_where_nothing_can_have_been_taken_away() {
        for (found, spoken) in [("1.0.0", "1.0.0"), ("1.7.3", "1.0.0"), ("1.0.0", "1.2.0"), ("0.2.9", "0.2.0")] {
            assert!(same_track(found, spoken), "{found} {spoken}");
        }
        for (found, spoken) in [
            ("2.0.0", "1.0.0"),
            ("0.1.0", "1.0.0"),
            ("0.3.0", "0.2.0"),
            ("", "1.0.0"),
            ("1", "1.0.0"),
            ("1.0.0.0", "1.0.0"),
            ("1.0.0-rc", "1.0.0"),
        ] {
            assert!(!same_track(found, spoken), "{found} {spoken}");
        }
    }

    #[test]
    fn a_component_without_exports_is_no_policy() {
        let nothing = of_hook(b"\0asm\x0d\0\x01\0", Hook::Auth);
        assert!(matches!(nothing, Err(PolicyError::NoHook)), "{nothing:?}");
        let cut = of_hook(b"\0asm\x0d\0\x01\0\x0b\x7f", Hook::Auth);
        assert!(matches!(cut, Err(PolicyError::Corrupt(_))), "{cut:?}");
    }
}
