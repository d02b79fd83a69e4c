//! `/admin/models/…`: operators load, swap and unload models and their adapters.
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use camshaft_core::engine::ModelKind;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::flow::adapters::{self, Adapter, Adapters, NotAdded, WantedAdapter};
use crate::flow::api::Api;
use crate::flow::backend::{Backend, EmbedBackend, GenerateBackend, Model, PredictBackend};
use crate::flow::catalog::Entry;
use crate::flow::error::FlowError;
use crate::flow::life::{Operation, Residence};
use crate::http::error::ApiError;
use crate::wire::error::RequestError;
use crate::wire::{read, sse};

/// Bytes of an order's body.
const ORDER_MAX_BYTES: usize = 64 << 10;
/// Maximum time for a body to arrive. Past it: 408.
const BODY_TIME: Duration = Duration::from_secs(30);
/// How often a stream of an operation looks for news.
const LOOK: Duration = Duration::from_millis(100);
/// A stream without news says that it is still there after this time.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
pub(crate) struct ModelReport {
    models: Vec<ModelEntry>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelEntry {
    id: String,
    /// As its file has it; `null` while the model is not in memory.
    name: Option<String>,
    state: &'static str,
    kind: Option<ModelKind>,
    aliases: Vec<String>,
    weight: f64,
    fallback: Option<String>,
    /// Requests that have begun and not ended.
    in_flight: usize,
    #[serde(flatten)]
    residence: Option<Residence>,
    #[serde(flatten)]
    loaded: Option<LoadedEntry>,
}

/// Of a model in memory.
#[derive(Debug, Serialize)]
struct LoadedEntry {
    created: u64,
    sha256: Option<String>,
    parameters: u64,
    weight_bytes: u64,
    /// Generated at the moment; of other models, `null`.
    tokens_per_second: Option<f64>,
    #[serde(flatten)]
    text: Option<TextEntry>,
}

/// Of a model that reads texts.
#[derive(Debug, Serialize)]
struct TextEntry {
    context_tokens: u32,
    trained_context_tokens: u32,
    vocabulary_tokens: usize,
    chat_template: bool,
}

/// All operations that are remembered.
#[derive(Debug, Serialize)]
pub(crate) struct Operations {
    operations: Vec<Operation>,
}

impl ModelEntry {
    fn new(api: &Api, entry: &Entry) -> Self {
        let id = entry.id();
        let model = entry.served().map(|served| &served.model);
        Self {
            name: model.map(|model| facts(model).0.clone()),
            state: entry.state(),
            kind: entry.kind(),
            aliases: entry.naming.aliases.clone(),
            weight: entry.naming.weight,
            fallback: entry.naming.fallback.clone(),
            in_flight: entry.in_flight(),
            residence: api.life.residence(&id),
            loaded: model.map(|model| LoadedEntry::new(api, model)),
            id,
        }
    }
}

impl LoadedEntry {
    fn new(api: &Api, model: &Model) -> Self {
        let (_, sha256, parameters, weight_bytes) = facts(model);
        let text = model.text().map(|text| TextEntry {
            context_tokens: text.info.context_tokens,
            trained_context_tokens: text.info.trained_context_tokens,
            vocabulary_tokens: text.info.vocabulary.size(),
            chat_template: text.info.chat_template.is_some(),
        });
        let generates = model.kind() == ModelKind::Generate;
        let rate = || api.metrics.latencies(&model.id).between_tokens.rate(Instant::now());
        Self {
            created: model.created,
            sha256: sha256.clone(),
            parameters,
            weight_bytes,
            tokens_per_second: generates.then(rate),
            text,
        }
    }
}

/// Its name, the digest of its file, parameters, and bytes of its weights.
fn facts(model: &Model) -> (&String, &Option<String>, u64, u64) {
    match &model.backend {
        Backend::Generate(GenerateBackend { text, .. }) | Backend::Embed(EmbedBackend { text, .. }) => {
            (&text.info.name, &text.info.sha256, text.info.parameters, text.info.weight_bytes)
        }
        Backend::Predict(PredictBackend { info, .. }) => (&info.name, &info.sha256, info.parameters, info.weight_bytes),
    }
}

pub(crate) async fn models(State(api): State<Arc<Api>>) -> Json<ModelReport> {
    let catalog = api.catalog();
    Json(ModelReport { models: catalog.entries().map(|entry| ModelEntry::new(&api, entry)).collect() })
}

/// # Errors
/// 404 for an unknown model.
pub(crate) async fn model(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelEntry>, ApiError> {
    let Path(id) = id?;
    let catalog = api.catalog();
    let entry =
        catalog.at(&id).ok_or(FlowError::UnknownModel { id, models: catalog.entries().map(Entry::id).collect() })?;
    Ok(Json(ModelEntry::new(&api, entry)))
}

/// Begins to load the model that the body describes as `[[model]]` of the configuration does: 202 with the operation.
///
/// # Errors
/// 400 for wrong settings, 409 if there is such a model, 429 if too much is done at once.
pub(crate) async fn load(State(api): State<Arc<Api>>, body: Body) -> Result<Response, ApiError> {
    let settings = order(body).await?;
    Ok(accepted(&asked(move || api.life.load(settings)).await?))
}

/// Begins to replace a model by what its settings are with those of the body over them: 202 with the operation.
///
/// # Errors
/// As [`load`]; 404 for an unknown model, 409 if it is being changed.
pub(crate) async fn swap(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Response, ApiError> {
    let (Path(id), settings) = (id?, order(body).await?);
    Ok(accepted(&asked(move || api.life.swap(&id, settings)).await?))
}

/// Serves no more requests of a model, and frees it once the last has ended: 202 with the operation. One that is being loaded is
/// stopped: 202 with the operation that loads it, which fails.
///
/// # Errors
/// 404 for an unknown model, 409 if it is being changed otherwise.
pub(crate) async fn unload(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    Ok(accepted(&asked(move || api.life.unload(&id)).await?))
}

/// Changes a version's part of the requests. Body: `{"weight": 0.1}`.
///
/// # Errors
/// 400 for a bad weight, 404 for an unknown model.
pub(crate) async fn set_weight(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<ModelEntry>, ApiError> {
    const WEIGHT: &str = "weight";
    let (Path(id), settings) = (id?, order(body).await?);
    let weight = settings.get(WEIGHT).and_then(Value::as_f64);
    let weight = weight.filter(|_| settings.len() == 1);
    let weight = weight.ok_or_else(|| FlowError::field(WEIGHT, "the body must be {\"weight\": number}"))?;
    let (changing, changed) = (api.clone(), id.clone());
    asked(move || changing.life.set_weight(&changed, weight)).await?;
    model(State(api), Ok(Path(id))).await
}

/// Changes what a model runs at once, with its requests running. Body: keys of the configuration, as
/// `{"max-tenant-sequences": 2}`; `null` takes a bound back.
///
/// # Errors
/// 400 for a bad bound or another key, 404 for an unknown model.
pub(crate) async fn set_limits(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<ModelEntry>, ApiError> {
    let (Path(id), limits) = (id?, order(body).await?);
    let (changing, changed) = (api.clone(), id.clone());
    asked(move || changing.life.set_limits(&changed, limits)).await?;
    model(State(api), Ok(Path(id))).await
}

pub(crate) async fn operations(State(api): State<Arc<Api>>) -> Json<Operations> {
    Json(Operations { operations: api.life.operations() })
}

/// An operation; as server-sent events until its end for who accepts `text/event-stream`.
///
/// # Errors
/// 404: there is no such operation, or it ended long ago.
pub(crate) async fn operation(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    let now = api.life.operation(&id).ok_or(ApiError::UnknownOperation { id: id.clone() })?;
    let wants_events = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("text/event-stream"));
    if !headers.get_all(ACCEPT).iter().any(wants_events) {
        return Ok(Json(now).into_response());
    }
    let follow = Follow { api, id, told: None, said: tokio::time::Instant::now(), over: false };
    let events = futures_util::stream::unfold(follow, async |mut follow| {
        let frame = follow.next().await?;
        Some((Ok::<_, Infallible>(frame), follow))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// Somebody who follows an operation.
struct Follow {
    api: Arc<Api>,
    id: String,
    told: Option<Operation>,
    said: tokio::time::Instant,
    over: bool,
}

impl Follow {
    /// The next frame; `None` after the operation's end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.over {
            return None;
        }
        loop {
            // One that is forgotten ended long ago.
            let now = self.api.life.operation(&self.id)?;
            if self.told.as_ref() != Some(&now) {
                let mut frame = Vec::new();
                sse::write(&mut frame, &now);
                self.over = now.is_over();
                (self.told, self.said) = (Some(now), tokio::time::Instant::now());
                return Some(frame);
            }
            if self.said.elapsed() >= KEEP_ALIVE {
                self.said = tokio::time::Instant::now();
                return Some(sse::KEEP_ALIVE.to_vec());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Carries out what may wait for a lock or read a file.
async fn asked<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
    ask: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(ask).await.map_err(ApiError::ModelTask)?.map_err(Into::into)
}

fn accepted(operation: &Operation) -> Response {
    let location = HeaderValue::from_str(&format!("/admin/operations/{}", operation.id));
    let mut response = (StatusCode::ACCEPTED, Json(operation)).into_response();
    let location: Option<(HeaderName, HeaderValue)> = location.ok().map(|location| (LOCATION, location));
    response.headers_mut().extend(location);
    response
}

/// The JSON object of a body.
async fn order(body: Body) -> Result<Map<String, Value>, FlowError> {
    match serde_json::from_slice(&received(body).await?) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(_) => Err(FlowError::field("body", "the body must be a JSON object")),
        Err(error) => Err(FlowError::field("body", format!("the body is no JSON: {error}"))),
    }
}

async fn received(body: Body) -> Result<Bytes, RequestError> {
    let limit = ORDER_MAX_BYTES;
    let read = timeout(BODY_TIME, Limited::new(body, limit).collect()).await.map_err(|_| RequestError::BodyTimeout)?;
    let read = read.map_err(|error| match error.is::<LengthLimitError>() {
        true => RequestError::BodyTooLarge { limit },
        false => RequestError::BodyBroken(axum::Error::new(error)),
    })?;
    Ok(read.to_bytes())
}

#[derive(Debug, Serialize)]
pub(crate) struct AdapterList {
    adapters: Vec<AdapterEntry>,
}

#[derive(Debug, Serialize)]
pub(crate) struct AdapterEntry {
    id: String,
    /// The name by which requests ask for it.
    model: String,
    sha256: String,
    scale: f32,
    bytes: u64,
    created: u64,
}

impl AdapterEntry {
    fn new(model: &str, adapter: &Adapter) -> Self {
        Self {
            id: adapter.id.clone(),
            model: adapters::name(model, &adapter.id),
            sha256: adapter.digest.to_string(),
            scale: adapter.scale,
            bytes: adapter.bytes,
            created: adapter.created,
        }
    }
}

/// Lists a model's adapters.
///
/// # Errors
/// 404 for an unknown model, 503 for one that is not in memory.
pub(crate) async fn list_adapters(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<AdapterList>, ApiError> {
    let Path(id) = id?;
    let all = of(&api, &id)?.all();
    Ok(Json(AdapterList { adapters: all.iter().map(|adapter| AdapterEntry::new(&id, adapter)).collect() }))
}

/// Loads an adapter: `{"id","path","scale"}`. Requests may name it once this answers with 201.
///
/// # Errors
/// 400 for a bad body, name or scale, or for a file that is no adapter of the model; 404 for an unknown model; 409 where there is
/// one of this name, there are as many as may be, or the model is being changed; 503 for a model that is not in memory.
pub(crate) async fn load_adapter(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<(StatusCode, Json<AdapterEntry>), ApiError> {
    let Path(model) = id?;
    let adapters = of(&api, &model)?;
    let wanted = wanted(body).await?;
    let (loading, of) = (api.clone(), model.clone());
    let adapter = asked(move || loading.life.load_adapter(&of, &adapters, &wanted)).await?;
    tracing::info!(model, adapter = adapter.id, digest = %adapter.digest, "an operator loaded an adapter");
    Ok((StatusCode::CREATED, Json(AdapterEntry::new(&model, &adapter))))
}

/// Takes an adapter from new requests. Its memory is freed once the last request that uses it has ended.
///
/// # Errors
/// 404 for an unknown model or adapter, 409 where the model is being changed, 503 for a model that is not in memory.
pub(crate) async fn unload_adapter(
    State(api): State<Arc<Api>>,
    ids: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path((model, id)) = ids?;
    let adapters = of(&api, &model)?;
    let (unloading, names) = (api.clone(), (model.clone(), id.clone()));
    if !asked(move || unloading.life.unload_adapter(&names.0, &adapters, &names.1)).await? {
        return Err(ApiError::NoAdapter { model, id });
    }
    tracing::info!(model, adapter = id, "an operator unloaded an adapter");
    Ok(Json(json!({"id": id, "deleted": true})))
}

fn of(api: &Api, id: &str) -> Result<Arc<Adapters>, ApiError> {
    let catalog = api.catalog();
    let unknown = || FlowError::UnknownModel { id: id.to_owned(), models: catalog.entries().map(Entry::id).collect() };
    let served = catalog.at(id).ok_or_else(unknown)?.open()?;
    served.adapters().cloned().ok_or(ApiError::Adapter(NotAdded::NoSource))
}

/// What is to be loaded.
async fn wanted(body: Body) -> Result<WantedAdapter, RequestError> {
    let body = received(body).await?;
    let text = std::str::from_utf8(&body).map_err(RequestError::NotUtf8)?;
    let AdapterRequest { id, path, scale } = read::deserialize(text)?;
    Ok(WantedAdapter { id, path, scale: scale.unwrap_or(1.0) })
}

/// What a body asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterRequest {
    id: String,
    path: PathBuf,
    scale: Option<f32>,
}
