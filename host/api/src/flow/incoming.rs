//! A request as the HTTP layer passes it on, with its body received: it is parsed once, finds its model, and is read for that.
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::HeaderMap;
use camshaft_core::quota::Demand;

use crate::flow::api::{self, Api, Caller, Found, ModelWish, within};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;
use crate::flow::quota::QuotaGrant;
use crate::flow::request::ReadContext;
use crate::flow::trace;
use crate::wire::read::{self, Body, Fields};
use crate::wire::settings;
use crate::wire::types::values::Whole;

/// Bodies up to this are parsed on the task's own thread.
const INLINE_BYTES: usize = 16 << 10;
/// Bodies over this count against the caller's quota whatever becomes of them.
const FREE_BYTES: usize = 2 << 10;
/// Unknown fields of a body that are counted.
const UNKNOWN_FIELDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) api: Arc<Api>,
    pub(crate) caller: Caller,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) headers: HeaderMap,
    /// The request in its tenant's account; `None` for a caller without quotas.
    pub(crate) grant: Option<QuotaGrant>,
    pub(crate) text: String,
    /// The bytes of tensors behind it; empty in a body of JSON alone.
    pub(crate) tail: Bytes,
    /// What the request takes of the memory for all.
    pub(crate) share: Share,
}

/// A request that has found its model.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) found: Arc<Found>,
    /// The client's own timeout, from the body or the header.
    pub(crate) timeout: Option<Duration>,
    /// When that passes, or the longest one allowed.
    deadline: Option<Instant>,
    /// Of the body.
    pub(crate) bytes: usize,
}

impl Incoming {
    /// Reserves what the request asks for, and reports what is left of the caller's quotas.
    ///
    /// # Errors
    /// 429 if a quota is exceeded.
    pub(crate) fn reserve(&mut self, demand: Demand) -> Result<(), FlowError> {
        let Some(grant) = &mut self.grant else { return Ok(()) };
        grant.reserve(demand)?;
        self.exchange.set_standings(grant.standings());
        Ok(())
    }

    /// Takes tokens that are used at once from the caller's quota.
    ///
    /// # Errors
    /// 429 if a quota is exceeded.
    pub(crate) fn spend(&mut self, tokens: u64) -> Result<(), FlowError> {
        self.reserve(Demand { choices: 1, tokens, read: tokens }).map_err(|error| match error {
            FlowError::QuotaExceeded(exceeded) => FlowError::InputQuotaExceeded { exceeded, unit: None },
            other => other,
        })?;
        if let Some(grant) = &mut self.grant {
            grant.set_used(tokens);
        }
        Ok(())
    }

    /// Reads the body as a request of this type.
    ///
    /// # Errors
    /// 400: it is none.
    pub(crate) async fn body<T: Fields + Send + 'static>(&mut self) -> Result<Body<T>, FlowError> {
        let body = self.parse(|text| Ok(read::read(text)?)).await?;
        self.count_unknown(&body);
        Ok(body)
    }

    /// Parses the body. Its text is gone then. A long one is parsed where it delays no other connection, and holds its memory even if
    /// the client leaves before it is done.
    ///
    /// # Errors
    /// Those of `parse`; there is no memory for it.
    pub(crate) async fn parse<T: Send + 'static>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, FlowError> + Send + 'static,
    ) -> Result<T, FlowError> {
        let text = std::mem::take(&mut self.text);
        if let Some(grant) = self.grant.as_mut().filter(|_| text.len() > FREE_BYTES) {
            grant.read(text.len());
        }
        self.share.grow(read::read_bytes(&text))?;
        let (bytes, share) = (text.len(), self.take_share());
        let (parsed, share) = off_thread(bytes, move || Ok((parse(&text), share))).await?;
        self.share = share;
        parsed
    }

    /// Counts the first fields that nobody knows.
    pub(crate) fn count_unknown<T: Fields>(&self, body: &Body<T>) {
        body.unknown_names().take(UNKNOWN_FIELDS).for_each(|name| self.api.metrics.unknown_fields.count(name));
    }

    /// Finds the model of a request whose body has `bytes`, and waits until it is in memory.
    ///
    /// # Errors
    /// 400, 403 or 404 for a model that is not to be had, 503 if it cannot be loaded, 504 after the timeout.
    pub(crate) async fn target(
        &self,
        wish: &ModelWish<'_>,
        timeout: Option<f64>,
        bytes: usize,
    ) -> Result<Target, FlowError> {
        let limits = self.api.limits();
        let from_header = settings::timeout_header(&self.headers, limits.max_timeout)?;
        let timeout = settings::timeout(timeout, limits.max_timeout)?.or(from_header);
        let target = self.target_by(|| self.api.model_of(wish, &self.caller), timeout, bytes).await?;
        wish.name.iter().for_each(|name| self.exchange.set_asked(name));
        Ok(target)
    }

    /// As [`Incoming::target`], of the model that `find` finds.
    ///
    /// # Errors
    /// Those of `find`; 503 if the model cannot be loaded, 504 after the timeout.
    pub(crate) async fn target_by(
        &self,
        find: impl Fn() -> Result<Found, FlowError>,
        timeout: Option<Duration>,
        bytes: usize,
    ) -> Result<Target, FlowError> {
        let limits = self.api.limits();
        let after = |time: Duration| self.exchange.started().checked_add(time);
        let found = loop {
            match find() {
                Err(FlowError::Asleep(model)) => {
                    api::wake(&self.api, model, after(timeout.unwrap_or(limits.timeout))).await?;
                }
                found => break found?,
            }
        };
        let deadline = after(timeout.unwrap_or(limits.max_timeout));
        if let Some(meant) = &found.instead_of {
            self.exchange.set_instead_of(meant);
        }
        Ok(Target { found: Arc::new(found), timeout, deadline, bytes })
    }

    /// What a request is read in for its model.
    pub(crate) fn context<'a>(&'a self, target: &'a Target) -> ReadContext<'a> {
        ReadContext { api: &self.api, caller: &self.caller, found: &target.found, bytes: target.bytes }
    }

    /// Waits for what reads the request.
    ///
    /// # Errors
    /// Those of `reading`; 504 after the deadline.
    pub(crate) async fn read<T>(
        &self,
        target: &Target,
        reading: impl Future<Output = Result<T, FlowError>>,
    ) -> Result<T, FlowError> {
        let _span = (target.bytes > INLINE_BYTES).then(|| trace::tokenize(self.exchange.span()));
        within(target.deadline, reading).await?
    }

    /// Waits for `work`, no longer than the request may take.
    ///
    /// # Errors
    /// 504: the deadline passes first.
    pub(crate) async fn within<T>(&self, target: &Target, work: impl Future<Output = T>) -> Result<T, FlowError> {
        within(target.deadline, work).await
    }

    fn take_share(&mut self) -> Share {
        let empty = self.api.budget.share(&self.caller.principal.tenant);
        std::mem::replace(&mut self.share, empty)
    }
}

/// Does what takes as long as a body of `bytes` is: on the task's own thread, or, where that would delay other connections, on one that
/// may block.
///
/// # Errors
/// Those of `act`.
pub(crate) async fn off_thread<T: Send + 'static>(
    bytes: usize,
    act: impl FnOnce() -> Result<T, FlowError> + Send + 'static,
) -> Result<T, FlowError> {
    if bytes <= INLINE_BYTES {
        return act();
    }
    let acting = tokio::task::spawn_blocking(act).await;
    acting.map_err(|source| FlowError::Task { task: "reading a request", source })?
}

/// How much is kept of a text for embeddings: `None`, all of it. -1: as much as the model takes.
pub(crate) fn kept_tokens(asked: Option<Whole>, most: u32) -> Option<u32> {
    asked.map(|asked| if asked == Whole(-1) { most } else { asked.get() })
}
