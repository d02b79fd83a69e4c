//! A plan: what a sampler leaves to the host, as plain data until it is handed over.
use crate::bindings::host::plans;

/// One operation on each row. [`Row`](super::Row) has the same operations, and says what each does.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Bias { ids: Vec<u32>, values: Vec<f32> },
    Penalize { last_n: u32, repeat: f32, frequency: f32, presence: f32 },
    PenalizeRepeats { multiplier: f32, base: f32, allowed_length: u32, last_n: u32, breakers: Vec<u32> },
    Temperature(f32),
    KeepBest,
    KeepTopK(u32),
    KeepTopP { p: f32, min_keep: u32 },
    KeepMinP { p: f32, min_keep: u32 },
    KeepTypical { p: f32, min_keep: u32 },
    KeepTopSigma(f32),
    ExcludeTop { threshold: f32, probability: f32 },
    KeepSurprise { target: f32, rate: f32 },
    Ban(Vec<u32>),
    AllowOnly(Vec<u32>),
    Mask(Vec<u32>),
}

/// When the host calls `sample` none the less.
#[derive(Debug, Clone, PartialEq)]
pub enum Wake {
    /// For the token after one of these.
    OnToken(Vec<u32>),
    /// For the token after one in which an occurrence of the text (1 to 256 bytes) ended.
    OnSuffix(Vec<u8>),
    /// For the first token, and then once in so many (at least 1).
    Every(u32),
    /// If the entropy of the candidates, after the steps, is above so many nats.
    AboveEntropy(f32),
}

/// Steps in order, and when the sampler is called after them. Without `wakes` it never is, and the host drops the instance when
/// `start` has returned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// At most 32.
    pub steps: Vec<Step>,
    pub wakes: Vec<Wake>,
}

impl Plan {
    /// A plan that never wakes the sampler.
    pub fn of(steps: Vec<Step>) -> Self {
        Self { steps, wakes: Vec::new() }
    }

    pub(super) fn to_host(&self) -> plans::Plan {
        let plan = plans::Plan::new();
        self.steps.iter().for_each(|step| step.add_to(&plan));
        for wake in &self.wakes {
            match wake {
                Wake::OnToken(ids) => plan.wake_on_token(ids),
                Wake::OnSuffix(text) => plan.wake_on_suffix(text),
                Wake::Every(tokens) => plan.wake_every(*tokens),
                Wake::AboveEntropy(nats) => plan.wake_above_entropy(*nats),
            }
        }
        plan
    }
}

impl Step {
    fn add_to(&self, plan: &plans::Plan) {
        match self {
            Step::Bias { ids, values } => plan.bias(ids, values),
            Step::Penalize { last_n, repeat, frequency, presence } => {
                plan.penalize(*last_n, *repeat, *frequency, *presence);
            }
            Step::PenalizeRepeats { multiplier, base, allowed_length, last_n, breakers } => {
                plan.penalize_repeats(*multiplier, *base, *allowed_length, *last_n, breakers);
            }
            Step::Temperature(t) => plan.temperature(*t),
            Step::KeepBest => plan.keep_best(),
            Step::KeepTopK(k) => plan.keep_top_k(*k),
            Step::KeepTopP { p, min_keep } => plan.keep_top_p(*p, *min_keep),
            Step::KeepMinP { p, min_keep } => plan.keep_min_p(*p, *min_keep),
            Step::KeepTypical { p, min_keep } => plan.keep_typical(*p, *min_keep),
            Step::KeepTopSigma(n) => plan.keep_top_sigma(*n),
            Step::ExcludeTop { threshold, probability } => plan.exclude_top(*threshold, *probability),
            Step::KeepSurprise { target, rate } => plan.keep_surprise(*target, *rate),
            Step::Ban(ids) => plan.ban(ids),
            Step::AllowOnly(ids) => plan.allow_only(ids),
            Step::Mask(bits) => plan.mask(bits),
        }
    }
}
