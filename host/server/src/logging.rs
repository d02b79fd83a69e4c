//! Logs to standard error (text on a terminal, JSON otherwise; the level can change while the server runs), and spans to
//! an OpenTelemetry collector.
use std::fmt;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt as lines, reload};

use crate::config::{Config, LogFormat};
use crate::error::ServerError;
use crate::log_writer::LogWriter;

/// The way to the installed filter, and to the exporter of spans.
#[derive(Clone)]
pub(crate) struct LogHandle {
    reload: Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
    spans: Option<SdkTracerProvider>,
    lines: Option<LogWriter>,
    format: Arc<Mutex<LineFormat>>,
    /// Told of another level.
    followers: Arc<Mutex<Vec<Weak<Follower>>>>,
}

type Follower = dyn Fn(&str) + Send + Sync;

/// How lines are written, for processes that log to the same end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LineFormat {
    directives: String,
    json: bool,
    color: bool,
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogHandle")
    }
}

impl LogHandle {
    /// Logs by another level from now on.
    ///
    /// # Errors
    /// The subscriber is gone; the level stays as it was.
    pub(crate) fn set_level(&self, config: &Config) -> Result<(), ServerError> {
        let directives = directives(config);
        self.set_directives(&directives)?;
        let followers: Vec<_> = lock(&self.followers).iter().filter_map(Weak::upgrade).collect();
        followers.iter().for_each(|follow| follow(&directives));
        Ok(())
    }

    /// The same by what the level stands for.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn set_directives(&self, directives: &str) -> Result<(), ServerError> {
        let internal = |error: anyhow::Error| ServerError::internal("change the log level", error);
        let filter = EnvFilter::try_new(directives).map_err(|error| internal(error.into()))?;
        (self.reload)(filter).map_err(|error| internal(error.into()))?;
        directives.clone_into(&mut lock(&self.format).directives);
        Ok(())
    }

    /// How lines are written at the moment.
    pub(crate) fn format(&self) -> LineFormat {
        lock(&self.format).clone()
    }

    /// Calls this with another level as long as somebody has what is returned.
    pub(crate) fn follow(&self, tell: impl Fn(&str) + Send + Sync + 'static) -> Arc<Follower> {
        let follower: Arc<Follower> = Arc::new(tell);
        let mut followers = lock(&self.followers);
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(Arc::downgrade(&follower));
        follower
    }

    /// Of nothing that is installed.
    pub(crate) fn silent() -> Self {
        Self {
            reload: Arc::new(|_| Ok(())),
            spans: None,
            lines: None,
            format: Arc::default(),
            followers: Arc::default(),
        }
    }

    /// Counts the lines that were dropped there.
    ///
    /// # Errors
    /// The registry has such a counter already.
    pub(crate) fn count_in(&self, registry: &prometheus::Registry) -> Result<(), ServerError> {
        let Some(lines) = &self.lines else { return Ok(()) };
        let registered = registry.register(Box::new(lines.dropped()));
        registered.map_err(|error| ServerError::internal("register metrics", error))
    }

    /// Exports and writes what was not yet.
    pub(crate) fn flush(&self) {
        if let Some(Err(error)) = self.spans.as_ref().map(SdkTracerProvider::shutdown) {
            tracing::warn!(%error, "the last spans were not exported");
        }
        self.lines.iter().for_each(LogWriter::flush);
    }
}

/// llama.cpp logs a hundred lines about every model at its info level. What carries connections logs lines about frames that
/// clients send, as fast as they send them. What computes on GPUs logs each tensor's device, and that it has no folder for what it
/// tuned, which it was given none for.
const QUIET: &str = "llama-cpp-2=warn,h2=off,hyper=off,hyper_util=off,rustls=off,tokio_rustls=off,wgpu=warn,wgpu_core=warn,\
                     wgpu_hal=warn,naga=warn,cubecl_wgpu=warn,cubecl_runtime=warn,cubecl_common::cache_file=off,burn_fusion=warn";

/// What `log.level` says, which was checked with the configuration.
fn directives(config: &Config) -> String {
    // `EnvFilter` takes no spaces.
    let level: String = config.live.log.level.split_whitespace().collect();
    // Whoever asks for more gets what is left out.
    let quiet = ["error", "warn", "info"].contains(&level.as_str());
    let directives = if quiet { format!("{level},{QUIET}") } else { level };
    // Spans are for the collector.
    format!("{directives},{}=off", camshaft_api::trace::TARGET)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the process's subscriber. `spans`: where spans go, if anywhere.
pub(crate) fn start(config: &Config, spans: Option<SdkTracerProvider>) -> Result<LogHandle, ServerError> {
    let json = match config.fixed.log.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let format = LineFormat { directives: directives(config), json, color: std::io::stderr().is_terminal() };
    install(&format, spans)
}

/// The same for a process that logs to the end that another one has.
///
/// # Errors
/// It has been done, or there can be no thread for it.
pub(crate) fn start_lines(format: &LineFormat) -> Result<LogHandle, ServerError> {
    install(format, None)
}

fn install(format: &LineFormat, spans: Option<SdkTracerProvider>) -> Result<LogHandle, ServerError> {
    let LineFormat { directives, json, color } = format;
    let internal = |source: anyhow::Error| ServerError::Internal { what: "start logging", source };
    let filter = EnvFilter::try_new(directives).map_err(|error| internal(error.into()))?;
    let (filter, handle) = reload::Layer::new(filter);
    let out = LogWriter::start(std::io::stderr());
    let out = out.map_err(internal)?;
    let writer = lines::layer::<Registry>().with_ansi(*color).with_writer(Arc::new(out.clone()));
    let writer = if *json { writer.json().flatten_event(true).boxed() } else { writer.boxed() };
    let exported = spans.as_ref().map(|spans| {
        let tracer = spans.tracer("camshaft");
        let only_spans = Targets::new().with_target(camshaft_api::trace::TARGET, tracing::Level::INFO);
        // Where in the code a span was made, and on which thread, helps nobody who looks at a request.
        let layer = tracing_opentelemetry::layer().with_location(false).with_threads(false).with_target(false);
        layer.with_tracked_inactivity(false).with_tracer(tracer).with_filter(only_spans)
    });
    let subscriber = tracing_subscriber::registry().with(writer.with_filter(filter)).with(exported);
    let installed = subscriber.try_init();
    installed.map_err(|error| internal(anyhow::anyhow!(error)))?;
    let format = Arc::new(Mutex::new(format.clone()));
    let reload = Arc::new(move |filter| handle.reload(filter));
    Ok(LogHandle { reload, spans, lines: Some(out), format, followers: Arc::default() })
}

/// Batches of spans over gRPC, if an endpoint is configured. A collector that is not there costs the spans, nothing else.
/// To be called on the runtime that exports shall run on.
///
/// # Errors
/// Nothing can be sent to the endpoint.
pub(crate) fn exporter(config: &Config) -> Result<Option<SdkTracerProvider>, ServerError> {
    let Some(endpoint) = config.fixed.telemetry.endpoint() else { return Ok(None) };
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
    let exporter =
        exporter.map_err(|error| ServerError::value(&config.origins, "telemetry.otlp-endpoint", endpoint, error))?;
    let resource = Resource::builder()
        .with_service_name("camshaft")
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    #[test]
    fn regression_what_clients_make_others_libraries_say_is_not_logged_unless_asked_for() {
        let said = |level: &str| {
            let set = vec![format!("log.level={level}")];
            let config = Config::load(None, std::iter::empty(), &Overrides { set, ..Overrides::default() }).unwrap();
            let lines = tracing_subscriber::registry().with(EnvFilter::new(directives(&config)));
            tracing::subscriber::with_default(lines, || {
                let ours = tracing::enabled!(target: "camshaft", tracing::Level::ERROR);
                let theirs = tracing::enabled!(target: "h2::proto::ping_pong", tracing::Level::WARN)
                    || tracing::enabled!(target: "rustls::common_state", tracing::Level::ERROR);
                (ours, theirs)
            })
        };
        for level in ["error", "warn", "info"] {
            assert_eq!(said(level), (true, false), "{level}");
        }
        assert_eq!(said("debug"), (true, true));
        assert_eq!(said("warn, h2=warn"), (true, true), "however it is written");
    }

    #[tokio::test]
    async fn regression_an_endpoint_that_takes_no_spans_names_its_source() {
        let set = vec!["telemetry.otlp-endpoint=http://127.0.0.1:4317".to_owned()];
        let overrides = Overrides { set, ..Overrides::default() };
        let mut config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        exporter(&config).unwrap().expect("an endpoint is configured");
        config.fixed.telemetry.otlp_endpoint = "no url at all".to_owned();
        let error = format!("{}", exporter(&config).unwrap_err());
        let words = ["telemetry.otlp-endpoint = no url at all: ", " (flag --set telemetry.otlp-endpoint)"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
