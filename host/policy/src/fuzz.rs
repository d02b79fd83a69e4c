//! Entry point of a fuzz target: settings files of policies.
use camshaft_core::policy::Hook;

use crate::error::PolicyError;
use crate::sidecar::Sidecar;

/// Reads a settings file. The first byte chooses the hook.
///
/// # Panics
/// If settings that were accepted are no JSON object, or an error is about a line that is not there.
pub fn sidecar(bytes: &[u8]) {
    let Some((&hook, bytes)) = bytes.split_first() else { return };
    let hook = Hook::ALL[usize::from(hook) % Hook::ALL.len()];
    match Sidecar::read(hook, "10-x.toml", bytes) {
        Ok(sidecar) => {
            let settings = serde_json::from_str::<serde_json::Value>(&sidecar.settings);
            assert!(settings.is_ok_and(|settings| settings.is_object()), "{}", sidecar.settings);
            assert!(sidecar.sha256.is_none_or(|digest| digest.len() == 64));
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let PolicyError::Settings { line, .. } = error else { panic!("{error}") };
            let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() + 1;
            assert!(line.is_none_or(|line| (1..=lines).contains(&line)), "line {line:?} of {lines}");
        }
    }
}
