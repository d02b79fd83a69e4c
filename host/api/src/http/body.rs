//! Reads a request's body: JSON only, bounded in bytes and in time.
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::flow::api::Api;
use crate::flow::caller::Caller;
use crate::flow::exchange::Exchange;
use crate::flow::incoming::Incoming;
use crate::http::error::ApiError;
use crate::wire::error::RequestError;

/// Maximum silence within a body. Past it: 408.
const STALL: Duration = Duration::from_secs(30);
/// Maximum time for a whole body, even if it arrives steadily. Past it: 408.
const TOTAL: Duration = Duration::from_secs(120);

impl FromRequest<Arc<Api>> for Incoming {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let extensions = request.extensions_mut();
        let caller = extensions.remove::<Caller>().ok_or(ApiError::NoCaller)?;
        let exchange = extensions.remove::<Arc<Exchange>>().ok_or(ApiError::NoExchange)?;
        let headers = request.headers().clone();
        let text = read(request, api.limits().body_bytes).await?;
        Ok(Self { api: api.clone(), caller, exchange, headers, text })
    }
}

/// Reads the body as text. `limit` is in bytes.
///
/// # Errors
/// 415 if the body is not JSON, 413 past the limit, 408 if the client is too slow, 400 if the body is not UTF-8.
async fn read(request: Request, limit: usize) -> Result<String, RequestError> {
    check_type(request.headers())?;
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
        return Err(RequestError::BodyTooLarge { limit });
    }
    let bytes = timeout(TOTAL, collect(request.into_body(), limit)).await.map_err(|_| RequestError::BodyTimeout)??;
    String::from_utf8(bytes).map_err(|error| RequestError::NotUtf8(error.utf8_error()))
}

async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, RequestError> {
    let mut bytes = Vec::new();
    while let Some(frame) = timeout(STALL, body.frame()).await.map_err(|_| RequestError::BodyTimeout)? {
        let Ok(data) = frame.map_err(RequestError::BodyBroken)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(RequestError::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn check_type(headers: &HeaderMap) -> Result<(), RequestError> {
    let encoded = headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
    if encoded {
        return Err(RequestError::CompressedBody);
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(RequestError::ContentType),
    }
}
