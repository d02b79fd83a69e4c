//! The running choices of a request: submits them to the pool, merges their events, measures and cancels them.
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use camshaft_core::message::{Delta, Ends, Event, FinishReason, Start, Usage};
use crossbeam_channel::{Sender, TrySendError};
use tokio::sync::{mpsc, watch};

use crate::flow::api::{Api, Caller};
use crate::flow::backend::{FirstReply, PoolMessage, STREAM_EVENTS, Shared, Submission};
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;
use crate::flow::generate::Accepted;
use crate::flow::metrics::ModelMetrics;
use crate::flow::quota::{QuotaGrant, Spent};
use crate::flow::request::{GenerationRequest, Prompt};
use crate::flow::trace::Stages;

/// The choices of one request. Dropping it cancels those that have not ended.
#[derive(Debug)]
pub(crate) struct RunningChoices {
    choices: Vec<Choice>,
    pool: Sender<PoolMessage>,
    /// Becomes true when the server ends all running generations.
    cut: watch::Receiver<bool>,
    /// The choice to poll first. It rotates, so that no choice starves the others.
    turn: usize,
    /// Number of choices of each prompt. The first choice of a prompt reports how much of the prompt was cached.
    n: usize,
    prompt_tokens: u64,
    first_token_seen: bool,
    metrics: ModelMetrics,
    exchange: Arc<Exchange>,
    grant: Option<QuotaGrant>,
}

#[derive(Debug)]
struct Choice {
    /// `None` once the choice has ended.
    events: Option<mpsc::Receiver<Event>>,
    usage: Usage,
    last_token: Option<Instant>,
    spent: Spent,
    /// Number of tokens received so far.
    received: u32,
    stages: Stages,
}

/// An event of one choice that concerns the client.
#[derive(Debug)]
pub(crate) enum ChoiceEvent {
    /// The choice waits at this position of the queue, counted from 1.
    Queued(u32),
    Started,
    Delta(Delta),
    Finished(FinishReason),
}

/// Token counts of a whole request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generated_tokens: u64,
    /// Generated tokens that were thinking, as far as the answer was taken apart.
    pub(crate) reasoning_tokens: u64,
    /// Draft tokens of speculative decoding that were accepted, and that were rejected.
    pub(crate) accepted_tokens: u64,
    pub(crate) rejected_tokens: u64,
}

impl RunningChoices {
    /// Submits every choice to the model's pool. `grant` is settled when the last one has ended.
    ///
    /// # Errors
    /// 503 if the pool's channel is full or closed. The choices submitted so far are then cancelled.
    pub(crate) fn submit(
        api: &Api,
        caller: &Caller,
        accepted: &Accepted<GenerationRequest>,
        exchange: Arc<Exchange>,
        grant: Option<QuotaGrant>,
    ) -> Result<Self, FlowError> {
        let request = &accepted.request;
        let prompt_tokens = request.prompt_tokens();
        exchange.set_prompt_tokens(prompt_tokens);
        let model = &request.served.model;
        let mut running = Self {
            choices: Vec::new(),
            pool: request.served.pool()?.clone(),
            cut: api.cut(),
            turn: 0,
            n: request.settings.best_of as usize,
            prompt_tokens,
            first_token_seen: false,
            metrics: api.metrics.of_model(&model.id),
            exchange,
            grant,
        };
        let timeout = request.settings.timeout.unwrap_or(api.limits().timeout);
        // One that may not take as long has its first token by then, or none.
        let timeout = request.settings.extent.max_duration.map_or(timeout, |most| most.min(timeout));
        let (arrived, deadline) = (Instant::now(), running.exchange.started().checked_add(timeout));
        let starting = Starting { api, caller, accepted, exchange: running.exchange.clone() };
        let (first_reply, mut first_choice) = (FirstReply::default(), None);
        for (index, prompt) in (0..).zip(request.choices()) {
            let (sender, events) = mpsc::channel(STREAM_EVENTS);
            let spent = Spent::default();
            let start = starting.start(index, prompt);
            let submission = Submission {
                first_choice: *first_choice.get_or_insert(start.id),
                start,
                priority: accepted.priority,
                weight: caller.principal.weight,
                arrived,
                queue_share: caller.principal.quotas.queue_share,
                deadline,
                hints: request.settings.hints.clone(),
                shared: Shared {
                    first_reply: first_reply.clone(),
                    spent: spent.clone(),
                    adapters: request.adapters.held.clone(),
                },
                events: sender,
                policies: caller.policies.clone(),
            };
            let usage = Usage { prompt_tokens: prompt.tokens.len() as u32, ..Usage::default() };
            let stages = Stages::queued(running.exchange.span(), index);
            running.choices.push(Choice { events: Some(events), usage, last_token: None, spent, received: 0, stages });
            running.pool.try_send(PoolMessage::Submit(Box::new(submission))).map_err(|error| match error {
                TrySendError::Full(_) => FlowError::Overloaded,
                TrySendError::Disconnected(_) => FlowError::PoolGone,
            })?;
        }
        Ok(running)
    }

    /// Waits for the next event of any choice, and returns it with the choice's index; `None` once all have ended.
    /// Dropping the future loses no event.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<ChoiceEvent, FlowError>)> {
        loop {
            let Self { choices, turn, cut, .. } = self;
            let (index, event) = tokio::select! {
                // Send the events that have arrived before the stream is cut.
                biased;
                event = poll_fn(|cx| poll_event(choices, turn, cx)) => event?,
                Ok(_) = cut.wait_for(|&cut| cut) => return Some((0, Err(FlowError::Draining))),
            };
            if let Some(output) = self.take(index, event) {
                return Some((index, output));
            }
        }
    }

    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The token counts; complete once all choices have finished.
    pub(crate) fn totals(&self) -> Totals {
        let sum = |of: fn(&Usage) -> u32| self.choices.iter().map(|choice| u64::from(of(&choice.usage))).sum();
        let firsts = self.choices.iter().step_by(self.n.max(1));
        Totals {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: firsts.map(|choice| u64::from(choice.usage.cached_tokens)).sum(),
            generated_tokens: sum(|usage| usage.generated_tokens),
            reasoning_tokens: 0,
            accepted_tokens: sum(|usage| usage.accepted_tokens),
            rejected_tokens: sum(|usage| usage.drafted_tokens.saturating_sub(usage.accepted_tokens)),
        }
    }

    /// Settles with the caller's quota: each prompt whose first choice has started, and all drawn tokens. What the worker
    /// still does for a client that has left is paid when it is done.
    fn settle(&mut self) {
        let Some(grant) = &mut self.grant else { return };
        let mut used = 0;
        for (index, choice) in self.choices.iter().enumerate() {
            let is_first = index.is_multiple_of(self.n.max(1));
            let prompt_tokens = if is_first { u64::from(choice.usage.prompt_tokens) } else { 0 };
            used += choice.spent.settle(prompt_tokens, grant.rest());
        }
        grant.set_used(used);
    }

    /// Accounts for an event; `None` if it does not concern the client. `event` is `None` if the channel closed before
    /// the choice ended, which means that the worker is lost.
    fn take(&mut self, index: usize, event: Option<Event>) -> Option<Result<ChoiceEvent, FlowError>> {
        let choice = &mut self.choices[index];
        match event {
            Some(Event::Queued { position, .. }) => Some(Ok(ChoiceEvent::Queued(position))),
            Some(Event::Started { cached_tokens, .. }) => {
                choice.usage.cached_tokens = cached_tokens.min(choice.usage.prompt_tokens);
                choice.stages.started(choice.usage.prompt_tokens, choice.usage.cached_tokens);
                self.metrics.prompt_tokens.inc_by(u64::from(choice.usage.prompt_tokens));
                self.metrics.prompt_tokens_cached.inc_by(u64::from(choice.usage.cached_tokens));
                Some(Ok(ChoiceEvent::Started))
            }
            Some(Event::Delta { delta, .. }) => {
                choice.received += delta.tokens;
                choice.stages.decoding();
                self.measure(index, delta.tokens);
                Some(Ok(ChoiceEvent::Delta(delta)))
            }
            Some(Event::Finished { reason, usage, .. }) => {
                choice.events = None;
                choice.stages.ended(usage.generated_tokens);
                choice.usage = Usage { cached_tokens: choice.usage.cached_tokens, ..usage };
                self.exchange.add_generated_tokens(u64::from(usage.generated_tokens));
                match reason {
                    FinishReason::Cancelled => Some(Err(FlowError::Cancelled)),
                    reason => Some(Ok(ChoiceEvent::Finished(reason))),
                }
            }
            Some(Event::SessionClosed { .. } | Event::Sessions { .. }) => None,
            Some(Event::Failed { error, .. }) => {
                choice.events = None;
                Some(Err(error.into()))
            }
            Some(Event::Admitted { .. } | Event::Preempted { .. } | Event::Progressed { .. }) => None,
            Some(Event::Paused { .. } | Event::Resumed { .. }) => None,
            None => {
                choice.events = None;
                Some(Err(FlowError::WorkerLost))
            }
        }
    }

    fn measure(&mut self, index: usize, tokens: u32) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        self.metrics.generated_tokens.inc_by(u64::from(tokens));
        if !self.first_token_seen {
            self.first_token_seen = true;
            let waited = now.duration_since(self.exchange.started());
            self.metrics.time_to_first_token.observe(waited.as_secs_f64());
            self.metrics.latencies.first_token.record(now, waited.as_secs_f64());
            self.exchange.note_first_token();
        }
        if let Some(last) = self.choices[index].last_token.replace(now) {
            let each = now.duration_since(last).as_secs_f64() / f64::from(tokens);
            (0..tokens).for_each(|_| self.metrics.inter_token_latency.observe(each));
            self.metrics.latencies.between_tokens.record(now, each);
        }
    }
}

/// Polls the choices from `turn` on for an event; `None` once all have ended.
fn poll_event(choices: &mut [Choice], turn: &mut usize, cx: &mut Context<'_>) -> Poll<Option<(usize, Option<Event>)>> {
    let count = choices.len();
    let mut open = false;
    for step in 0..count {
        let index = (*turn + step) % count;
        let Some(events) = &mut choices[index].events else { continue };
        open = true;
        if let Poll::Ready(event) = events.poll_recv(cx) {
            *turn = index + 1;
            return Poll::Ready(Some((index, event)));
        }
    }
    if open { Poll::Pending } else { Poll::Ready(None) }
}

impl Drop for RunningChoices {
    fn drop(&mut self) {
        self.settle();
        let mut open = false;
        for choice in &mut self.choices {
            open |= choice.events.take().is_some();
            let unread = choice.spent.tokens().saturating_sub(choice.received.max(choice.usage.generated_tokens));
            self.metrics.generated_tokens.inc_by(u64::from(unread));
            // What ended in order was counted then.
            let cut_off = choice.spent.tokens().saturating_sub(choice.usage.generated_tokens);
            self.exchange.add_generated_tokens(u64::from(cut_off));
        }
        if open {
            // If the channel is full, the pool is awake.
            let _ = self.pool.try_send(PoolMessage::Wake);
        }
    }
}

/// What the `Start`s of a request's choices have in common.
struct Starting<'a> {
    api: &'a Api,
    caller: &'a Caller,
    accepted: &'a Accepted<GenerationRequest>,
    exchange: Arc<Exchange>,
}

impl Starting<'_> {
    fn start(&self, index: u32, prompt: &Prompt) -> Start {
        let Self { api, caller, accepted, exchange } = self;
        let Accepted { request, priority, context } = accepted;
        let settings = &request.settings;
        let mut params = settings.sampling.clone();
        // The choices of a prompt have different seeds. A prompt has the same seeds alone and in a list of prompts.
        params.seed = params.seed.wrapping_add(u64::from(index % settings.best_of));
        let namespace = caller.principal.namespace();
        let extent = &settings.extent;
        // The pool takes off what it waits from now on.
        let so_far = exchange.started().elapsed();
        Start {
            id: api.next_request(),
            model: request.served.model.id.clone(),
            tenant: caller.principal.tenant.clone(),
            namespace: settings.cache_key.as_deref().map_or(namespace.clone(), |key| namespace.keyed(key)),
            adapters: request.adapters.set.clone(),
            session: settings.session.clone(),
            priority: *priority,
            endpoint: request.endpoint.for_policies(),
            sampler_chain: caller.policies.sampler_chain(),
            filter_chain: caller.policies.filter_chain(),
            context: context.clone(),
            prompt: prompt.tokens.clone(),
            params,
            samplers: settings.samplers.clone(),
            choice: index,
            max_tokens: prompt.max_tokens,
            stop: extent.stop.clone(),
            ignore_eos: extent.ignore_eos,
            ends: Ends {
                tokens: extent.stop_tokens.iter().chain(&request.form.stops).copied().collect(),
                min_tokens: extent.min_tokens,
                max_duration: extent.max_duration.map(|most| most.saturating_sub(so_far)),
                thinking: request.form.thinking_budget.clone(),
            },
            score_prompt: request.scores_prompts,
            logprobs: request.told_logprobs(),
            grammar: request.form.grammar.as_ref().map(|held| held.grammar.clone()),
            shown: request.form.shown.clone(),
        }
    }
}
