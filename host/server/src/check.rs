//! `camshaft check`: the verdict without serving.
use std::fmt::Write as _;
use std::io::Write as _;

use camshaft_core::family::detect::Chosen;
use camshaft_core::policy::Policies;
use camshaft_reader::TemplateSource;
use prometheus::Registry;

use crate::cache_plan::{CachePlan, CacheShare};
use crate::config::{Config, FamilyKey};
use crate::devices::Devices;
use crate::error::{ModelProblem, ServerError};
use crate::logging::LogHandle;
use crate::progress::ProgressSink;
use crate::registry::Obtained;
use crate::sizing::Room;
use crate::weights::{self, Engines, Loaded, Weights};
use crate::worker_process::{EngineProcess, ProcessSetup};
use crate::{logging, machine, open_files, placing, policies, preflight, registry};

/// Loads every model and examines every policy, says what it found, and fails with the worst of it.
pub(crate) fn configuration(config: &Config, ignored: &[String]) -> Result<(), ServerError> {
    let checked = preflight::check(config)?;
    exporter(config)?;
    let mut report = Report::default();
    report.line("configuration: understood");
    if !ignored.is_empty() {
        report.line(&format!("ignored, since Kubernetes sets them for a Service: {}", ignored.join(", ")));
    }
    open_files::raise();
    if let Some(fewer) = open_files::places(config, open_files::bound()).fewer(config) {
        report.line(&fewer);
    }
    models(config, &mut report);
    let dir = policies::absolute_dir(config);
    let policies = match policies::start(config, &Registry::new()) {
        Ok(policies) => policies,
        Err(error) => {
            report.line(&format!("{error}"));
            print(&report.text)?;
            return Err(report.failure.unwrap_or(error));
        }
    };
    if policies.status().is_empty() {
        report.line(&format!("policies: none in {}; native defaults serve", dir.display()));
    }
    for status in policies.status() {
        let verdict = status.error.as_deref().unwrap_or(status.state.as_str());
        report.line(&format!("policy {}: {verdict}", status.file));
        if let Some(why) = status.error {
            report.fail(ServerError::BadPolicy { file: status.file, why });
        }
    }
    for misplaced in camshaft_policy::misplaced(&dir) {
        report.wrong(ServerError::Misplaced(misplaced));
    }
    policies::enforced(config, None, &policies).iter().for_each(|line| report.line(line));
    if let Err(error) = policies::guard_strangers(config, checked.listen, &policies) {
        report.fail(error);
    }
    policies.stop();
    print(&report.text)?;
    report.failure.map_or(Ok(()), Err)
}

/// What is printed, and the first error.
#[derive(Default)]
struct Report {
    text: String,
    failure: Option<ServerError>,
}

impl Report {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn fail(&mut self, error: ServerError) {
        self.failure.get_or_insert(error);
    }

    /// Says what is wrong, too.
    fn wrong(&mut self, error: ServerError) {
        self.line(&error.to_string());
        self.fail(error);
    }

    /// What can be gone on with.
    fn take<T>(&mut self, result: Result<T, ServerError>) -> Option<T> {
        result.map_err(|error| self.wrong(error)).ok()
    }
}

/// Spans are exported on a runtime, which nothing else here needs.
fn exporter(config: &Config) -> Result<(), ServerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ServerError::internal("start the runtime", error))?;
    let _exports_run_here = runtime.enter();
    logging::exporter(config).map(drop)
}

/// Loads one model after the other, divides the memory, and makes what each one's first worker would run.
fn models(config: &Config, report: &mut Report) {
    let machine = machine::look();
    camshaft_engine::use_numa(config.live.numa());
    let Some(devices) = report.take(Devices::look()) else { return };
    let mut loaded = Vec::new();
    for model in &config.live.model {
        let Some(obtained) = report.take(registry::cached(&config.fixed.models, model)) else { continue };
        let Some(Obtained { config, held }) = obtained else {
            let (id, source) = (&model.id, model.source.as_deref().unwrap_or_default());
            report.line(&format!("model {id}: not checked: {source} is not in the cache, `serve` pulls it"));
            continue;
        };
        let model = report.take(Engines::Llama.load(&config, &LogHandle::silent(), &ProgressSink::default()));
        loaded.extend(model.map(|model| Loaded { held, ..model }));
    }
    let room = Room::at_start(config, machine, &devices);
    let sized = placing::place(&room, &devices, loaded, &ProgressSink::default());
    for weights in &sized.weights {
        if report.take(try_out(weights)).is_none() {
            continue;
        }
        let (id, kind) = (&weights.config().id, weights.loaded.kind());
        let (name, parameters) = weights.loaded.described();
        let name = if name.is_empty() { id } else { &name };
        report.line(&format!("model {id}: ok ({name}, {kind}, {parameters} parameters)"));
        if weights.is_generating() {
            report.line(&family(weights));
            template(weights, report);
        }
    }
    // All of the space, so that nothing is removed to make the share of a worker.
    let plan = CachePlan::of(config, CacheShare { workers: 1, ..sized.share() });
    report.take(plan.check_trust().and_then(|()| plan.check_disk().map_err(|error| plan.unusable(&error))));
    if sized.weights.len() < config.live.model.len() {
        report.line("without the models that failed or are not cached:");
    }
    sized.table().lines().for_each(|line| report.line(line));
    sized.chosen().iter().for_each(|line| report.line(line));
    sized.cuts().iter().for_each(|cut| report.line(cut));
}

/// Makes what a first worker would run, and lets go of it.
fn try_out(weights: &Weights) -> Result<(), ServerError> {
    if weights.computes_tensors() {
        // It was when it was loaded.
        return Ok(());
    }
    let process = EngineProcess::new(ProcessSetup::trial(weights.job()), ProgressSink::default());
    process.try_out()?.map_or(Ok(()), |limits| weights::dimensions_fit(weights.config(), limits.dimensions))
}

/// Checks whether a model's chat template compiles.
fn template(weights: &Weights, report: &mut Report) {
    let Some(reading) = &weights.loaded.reading else { return };
    if let Err(error) = TemplateSource::of(&reading.info).compile() {
        let config = weights.config();
        let problem = ModelProblem::Jinja(error);
        report.wrong(ServerError::model(&config.id, &config.origins, "chat-template", problem));
    }
}

/// In whose notation a model writes tool calls and thinking.
fn family(weights: &Weights) -> String {
    let (config, reading) = (weights.config(), weights.loaded.reading.as_ref());
    let named = config.family.map(|FamilyKey(family)| family);
    let template = reading.and_then(|reading| reading.info.templates());
    let Chosen { family, contradicted } = Chosen::new(named, template.as_deref());
    let line = format!("model {}: tool calls and thinking as of family {}", config.id, family.name);
    match contradicted {
        Some(other) => format!("{line}, though its chat template shows {}", other.name),
        None => line,
    }
}

pub(crate) fn print(text: &str) -> Result<(), ServerError> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| ServerError::internal("write to standard output", error))
}
