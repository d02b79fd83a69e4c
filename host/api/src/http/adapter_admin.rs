//! `/admin/models/{id}/adapters`: the LoRA adapters of a model, which operators load and unload while it is served.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::flow::adapters::{self, Adapter, Adapters, NotAdded, WantedAdapter};
use crate::flow::api::Api;
use crate::flow::catalog::Entry;
use crate::flow::error::FlowError;
use crate::flow::life::AdapterRefusal;
use crate::http::error::ApiError;
use crate::wire::error::RequestError;
use crate::wire::read;

/// Bytes of a body.
const BODY_BYTES: usize = 16 << 10;
/// Maximum time for a body to arrive. Past it: 408.
const BODY_TIME: Duration = Duration::from_secs(10);

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
pub(crate) async fn list(
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
pub(crate) async fn load(
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
pub(crate) async fn unload(
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

/// Carries out what reads a file or may wait for a lock.
async fn asked<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, AdapterRefusal> + Send + 'static,
) -> Result<T, ApiError> {
    let asked = tokio::task::spawn_blocking(ask).await.map_err(ApiError::AdapterTask)?;
    asked.map_err(|refusal| match refusal {
        AdapterRefusal::Model(refusal) => ApiError::Model(refusal),
        AdapterRefusal::Adapter(refusal) => ApiError::Adapter(refusal),
    })
}

/// What is to be loaded.
async fn wanted(body: Body) -> Result<WantedAdapter, ApiError> {
    let read = timeout(BODY_TIME, Limited::new(body, BODY_BYTES).collect()).await;
    let read = read.map_err(|_| FlowError::from(RequestError::BodyTimeout))?;
    let bytes = read.map_err(|error| match error.is::<LengthLimitError>() {
        true => RequestError::BodyTooLarge { limit: BODY_BYTES },
        false => RequestError::BodyBroken(axum::Error::new(error)),
    })?;
    Ok(adapter_of(&bytes.to_bytes())?)
}

fn adapter_of(body: &[u8]) -> Result<WantedAdapter, RequestError> {
    let text = std::str::from_utf8(body).map_err(RequestError::NotUtf8)?;
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
