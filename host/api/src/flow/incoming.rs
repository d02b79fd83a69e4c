//! A request as the HTTP layer passes it on, with its body read but not parsed.
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::HeaderMap;
use camshaft_core::quota::Demand;

use crate::flow::answers::Answers;
use crate::flow::api::Api;
use crate::flow::aside::{self, Aside, INLINE_BYTES, PROMPT_BYTES};
use crate::flow::budget::Share;
use crate::flow::caller::Caller;
use crate::flow::chosen::Chosen;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;
use crate::flow::quota::QuotaGrant;
use crate::flow::waiting::{self, within};

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

    /// Runs `read` on the body's text. Short texts are read on the task's own thread, unless their chat template may take long;
    /// they are read anew when a slow validator has answered. Others are read when it is the tenant's turn, on a thread that may block, so that they delay
    /// neither other connections nor other tenants; if the client leaves, `read` stops at its next check. The text is gone
    /// then. `timeout` is the client's own, as far as it is known before its body is read.
    ///
    /// # Errors
    /// Those of `read`; 503 if too many wait for their turn, or if a chat template runs away; 504 after the timeout, or
    /// after the longest one allowed.
    pub(crate) async fn read<T: Send + 'static>(
        &mut self,
        timeout: Option<Duration>,
        read: impl Fn(ParseContext<'_>, &str) -> Result<T, FlowError> + Send + Sync + 'static,
    ) -> Result<T, FlowError> {
        let (read, reading) = (Arc::new(read), Arc::new(Reading::default()));
        loop {
            match self.read_once(timeout, &reading, read.clone()).await {
                // The text is still there.
                Err(FlowError::Asleep(model)) => {
                    let timeout = reading.chosen.timeout().or(timeout).unwrap_or(self.api.limits().timeout);
                    waiting::wake(&self.api, model, self.exchange.started().checked_add(timeout)).await?;
                }
                read => {
                    self.text = String::new();
                    reading.chosen.take_unknown().iter().for_each(|name| self.api.metrics.unknown_fields.count(name));
                    if let Some(meant) = reading.chosen.instead_of() {
                        self.exchange.set_instead_of(&meant);
                        // Whoever is refused has nothing loaded.
                        if read.is_ok() {
                            waiting::wake_meanwhile(&self.api, &meant);
                        }
                    }
                    return read;
                }
            }
        }
    }

    async fn read_once<T: Send + 'static>(
        &mut self,
        timeout: Option<Duration>,
        reading: &Arc<Reading>,
        read: Arc<impl Fn(ParseContext<'_>, &str) -> Result<T, FlowError> + Send + Sync + 'static>,
    ) -> Result<T, FlowError> {
        let Reading { answers, chosen } = &**reading;
        let is_short = self.text.len() <= INLINE_BYTES;
        if is_short {
            loop {
                let (api, caller, aside) = (&self.api, &self.caller, &Aside::inline(self.api.inline.clone()));
                let read = read(ParseContext { api, caller, aside, answers, chosen }, &self.text);
                if !matches!(read, Err(FlowError::NotInline)) {
                    return read;
                }
                if !within(self.deadline(timeout), answers.await_pending()).await? {
                    break;
                }
            }
        }
        // What validators have added waits, too.
        let added = answers.complete();
        self.share.grow(added)?;
        let bytes = self.text.len() + added;
        let reading = reading.clone();
        let read = move |api: &Api, caller: &Caller, aside: &Aside, text: &str| {
            let Reading { answers, chosen } = &*reading;
            read(ParseContext { api, caller, aside, answers, chosen }, text)
        };
        self.read_aside(timeout, bytes, read).await
    }

    async fn read_aside<T: Send + 'static>(
        &mut self,
        timeout: Option<Duration>,
        bytes: usize,
        read: impl FnOnce(&Api, &Caller, &Aside, &str) -> Result<T, FlowError> + Send + 'static,
    ) -> Result<T, FlowError> {
        let deadline = self.deadline(timeout);
        within(deadline, self.read_in_turn(bytes, read)).await?
    }

    /// When the client's own timeout passes, or the longest one allowed.
    fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        self.exchange.started().checked_add(timeout.unwrap_or(self.api.limits().max_timeout))
    }

    /// `bytes`: of the text, with what validators have added.
    async fn read_in_turn<T: Send + 'static>(
        &mut self,
        bytes: usize,
        read: impl FnOnce(&Api, &Caller, &Aside, &str) -> Result<T, FlowError> + Send + 'static,
    ) -> Result<T, FlowError> {
        let tenant = &self.caller.principal.tenant;
        let is_long = self.text.len() > INLINE_BYTES;
        let turns = match bytes {
            bytes if bytes > PROMPT_BYTES => &self.api.bulk_turns,
            bytes if bytes > INLINE_BYTES => &self.api.turns,
            _ => &self.api.short_turns,
        };
        let turn = turns.take(tenant, bytes).await?;
        if let Some(grant) = self.grant.as_mut().filter(|_| is_long) {
            // Whatever becomes of it: a client that leaves costs as much, and so does a body that is refused.
            grant.read(self.text.len());
        }
        // Reading holds its memory, even if the client leaves before it is done.
        let share = std::mem::replace(&mut self.share, self.api.budget.share(tenant));
        let (api, caller, text) = (self.api.clone(), self.caller.clone(), std::mem::take(&mut self.text));
        // It is read again once the model that it asks for is in memory.
        let read = move |aside: &Aside| match read(&api, &caller, aside, &text) {
            Err(FlowError::Asleep(model)) => Ok((Err(FlowError::Asleep(model)), text)),
            read => read.map(|read| (Ok(read), String::new())),
        };
        let ((read, text), share) = aside::run(tenant.clone(), turn, share, read).await?;
        (self.share, self.text) = (share, text);
        read
    }
}

/// What is kept of a request that may be read several times.
#[derive(Debug, Default)]
struct Reading {
    answers: Answers,
    chosen: Chosen,
}
