//! Sampler chains: one instance per policy and sequence, called once per token.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::ids::{PolicyName, Token};
use camshaft_core::policy::{Fault, FaultKind, Hook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{Row, SamplingParams, StandardChain};
use wasmtime::Store;
use wasmtime::component::Resource;

use crate::bindings::sampler as wit;
use crate::imports::sequence::Sequence;
use crate::loaded::{HookPre, Loaded};
use crate::metrics::Outcome;
use crate::set::LoadedSet;
use crate::spec::OnFault;
use crate::store::{self, GuestState, Subject};

/// Makes a sampler's own random numbers differ from those with which its row draws.
const SEED_MARK: u64 = 0x7361_6d70_6c65_7273;

/// The chain of one request.
pub(crate) struct SamplerChain {
    links: Vec<Sampler>,
    /// Shapes the row if no link has set a temperature or chosen a token, or if no link is left.
    native: StandardChain,
    /// Keeps alive the generation with which the request began.
    _set: Arc<LoadedSet>,
}

/// Opens the chain of a request.
pub(crate) fn open(set: Arc<LoadedSet>, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
    let native = StandardChain::new(request.params.clone());
    let mut links = Vec::new();
    for policy in chosen(&set, request)? {
        let started = Instant::now();
        match Sampler::start(policy, request) {
            Ok(sampler) => links.push(sampler),
            Err(fault) => {
                policy.note_fault(&fault, started);
                // Whoever takes all instances must not switch policies off.
                if fault.kind == FaultKind::Exhausted || policy.on_fault() == OnFault::Deny {
                    return Err(fault);
                }
            }
        }
    }
    if links.is_empty() {
        return Ok(Box::new(native));
    }
    Ok(Box::new(SamplerChain { links, native, _set: set }))
}

/// The samplers of a request: those that it names, in its order, or else all in file order.
fn chosen<'a>(set: &'a LoadedSet, request: &SamplingRequest) -> Result<Vec<&'a Arc<Loaded>>, Fault> {
    let Some(names) = &request.samplers else { return Ok(set.ready(Hook::Sampler).collect()) };
    let by_name = |name: &String| {
        let found = set.ready(Hook::Sampler).find(|policy| policy.name.as_str() == name);
        found.ok_or_else(|| Fault {
            plugin: PolicyName::from(name.as_str()),
            kind: FaultKind::Unavailable,
            detail: "no sampler of this name is in force".to_owned(),
        })
    };
    names.iter().map(by_name).collect()
}

impl TokenSampler for SamplerChain {
    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
        let mut index = 0;
        while let Some(link) = self.links.get_mut(index) {
            let started = Instant::now();
            match link.sample(row) {
                Ok(Some(token)) => {
                    link.policy.metrics.observe(Outcome::Drawn, started);
                    return Ok(Some(token));
                }
                Ok(None) => {
                    link.policy.metrics.observe(Outcome::Shaped, started);
                    index += 1;
                }
                Err(fault) => {
                    link.policy.note_fault(&fault, started);
                    if link.policy.on_fault() == OnFault::Deny {
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

/// One policy of a chain, started for the request.
struct Sampler {
    policy: Arc<Loaded>,
    store: Store<GuestState>,
    guest: wit::SamplerPolicy,
}

impl Sampler {
    fn start(policy: &Arc<Loaded>, request: &SamplingRequest) -> Result<Self, Fault> {
        let HookPre::Sampler(pre) = &policy.compiled.pre else {
            return Err(policy.fault(FaultKind::Unavailable, "not a sampler policy"));
        };
        let mut store = policy.store(Some(request.params.seed ^ SEED_MARK));
        let (model, tenant) = (request.model.clone(), request.tenant.clone());
        store.data_mut().vocabulary = Some(request.vocabulary.clone());
        store.data_mut().subject = Subject::Sequence(Sequence { model, tenant });
        let mut call = || {
            let guest = pre.instantiate(&mut store)?;
            store.data_mut().set_muted(true);
            let accepted = guest.camshaft_host_plugin().call_configure(
                &mut store,
                &policy.sidecar.settings,
                Resource::new_borrow(0),
            )?;
            store.data_mut().set_muted(false);
            match accepted {
                Err(text) => Ok(Err(text)),
                Ok(()) => {
                    let started = guest.camshaft_sampler_policy().call_start(
                        &mut store,
                        &shown(request),
                        Resource::new_borrow(0),
                    );
                    started.map(|()| Ok(guest))
                }
            }
        };
        let answer = call().map_err(|error| policy.fault_of(&error, store.data()))?;
        let guest = answer.map_err(|text: String| policy.refused_settings(&text))?;
        Ok(Self { policy: policy.clone(), store, guest })
    }

    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
        store::arm(&mut self.store, self.policy.sidecar.deadline);
        let size = row.size();
        row.begin();
        // Swap the row into the store's data for the call. No logit is copied.
        std::mem::swap(&mut self.store.data_mut().row, row);
        let answer = self.guest.camshaft_sampler_policy().call_sample(&mut self.store, Resource::new_borrow(0));
        std::mem::swap(&mut self.store.data_mut().row, row);
        let answer = self.judge(answer, size);
        if answer.is_ok() {
            row.keep()
        } else {
            row.undo()
        }
        answer
    }

    fn judge(&self, answer: wasmtime::Result<Option<u32>>, size: usize) -> Result<Option<Token>, Fault> {
        match answer.map_err(|error| self.policy.fault_of(&error, self.store.data()))? {
            Some(token) if token as usize >= size => {
                Err(self.policy.invalid(format!("token {token} is outside the vocabulary of {size}")))
            }
            token => Ok(token.map(Token)),
        }
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
