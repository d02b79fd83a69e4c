//! Sampler chains: one instance per policy and sequence, called for each token unless its plan says otherwise.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::ids::{PolicyName, Token};
use camshaft_core::policy::{Difference, Fault, FaultKind, Hook, NoSampler, Refusal, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{Plan, Row, SamplingParams, StandardChain};
use wasmtime::Store;
use wasmtime::component::Resource;

use super::sampler_monitor::{Comparison, compare};
use crate::answers;
use crate::bindings::HookGuest;
use crate::bindings::sampler as wit;
use crate::imports::plans::PlansView;
use crate::imports::sequence::Sequence;
use crate::loaded::Loaded;
use crate::metrics::Outcome;
use crate::set::Chain;
use crate::shares::Share;
use crate::store::{self, GuestState, Subject};
use crate::view::View;

/// Makes a sampler's own random numbers differ from those with which its row draws.
const SEED_MARK: u64 = 0x7361_6d70_6c65_7273;

/// The chain of one request.
pub(crate) struct SamplerChain {
    /// Enforced and monitored ones.
    links: Vec<Sampler>,
    /// Shapes the row if no link has set a temperature or chosen a token, or if no link is left.
    native: StandardChain,
    /// Keeps alive the generation with which the request began.
    _view: View,
}

/// Opens the chain of a request.
pub(crate) fn open(view: View, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
    let native = StandardChain::new(request.params.clone());
    let mut links = Vec::new();
    for policy in chosen(view.chain(Hook::Sampler), request)? {
        let started = Instant::now();
        let start = policy
            .admit()
            .and_then(|()| Sampler::start(policy, request).inspect_err(|fault| policy.note_fault(fault, started)));
        match start {
            Ok(Ok(sampler)) => {
                if sampler.instance.is_none() {
                    policy.note_answer(Outcome::Planned, started);
                }
                links.push(sampler);
            }
            Ok(Err(refusal)) => {
                policy.note_answer(Outcome::Refuse, started);
                if !policy.is_monitored() {
                    return Err(NoSampler::Refused(refusal));
                }
                policy.note_difference(Difference::Refuse, Some(&refusal));
            }
            // It decides nothing.
            Err(_) if policy.is_monitored() => {}
            Err(fault) => {
                // Whoever takes all instances must not switch policies off.
                if fault.kind == FaultKind::Exhausted || policy.on_fault().denies(Hook::Sampler) {
                    return Err(fault.into());
                }
            }
        }
    }
    if links.is_empty() {
        return Ok(Box::new(native));
    }
    Ok(Box::new(SamplerChain { links, native, _view: view }))
}

/// The samplers of a request, of those that match it: all in file order; or, if it names some, those that are required, in file
/// order, and then those that it names, in its order. A sampler that chooses a token ends the chain, so nothing that a client
/// names is before what is required. None comes twice. One that is monitored cannot be named: it is there where it would run by
/// itself if it were enforced.
fn chosen<'a>(chain: &'a Chain, request: &'a SamplingRequest) -> Result<Vec<&'a Arc<Loaded>>, Fault> {
    let matching = || chain.ready_for(request.target());
    let Some(names) = &request.samplers else { return Ok(matching().collect()) };
    let mut chosen: Vec<_> = matching().filter(|policy| policy.sidecar.required).collect();
    for name in names {
        let found = matching().find(|policy| !policy.is_monitored() && policy.name.as_str() == name);
        let found = found.ok_or_else(|| Fault {
            plugin: PolicyName::from(name.as_str()),
            kind: FaultKind::Unavailable,
            detail: "no sampler of this name is in force".to_owned(),
        })?;
        if !chosen.iter().any(|policy| Arc::ptr_eq(policy, found)) {
            chosen.push(found);
        }
    }
    Ok(chosen)
}

impl TokenSampler for SamplerChain {
    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
        let mut index = 0;
        while let Some(link) = self.links.get_mut(index) {
            if link.policy.is_monitored() {
                if self.monitor(index, row) {
                    index += 1;
                } else {
                    drop(self.links.remove(index));
                }
                continue;
            }
            let started = Instant::now();
            match link.sample(row) {
                Ok(Sampled::Drawn(token)) => {
                    link.note_answer(Outcome::Drawn, started);
                    return Ok(Some(token));
                }
                Ok(Sampled::Shaped) => {
                    link.note_answer(Outcome::Shaped, started);
                    index += 1;
                }
                Ok(Sampled::Planned) => {
                    link.tell();
                    index += 1;
                }
                Err(fault) => {
                    link.policy.note_fault_of(&fault, started, link.told);
                    if link.policy.on_fault().denies(Hook::Sampler) {
                        return Err(fault);
                    }
                    // The others go on enforcing, over the row that this one got.
                    drop(self.links.remove(index));
                }
            }
        }
        // The client's parameters apply under any chain. Without this, temperature 0 would draw at random after a
        // policy that only bans words.
        if row.is_settled() { Ok(None) } else { self.native.sample(row) }
    }
}

impl SamplerChain {
    /// Tries a monitored sampler on a copy of the row, at some of the positions. False if it faulted.
    fn monitor(&mut self, index: usize, row: &Row) -> bool {
        let Some((link, behind)) = self.links.get_mut(index..).and_then(<[Sampler]>::split_first_mut) else {
            return true;
        };
        let policy = link.policy.clone();
        if !row.position().is_multiple_of(policy.sidecar.monitor_every as usize) {
            return true;
        }
        let started = Instant::now();
        let sampler = |row: &mut Row| match link.sample(row)? {
            Sampled::Drawn(token) => {
                link.note_answer(Outcome::Drawn, started);
                Ok(Some(token))
            }
            Sampled::Shaped => {
                link.note_answer(Outcome::Shaped, started);
                Ok(None)
            }
            Sampled::Planned => {
                link.tell();
                Ok(None)
            }
        };
        let rest = |row: &mut Row| {
            let plans = behind.iter().filter(|link| !link.policy.is_monitored()).filter_map(|link| link.plan.as_ref());
            // What is out of range is a fault of its own, where it counts.
            plans.for_each(|plan| _ = plan.apply(row));
            if !row.is_settled() {
                _ = self.native.shape(row);
            }
        };
        match compare(row, sampler, rest) {
            Ok(comparison) => {
                note(&policy, comparison);
                true
            }
            Err(fault) => {
                policy.note_fault_of(&fault, started, link.told);
                false
            }
        }
    }
}

/// Counts what a monitored sampler would have done to a row.
fn note(policy: &Loaded, Comparison { distance, token, finish }: Comparison) {
    if let Some(distance) = distance {
        policy.note_distance(distance);
    }
    let kinds = [
        (Difference::Shape, distance.is_some_and(|distance| distance > 0.0)),
        (Difference::Token, token),
        (Difference::Finish, finish),
    ];
    kinds.into_iter().filter(|(_, differs)| *differs).for_each(|(kind, _)| policy.note_difference(kind, None));
}

/// What a sampler did with a row.
enum Sampled {
    Drawn(Token),
    Shaped,
    /// Its plan shaped the row, and it was not called.
    Planned,
}

/// One policy of a chain, started for the request.
struct Sampler {
    policy: Arc<Loaded>,
    plan: Option<Plan>,
    pace: PlanPace,
    /// `None`: the plan never wakes it.
    instance: Option<Instance>,
    /// Whether its breaker was told that the request's first token went well.
    told: bool,
}

/// How long the plan took for a token, against the deadline of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlanPace {
    InTime,
    /// Longer once, perhaps because the thread did not have the CPU: from now on CPU time counts.
    Suspect,
    /// More CPU time than that.
    Late,
}

/// A guest that serves one sequence.
struct Instance {
    store: Store<GuestState>,
    guest: wit::SamplerPolicy,
    _share: Share,
}

impl Sampler {
    fn start(policy: &Arc<Loaded>, request: &SamplingRequest) -> Result<Result<Self, Refusal>, Fault> {
        let (model, tenant, context) = (request.model.clone(), request.tenant.clone(), request.context.clone());
        let shows_body = policy.identity.grant.load().body;
        let share = policy.share(&tenant)?;
        let made = policy.configured(Some(request.params.seed ^ SEED_MARK), |state| {
            state.vocabulary = Some(request.vocabulary.clone());
            state.subject = Subject::Sequence(Sequence { model, tenant, context, shows_body });
        })?;
        let (mut store, HookGuest::Sampler(guest)) = (made.store, made.guest) else {
            return Err(policy.fault(FaultKind::Unavailable, "not a sampler policy"));
        };
        let mut call = || {
            let policy = guest.camshaft_sampler_policy();
            let answer = policy.call_start(&mut store, &shown(request), Resource::new_borrow(0))?;
            let answer = match answer {
                Ok(Some(plan)) => Ok(Some(store.data_mut().plans().take(plan)?)),
                Ok(None) => Ok(None),
                Err(refusal) => Err(refusal),
            };
            Ok(answer)
        };
        let answer = call().map_err(|error: wasmtime::Error| policy.fault_of(&error, store.data()))?;
        let mut plan = match answer {
            Ok(plan) => plan,
            Err(refusal) => return answers::refusal(refusal).map(Err).map_err(|text| policy.invalid(text)),
        };
        if let Some(plan) = &mut plan {
            let tokens = request.prompt_tokens.saturating_add(request.max_tokens) as usize;
            plan.prepare(request.vocabulary.size(), tokens).map_err(|error| policy.invalid(error.to_string()))?;
        }
        let sleeps = plan.as_ref().is_some_and(Plan::sleeps);
        let instance = (!sleeps).then_some(Instance { store, guest, _share: share });
        let (told, pace) = (instance.is_none(), PlanPace::InTime);
        Ok(Ok(Self { policy: policy.clone(), told, plan, pace, instance }))
    }

    /// A request counts once for the breaker, however many tokens it has.
    fn note_answer(&mut self, outcome: Outcome, started: Instant) {
        self.policy.note_call(outcome, started);
        self.tell();
    }

    /// Its first token went well.
    fn tell(&mut self) {
        if !std::mem::replace(&mut self.told, true) {
            self.policy.tell_answered();
        }
    }

    fn sample(&mut self, row: &mut Row) -> Result<Sampled, Fault> {
        if self.plan.is_none() {
            return self.call(row);
        }
        if self.instance.is_none() {
            return self.follow_plan(row).map(|_| Sampled::Planned);
        }
        // A fault of the call takes the plan's part with it.
        row.begin();
        match self.follow_plan(row) {
            Ok(true) => self.call(row),
            Ok(false) => {
                row.keep();
                Ok(Sampled::Planned)
            }
            Err(fault) => {
                row.undo();
                Err(fault)
            }
        }
    }

    /// Runs the plan. Whether it wakes the sampler.
    ///
    /// # Errors
    /// It took longer than a call may, for a token before. The row is as it was.
    fn follow_plan(&mut self, row: &mut Row) -> Result<bool, Fault> {
        let Some(plan) = &self.plan else { return Ok(true) };
        let deadline = self.policy.sidecar.deadline;
        if self.pace == PlanPace::Late {
            let detail = format!("its plan takes more than {} ms for a token", deadline.as_millis());
            return Err(self.policy.fault(FaultKind::Deadline, detail));
        }
        let (begun, cpu) = (Instant::now(), (self.pace == PlanPace::Suspect).then(store::cpu_time));
        plan.apply(row).map_err(|error| self.policy.invalid(error.to_string()))?;
        let wakes = self.instance.is_some() && plan.wakes(row);
        if begun.elapsed() > deadline {
            self.pace = match cpu {
                Some(before) if store::cpu_time().saturating_sub(before) > deadline => PlanPace::Late,
                _ => PlanPace::Suspect,
            };
        }
        Ok(wakes)
    }

    fn call(&mut self, row: &mut Row) -> Result<Sampled, Fault> {
        let Some(Instance { store, guest, .. }) = &mut self.instance else { return Ok(Sampled::Planned) };
        store::arm(store, self.policy.sidecar.deadline);
        if self.plan.is_none() {
            row.begin();
        }
        // Swap the row into the store's data for the call. No logit is copied.
        std::mem::swap(&mut store.data_mut().row, row);
        let answer = guest.camshaft_sampler_policy().call_sample(&mut *store, Resource::new_borrow(0));
        std::mem::swap(&mut store.data_mut().row, row);
        let answer = answer.map_err(|error| self.policy.fault_of(&error, store.data()));
        let answer = answer.and_then(|answer| judge(&self.policy, answer, row.size()));
        if answer.is_ok() {
            row.keep();
        } else {
            row.undo();
        }
        answer
    }
}

fn judge(policy: &Loaded, answer: Option<u32>, size: usize) -> Result<Sampled, Fault> {
    match answer {
        Some(token) if token as usize >= size => {
            Err(policy.invalid(format!("token {token} is outside the vocabulary of {size}")))
        }
        Some(token) => Ok(Sampled::Drawn(Token(token))),
        None => Ok(Sampled::Shaped),
    }
}

fn shown(request: &SamplingRequest) -> wit::Request {
    // Without `..`: a parameter that is added does not compile until it is passed on or left out here.
    let SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        repeat_penalty,
        repeat_last_n,
        frequency_penalty,
        presence_penalty,
        logit_bias,
        seed,
    } = &request.params;
    wit::Request {
        temperature: *temperature,
        top_k: *top_k,
        top_p: *top_p,
        min_p: *min_p,
        typical_p: *typical_p,
        repeat_penalty: *repeat_penalty,
        repeat_last_n: *repeat_last_n,
        frequency_penalty: *frequency_penalty,
        presence_penalty: *presence_penalty,
        logit_bias_ids: logit_bias.iter().map(|bias| bias.token.0).collect(),
        logit_bias_values: logit_bias.iter().map(|bias| bias.bias).collect(),
        seed: *seed,
        choice: request.choice,
        prompt_tokens: request.prompt_tokens,
        max_tokens: request.max_tokens,
    }
}
