//! `GET /openapi.json`: what the public listener serves, made of the wire types; and `GET /docs`, which shows it.
use std::collections::{BTreeMap, BTreeSet};

use axum::Extension;
use axum::body::Bytes;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderName, Method};
use axum::response::IntoResponse;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::http::error::ErrorShape;
use crate::http::paths;
use crate::wire::error::{self, ErrorBody, MessageError};
use crate::wire::open_inference::InferenceError;
use crate::wire::types::chat::{ChatChoice, ChatChunkChoice, ChatRequest};
use crate::wire::types::completions::{CompletionChoice, CompletionRequest};
use crate::wire::types::embeddings::{EmbeddingList, EmbeddingRequest};
use crate::wire::types::errors::ERRORS;
use crate::wire::types::generate::{GenerateEvent, GenerateRequest, Generation};
use crate::wire::types::generation::ChoiceList;
use crate::wire::types::messages::{CountTokensRequest, CountedTokens, Message, MessageEvent, MessagesRequest};
use crate::wire::types::models::{ModelDetails, ModelList, TensorModelInfo};
use crate::wire::types::ranking::{RerankRequest, Reranked, ScoreList, ScoreRequest};
use crate::wire::types::responses::{self, CountedInput, ResponseEvent, ResponsesRequest};
use crate::wire::types::tokens::{
    ChatPrompt, CloseSessionRequest, ClosedSession, DetokenizeRequest, Detokenized, SessionList, TokenizeRequest,
    Tokenized,
};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
/// It has all that it shows from this server.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// What an operation takes and gives.
#[derive(Debug, Clone, Copy)]
struct Described {
    summary: &'static str,
    request: Option<MakeSchema>,
    response: Response,
    /// Of a streamed response, each of its events.
    event: Option<MakeSchema>,
}

#[derive(Debug, Clone, Copy)]
enum Response {
    Typed(MakeSchema),
    /// JSON that no type describes.
    Json,
    /// Of another media type.
    Other(&'static str),
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Any JSON object.
fn object(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "type": "object" })
}

const fn getting(summary: &'static str, response: Response) -> Described {
    Described { summary, request: None, response, event: None }
}

const fn posting(summary: &'static str, request: MakeSchema, response: Response) -> Described {
    Described { summary, request: Some(request), response, event: None }
}

fn described(route: &PublicRoute) -> Described {
    use Response::{Json, Other, Typed};
    let chunks = |described: Described, event: MakeSchema| Described { event: Some(event), ..described };
    match (route.method.as_str(), route.path) {
        ("GET", "/healthz" | "/health" | "/v2/health/live") => getting("The process can answer", Json),
        ("GET", "/readyz" | "/ready" | "/v2/health/ready") => getting("Load balancers should send requests", Json),
        ("GET", "/metrics") => getting("Metrics in Prometheus' text format, for operators", Other("text/plain")),
        ("GET", "/server/stats") => getting("Queues, workers and latencies", Json),
        ("GET", OPENAPI) => getting("This description", Json),
        ("GET", DOCS) => getting("A page that shows this description", Other("text/html")),
        ("POST", "/v1/chat/completions" | "/chat") => {
            let answer = Typed(of::<ChoiceList<'_, ChatChoice<'_>>>);
            let events = of::<ChoiceList<'_, ChatChunkChoice<'_>>>;
            chunks(posting("Answers a conversation", of::<ChatRequest>, answer), events)
        }
        ("POST", "/v1/completions") => chunks(
            posting(
                "Continues a text or tokens",
                of::<CompletionRequest>,
                Typed(of::<ChoiceList<'_, CompletionChoice<'_>>>),
            ),
            of::<ChoiceList<'_, CompletionChoice<'_>>>,
        ),
        ("POST", paths::RESPONSES) => {
            let responses = Typed(of::<responses::Response<'_>>);
            chunks(
                posting("Answers a conversation (OpenAI's Responses API)", of::<ResponsesRequest>, responses),
                of::<ResponseEvent<'_>>,
            )
        }
        ("POST", paths::MESSAGES) => {
            let message = Typed(of::<Message<'_>>);
            chunks(
                posting("Answers a conversation (Anthropic's Messages API)", of::<MessagesRequest>, message),
                of::<MessageEvent<'_>>,
            )
        }
        ("POST", paths::COUNT_TOKENS) => {
            posting("Counts the tokens of a conversation", of::<CountTokensRequest>, Typed(of::<CountedTokens>))
        }
        ("POST", paths::GENERATE | paths::GENERATE_ALIAS) => chunks(
            posting("Continues a text or tokens, without choices", of::<GenerateRequest>, Typed(of::<Generation<'_>>)),
            of::<GenerateEvent<'_>>,
        ),
        ("POST", paths::TEMPLATE) => {
            posting("The prompt that a conversation makes", of::<ChatRequest>, Typed(of::<ChatPrompt>))
        }
        ("GET", "/") => getting("There is a server", Other("text/plain")),
        ("POST", paths::COUNT_INPUT) => {
            posting("Counts the tokens of a conversation", of::<ResponsesRequest>, Typed(of::<CountedInput>))
        }
        ("POST", paths::RERANK | paths::RERANK_ALIAS | paths::RERANK_COHERE) => {
            posting("Ranks documents", of::<RerankRequest>, Typed(of::<Reranked>))
        }
        ("POST", paths::SCORE) => posting("Scores pairs of texts", of::<ScoreRequest>, Typed(of::<ScoreList>)),
        ("POST", "/v1/embeddings" | "/embeddings") => {
            posting("Vectors of texts", of::<EmbeddingRequest>, Typed(of::<EmbeddingList>))
        }
        ("POST", "/v1/tokenize") => posting("Tokens of a text", of::<TokenizeRequest>, Typed(of::<Tokenized>)),
        ("POST", "/v1/detokenize") => posting("The text of tokens", of::<DetokenizeRequest>, Typed(of::<Detokenized>)),
        ("POST", "/v1/session/close") => {
            posting("Releases a session's prefix", of::<CloseSessionRequest>, Typed(of::<ClosedSession>))
        }
        ("GET", "/v1/sessions") => getting("Open sessions of the caller's", Typed(of::<SessionList>)),
        ("GET", "/v1/models") => getting("Names of models that the caller may use", Typed(of::<ModelList>)),
        ("GET", "/v1/models/{*id}") => getting("One model", Typed(of::<ModelDetails>)),
        ("GET", "/model/info") => getting("What a tensor model takes and gives", Typed(of::<TensorModelInfo>)),
        ("POST", "/predict" | "/v1/models/{*id}") => posting("Tensors to tensors", object, Json),
        ("POST", "/v2/models/{*id}") => posting("Tensors to tensors (Open Inference Protocol)", object, Json),
        ("POST", "/v2/repository/index") => posting("The models (Open Inference Protocol)", object, Json),
        _ => getting("See docs/api.md", Json),
    }
}

pub(crate) const OPENAPI: &str = "/openapi.json";
pub(crate) const DOCS: &str = "/docs";

/// A route of the public listener.
#[derive(Debug, Clone)]
pub(crate) struct PublicRoute {
    pub(crate) method: &'static Method,
    pub(crate) path: &'static str,
    /// For people to read.
    pub(crate) shown: String,
    /// Whether anyone may call it.
    pub(crate) open: bool,
}

/// The description of all routes, as it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Document(Bytes);

impl Document {
    pub(crate) fn of(routes: impl Iterator<Item = PublicRoute>) -> Self {
        Self(Bytes::from(description(routes).to_string()))
    }
}

pub(crate) async fn openapi(Extension(Document(document)): Extension<Document>) -> impl IntoResponse {
    ([(CONTENT_TYPE, JSON), (CACHE_CONTROL, "no-cache")], document)
}

pub(crate) async fn docs() -> impl IntoResponse {
    let sniffing = HeaderName::from_static("x-content-type-options");
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (CACHE_CONTROL, "no-cache"),
        (sniffing, "nosniff"),
    ];
    (headers, include_str!("docs.html"))
}

/// The document, in OpenAPI 3.1.
fn description(routes: impl Iterator<Item = PublicRoute>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let (path, parameters) = templated(&route.shown);
        let operation = operation(&route, parameters, &mut generator);
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry[route.method.as_str().to_lowercase()] = operation;
    }
    let error = of::<ErrorBody<'_>>(&mut generator);
    let message_error = of::<MessageError<'_>>(&mut generator);
    let inference_error = of::<InferenceError<'_>>(&mut generator);
    let shapes = [
        (ErrorShape::OpenAi, &error),
        (ErrorShape::Messages, &message_error),
        (ErrorShape::OpenInference, &inference_error),
    ];
    let responses: Map<String, Value> = shapes
        .into_iter()
        .flat_map(|(shape, schema)| {
            by_status(shape).map(move |(status, text)| {
                let response = json!({"description": text, "content": {JSON: {"schema": schema}}});
                (error_name(shape, &status), response)
            })
        })
        .collect();
    let errors: Vec<Value> = ERRORS
        .iter()
        .flat_map(|row| row.codes.iter().map(move |code| (row, code)))
        .map(|(row, code)| json!({"status": row.status, "type": row.kind, "code": code, "when": row.when}))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Camshaft",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Shapes are OpenAI's where OpenAI has them, and Anthropic's under /v1/messages. docs/api.md says what each field means.",
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "responses": responses,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "x-errors": errors,
    })
}

/// What each status stands for, in the shape of errors of a path. Several rows of the table may have one.
fn by_status(shape: ErrorShape) -> impl Iterator<Item = (String, String)> {
    let mut all: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in ERRORS {
        let status = |code: &Option<&str>| match shape {
            ErrorShape::Messages => error::of_anthropic(row.status, code.unwrap_or_default()).0,
            ErrorShape::OpenAi | ErrorShape::OpenInference => row.status,
        };
        for status in row.codes.iter().map(status).collect::<BTreeSet<u16>>() {
            all.entry(status.to_string()).or_default().push(row.when);
        }
    }
    all.into_iter().map(|(status, when)| (status, when.join(" ")))
}

/// The name of the error with this status.
fn error_name(shape: ErrorShape, status: &str) -> String {
    match shape {
        ErrorShape::Messages => format!("messages-{status}"),
        ErrorShape::OpenInference => format!("inference-{status}"),
        ErrorShape::OpenAi => status.to_owned(),
    }
}

fn operation(route: &PublicRoute, parameters: Vec<Value>, generator: &mut SchemaGenerator) -> Value {
    let Described { summary, request, response, event } = described(route);
    let mut content = match response {
        Response::Typed(schema) => json!({JSON: {"schema": schema(generator)}}),
        Response::Json => json!({JSON: {"schema": {}}}),
        Response::Other(media) => json!({media: {"schema": {"type": "string"}}}),
    };
    if let Some(event) = event {
        let schema = event(generator);
        let streamed = json!({"schema": {"type": "string"}, "x-event": schema});
        if route.path.ends_with("/generate") {
            content[LINES] = streamed.clone();
        }
        content[EVENTS] = streamed;
    }
    let mut responses = json!({"200": {"description": summary, "content": content}});
    let shape = ErrorShape::of(route.path);
    let error = |status: &str| json!({"$ref": format!("#/components/responses/{}", error_name(shape, status))});
    for (status, _) in by_status(shape) {
        responses[&status] = error(&status);
    }
    // A policy chooses its statuses.
    responses["default"] = error("500");
    let mut operation = json!({"summary": summary, "responses": responses});
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(request) = request {
        let schema = request(generator);
        operation["requestBody"] = json!({"required": true, "content": {JSON: {"schema": schema}}});
    }
    if !route.open {
        // As shipped, callers on this machine need no key.
        operation["security"] = json!([{"bearer": []}, {"key": []}, {}]);
    }
    operation
}

/// A path in OpenAPI's words, with its parameters.
fn templated(path: &str) -> (String, Vec<Value>) {
    let path = path.replace("{*id}", "{id}");
    let parameters = match path.contains("{id}") {
        true => vec![json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}})],
        false => Vec::new(),
    };
    (path, parameters)
}
