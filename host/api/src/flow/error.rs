//! Everything that can fail between a request's body and its response.
use std::fmt;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use camshaft_core::engine::ModelKind;
use camshaft_core::message::WorkerError;
use camshaft_core::policy::{Fault, FaultKind, Refusal};
use camshaft_core::quota::{Exceeded, Quota};
use camshaft_reader::{Bound, ReadError, Stage};
use tokio::task::JoinError;

use crate::flow::budget::NoRoom;
use crate::wire::echo::Shown;
use crate::wire::error::{Answer, ErrorType, Rejection, RequestError, Retry};
use crate::wire::names::Names;

/// `Retry-After` of a loading or draining server, in seconds.
const LIFE_CYCLE_RETRY: u8 = 5;

/// A request that failed. Its text is for the client unless [`FlowError::answer`] says otherwise.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlowError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("model is required where several are served: {}", listed(models))]
    ModelRequired { models: Vec<String> },
    /// `models`: those that the caller may use.
    #[error("the model {} does not exist{}", Shown(id), others(models))]
    UnknownModel { id: String, models: Vec<String> },
    /// `path`: of the field. `known`: those of the model that the caller may use.
    #[error("{path} names an unknown adapter, {:?}{}", Shown(adapter), others(known))]
    UnknownAdapter { path: String, adapter: String, known: Vec<String> },
    #[error("the model {0} may not be used with these credentials")]
    ModelForbidden(String),
    #[error("{}", wrong_kind(model, *kind, *wanted))]
    WrongKind { model: String, kind: ModelKind, wanted: ModelKind },
    #[error("the model {0} reads no texts")]
    NoText(String),
    #[error("no model is served here that {}", does(*.0))]
    NoneOfKind(ModelKind),
    /// "prompt is too long": LangChain and LiteLLM tell this error by these words, whatever the code says.
    #[error(
        "the prompt is too long: this model's context holds {context} tokens, but the prompt has {tokens} (and at least one must \
         be left to generate)"
    )]
    ContextLength { tokens: TokenCount, context: u32, param: &'static str },
    #[error("{param} has {tokens} tokens, this model takes at most {max}")]
    InputLength { tokens: TokenCount, max: u32, param: String },
    #[error("the chat template of model {0:?} cannot be used: it answers no chats, only completions")]
    NoTemplate(String),
    /// Of a template, a vocabulary or a grammar.
    #[error(transparent)]
    Read(#[from] ReadError),

    #[error("{}", .0.message)]
    ValidatorRefused(Box<Refusal>),
    #[error("a validator policy failed")]
    ValidatorFault(#[source] Box<Fault>),
    #[error("validator {index} amended the request to something that is refused")]
    Amendment { index: usize, source: Box<AmendmentError> },
    #[error("{}", quota_message(.0))]
    QuotaExceeded(Box<Exceeded>),
    /// By a request that generates nothing. `unit`: what a token is, if it is none of a text.
    #[error("{}", input_quota_message(exceeded, *unit))]
    InputQuotaExceeded { exceeded: Box<Exceeded>, unit: Option<&'static str> },

    /// With what is loaded at the moment.
    #[error("the server is loading: {0}")]
    NotReady(String),
    #[error("the server is draining: it takes no new requests")]
    Draining,
    #[error("{0}")]
    Unhealthy(String),
    #[error("the server ends: {0}")]
    Failed(String),
    #[error("nobody serves the model {0} at the moment")]
    ModelDown(String),
    /// Whoever waits for it is served.
    #[error("the model {0} is not in memory")]
    Asleep(String),
    #[error("the model {0} is being loaded")]
    ModelLoading(String),
    #[error("the model {0} could not be loaded")]
    ModelFailed(String),
    /// `why`: what the server found out when it was asked to load it.
    #[error("the model {model} could not be loaded")]
    NotWoken { model: String, why: String },
    #[error("the server is overloaded")]
    Overloaded,
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Its queue cannot be reached: nothing was begun.
    #[error("the model is not served at the moment")]
    PoolGone,
    #[error("the worker stopped before the generation was done")]
    WorkerLost,
    #[error("the generation was cancelled by the server")]
    Cancelled,
    #[error(transparent)]
    Worker(#[from] WorkerError),

    #[error("{task} was aborted")]
    Task { task: &'static str, source: JoinError },
    #[error("a body could not be written")]
    Serialize(#[source] serde_json::Error),
    /// `names`: the client's own, of fields that have others where the request is served.
    #[error("{source}")]
    Renamed { source: Box<Self>, names: Names },
}

fn does(kind: ModelKind) -> &'static str {
    match kind {
        ModelKind::Generate => "generates texts",
        ModelKind::Embed => "embeds texts",
        ModelKind::Predict => "computes tensors",
    }
}

fn wrong_kind(model: &str, kind: ModelKind, wanted: ModelKind) -> String {
    match (wanted, kind) {
        (ModelKind::Generate, ModelKind::Embed) => format!("the model {model} embeds texts; it generates none"),
        (ModelKind::Generate, _) => format!("the model {model} computes tensors; it generates no texts"),
        (ModelKind::Embed, kind) => {
            let does = does(kind);
            format!(
                "the model {model} is not served for embeddings: it {does} (`task` in /v1/models/{{id}} is {kind}, not embed)"
            )
        }
        (ModelKind::Predict, _) => format!("the model {model} computes no tensors"),
    }
}

/// Why a validator's amendment cannot stand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AmendmentError {
    #[error("the amendment has {bytes} bytes, at most {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error(
        "the amendment changes model, stream or tensors, or the number of choices or the usage of a translated request"
    )]
    AnotherKind,
    #[error(transparent)]
    Refused(#[from] FlowError),
}

/// How many times as many tokens as a model takes are counted of a text that is too long for it.
const COUNTED: u32 = 4;

/// Tokens up to which a text is read for a model that takes `most`.
pub(crate) fn readable(most: u32) -> usize {
    most.saturating_mul(COUNTED) as usize
}

/// The tokens of a text that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenCount {
    Exactly(usize),
    /// The rest was not read.
    MoreThan(usize),
}

impl TokenCount {
    /// Of a text of which these tokens were read, for a model that takes `most`.
    pub(crate) fn of(tokens: usize, most: u32) -> Self {
        if tokens > readable(most) { Self::MoreThan(readable(most)) } else { Self::Exactly(tokens) }
    }
}

impl fmt::Display for TokenCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(tokens) => tokens.fmt(f),
            Self::MoreThan(tokens) => write!(f, "more than {tokens}"),
        }
    }
}

impl From<RequestError> for AmendmentError {
    fn from(error: RequestError) -> Self {
        Self::Refused(error.into())
    }
}

impl FlowError {
    /// A body's field with a value that cannot be accepted.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        RequestError::field(param, message).into()
    }

    /// The same error, with fields as the client has them.
    pub(crate) fn renamed(self, names: Names) -> Self {
        match self {
            // Not for the client: what failed is tried again.
            Self::Asleep(_) => self,
            error => Self::Renamed { source: Box::new(error), names },
        }
    }

    /// The mapping from conditions to statuses, types and codes.
    pub(crate) fn answer(&self) -> Answer {
        let text = || self.to_string();
        let model = || Some("model".to_owned());
        match self {
            Self::Request(error) => error.answer(),
            Self::ModelRequired { .. } | Self::WrongKind { .. } | Self::NoText(_) | Self::NoneOfKind(_) => {
                Answer::invalid(text()).param(model())
            }
            Self::UnknownModel { .. } => {
                let answer = Answer::new(StatusCode::NOT_FOUND, ErrorType::InvalidRequest, text());
                answer.code("model_not_found").param(model())
            }
            Self::UnknownAdapter { path, .. } => Answer::invalid(text()).code("adapter_not_found").param(path.clone()),
            Self::ModelForbidden(_) => {
                let answer = Answer::new(StatusCode::FORBIDDEN, ErrorType::Permission, text());
                answer.code("model_not_allowed").param(model()).rejection(Rejection::ModelNotAllowed)
            }
            Self::ContextLength { param, .. } => {
                Answer::invalid(text()).code("context_length_exceeded").param((*param).to_owned())
            }
            Self::InputLength { param, .. } => {
                Answer::invalid(text()).code("context_length_exceeded").param(param.clone())
            }
            Self::NoTemplate(_) => Answer::unavailable("chat_template_invalid", text(), 1).retry(Retry::Never),
            Self::Read(error) => read_answer(error),
            Self::ValidatorRefused(refusal) => refused(refusal, ErrorType::InvalidRequest).rejection(Rejection::Policy),
            Self::ValidatorFault(fault) if fault.kind == FaultKind::Exhausted => exhausted(),
            Self::ValidatorFault(_) | Self::Amendment { .. } => {
                let answer = Answer::internal("a validator policy failed", self).retry(Retry::Never);
                answer.rejection(Rejection::PolicyFault)
            }
            Self::QuotaExceeded(exceeded) | Self::InputQuotaExceeded { exceeded, .. } => quota_answer(exceeded, text()),
            Self::NotReady(_) => {
                Answer::unavailable("not_ready", text(), LIFE_CYCLE_RETRY).rejection(Rejection::NotReady)
            }
            Self::Draining => Answer::unavailable("draining", text(), LIFE_CYCLE_RETRY).rejection(Rejection::Draining),
            Self::NoRoom(NoRoom::Ever { .. }) => {
                let answer = Answer::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorType::InvalidRequest, text());
                answer.code("request_too_large")
            }
            Self::Overloaded | Self::NoRoom(NoRoom::Now) => {
                Answer::unavailable("overloaded", text(), 1).rejection(Rejection::Overloaded)
            }
            Self::PoolGone | Self::Cancelled => Answer::unavailable("overloaded", text(), 1),
            Self::Asleep(_) | Self::ModelLoading(_) => Answer::unavailable("loading", text(), LIFE_CYCLE_RETRY),
            Self::ModelDown(_)
            | Self::ModelFailed(_)
            | Self::NotWoken { .. }
            | Self::Unhealthy(_)
            | Self::Failed(_)
            | Self::WorkerLost => Answer::unavailable("worker_lost", text(), 1),
            Self::Worker(error) => worker_answer(error),
            Self::Renamed { source, names } => source.answer().renamed(names),
            Self::Task { .. } | Self::Serialize(_) => Answer::internal("internal error", self),
        }
    }
}

/// As many instances of a hook run as may run at once.
pub(crate) fn exhausted() -> Answer {
    Answer::unavailable("overloaded", "too many policies run at this moment", 1).rejection(Rejection::Overloaded)
}

/// A policy's own refusal, with the status, code and param that it chose.
pub(crate) fn refused(refusal: &Refusal, kind: ErrorType) -> Answer {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // Clients retry 408 and 409 unasked, although a policy would refuse again; a 429 is about time.
    let retry = match refusal.status {
        408 | 409 => Retry::Never,
        429 => Retry::After(1),
        _ => Retry::Unspecified,
    };
    let answer = Answer::new(status, kind, refusal.message.clone());
    answer.code(refusal.code.clone()).param(refusal.param.clone()).retry(retry)
}

fn worker_answer(error: &WorkerError) -> Answer {
    let text = || error.to_string();
    match error {
        WorkerError::QueueFull => {
            let answer = Answer::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, text());
            answer.code("queue_full").retry(Retry::After(1)).rejection(Rejection::QueueFull)
        }
        WorkerError::SlowReader => {
            let answer = Answer::new(StatusCode::REQUEST_TIMEOUT, ErrorType::InvalidRequest, text());
            answer.code("slow_reader").retry(Retry::Never).rejection(Rejection::SlowReader)
        }
        WorkerError::SamplersBusy | WorkerError::FiltersBusy | WorkerError::GrammarsBusy { .. } => {
            Answer::unavailable("overloaded", text(), 1).rejection(Rejection::Overloaded)
        }
        WorkerError::Refused(_) => Answer::invalid(text()),
        WorkerError::GrammarExhausted { .. } => Answer::invalid(text()).code("grammar_exhausted").retry(Retry::Never),
        WorkerError::Declined(refusal) => refused(refusal, ErrorType::InvalidRequest).rejection(Rejection::Policy),
        WorkerError::Rejected(said) => {
            let answer = Answer::unavailable("overloaded", text(), seconds(said.retry_after));
            answer.code(said.code.clone()).rejection(Rejection::Scheduler)
        }
        WorkerError::WorkerLost => Answer::unavailable("worker_lost", text(), 1),
        WorkerError::ShuttingDown => Answer::unavailable("draining", text(), LIFE_CYCLE_RETRY),
        WorkerError::DeadlineExceeded => {
            let answer = Answer::new(StatusCode::GATEWAY_TIMEOUT, ErrorType::Server, text());
            answer.code("deadline_exceeded").retry(Retry::After(5)).rejection(Rejection::Deadline)
        }
        WorkerError::Engine(_) => Answer::internal("the engine failed", error),
        WorkerError::InvalidLogits => Answer::internal(text(), error).retry(Retry::Never),
        WorkerError::PolicyFault { detail } | WorkerError::FilterFault { detail } => {
            Answer::internal(text(), error).retry(Retry::Never).detail(detail.clone())
        }
    }
}

/// A quota that will hold the request later is a rate limit, one that never will is insufficient.
fn quota_answer(exceeded: &Exceeded, message: String) -> Answer {
    let (code, retry) = match (exceeded.quota, exceeded.retry_after) {
        (_, Some(wait)) => ("rate_limit_exceeded", Retry::After(seconds(wait))),
        (Quota::Concurrency, None) if exceeded.asked <= u64::from(exceeded.limit) => {
            ("rate_limit_exceeded", Retry::After(1))
        }
        (_, None) => ("insufficient_quota", Retry::Never),
    };
    let answer = Answer::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, message).code(code).retry(retry);
    answer.rejection(Rejection::Quota).standings(exceeded.standings)
}

/// Of what a reader could not read.
fn read_answer(error: &ReadError) -> Answer {
    let text = error.to_string();
    match error {
        ReadError::Field { field, .. } => Answer::invalid(text).param(field.clone()),
        ReadError::Template(_) => Answer::invalid(text).param("messages".to_owned()),
        // Whoever asks for a grammar says where it stands.
        ReadError::Grammar(_) | ReadError::Ended(Stage::Grammar, _) => Answer::invalid(text),
        ReadError::Busy | ReadError::Ended(_, Bound::Wait) => {
            Answer::unavailable("overloaded", text, 1).rejection(Rejection::Overloaded)
        }
        ReadError::Ended(Stage::Template, _) => {
            Answer::unavailable("chat_template_stopped", text, 1).retry(Retry::Never)
        }
        ReadError::Ended(Stage::Vocabulary, _) => {
            Answer::unavailable("vocabulary_stopped", text, 1).retry(Retry::Never)
        }
        ReadError::GrammarsBusy => {
            let answer = Answer::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, text);
            answer.code("grammars_busy").retry(Retry::After(1)).rejection(Rejection::Overloaded)
        }
        ReadError::Lost(_) => Answer::unavailable("reader_lost", text, 1),
    }
}

fn quota_message(exceeded: &Exceeded) -> String {
    let limit = exceeded.limit;
    match exceeded.quota {
        Quota::Requests => format!("your quota of {limit} requests per minute is used up"),
        Quota::Concurrency if exceeded.asked > 1 => {
            let asked = exceeded.asked;
            format!(
                "your quota allows {limit} requests at the same time, and this one counts as {asked}, one for each choice"
            )
        }
        Quota::Concurrency => format!("your quota allows {limit} requests at the same time"),
        Quota::Tokens if exceeded.retry_after.is_none() => {
            let asked = exceeded.asked;
            format!(
                "prompt and max_tokens together count as {asked} tokens, and your whole quota is {limit} per minute; without \
                 max_tokens a request counts as if it asked for the most that it may have"
            )
        }
        Quota::Tokens => format!("your quota of {limit} tokens per minute does not hold this request now"),
    }
}

fn input_quota_message(exceeded: &Exceeded, unit: Option<&str>) -> String {
    let Exceeded { limit, asked, .. } = exceeded;
    let unit = unit.map(|unit| format!(", {unit}")).unwrap_or_default();
    match (exceeded.quota, exceeded.retry_after) {
        (Quota::Tokens, None) => {
            format!("the inputs count as {asked} tokens{unit}, and your whole quota is {limit} per minute")
        }
        _ => quota_message(exceeded),
    }
}

/// Whole seconds, at least one and at most what clients wait for.
fn seconds(wait: std::time::Duration) -> u8 {
    wait.as_secs_f64().ceil().clamp(1.0, 120.0) as u8
}

/// The first few names.
fn others(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; there are: {}", listed(names)) }
}

fn listed(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        text.push_str(&format!(" and {more} more (GET /v1/models lists all)"));
    }
    text
}

impl IntoResponse for FlowError {
    fn into_response(self) -> Response {
        self.answer().into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camshaft_core::policy;

    use super::*;

    #[test]
    fn maps_every_worker_error_to_its_status() {
        use Retry::{After, Never, Unspecified};
        let check = |error: WorkerError, status, code, retry| {
            FlowError::from(error).answer().check(status, code, retry);
        };
        check(WorkerError::InvalidLogits, 500, Some("server_error"), Never);
        check(WorkerError::PolicyFault { detail: "trap at 0x10".into() }, 500, Some("server_error"), Never);
        check(WorkerError::FilterFault { detail: "trap at 0x10".into() }, 500, Some("server_error"), Never);
        check(WorkerError::FiltersBusy, 503, Some("overloaded"), After(1));
        check(WorkerError::GrammarsBusy { detail: "full".to_owned() }, 503, Some("overloaded"), After(1));
        let (code, message) = ("withheld".to_owned(), "not here".to_owned());
        let refusal = Refusal { status: 451, code, message, param: None };
        check(WorkerError::Declined(Box::new(refusal)), 451, Some("withheld"), Unspecified);
        check(WorkerError::Refused("prompt too long".into()), 400, None, Unspecified);
        let rejection = policy::Rejection::new("not today");
        check(WorkerError::Rejected(Box::new(rejection.clone())), 503, Some("overloaded"), After(1));
        for (ms, after) in [(0, 1), (1000, 1), (1001, 2), (120_000, 120), (u64::MAX, 120)] {
            let retry_after = Duration::from_millis(ms);
            let rejection = policy::Rejection { code: "tier_full".into(), retry_after, ..rejection.clone() };
            check(WorkerError::Rejected(Box::new(rejection)), 503, Some("tier_full"), After(after));
        }
        check(WorkerError::Engine("decode returned -3".into()), 500, Some("server_error"), Unspecified);
        check(WorkerError::QueueFull, 429, Some("queue_full"), After(1));
        check(WorkerError::SlowReader, 408, Some("slow_reader"), Never);
        check(WorkerError::DeadlineExceeded, 504, Some("deadline_exceeded"), After(5));
        check(WorkerError::WorkerLost, 503, Some("worker_lost"), After(1));
        check(WorkerError::ShuttingDown, 503, Some("draining"), After(5));
    }

    #[test]
    fn keeps_what_a_policy_or_the_engine_said_out_of_the_clients_sight() {
        let fault = Fault { plugin: "limits".into(), kind: FaultKind::Trap, detail: "secret backtrace".into() };
        let amended = FlowError::field("secret", "secret backtrace");
        let errors = [
            FlowError::ValidatorFault(Box::new(fault)),
            FlowError::Amendment { index: 1, source: Box::new(amended.into()) },
            WorkerError::PolicyFault { detail: "secret backtrace".into() }.into(),
            WorkerError::Engine("secret backtrace".into()).into(),
        ];
        for error in errors {
            let answer = error.answer();
            assert!(!answer.note().object.message.contains("secret"), "{error:?}");
            assert!(
                answer.note().detail.as_ref().is_some_and(|detail| detail.contains("secret backtrace")),
                "{error:?}"
            );
        }
    }

    #[test]
    fn tells_clients_not_to_retry_a_refusal_that_sdks_would_retry() {
        let refuse = |status| {
            let refusal = Refusal { status, code: "policy_refused".into(), message: "no".into(), param: None };
            FlowError::ValidatorRefused(Box::new(refusal)).answer()
        };
        refuse(409).check(409, Some("policy_refused"), Retry::Never);
        refuse(429).check(429, Some("policy_refused"), Retry::After(1));
        refuse(422).check(422, Some("policy_refused"), Retry::Unspecified);
    }

    #[test]
    fn regression_lists_the_models_where_one_has_to_be_named_and_not_without_end() {
        let message = |count: usize| {
            let models = (0..count).map(|i| format!("m{i}")).collect();
            FlowError::ModelRequired { models }.answer().note().object.message.clone()
        };
        assert_eq!(message(2), "model is required where several are served: m0, m1");
        assert!(message(10).ends_with("m9"), "{}", message(10));
        assert!(message(11).ends_with("m9 and 1 more (GET /v1/models lists all)"), "{}", message(11));
    }
}
