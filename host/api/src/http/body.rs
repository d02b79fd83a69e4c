//! Reads a request's body: JSON, or JSON and the bytes of tensors, bounded in bytes and in time, within the memory for all requests.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use camshaft_core::ids::TenantId;
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use crate::flow::api::{Api, Caller};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;
use crate::flow::incoming::Incoming;
use crate::flow::quota::QuotaGrant;
use crate::http::error::ApiError;
use crate::wire::error::RequestError;
use crate::wire::open_inference::JSON_LENGTH;

/// Maximum silence within a body. Past it: 408.
const STALL: Duration = Duration::from_secs(10);
/// The same while the memory for requests is tight.
const TIGHT_STALL: Duration = Duration::from_secs(2);
/// Bytes per second that a body has to bring while memory is tight, once it has taken longer than [`TIGHT_STALL`].
const TIGHT_RATE: f64 = 32_768.0;
/// Maximum time for a whole body, even if it arrives steadily. Past it: 408.
const TOTAL: Duration = Duration::from_secs(120);
/// The name under which bodies are counted that nobody has let in yet. No tenant's is empty.
const STRANGERS: &str = "";
const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";
/// How often a silent body is looked at.
const LOOK: Duration = Duration::from_secs(1);

impl FromRequest<Arc<Api>> for Incoming {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        read_incoming(&mut request, api, Format::Json).await
    }
}

/// Reads the body of a request of the Open Inference Protocol: JSON, behind which the bytes of tensors may come.
///
/// # Errors
/// As of any other body, and 400 if the header does not say where the JSON ends.
pub(crate) async fn open_inference(request: &mut Request, api: &Arc<Api>) -> Result<Incoming, ApiError> {
    read_incoming(request, api, Format::OpenInference).await
}

/// What a body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    OpenInference,
}

async fn read_incoming(request: &mut Request, api: &Arc<Api>, format: Format) -> Result<Incoming, ApiError> {
    let extensions = request.extensions_mut();
    let caller = extensions.remove::<Caller>().ok_or(ApiError::NoCaller)?;
    let exchange = extensions.remove::<Arc<Exchange>>().ok_or(ApiError::NoExchange)?;
    let ahead = extensions.remove::<ReadAhead>().and_then(|ahead| ahead.take());
    let headers = request.headers().clone();
    // A request counts before anything is spent on its body.
    let grant = QuotaGrant::admit(&api.quotas, &caller.principal)?;
    let mut share = api.budget.share(&caller.principal.tenant);
    let bytes = match ahead {
        // From here on it is the tenant's.
        Some((bytes, of_stranger)) => {
            drop(of_stranger);
            share.grow(bytes.capacity()).map_err(FlowError::NoRoom)?;
            check_type(&headers, format)?;
            bytes
        }
        None => read(request, api.limits().body_bytes, format, &mut share).await?,
    };
    let head = match format {
        Format::Json => None,
        Format::OpenInference => json_length(&headers, bytes.len())?,
    };
    let body = bytes.capacity().saturating_add(head.unwrap_or(0));
    let (text, tail) = match head {
        None => (text(bytes)?, Bytes::new()),
        Some(length) => {
            share.grow(length).map_err(FlowError::NoRoom)?;
            (text(bytes[..length].to_vec())?, Bytes::from(bytes).slice(length..))
        }
    };
    share.resize(body).map_err(FlowError::NoRoom)?;
    Ok(Incoming { api: api.clone(), caller, exchange, headers, grant, text, tail, share })
}

/// Where the JSON ends of a body of `bytes`, as the header says. `None`: there is nothing else.
fn json_length(headers: &HeaderMap, bytes: usize) -> Result<Option<usize>, RequestError> {
    let mut values = headers.get_all(JSON_LENGTH).iter();
    let (Some(value), second) = (values.next(), values.next()) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = text.parse::<usize>().ok().filter(|&length| digits && second.is_none() && length <= bytes);
    length.map(Some).ok_or_else(|| {
        let shown = String::from_utf8_lossy(value.as_bytes()).into_owned();
        RequestError::JsonLength { bytes, got: if second.is_some() { "two".to_owned() } else { shown } }
    })
}

/// A body that was read before anybody knew whose it is, and its share of the memory for all.
#[derive(Debug, Clone)]
struct ReadAhead(Arc<Mutex<Option<Ahead>>>);

type Ahead = (Vec<u8>, Share);

impl ReadAhead {
    fn take(&self) -> Option<Ahead> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reads the body of a request for its SHA-256 before auth, in the same bounds as any other. All strangers share what one tenant
/// may take of the memory. The request keeps what was read.
///
/// # Errors
/// 413 past the limit, 408 if the client is too slow, 503 if there is no room for it.
pub(crate) async fn read_ahead(request: &mut Request, api: &Api) -> Result<[u8; 32], ApiError> {
    let limit = api.limits().body_bytes;
    check_length(request.headers(), limit)?;
    let mut share = api.budget.share(&TenantId::from(STRANGERS));
    let body = std::mem::take(request.body_mut());
    let mut digest = Sha256::new();
    let collected = timeout(TOTAL, collect(body, limit, &mut share, |data| digest.update(data))).await;
    let bytes = collected.map_err(|_| RequestError::BodyTimeout)??;
    request.extensions_mut().insert(ReadAhead(Arc::new(Mutex::new(Some((bytes, share))))));
    Ok(digest.finalize().into())
}

/// Reads the body. `limit` is in bytes.
///
/// # Errors
/// 415 if it is of another type, 413 past the limit, 408 if the client is too slow, 503 if there is no room for it.
async fn read(request: &mut Request, limit: usize, format: Format, share: &mut Share) -> Result<Vec<u8>, FlowError> {
    check_type(request.headers(), format)?;
    check_length(request.headers(), limit)?;
    let body = std::mem::take(request.body_mut());
    let collected = timeout(TOTAL, collect(body, limit, share, |_| {})).await;
    collected.map_err(|_| RequestError::BodyTimeout)?
}

fn text(bytes: Vec<u8>) -> Result<String, FlowError> {
    Ok(String::from_utf8(bytes).map_err(|error| RequestError::NotUtf8(error.utf8_error()))?)
}

fn check_length(headers: &HeaderMap, limit: usize) -> Result<(), FlowError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
        true => Err(RequestError::BodyTooLarge { limit }.into()),
        false => Ok(()),
    }
}

/// Reads to the end, and shows each part to `see` as it arrives.
async fn collect(
    mut body: Body,
    limit: usize,
    share: &mut Share,
    mut see: impl FnMut(&[u8]),
) -> Result<Vec<u8>, FlowError> {
    let begun = Instant::now();
    let (mut bytes, mut heard) = (Vec::new(), begun);
    loop {
        let Ok(frame) = timeout(LOOK, body.frame()).await else {
            if is_too_slow(begun, heard, bytes.len(), share) {
                return Err(RequestError::BodyTimeout.into());
            }
            continue;
        };
        let Some(frame) = frame else { return Ok(bytes) };
        heard = Instant::now();
        let Ok(data) = frame.map_err(RequestError::BodyBroken)?.into_data() else { continue };
        let size = bytes.len() + data.len();
        if size > limit {
            return Err(RequestError::BodyTooLarge { limit }.into());
        }
        if size > bytes.capacity() {
            let capacity = size.max(2 * bytes.capacity()).min(limit);
            share.grow(capacity - bytes.capacity()).map_err(FlowError::NoRoom)?;
            bytes.reserve_exact(capacity - bytes.len());
        }
        bytes.extend_from_slice(&data);
        see(&data);
        if is_too_slow(begun, heard, bytes.len(), share) {
            return Err(RequestError::BodyTimeout.into());
        }
    }
}

/// Whether a body that began at `begun` and was last heard of at `heard` holds its memory for too long.
fn is_too_slow(begun: Instant, heard: Instant, bytes: usize, share: &Share) -> bool {
    let (silence, taken) = (heard.elapsed(), begun.elapsed());
    if silence < TIGHT_STALL && taken < TIGHT_STALL {
        return false;
    }
    let steady = bytes as f64 >= (taken.saturating_sub(TIGHT_STALL)).as_secs_f64() * TIGHT_RATE;
    silence >= STALL || share.is_tight() && (silence >= TIGHT_STALL || !steady)
}

fn check_type(headers: &HeaderMap, format: Format) -> Result<(), RequestError> {
    let encoded = headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
    if encoded {
        return Err(RequestError::CompressedBody);
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is = |one: &str| essence.eq_ignore_ascii_case(one);
    match format {
        _ if is(JSON) => Ok(()),
        Format::Json => Err(RequestError::ContentType { accepted: JSON }),
        Format::OpenInference if is(BYTES) => Ok(()),
        // Triton's clients name none. A web page that did so would not have to ask first, and says whose it is.
        Format::OpenInference
            if !headers.contains_key(header::CONTENT_TYPE) && !headers.contains_key(header::ORIGIN) =>
        {
            Ok(())
        }
        Format::OpenInference => {
            Err(RequestError::ContentType { accepted: "application/json or application/octet-stream" })
        }
    }
}
