//! Serves what generates nothing: tokens of a text, texts of tokens, prompts of chats and their lengths; and sessions.
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use camshaft_core::engine::Encoded;
use camshaft_core::ids::{SessionId, Token};
use camshaft_core::message::OpenSession;
use camshaft_core::segments::Namespace;
use camshaft_core::vocabulary::Offsets;
use camshaft_reader::{Rendered, Texts};
use crossbeam_channel::TrySendError;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::api::ModelWish;
use crate::flow::backend::PoolMessage;
use crate::flow::budget::{self, PIECE_BYTES, Share};
use crate::flow::catalog::Served;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::generate::Generates;
use crate::flow::incoming::Incoming;
use crate::flow::read::{self, MESSAGES, text_of};
use crate::flow::request::{self, ReadContext};
use crate::wire::dialect::{self, Converted};
use crate::wire::error::RequestError;
use crate::wire::read::Body;
use crate::wire::settings;
use crate::wire::types::chat::ChatRequest;
use crate::wire::types::messages::CountedTokens;
use crate::wire::types::responses::CountedInput;
use crate::wire::types::tokens::{
    ChatPrompt, CloseSessionRequest, ClosedSession, DetokenizeRequest, Detokenized, Session, SessionList,
    TokenizeRequest,
};

/// What a token takes, with the room that lists have left: its id and its offsets.
const TOKENIZED_BYTES: usize = 24;

/// `{"model","text"}`, optionally `add_special` and `parse_special` (both false). The tokens count against the caller's
/// quota, as those of a prompt do.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 429: the quota does not hold
/// the tokens.
pub(crate) async fn tokenize(mut incoming: Incoming) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let TokenizeRequest { model, text, add_special, parse_special } = incoming.body().await?.request;
    let wish = ModelWish { name: model.as_deref(), ..ModelWish::default() };
    let target = incoming.target(&wish, None, bytes).await?;
    let (add_special, parse_special) = (add_special.unwrap_or(false), parse_special.unwrap_or(false));
    let texts = vec![text.unwrap_or_default()];
    let texts = Texts { texts, add_special, parse_special, offsets: true, most: usize::MAX };
    let mut read = incoming.read(&target, incoming.context(&target).encode(texts)).await?;
    let Encoded { tokens, offsets } = read.pop().unwrap_or_default();
    let done = Tokenized { tokens, offsets };
    incoming.spend(done.tokens.len() as u64)?;
    incoming.share.grow(done.tokens.len() * TOKENIZED_BYTES)?;
    budget::rendered(incoming.share, move |share| Ok(respond(done, share))).await
}

/// `{"model","tokens"}`; bytes that are not UTF-8 are replaced. The tokens count against the caller's quota.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 413 or 503: the text is too long.
/// 429: the quota does not hold the tokens.
pub(crate) async fn detokenize(mut incoming: Incoming) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let DetokenizeRequest { model, tokens } = incoming.body().await?.request;
    let wish = ModelWish { name: model.as_deref(), ..ModelWish::default() };
    let served = incoming.target(&wish, None, bytes).await?.found.served.clone();
    let vocabulary = served.text()?.info.vocabulary.clone();
    let tokens = settings::tokens(&tokens.unwrap_or_default(), "tokens", vocabulary.size())?;
    let bytes: usize = tokens.iter().map(|&token| vocabulary.token_bytes(token).map_or(0, <[u8]>::len)).sum();
    incoming.spend(tokens.len() as u64)?;
    // The text, and its copy in the answer.
    incoming.share.grow(2 * bytes)?;
    let render = move |share| budget::json(&Detokenized { text: text_of(&vocabulary, &tokens) }, share);
    budget::rendered(incoming.share, render).await
}

#[derive(Debug)]
pub(crate) struct Tokenized {
    pub(crate) tokens: Vec<Token>,
    /// Start and end of what each token was made of, in bytes. Null if nobody knows: the tokens do not spell the text.
    pub(crate) offsets: Option<Vec<Offsets>>,
}

/// Where the writing of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Tokens(usize),
    Offsets(usize),
    End,
}

/// `{"tokens":[…],"offsets":[[…],…]}`. The share holds the tokens until the client has taken their text.
pub(crate) fn respond(tokenized: Tokenized, share: Share) -> Response {
    let held = tokenized.tokens.capacity() * size_of::<Token>()
        + tokenized.offsets.as_ref().map_or(0, Vec::capacity) * size_of::<Offsets>();
    let bytes = tokenized.bytes();
    let mut at = At::Tokens(0);
    let pieces = std::iter::from_fn(move || tokenized.piece(&mut at));
    let body = match bytes {
        ..=PIECE_BYTES => budget::body(pieces.flatten().collect(), share),
        _ => budget::pieces(bytes, held, pieces, share),
    };
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

impl Tokenized {
    /// Length of the answer's text.
    fn bytes(&self) -> usize {
        let list = |entries: usize, inner: usize| 2 + inner + entries.saturating_sub(1);
        let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
        let tokens = list(self.tokens.len(), self.tokens.iter().map(|token| digits(token.0)).sum());
        let pair = |(start, end): &Offsets| 3 + digits(*start) + digits(*end);
        let offsets = self.offsets.as_ref().map_or("null".len(), |all| list(all.len(), all.iter().map(pair).sum()));
        r#"{"tokens":,"offsets":}"#.len() + tokens + offsets
    }

    /// The next part of the answer's text; `None` behind the last one.
    fn piece(&self, at: &mut At) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(PIECE_BYTES + 64);
        while *at != At::End && out.len() < PIECE_BYTES {
            *at = self.write(&mut out, *at);
        }
        (!out.is_empty()).then_some(out)
    }

    /// Writes one entry of a list with what stands before it. Returns what comes next.
    fn write(&self, out: &mut Vec<u8>, at: At) -> At {
        match at {
            At::Tokens(index) => {
                if index == 0 {
                    out.extend_from_slice(b"{\"tokens\":[");
                }
                let Some(token) = self.tokens.get(index) else {
                    out.extend_from_slice(b"],\"offsets\":");
                    return At::Offsets(0);
                };
                let comma = if index == 0 { "" } else { "," };
                // Writing into memory never fails.
                let _ = write!(out, "{comma}{}", token.0);
                At::Tokens(index + 1)
            }
            At::Offsets(index) => {
                let Some(offsets) = &self.offsets else {
                    out.extend_from_slice(b"null}");
                    return At::End;
                };
                if index == 0 {
                    out.push(b'[');
                }
                let Some((start, end)) = offsets.get(index) else {
                    out.extend_from_slice(b"]}");
                    return At::End;
                };
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(out, "{comma}[{start},{end}]");
                At::Offsets(index + 1)
            }
            At::End => At::End,
        }
    }
}

/// What an id takes: as a number, and as text in the answer.
const ID_BYTES: usize = 16;

/// `{"model","messages"}` and what else a prompt is made of. The tokens count against the caller's quota, as those of a prompt
/// do.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 429: the quota does not hold
/// the tokens.
pub(crate) async fn template(mut incoming: Incoming) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let body = Arc::new(incoming.body::<ChatRequest>().await?);
    let Rendered { text, tokens } = render(&mut incoming, body, bytes).await?;
    incoming.spend(tokens.len() as u64)?;
    incoming.share.grow(budget::text_bytes(text.len()) + tokens.len() * ID_BYTES)?;
    let answer = ChatPrompt { prompt: text, tokens: tokens.into_iter().map(|token| token.0).collect() };
    budget::rendered(incoming.share, move |share| budget::json(&answer, share)).await
}

/// The number of tokens of a prompt that Anthropic's API asks for.
///
/// # Errors
/// As [`template`], with fields as the client has them.
pub(crate) async fn count_message(incoming: Incoming) -> Result<Response, FlowError> {
    count(incoming, dialect::counted_message, |input_tokens| CountedTokens { input_tokens }).await
}

/// The number of tokens of a prompt that OpenAI's Responses API asks for.
///
/// # Errors
/// As [`template`], with fields as the client has them.
pub(crate) async fn count_response(incoming: Incoming) -> Result<Response, FlowError> {
    count(incoming, dialect::counted_response, |input_tokens| CountedInput {
        object: "response.input_tokens",
        input_tokens,
    })
    .await
}

async fn count<T: Serialize>(
    mut incoming: Incoming,
    read: fn(&str) -> Result<Converted<ChatRequest>, RequestError>,
    answer: impl FnOnce(u64) -> T,
) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let Converted { body, names, .. } = incoming.parse(move |text| Ok(read(text)?)).await?;
    incoming.count_unknown(&body);
    let rendered = render(&mut incoming, body, bytes).await.map_err(|error| error.renamed(names))?;
    incoming.spend(rendered.tokens.len() as u64)?;
    budget::json(&answer(rendered.tokens.len() as u64), incoming.share)
}

/// The prompt of a chat, whether or not the model's context holds it. `bytes`: of the body.
async fn render(incoming: &mut Incoming, body: Arc<Body<ChatRequest>>, bytes: usize) -> Result<Rendered, FlowError> {
    let wish = ModelWish { falls_back: false, ..body.request.wish() };
    let target = incoming.target(&wish, body.request.generation.timeout, bytes).await?;
    incoming.read(&target, read(incoming.context(&target), &body.request)).await
}

async fn read(context: ReadContext<'_>, request: &ChatRequest) -> Result<Rendered, FlowError> {
    let served = context.served();
    served.pool()?;
    let most = served.text()?.info.context_tokens;
    let rendered = read::render(context, request, most, true).await?.rendered;
    let tokens = TokenCount::of(rendered.tokens.len(), most);
    match tokens {
        TokenCount::Exactly(_) => Ok(rendered),
        // Those that were read are not all.
        TokenCount::MoreThan(_) => Err(FlowError::ContextLength { tokens, context: most, param: MESSAGES }),
    }
}

/// Time for a worker to answer, which it does between two steps. Past it, the server counts as overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Body: `{"model","session_id","lora","prompt_cache_key"}`: a session is one of the adapters and the key that it was used with. Closing an unknown or closed session is no error: `closed` is false then.
///
/// # Errors
/// 400 for a bad body, 503 if no worker answers.
pub(crate) async fn close_session(mut incoming: Incoming) -> Result<Json<ClosedSession>, FlowError> {
    let bytes = incoming.text.len();
    let CloseSessionRequest { model, session_id, lora, prompt_cache_key } = incoming.body().await?.request;
    let session = SessionId::new(session_id.unwrap_or_default());
    let adapted = lora.as_ref().is_some_and(|list| !list.is_empty());
    let wish = ModelWish { name: model.as_deref(), session: Some(session.as_str()), falls_back: !adapted };
    let found = incoming.target(&wish, None, bytes).await?.found;
    let adapters = request::adapters(&incoming.caller, &found, lora.as_deref(), model.as_deref())?.set;
    let id = session.as_str().to_owned();
    let (reply, answer) = oneshot::channel();
    incoming.exchange.set_session(&session);
    let whole = incoming.caller.principal.namespace();
    let namespace = prompt_cache_key.map_or(whole.clone(), |key| whole.keyed(&key)).under(&adapters);
    let message = PoolMessage::CloseSession { namespace, session, reply };
    send(&found.served, message)?;
    let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| FlowError::Overloaded)?;
    let closed = answer.map_err(|_| FlowError::WorkerLost)?;
    Ok(Json(ClosedSession { id, object: "session.closed".to_owned(), closed }))
}

/// The sessions of a whole namespace, the next to expire first. One that several workers have is listed once.
///
/// # Errors
/// 400 for a model that generates nothing, 503 if no worker answers.
pub(crate) async fn list(served: &Served, namespace: Namespace) -> Result<SessionList, FlowError> {
    let (reply, answer) = oneshot::channel();
    let message = PoolMessage::ListSessions { namespace, reply };
    send(served, message)?;
    let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| FlowError::Overloaded)?;
    let mut open = answer.map_err(|_| FlowError::WorkerLost)?;
    open.sort_by(|one, other| {
        let key = |session: &OpenSession| (session.namespace.clone(), session.session.as_str().to_owned());
        (key(one), other.expires_in).cmp(&(key(other), one.expires_in))
    });
    open.dedup_by(|later, kept| (&later.namespace, &later.session) == (&kept.namespace, &kept.session));
    open.sort_by_key(|session| session.expires_in);
    let one = |open: OpenSession| Session {
        id: open.session.as_str().to_owned(),
        object: "session".to_owned(),
        model: served.model.id.clone(),
        tokens: open.tokens,
        expires_in_seconds: open.expires_in.as_secs(),
        prompt_cache_key: open.namespace.key().map(str::to_owned),
        adapted: open.namespace.is_adapted(),
    };
    Ok(SessionList { object: "list".to_owned(), data: open.into_iter().map(one).collect() })
}

fn send(served: &Served, message: PoolMessage) -> Result<(), FlowError> {
    served.pool()?.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => FlowError::Overloaded,
        TrySendError::Disconnected(_) => FlowError::PoolGone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::budget::Budget;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    /// The answer's text, and the sizes of its pieces.
    async fn sent(count: u32, has_offsets: bool) -> (Value, Vec<usize>) {
        let tokens: Vec<Token> = (0..count).map(Token).collect();
        let offsets = has_offsets.then(|| (0..count).map(|at| (at, at + 1)).collect());
        let budget = Budget::new(1 << 30);
        let response = respond(Tokenized { tokens, offsets }, budget.share(&"a".into()));
        let mut body = response.into_body();
        let announced = http_body::Body::size_hint(&body).exact().unwrap();
        let (mut text, mut sizes) = (Vec::new(), Vec::new());
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            sizes.push(piece.len());
            text.extend_from_slice(&piece);
        }
        assert_eq!(announced, text.len() as u64);
        (serde_json::from_slice(&text).unwrap(), sizes)
    }

    #[tokio::test]
    async fn an_answer_is_the_same_whole_and_in_pieces() {
        for count in [0, 1, 2, 1000, 5000, 100_000] {
            for has_offsets in [true, false] {
                let (got, sizes) = sent(count, has_offsets).await;
                let tokens: Vec<u32> = (0..count).collect();
                let offsets: Vec<(u32, u32)> = (0..count).map(|at| (at, at + 1)).collect();
                let expected = json!({"tokens": tokens, "offsets": has_offsets.then_some(offsets)});
                assert!(got == expected, "{count} {has_offsets}");
                assert!(sizes.iter().all(|size| *size < PIECE_BYTES + 64), "{sizes:?}");
                assert_eq!(sizes.len() > 1, count >= 5000, "{count} {has_offsets}: {sizes:?}");
            }
        }
    }

    #[tokio::test]
    async fn regression_a_long_answer_takes_no_more_than_its_tokens() {
        let budget = Budget::new(1 << 30);
        let tokens: Vec<Token> = vec![Token(123_456); 1 << 20];
        let offsets = vec![(1_000_000, 1_000_001); 1 << 20];
        let response = respond(Tokenized { tokens, offsets: Some(offsets) }, budget.share(&"a".into()));
        let taken = 12 << 20;
        assert!(http_body::Body::size_hint(response.body()).exact().unwrap() > 24 << 20);
        let mut others = budget.share(&"b".into());
        // Of two tenants the second may hold as much as is left free.
        others.grow(((1 << 30) - taken) / 2).unwrap();
        others.grow(2).unwrap_err();
        drop(response);
        others.grow(2).unwrap();
    }
}
