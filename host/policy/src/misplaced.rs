//! Finds files that look like policies but are ignored, because of their place or name, or because there are too many.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use camshaft_core::policy::Hook;

use crate::files::{self, POLICIES_MAX};

/// Ignored files that are named.
const MISPLACED_MAX: usize = 256;
/// Policies are copied file by file, so a younger file may still miss its other half.
const SETTLE: Duration = Duration::from_secs(1);

/// An ignored file, or a directory of such files, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misplaced {
    pub path: PathBuf,
    pub reason: String,
}

/// Finds ignored files in the directory that look like policies. Hidden files (`..data`, `.10-x.wasm.swp`) and files
/// with other extensions do not count. An unreadable directory counts as empty.
pub fn misplaced(dir: &Path) -> Vec<Misplaced> {
    let mut found = Found::default();
    for path in visible(dir) {
        let reason = match name(&path) {
            name if Hook::ALL.iter().any(|hook| hook.as_str() == name) && path.is_dir() => {
                in_hook_directory(&path, &mut found);
                continue;
            }
            name if path.is_dir() => stray_directory(&path, name),
            _ if is_policy_like(&path) => {
                Some(format!("policies lie in the directory of their hook ({})", hook_directories()))
            }
            _ => None,
        };
        found.note(path, reason);
    }
    found.reasons.append(&mut found.folders);
    if found.is_cut {
        found.reasons.insert(dir.to_owned(), format!("it holds more than {MISPLACED_MAX} such files"));
    }
    found.reasons.into_iter().map(|(path, reason)| Misplaced { path, reason }).collect()
}

/// The first of what was found.
#[derive(Debug, Default)]
struct Found {
    reasons: BTreeMap<PathBuf, String>,
    /// Folders of too many policies: as many as there are hooks.
    folders: BTreeMap<PathBuf, String>,
    is_cut: bool,
}

impl Found {
    fn note(&mut self, path: PathBuf, reason: Option<String>) {
        let Some(reason) = reason else { return };
        self.reasons.insert(path, reason);
        if self.reasons.len() > MISPLACED_MAX {
            self.is_cut = true;
            self.reasons.pop_last();
        }
    }
}

/// A directory that belongs to no hook, if its name resembles a hook's or it holds components.
fn stray_directory(path: &Path, name: &str) -> Option<String> {
    let plain = name.to_ascii_lowercase();
    let meant = Hook::ALL.into_iter().find(|hook| plain.starts_with(hook.as_str()));
    match meant {
        Some(hook) => Some(format!("no hook has this name: the directory has to be called {hook}")),
        None if visible(path).any(|file| has_extension(&file, "wasm")) => {
            Some(format!("no hook has this name: the directories of policies are {}", hook_directories()))
        }
        None => None,
    }
}

fn in_hook_directory(dir: &Path, found: &mut Found) {
    let mut policies = 0;
    for path in visible(dir) {
        let reason = if path.is_dir() {
            let holds = visible(&path).any(|file| has_extension(&file, "wasm"));
            holds.then(|| "directories below a hook's are not read".to_owned())
        } else if is_policy_like(&path) {
            misnamed(&path)
        } else {
            None
        };
        policies += usize::from(files::parse(name(&path)).is_some_and(|(_, extension)| extension == "wasm"));
        found.note(path, reason);
    }
    if policies > POLICIES_MAX {
        let past = "policies: the last in file order are left out, unless they serve";
        found.folders.insert(dir.to_owned(), format!("it holds more than {POLICIES_MAX} {past}"));
    }
}

fn misnamed(path: &Path) -> Option<String> {
    let Some((stem, extension)) = files::parse(name(path)) else {
        let lower = name(path).to_ascii_lowercase();
        return Some(if files::parse(&lower).is_some() {
            format!("names of policies are in lower case: {lower}")
        } else {
            "its name is not NN-name.wasm or NN-name.toml: two or more digits, a hyphen, then lower-case letters, digits and \
             hyphens"
                .to_owned()
        });
    };
    let alone = extension == "toml" && !path.with_extension("wasm").exists();
    alone.then(|| format!("these are the settings of {stem}.wasm, which is not there"))
}

/// The entries of a directory that are not hidden.
fn visible(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| !name(path).starts_with(['.', '#']))
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn is_policy_like(path: &Path) -> bool {
    has_extension(path, "wasm") || has_extension(path, "toml")
}

fn hook_directories() -> String {
    Hook::ALL.map(|hook| format!("{hook}/")).join(", ")
}

/// Logs each misplaced file once for as long as it stays.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    logged: BTreeMap<PathBuf, String>,
}

impl Warnings {
    /// Logs new ones, except very recent ones unless `at_once` is set. Returns whether some are left for later.
    pub(crate) fn update(&mut self, found: Vec<Misplaced>, at_once: bool) -> bool {
        let mut later = false;
        let mut logged = BTreeMap::new();
        for Misplaced { path, reason } in found {
            if self.logged.get(&path) != Some(&reason) {
                if !at_once && is_young(&path) {
                    later = true;
                    continue;
                }
                tracing::warn!(path = %path.display(), why = reason, "ignored: policies are not read from there");
            }
            logged.insert(path, reason);
        }
        self.logged = logged;
        later
    }
}

fn is_young(path: &Path) -> bool {
    let written = fs::symlink_metadata(path).and_then(|meta| meta.modified()).ok();
    written.and_then(|written| SystemTime::now().duration_since(written).ok()).is_some_and(|age| age < SETTLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_names_every_policy_that_is_in_the_wrong_place_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let misplaced_files = [
            ("10-x.wasm", "directory of their hook"),
            ("x.toml", "directory of their hook"),
            ("samplers", "called sampler"),
            ("Validator", "called validator"),
            ("other", "directories of policies are auth/"),
            ("auth/10-X.wasm", "lower case: 10-x.wasm"),
            ("auth/20-y.WASM", "lower case: 20-y.wasm"),
            ("auth/30-alone.toml", "settings of 30-alone.wasm"),
            ("auth/keys.wasm", "NN-name.wasm"),
            ("auth/1-z.toml", "NN-name.wasm"),
            ("auth/deeper", "not read"),
        ];
        let files =
            ["10-x.wasm", "x.toml", "samplers/10-x.wasm", "Validator/10-x.toml", "other/y.wasm", "auth/10-X.wasm"];
        let more = ["auth/20-y.WASM", "auth/30-alone.toml", "auth/keys.wasm", "auth/1-z.toml", "auth/deeper/10-x.wasm"];
        let right =
            ["auth/40-x.wasm", "auth/40-x.toml", "README.md", "notes/README", "auth/.50-x.wasm.swp", "auth/50-x.wasm~"];
        let hidden = ["auth/..data/10-x.wasm", "auth/.hidden.wasm", "auth/#60-x.wasm#", "scheduler/10-f.wasm"];
        for file in files.iter().chain(&more).chain(&right).chain(&hidden) {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = misplaced(dir.path());
        let mut expected: Vec<PathBuf> = misplaced_files.iter().map(|(file, _)| dir.path().join(file)).collect();
        expected.sort();
        assert_eq!(found.iter().map(|found| found.path.clone()).collect::<Vec<_>>(), expected);
        for (file, words) in misplaced_files {
            let of = found.iter().find(|found| found.path == dir.path().join(file)).unwrap();
            assert!(of.reason.contains(words), "{file}: {}", of.reason);
        }
        assert!(misplaced(&dir.path().join("missing")).is_empty());
    }

    #[test]
    fn names_a_bounded_number_of_files_and_a_folder_of_too_many_policies() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sampler");
        fs::create_dir(&folder).unwrap();
        let put = |file: String| fs::write(folder.join(file), "").unwrap();
        let reasons = || misplaced(dir.path()).into_iter().map(|found| found.reason).collect::<Vec<_>>();
        (0..POLICIES_MAX).for_each(|number| put(format!("{number:03}-s.wasm")));
        assert_eq!(reasons(), [""; 0]);
        put("999-s.wasm".to_owned());
        assert!(matches!(&reasons()[..], [one] if one.contains("more than 256 policies")), "{:?}", reasons());
        let begins = |with: &str| reasons().iter().filter(|reason| reason.contains(with)).count();
        (0..MISPLACED_MAX).for_each(|number| put(format!("x{number}.wasm")));
        assert_eq!((reasons().len(), begins("more than 256 policies")), (MISPLACED_MAX + 1, 1), "at the bound");
        put("x.wasm".to_owned());
        let found = misplaced(dir.path());
        assert_eq!(found.len(), MISPLACED_MAX + 2);
        assert!(found[0].path == dir.path() && found[0].reason.contains("more than 256 such files"), "{:?}", found[0]);
        // What comes first is no reason to leave it out.
        fs::create_dir(dir.path().join("auth")).unwrap();
        (0..=MISPLACED_MAX).for_each(|number| fs::write(dir.path().join(format!("auth/x{number}.wasm")), "").unwrap());
        assert_eq!(begins("more than 256 policies"), 1);
    }

    #[test]
    fn logs_once_for_as_long_as_it_stays() {
        let mut warnings = Warnings::default();
        let one = || vec![Misplaced { path: "/nowhere/x.wasm".into(), reason: "why".to_owned() }];
        assert!(!warnings.update(one(), true));
        assert_eq!(warnings.logged.len(), 1);
        assert!(!warnings.update(Vec::new(), true));
        assert!(warnings.logged.is_empty(), "when it comes again it is news again");
    }
}
