//! `camshaft:sampler/plans`: what a sampler leaves to the host, as a guest puts it together.
use camshaft_core::sampling::{Plan, PlanError, Repeats, Step};
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};

use crate::bindings::host::plans::{self, Host, HostPlan};
use crate::fault::invalid;

/// Plans of an instance at once.
const PLANS: u32 = 4;

/// The part of a guest's state that holds its plans.
pub(crate) trait PlansView: 'static {
    fn plans(&mut self) -> CurrentPlans<'_>;
}

/// The plans of an instance, and how many there are.
pub(crate) struct CurrentPlans<'a> {
    pub(crate) table: &'a mut ResourceTable,
    pub(crate) count: &'a mut u32,
}

struct Plans;

impl HasData for Plans {
    type Data<'a> = CurrentPlans<'a>;
}

pub(crate) fn add_to_linker<T: PlansView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    plans::add_to_linker::<_, Plans>(linker, T::plans)
}

type This = Resource<Plan>;

impl CurrentPlans<'_> {
    /// Takes a plan that a guest has handed over.
    ///
    /// # Errors
    /// It is not one of the instance's.
    pub(crate) fn take(&mut self, plan: This) -> wasmtime::Result<Plan> {
        let plan = self.table.delete(plan)?;
        *self.count = self.count.saturating_sub(1);
        Ok(plan)
    }

    fn add(&mut self, plan: &This, add: impl FnOnce(&mut Plan) -> Result<(), PlanError>) -> wasmtime::Result<()> {
        add(self.table.get_mut(plan)?).map_err(|error| invalid(error.to_string()))
    }

    fn push(&mut self, plan: &This, step: Step) -> wasmtime::Result<()> {
        self.add(plan, |plan| plan.push(step))
    }
}

impl Host for CurrentPlans<'_> {}

impl HostPlan for CurrentPlans<'_> {
    fn new(&mut self) -> wasmtime::Result<This> {
        if *self.count >= PLANS {
            return Err(invalid(format!("an instance has at most {PLANS} plans")));
        }
        *self.count += 1;
        Ok(self.table.push(Plan::default())?)
    }

    fn bias(&mut self, plan: This, ids: Vec<u32>, values: Vec<f32>) -> wasmtime::Result<()> {
        self.push(&plan, Step::Bias { ids, values })
    }

    fn penalize(
        &mut self,
        plan: This,
        last_n: u32,
        repeat: f32,
        frequency: f32,
        presence: f32,
    ) -> wasmtime::Result<()> {
        self.push(&plan, Step::Penalize { last_n, repeat, frequency, presence })
    }

    fn penalize_repeats(
        &mut self,
        plan: This,
        multiplier: f32,
        base: f32,
        allowed: u32,
        last_n: u32,
        breakers: Vec<u32>,
    ) -> wasmtime::Result<()> {
        self.push(&plan, Step::PenalizeRepeats(Repeats { multiplier, base, allowed, last_n, breakers }))
    }

    fn temperature(&mut self, plan: This, t: f32) -> wasmtime::Result<()> {
        self.push(&plan, Step::Temperature(t))
    }

    fn keep_best(&mut self, plan: This) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepBest)
    }

    fn keep_top_k(&mut self, plan: This, k: u32) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepTopK(k))
    }

    fn keep_top_p(&mut self, plan: This, p: f32, min_keep: u32) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepTopP { p, min_keep })
    }

    fn keep_min_p(&mut self, plan: This, p: f32, min_keep: u32) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepMinP { p, min_keep })
    }

    fn keep_typical(&mut self, plan: This, p: f32, min_keep: u32) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepTypical { p, min_keep })
    }

    fn keep_top_sigma(&mut self, plan: This, n: f32) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepTopSigma(n))
    }

    fn exclude_top(&mut self, plan: This, threshold: f32, probability: f32) -> wasmtime::Result<()> {
        self.push(&plan, Step::ExcludeTop { threshold, probability })
    }

    fn keep_surprise(&mut self, plan: This, target: f32, rate: f32) -> wasmtime::Result<()> {
        self.push(&plan, Step::KeepSurprise { target, rate })
    }

    fn ban(&mut self, plan: This, ids: Vec<u32>) -> wasmtime::Result<()> {
        self.push(&plan, Step::Ban(ids))
    }

    fn allow_only(&mut self, plan: This, ids: Vec<u32>) -> wasmtime::Result<()> {
        self.push(&plan, Step::AllowOnly(ids))
    }

    fn mask(&mut self, plan: This, bits: Vec<u32>) -> wasmtime::Result<()> {
        self.push(&plan, Step::Mask(bits))
    }

    fn wake_on_token(&mut self, plan: This, ids: Vec<u32>) -> wasmtime::Result<()> {
        self.add(&plan, |plan| plan.wake_on_tokens(&ids))
    }

    fn wake_on_suffix(&mut self, plan: This, text: Vec<u8>) -> wasmtime::Result<()> {
        self.add(&plan, |plan| plan.wake_on_suffix(&text))
    }

    fn wake_every(&mut self, plan: This, tokens: u32) -> wasmtime::Result<()> {
        self.add(&plan, |plan| plan.wake_every(tokens))
    }

    fn wake_above_entropy(&mut self, plan: This, nats: f32) -> wasmtime::Result<()> {
        self.add(&plan, |plan| plan.wake_above_entropy(nats))
    }

    fn drop(&mut self, plan: This) -> wasmtime::Result<()> {
        self.take(plan).map(drop)
    }
}
