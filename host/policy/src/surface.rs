//! What a component says of itself, read from its bytes before anything is compiled: the names and versions of what it imports
//! and exports.
use camshaft_core::policy::Hook;
use wasmparser::{BinaryReader, Chunk, ComponentTypeRef, Parser, Payload};

use crate::bindings::export_of;
use crate::error::PolicyError;
use crate::functions::{self, FUNCTIONS, TooMany, Types};
use crate::spec::{HookSpec, spec};
use crate::text::truncated;
use crate::wasi;

/// Every plugin exports it.
const PLUGIN: &str = "camshaft:host/plugin";
const OWN: &str = "camshaft:";
/// Maximum imports, and exports. Components of the largest languages have some sixty.
const NAMES: u32 = 1024;
/// Maximum bytes of one of their names.
const NAME_BYTES: usize = 1024;
/// Maximum sections at the top level of a component.
const SECTIONS: usize = 65_536;

/// The hook that a component serves, and what it needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Surface {
    pub(crate) hook: Hook,
    /// The version of the hook's package that it was built for.
    pub(crate) api_version: String,
    /// Names of the interfaces that it imports.
    pub(crate) imports: Vec<String>,
    /// Names of the interfaces that it exports beside its hook and that the host makes use of.
    pub(crate) exports: Vec<String>,
}

/// Reads the surface of a component that is to serve a hook.
///
/// # Errors
/// It is no component, no policy of this hook, or imports what the hook is not granted, or a function that there is not.
pub(crate) fn of_hook(bytes: &[u8], expected: Hook) -> Result<Surface, PolicyError> {
    let Names { imports, exports, functions } = names(bytes)?;
    let (hook, api_version) = hook(&exports)?;
    if hook != expected {
        return Err(PolicyError::WrongHook { found: hook, expected });
    }
    imports.iter().try_for_each(|import| check_import(import, hook))?;
    functions.iter().try_for_each(|(at, function)| check_function(imports.get(*at), function))?;
    let is_optional = |name: &String| spec(hook).optional_exports.contains(&split(name).0);
    let exports: Vec<String> = exports.into_iter().filter(is_optional).collect();
    exports.iter().try_for_each(|export| check_version(export, spec(hook).version))?;
    Ok(Surface { hook, api_version, imports, exports })
}

#[derive(Debug, Default)]
struct Names<'a> {
    imports: Vec<String>,
    exports: Vec<String>,
    /// Functions of imported interfaces, each with the place of its interface in `imports`.
    functions: Vec<(usize, &'a str)>,
}

/// The names at the top level of a component. What is nested in it is skipped, so that the work is bounded by the sections at the
/// top, and the memory by the names.
fn names(bytes: &[u8]) -> Result<Names<'_>, PolicyError> {
    let corrupt = |error: wasmparser::BinaryReaderError| PolicyError::Corrupt(error.into());
    let too_many = |TooMany| PolicyError::OverLimits(format!("it has more than {FUNCTIONS} imported functions").into());
    let (mut names, mut types) = (Names::default(), Types::default());
    let (mut parser, mut rest, mut sections) = (Parser::new(0), bytes, 0);
    loop {
        let (consumed, payload) = match parser.parse(rest, true).map_err(corrupt)? {
            Chunk::Parsed { consumed, payload } => (consumed, payload),
            Chunk::NeedMoreData(_) => return Err(PolicyError::Cut { size_bytes: bytes.len() }),
        };
        sections += 1;
        if sections > SECTIONS {
            return Err(PolicyError::OverLimits(format!("it has more than {SECTIONS} sections").into()));
        }
        let mut skipped = 0;
        match payload {
            Payload::End(_) => return Ok(names),
            Payload::ModuleSection { unchecked_range: nested, .. }
            | Payload::ComponentSection { unchecked_range: nested, .. } => skipped = nested.len(),
            Payload::ComponentTypeSection(section) => {
                // Where nested sections were skipped, the parser counts less than it is.
                let (len, start) = (section.range().len(), section.range().start);
                let content = consumed.checked_sub(len).and_then(|at| rest.get(at..consumed)).unwrap_or_default();
                types.read(BinaryReader::new(content, start)).map_err(corrupt)?.map_err(too_many)?;
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section {
                    types.aliased(&alias.map_err(corrupt)?);
                }
            }
            Payload::ComponentImportSection(section) => {
                check_count(section.count())?;
                for import in section {
                    let import = import.map_err(corrupt)?;
                    types.imported(&import.ty);
                    if let ComponentTypeRef::Instance(index) = import.ty {
                        let of = types.functions(index);
                        if names.functions.len() + of.len() > FUNCTIONS {
                            return Err(too_many(TooMany));
                        }
                        names.functions.extend(of.iter().map(|function| (names.imports.len(), *function)));
                    }
                    names.imports.push(bounded(import.name.name)?);
                }
            }
            Payload::ComponentExportSection(section) => {
                check_count(section.count())?;
                for export in section {
                    let export = export.map_err(corrupt)?;
                    types.exported(export.kind);
                    names.exports.push(bounded(export.name.name)?);
                }
            }
            _ => {}
        }
        check_count(u32::try_from(names.imports.len().max(names.exports.len())).unwrap_or(u32::MAX))?;
        rest = rest.get(consumed + skipped..).ok_or(PolicyError::Cut { size_bytes: bytes.len() })?;
    }
}

fn bounded(name: &str) -> Result<String, PolicyError> {
    if name.len() <= NAME_BYTES {
        return Ok(name.to_owned());
    }
    let begins = truncated(name, 128);
    Err(PolicyError::OverLimits(
        format!("an import or export has a name of more than {NAME_BYTES} bytes: {begins}").into(),
    ))
}

fn check_count(count: u32) -> Result<(), PolicyError> {
    if count <= NAMES {
        return Ok(());
    }
    Err(PolicyError::OverLimits(format!("it has more than {NAMES} imports or exports").into()))
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
    // Of several versions, that which this host speaks.
    let exported = |interface: &str, spoken: &str| {
        let named = || exports.iter().filter(|name| split(name).0 == interface);
        named().find(|name| same_track(split(name).1, spoken)).or_else(|| named().next())
    };
    let found = |hook| exported(&export_of(hook), spec(hook).version).map(|name| (hook, name));
    let mut hooks = Hook::ALL.into_iter().filter_map(found);
    let (hook, name) = hooks.next().ok_or_else(|| {
        match exports.iter().find(|name| name.starts_with(OWN) && split(name).0 != PLUGIN) {
            Some(other) => PolicyError::UnknownExport { export: other.clone() },
            None => PolicyError::NoHook,
        }
    })?;
    if let Some((second, _)) = hooks.next() {
        return Err(PolicyError::ManyHooks(hook, second));
    }
    check_version(name, spec(hook).version)?;
    let plugin = exported(PLUGIN, HookSpec::HOST).ok_or(PolicyError::MissingExport(PLUGIN, hook))?;
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

/// Whether this host has a function of an interface of its own that is granted. (WASI's functions are found when the plugin is
/// linked.)
fn check_function(import: Option<&String>, function: &str) -> Result<(), PolicyError> {
    let Some(interface) = import.filter(|import| import.starts_with(OWN)) else { return Ok(()) };
    if functions::is_offered(split(interface).0, function) {
        return Ok(());
    }
    Err(PolicyError::MissingFunction { interface: interface.clone(), function: truncated(function, 128).to_owned() })
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

    const HEADER: &[u8] = b"\0asm\x0d\0\x01\0";

    /// A section of this many times the same entry.
    fn section(id: u8, count: usize, entry: &[u8]) -> Vec<u8> {
        let leb = |number: usize| {
            [number as u8 & 0x7f | 0x80, (number >> 7) as u8 & 0x7f | 0x80, (number >> 14) as u8 & 0x7f]
        };
        let body = [leb(count).as_slice(), &entry.repeat(count)].concat();
        [&[id], leb(body.len()).as_slice(), &body].concat()
    }

    #[test]
    fn only_so_many_names_and_sections_are_read() {
        // Instances of the name `a`.
        let imports = |count| [HEADER, &section(10, count, &[0, 1, b'a', 5, 0])].concat();
        assert_eq!(names(&imports(NAMES as usize)).unwrap().imports.len(), NAMES as usize);
        let many = names(&imports(NAMES as usize + 1)).unwrap_err();
        assert!(many.sentence().contains("more than 1024 imports or exports"), "{}", many.sentence());
        let one = section(10, 1, &[0, 1, b'a', 5, 0]);
        let apart = names(&[HEADER, &one.repeat(NAMES as usize + 1)].concat()).unwrap_err();
        assert!(matches!(apart, PolicyError::OverLimits(_)), "{apart:?}");
        let named = |bytes: usize| {
            let entry =
                [&[0, bytes as u8 & 0x7f | 0x80, (bytes >> 7) as u8], "n".repeat(bytes).as_bytes(), &[5, 0]].concat();
            [HEADER, &section(10, 1, &entry)].concat()
        };
        assert_eq!(names(&named(NAME_BYTES)).unwrap().imports[0].len(), NAME_BYTES);
        let long = names(&named(NAME_BYTES + 1)).unwrap_err().sentence();
        assert!(long.contains("a name of more than 1024 bytes: nnn") && long.len() < 300, "{long}");
        // Custom sections without a name. The end counts, too, and the header.
        let sections = |count: usize| [HEADER, &[0, 1, 0].repeat(count)].concat();
        names(&sections(SECTIONS - 2)).unwrap();
        let many = names(&sections(SECTIONS - 1)).unwrap_err();
        assert!(many.sentence().contains("more than 65536 sections"), "{}", many.sentence());
    }

    /// The type of an instance with this many functions of one type, named by their numbers.
    fn functions(count: usize) -> Vec<u8> {
        let leb = |number: usize| [number as u8 & 0x7f | 0x80, (number >> 7) as u8 & 0x7f | 0x80, (number >> 14) as u8];
        let mut out = [&[0x42], leb(count + 1).as_slice(), &[1, 0x40, 0, 1, 0]].concat();
        for number in 0..count {
            out.extend([&[4, 0, 5], format!("f{number:04x}").as_bytes(), &[1, 0]].concat());
        }
        out
    }

    #[test]
    fn only_so_many_functions_are_read_and_past_a_type_that_nests_none() {
        let import = section(10, 1, &[0, 1, b'a', 5, 0]);
        let of = |count| [HEADER, &section(7, 1, &functions(count)), &import].concat();
        let found = |bytes: &[u8]| names(bytes).map(|names| names.functions.len()).map_err(|error| error.sentence());
        assert_eq!(found(&of(3)), Ok(3));
        assert_eq!(found(&of(FUNCTIONS)), Ok(FUNCTIONS));
        assert!(found(&of(FUNCTIONS + 1)).unwrap_err().contains("more than 16384 imported functions"));
        let twice = [of(FUNCTIONS / 2 + 1).as_slice(), &import].concat();
        assert!(found(&twice).unwrap_err().contains("more than 16384 imported functions"));
        // An instance's type in one's, and so on, deeper than any stack.
        let deep = [0x42, 1, 1].repeat(500_000);
        let size = |bytes: usize| {
            [
                bytes as u8 & 0x7f | 0x80,
                (bytes >> 7) as u8 & 0x7f | 0x80,
                (bytes >> 14) as u8 & 0x7f | 0x80,
                (bytes >> 21) as u8,
            ]
        };
        let nested = [HEADER, &[7], size(deep.len() + 1).as_slice(), &[1], &deep, &import].concat();
        assert_eq!(found(&nested), Ok(0));
    }

    #[test]
    fn functions_are_known_by_their_interface() {
        assert!(functions::is_offered("camshaft:auth/context", "[method]call.header"));
        assert!(functions::is_offered("camshaft:host/log", "write"));
        for (interface, function) in
            [("camshaft:auth/context", "header"), ("camshaft:host/log", "get"), ("log", "write")]
        {
            assert!(!functions::is_offered(interface, function), "{interface} {function}");
        }
    }

    #[test]
    fn regression_what_is_nested_is_skipped() {
        // Its header is enough; what is in it is nonsense.
        let nested = [&[4, 12], HEADER, &[0xff, 0xff, 0xff, 0xff]].concat();
        let bytes = [HEADER, &nested, &section(10, 1, &[0, 1, b'a', 5, 0])].concat();
        assert_eq!(names(&bytes).unwrap().imports, ["a"]);
        let bytes = [HEADER, &[4, 12], HEADER].concat();
        let cut = names(&bytes);
        assert!(matches!(cut, Err(PolicyError::Cut { .. } | PolicyError::Corrupt(_))), "{cut:?}");
    }

    #[test]
    fn an_export_that_is_no_hook_is_named_and_of_several_versions_the_right_one_is_taken() {
        let of = |exports: &[&str]| hook(&exports.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let plugin = "camshaft:host/plugin@1.0.0";
        let cache = of(&[plugin, "camshaft:cache/policy@0.1.0"]).unwrap_err().sentence();
        assert!(cache.starts_with("exports camshaft:cache/policy@0.1.0, which is no hook of this host"), "{cache}");
        let both = of(&["camshaft:auth/policy@2.0.0", "camshaft:auth/policy@1.3.0", plugin]).unwrap();
        assert_eq!(both, (Hook::Auth, "1.3.0".to_owned()));
    }

    #[test]
    fn a_component_without_exports_is_no_policy() {
        let nothing = of_hook(b"\0asm\x0d\0\x01\0", Hook::Auth);
        assert!(matches!(nothing, Err(PolicyError::NoHook)), "{nothing:?}");
        let cut = of_hook(b"\0asm\x0d\0\x01\0\x0b\x7f", Hook::Auth);
        assert!(matches!(cut, Err(PolicyError::Corrupt(_))), "{cut:?}");
    }
}
