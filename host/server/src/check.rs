//! `camshaft check`: the verdict without serving.
use std::fmt::Write as _;
use std::io::Write as _;

use camshaft_core::policy::Policies;
use prometheus::Registry;

use crate::config::Config;
use crate::error::ServerError;
use crate::weights::Engines;
use crate::{policies, preflight};

/// Loads every model and examines every policy, says what it found, and fails with the worst of it.
pub(crate) fn configuration(config: &Config, ignored: &[String]) -> Result<(), ServerError> {
    let checked = preflight::check(config)?;
    let mut report = String::from("configuration: ok\n");
    if !ignored.is_empty() {
        let _ = writeln!(report, "ignored, since Kubernetes sets them for a Service: {}", ignored.join(", "));
    }
    let mut failure = None;
    for model in &config.fixed.model {
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
    let dir = &config.live.policy.dir;
    if !dir.is_dir() {
        let _ = writeln!(report, "policies: no directory {}; native defaults serve", dir.display());
    }
    let policies = policies::start(config, &Registry::new())?;
    for status in policies.status() {
        let verdict = status.error.as_deref().unwrap_or(status.state.as_str());
        let _ = writeln!(report, "policy {}/{}: {verdict}", status.hook, status.file);
        if let Some(error) = &status.error {
            failure.get_or_insert(ServerError::BadData(format!("policy {}/{}: {error}", status.hook, status.file)));
        }
    }
    for misplaced in camshaft_policy::misplaced(dir) {
        let line = format!("policy {}: {}", misplaced.path.display(), misplaced.reason);
        let _ = writeln!(report, "{line}");
        failure.get_or_insert(ServerError::BadData(line));
    }
    for line in policies::enforced(config, &policies) {
        let _ = writeln!(report, "{line}");
    }
    if let Err(error) = policies::guard_strangers(config, checked.listen, &policies) {
        failure.get_or_insert(error);
    }
    policies.stop();
    print(&report)?;
    failure.map_or(Ok(()), Err)
}

pub(crate) fn print(text: &str) -> Result<(), ServerError> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| ServerError::internal("write to standard output", error))
}
