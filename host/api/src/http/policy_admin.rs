//! `/admin/policies`: how every policy stands, operators' orders, and examining a component without loading it.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, RawQuery, State};
use axum::http::Extensions;
use camshaft_core::ids::Generation;
use camshaft_core::policy::{
    Hook, ModeError, PolicyAction, PolicyChange, PolicyCheck, PolicyHistory, PolicyOrder, PolicyStatus,
};
use http_body_util::{BodyExt, Limited};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::flow::api::Api;
use crate::flow::error::FlowError;
use crate::http::error::ApiError;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;

/// Bytes of a component that is examined; a file may have as many.
const COMPONENT_MAX_BYTES: usize = 64 << 20;
/// Maximum time for a whole component to arrive. Past it: 408.
const BODY_TIME: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    /// The published set of policies.
    generation: Generation,
    policies: Vec<PolicyStatus>,
    /// The newest changes, the oldest first.
    history: Vec<PolicyChange>,
    /// How many are kept.
    history_max: usize,
}

/// What comes with a component that is examined.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckQuery {
    /// A whole settings file.
    settings: Option<String>,
}

pub(crate) async fn policies(State(api): State<Arc<Api>>) -> Json<PolicyReport> {
    let (generation, policies) = (api.policies.current().generation(), api.policies.status());
    Json(PolicyReport { generation, policies, history: api.policies.history(), history_max: PolicyHistory::MAX })
}

/// Sets a policy to `enforce`, `monitor` or `off` until its files change; `rollback` goes back to the version before, and
/// `promote` loads again what was rolled back.
///
/// # Errors
/// 404 for an unknown policy, 400 for a hook or action that does not exist or cannot be combined, 409 where there is nothing
/// to go back to or to promote.
pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    extensions: Extensions,
    names: Result<Path<(String, String, String)>, PathRejection>,
) -> Result<Json<PolicyStatus>, ApiError> {
    let Path((hook, name, action)) = names?;
    let hook =
        Hook::ALL.into_iter().find(|known| known.as_str() == hook).ok_or(ApiError::UnknownHook { name: hook })?;
    let action = PolicyAction::parse(&action).ok_or(ApiError::UnknownAction { name: action })?;
    let order = PolicyOrder { hook, name, action, who: who(&extensions) };
    // The call waits for the thread that loads policies.
    let done = tokio::task::spawn_blocking(move || api.policies.change(order)).await;
    let done = done.map_err(ApiError::PolicyTask)?.map_err(|error| match error {
        ModeError::NoPolicy { hook, name } => ModeError::NoPolicy { hook, name: Shown(&name).to_string() },
        error => error,
    });
    done.map(Json).map_err(ApiError::Policy)
}

/// Examines the component in the body as a load would. Nothing changes.
///
/// # Errors
/// 400 with the reason for which it would be rejected, 409 while another one is examined, 413 past 64 MiB.
pub(crate) async fn check(
    State(api): State<Arc<Api>>,
    extensions: Extensions,
    query: Result<Query<CheckQuery>, QueryRejection>,
    RawQuery(raw): RawQuery,
    body: Body,
) -> Result<Json<PolicyCheck>, ApiError> {
    let Query(CheckQuery { settings }) = query.map_err(ApiError::Query)?;
    // The extractor replaces what is not UTF-8, and a file that has it is rejected.
    if percent_decode_str(&raw.unwrap_or_default()).decode_utf8().is_err() {
        return Err(ApiError::QueryText);
    }
    // Also the memory of the body is one component's at a time.
    let one = api.policy_checks.clone().try_acquire_owned().map_err(|_| ApiError::Policy(ModeError::Checking))?;
    let limit = COMPONENT_MAX_BYTES;
    let read = timeout(BODY_TIME, Limited::new(body, limit).collect()).await;
    let read = read.map_err(|_| FlowError::from(RequestError::BodyTimeout))?;
    let component = read.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => FlowError::from(RequestError::BodyTooLarge { limit }),
        false => FlowError::from(RequestError::BodyBroken(axum::Error::new(error))),
    })?;
    let (component, who) = (component.to_bytes().to_vec(), who(&extensions));
    let checked = tokio::task::spawn_blocking(move || {
        let bytes = component.len();
        let checked = api.policies.check(component, settings.as_deref());
        drop(one);
        match &checked {
            Ok(PolicyCheck { hook, name, sha256, .. }) => {
                tracing::info!(who, %hook, plugin = name, digest = sha256, "audit: a component was checked: accepted");
            }
            Err(why) => tracing::info!(who, bytes, %why, "audit: a component was checked: rejected"),
        }
        checked
    });
    checked.await.map_err(ApiError::PolicyTask)?.map(Json).map_err(ApiError::Policy)
}

/// Who gives an order: the admin listener knows its callers by their addresses.
fn who(extensions: &Extensions) -> String {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
    peer.map_or_else(|| "admin".to_owned(), |peer| format!("admin {peer}"))
}
