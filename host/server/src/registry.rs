//! The cache of models as the configuration and the environment have it, and models that are served from it.
use std::sync::Arc;

use camshaft_registry::{Environment, InUse, Registry, RegistryError, Request, Settings, Source};

use crate::config::{ModelConfig, Models};
use crate::error::{ModelProblem, ServerError};
use crate::progress::ProgressSink;
use crate::pull_progress::{Lines, PullProgress};

/// Opens the cache.
///
/// # Errors
/// Its directory cannot be used, or an address is none.
pub(crate) fn open(models: &Models) -> Result<Registry, RegistryError> {
    Registry::open(settings(models, Environment::of(|name| std::env::var(name).ok())?)?)
}

fn settings(models: &Models, environment: Environment) -> Result<Settings, RegistryError> {
    let mut settings = Settings::new(models.dir(), environment)?;
    settings.bytes_max = models.cache_size.0;
    if let Some(endpoint) = &models.hf_endpoint {
        settings.hf_endpoint.clone_from(endpoint);
    }
    settings.ollama_registry.clone_from(&models.ollama_registry);
    settings.allow_http = models.allow_http;
    Ok(settings)
}

/// A model as it is loaded: with the path of its file, and what keeps that in the cache.
#[derive(Debug)]
pub(crate) struct Obtained {
    pub(crate) config: ModelConfig,
    /// `None`: its file does not lie in the cache.
    pub(crate) held: Option<Arc<InUse>>,
}

/// Pulls a model that has a source, unless it is in the cache. `sink` hears how far it is.
///
/// # Errors
/// It cannot be had.
pub(crate) fn obtain(models: &Models, model: &ModelConfig, sink: &ProgressSink) -> Result<Obtained, ServerError> {
    let Some(source) = &model.source else { return Ok(Obtained { config: model.clone(), held: None }) };
    let bad = |error| ServerError::model(&model.id, &model.origins, "source", ModelProblem::Pull(error));
    let request = request(model, source).map_err(bad)?;
    let progress = PullProgress::new(Lines::Log(sink.clone()));
    let pulled = open(models).and_then(|registry| registry.obtain(&request, &progress)).map_err(bad)?;
    let (path, bytes) = (pulled.held.path().display(), pulled.held.bytes());
    tracing::info!(model = model.id, source, %path, bytes, outcome = ?pulled.outcome, "the model is in the cache");
    Ok(served(model, pulled.held))
}

/// The same, of a model that is in the cache already. `None`: it would have to be pulled.
///
/// # Errors
/// The cache cannot be read.
pub(crate) fn cached(models: &Models, model: &ModelConfig) -> Result<Option<Obtained>, ServerError> {
    let Some(source) = &model.source else { return Ok(Some(Obtained { config: model.clone(), held: None })) };
    let bad = |error| ServerError::model(&model.id, &model.origins, "source", ModelProblem::Pull(error));
    let request = request(model, source).map_err(bad)?;
    let held = open(models).and_then(|registry| registry.cached(&request)).map_err(bad)?;
    Ok(held.map(|held| served(model, held)))
}

fn request(model: &ModelConfig, source: &str) -> Result<Request, RegistryError> {
    // Its form was checked when the configuration was read.
    let sha256 = model.sha256.as_ref().and_then(|digest| digest.parse().ok());
    Ok(Request { sha256, ..Request::new(Source::parse(source)?) })
}

fn served(model: &ModelConfig, held: InUse) -> Obtained {
    let config = ModelConfig { path: Some(held.path().to_owned()), ..model.clone() };
    Obtained { config, held: Some(Arc::new(held)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelSource;

    #[test]
    fn the_configuration_beats_the_environment() {
        let variables = |name: &str| match name {
            "HF_ENDPOINT" => Some("https://hub.example.org".to_owned()),
            "HOME" => Some("/home/me".to_owned()),
            _ => None,
        };
        let of = |models: &Models| settings(models, Environment::of(variables).unwrap()).unwrap();
        let unset = of(&Models::default());
        assert_eq!((unset.dir.to_str(), unset.bytes_max), (Some("/home/me/.cache/camshaft/models"), 256 << 30));
        assert_eq!(unset.hf_endpoint, "https://hub.example.org");
        let set = of(&Models {
            cache_dir: Some("/m".into()),
            hf_endpoint: Some("https://other.example.org".to_owned()),
            ..Models::default()
        });
        assert_eq!((set.dir.to_str(), set.hf_endpoint.as_str()), (Some("/m"), "https://other.example.org"));
    }

    #[test]
    fn a_model_with_a_path_is_served_in_place() {
        let model = ModelConfig { path: Some("/x.gguf".into()), ..ModelConfig::default() };
        let obtained = obtain(&Models::default(), &model, &ProgressSink::default()).unwrap();
        assert!(obtained.held.is_none());
        assert_eq!(obtained.config.source(), ModelSource::File("/x.gguf".into()));
    }
}
