//! What the process does that compiles one component for another process, see [`crate::sandbox`].
use std::io::{self, Read, Write};
use std::path::Path;

use camshaft_core::policy::Hook;
use rustix::process::setpriority_process;

use crate::addresses::Addresses;
use crate::engine::CODE_MAX_BYTES;
use crate::error::{PolicyError, with_causes};
use crate::examine;
use crate::files::COMPONENT_MAX_BYTES;
use crate::process::{ProcessBounds, bound_this_process};
use crate::sandbox::{NOT_KEPT, OVER_LIMITS, PANICKED, REFUSED, UNFIT, WRONG_HOOK};

/// How much less it asks of the CPU than those that serve.
const NICE: i32 = 10;
/// Exit code where the component is not to blame.
const FAILED: u8 = 74;

/// What the other process does: compiles the component on standard input, which is to be a policy of the hook, for a server
/// with so many addresses, and keeps its code in the directory. Says on standard error why there is none. Returns the exit code.
pub fn compile_here(cache_dir: &Path, hook: Hook, addresses: Addresses, bounds: ProcessBounds) -> u8 {
    let bounded = bound_this_process(bounds).and_then(|()| Ok(setpriority_process(None, NICE)?));
    let mut bytes = Vec::new();
    let read = bounded.and_then(|()| io::stdin().lock().take(COMPONENT_MAX_BYTES + 1).read_to_end(&mut bytes));
    let compiled = read.map(|_| examine::compile_into(cache_dir, hook, &bytes, (CODE_MAX_BYTES, addresses)));
    let (code, said): (u8, String) = match compiled {
        Ok(Ok(())) => return 0,
        Ok(Err(PolicyError::Corrupt(cause))) => (REFUSED, cause.to_string()),
        Ok(Err(PolicyError::OverLimits(cause))) => (OVER_LIMITS, with_causes(&*cause)),
        Ok(Err(PolicyError::WrongHook { found, .. })) => (WRONG_HOOK, found.to_string()),
        Ok(Err(PolicyError::CompilerPanic)) => (PANICKED, String::new()),
        Ok(Err(PolicyError::CodeNotKept { source, .. })) => (NOT_KEPT, source.to_string()),
        Ok(Err(error @ (PolicyError::Cache { .. } | PolicyError::ForeignCache { .. }))) => (NOT_KEPT, error.sentence()),
        Ok(Err(error)) if error.is_of_component() => (UNFIT, error.sentence()),
        Ok(Err(error)) => (FAILED, error.sentence()),
        Err(error) => (FAILED, error.to_string()),
    };
    // Nobody reads it where this fails.
    let _ = io::stderr().write_all(said.as_bytes());
    code
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::load::bench::component;

    fn compile_into(dir: &Path, bytes: &[u8]) -> Result<(), PolicyError> {
        examine::compile_into(dir, Hook::Scheduler, bytes, (CODE_MAX_BYTES, Addresses::Plenty))
    }

    /// Names of the files of compiled code.
    fn kept(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn regression_code_past_the_bound_is_refused_before_it_is_kept() {
        let bytes = component("plugins/scheduler-fcfs");
        let code = |dir: &Path, most| examine::compile_into(dir, Hook::Scheduler, &bytes, (most, Addresses::Plenty));
        let dir = tempfile::tempdir().unwrap();
        let Err(PolicyError::OverLimits(cause)) = code(dir.path(), 0) else { panic!("it has code") };
        let code_bytes: usize = cause.to_string().split(' ').find_map(|word| word.parse().ok()).unwrap();
        let refused = code(dir.path(), code_bytes - 1).unwrap_err().sentence();
        assert!(refused.contains(&format!("{code_bytes} bytes of code, which exceeds the maximum of")), "{refused}");
        assert_eq!(kept(dir.path()), [""; 0]);
        code(dir.path(), code_bytes).unwrap();
        assert_eq!(kept(dir.path()).len(), 1);
    }

    #[test]
    fn regression_what_is_no_policy_of_its_hook_is_refused_where_it_is_compiled() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = compile_into(dir.path(), &component("plugins/auth-api-keys"));
        assert!(matches!(wrong, Err(PolicyError::WrongHook { found: Hook::Auth, .. })), "{wrong:?}");
        let none = compile_into(dir.path(), HEADER);
        assert!(matches!(none, Err(PolicyError::NoHook)), "{none:?}");
    }

    const HEADER: &[u8] = b"\0asm\x0d\0\x01\0";

    fn section(id: u8, body: &[u8]) -> Vec<u8> {
        assert!(body.len() < 128, "its length takes one byte");
        [&[id, body.len() as u8], body].concat()
    }

    /// A component with `1 << doublings` instances of a core module that has one section: the first component instantiates
    /// the module, and each further one the component before it twice. With `one_more`, there is one more of the first.
    fn doubled(doublings: u8, module_section: &[u8], one_more: bool) -> Vec<u8> {
        let module = section(1, &[b"\0asm\x01\0\0\0", module_section].concat());
        let first = [HEADER, &module, &section(2, &[1, 0, 0, 0])].concat();
        let further = |before: u8| {
            // It takes the component from the one around it, by its number.
            let alias = section(6, &[1, 4, 2, 1, before]);
            [HEADER, &alias, &section(5, &[2, 0, 0, 0, 0, 0, 0])].concat()
        };
        let components = std::iter::once(first).chain((0..doublings).map(further));
        let components = components.flat_map(|component| section(4, &component));
        let last = section(5, &[1, 0, doublings, 0]);
        let more = if one_more { section(5, &[1, 0, 0, 0]) } else { Vec::new() };
        HEADER.iter().copied().chain(components).chain(last).chain(more).collect()
    }

    #[test]
    fn regression_a_component_that_multiplies_its_instances_is_refused_where_it_is_compiled() {
        let dir = tempfile::tempdir().unwrap();
        for (doublings, module_section, words) in [
            (7, [].as_slice(), "contains 129 core module instances, which exceeds the configured maximum of 128 "),
            (6, &[4, 4, 1, 0x70, 0, 1], "contains 65 tables, which exceeds the configured maximum of 64 "),
            (3, &[5, 3, 1, 0, 1], "contains 9 Wasm linear memories, which exceeds the configured maximum of 8 "),
        ] {
            let fits = compile_into(dir.path(), &doubled(doublings, module_section, false));
            assert!(matches!(fits, Err(PolicyError::NoHook)), "{fits:?}");
            let refused = compile_into(dir.path(), &doubled(doublings, module_section, true)).unwrap_err();
            assert!(matches!(refused, PolicyError::OverLimits(_)), "{refused:?}");
            assert!(refused.sentence().contains(words), "{}", refused.sentence());
        }
    }
}
