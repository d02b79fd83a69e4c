//! Renders responses in OpenAI's shapes.
pub(crate) mod chunks;
mod logprobs;
mod parts;
mod usage;
pub(crate) mod whole;

use std::time::{SystemTime, UNIX_EPOCH};

use camshaft_core::message::FinishReason;
use serde::Serialize;

use crate::flow::request::{Endpoint, GenerationRequest};
use usage::UsageObject;

/// The fields that all objects of one response share.
#[derive(Debug)]
struct Envelope {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    /// That the request named.
    session: Option<String>,
}

/// A response, or one chunk of it.
#[derive(Debug, Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    choices: &'a [C],
    /// Absent, `null`, or present.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageObject>>,
}

impl Envelope {
    fn new(request: &GenerationRequest) -> Self {
        let prefix = match request.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        Self {
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()),
            model: request.model_name().to_owned(),
            fingerprint: request.served.fingerprint.clone(),
            session: request.settings.session.as_ref().map(|session| session.as_str().to_owned()),
        }
    }

    fn object<'a, C>(
        &'a self,
        object: &'static str,
        choices: &'a [C],
        usage: Option<Option<UsageObject>>,
    ) -> Object<'a, C> {
        let Self { id, created, model, fingerprint, session } = self;
        let session_id = session.as_deref();
        Object { id, object, created: *created, model, system_fingerprint: fingerprint, session_id, choices, usage }
    }
}

/// `finish_reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Finish {
    Stop,
    Length,
    #[serde(rename = "content_filter")]
    ContentFilter,
    #[serde(rename = "tool_calls")]
    ToolCalls,
}

/// A call, or a part of one in a chunk, where it has its index.
#[derive(Debug, Serialize)]
struct CallObject<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionObject<'a>,
}

#[derive(Debug, Serialize)]
struct FunctionObject<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

const FUNCTION: &str = "function";

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Finish::Stop,
            FinishReason::Filtered => Finish::ContentFilter,
            // `RunningChoices` turns a cancelled generation into an error.
            FinishReason::Length | FinishReason::Expired | FinishReason::Cancelled => Finish::Length,
        }
    }
}

/// What OpenAI's shapes have no word for, of one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct ChoiceNote {
    finish_detail: &'static str,
}

impl ChoiceNote {
    /// `None`: `finish_reason` says it all.
    fn of(reason: FinishReason) -> Option<Self> {
        (reason == FinishReason::Expired).then_some(Self { finish_detail: "max_duration" })
    }
}
