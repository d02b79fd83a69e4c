//! A sampler that asks one thing of the host, right or wrong: a plan, a refusal, forced tokens, an end.
#![forbid(unsafe_code)]

use camshaft_plugin::sampler::{Plan, Policy, Refusal, Request, Row, Step, Wake};
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub ask: Ask,
    /// Tokens that some of it needs.
    #[serde(default)]
    pub tokens: Vec<u32>,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// A plan with a temperature that is not a number.
    PlanNan,
    /// A plan with 32 steps, and with one more.
    PlanFull,
    PlanOverfull,
    /// A plan with a token outside the vocabulary.
    PlanOutside,
    /// A plan with a costly step for each of `tokens`.
    PlanCostly,
    /// A plan that keeps the best and never wakes.
    PlanBest,
    /// A plan that bans the first of `tokens`, and a call that panics for each row.
    PlanThenTrap,
    /// A plan that wakes for every third token; the call chooses the first of `tokens`.
    EveryThird,
    /// Refuses the request; with a status that no refusal has.
    Refuse,
    RefuseWrongly,
    /// Shapes half of the row, then panics.
    HalfThenTrap,
    /// Forces `tokens` at the first row, and ends the generation at the next row that it sees.
    ForceThenFinish,
    ForceOutside,
    FinishWrongly,
    /// Ends the generation at once, for these reasons.
    FinishStop,
    FinishLength,
    FinishContentFilter,
    /// Each operation once, with numbers that leave the row's best as it is.
    EveryOperation,
    EveryOperationPlanned,
}

/// The guest.
#[derive(Debug)]
pub struct Asks(Settings);

fn all_steps() -> Vec<Step> {
    let (multiplier, base, allowed_length, last_n) = (0.5, 1.5, 2, 64);
    vec![
        Step::Bias { ids: vec![0], values: vec![0.0] },
        Step::Penalize { last_n, repeat: 1.0, frequency: 0.0, presence: 0.0 },
        Step::PenalizeRepeats { multiplier, base, allowed_length, last_n, breakers: vec![0] },
        Step::Ban(Vec::new()),
        Step::KeepTopK(5),
        Step::KeepTypical { p: 1.0, min_keep: 1 },
        Step::KeepTopP { p: 0.99, min_keep: 1 },
        Step::KeepMinP { p: 0.01, min_keep: 1 },
        Step::KeepTopSigma(3.0),
        Step::KeepSurprise { target: 8.0, rate: 0.1 },
        Step::ExcludeTop { threshold: 0.9, probability: 1.0 },
        Step::Temperature(1.0),
        Step::KeepBest,
    ]
}

impl Policy for Asks {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self(settings))
    }

    fn start(&mut self, _: &Request<'_>) -> Result<Option<Plan>, Refusal> {
        let refusal = |status| {
            let (code, message) = ("not_today".to_owned(), "not today".to_owned());
            Err(Refusal { status, code, message, param: Some("prompt".to_owned()) })
        };
        let plan = match self.0.ask {
            Ask::PlanNan => Plan::of(vec![Step::Temperature(f32::NAN)]),
            Ask::PlanFull => Plan::of(vec![Step::KeepBest; 32]),
            Ask::PlanOverfull => Plan::of(vec![Step::KeepBest; 33]),
            Ask::PlanOutside => Plan::of(vec![Step::Ban(vec![u32::MAX])]),
            Ask::PlanCostly => Plan::of(vec![Step::KeepTypical { p: 0.9, min_keep: 1 }; self.0.tokens.len()]),
            Ask::PlanBest => Plan::of(vec![Step::KeepBest]),
            Ask::PlanThenTrap => Plan { steps: vec![Step::Ban(self.0.tokens.clone())], wakes: vec![Wake::Every(1)] },
            Ask::EveryThird => Plan { steps: vec![Step::KeepBest], wakes: vec![Wake::Every(3)] },
            Ask::EveryOperationPlanned => Plan::of(all_steps()),
            Ask::Refuse => return refusal(403),
            Ask::RefuseWrongly => return refusal(200),
            _ => return Ok(None),
        };
        Ok(Some(plan))
    }

    fn sample(&mut self, row: &Row) -> Option<u32> {
        match self.0.ask {
            Ask::PlanThenTrap => panic!("ask = plan-then-trap: as asked"),
            Ask::HalfThenTrap => {
                row.ban(&self.0.tokens);
                row.keep_top_k(1);
                row.force(&[0]);
                row.finish("stop");
                panic!("ask = half-then-trap: as asked");
            }
            Ask::EveryThird => self.0.tokens.first().copied(),
            Ask::ForceThenFinish => {
                if row.position() == 0 {
                    row.force(&self.0.tokens);
                } else {
                    row.finish("stop");
                }
                None
            }
            Ask::ForceOutside => {
                row.force(&[u32::MAX]);
                None
            }
            Ask::FinishStop => {
                row.finish("stop");
                None
            }
            Ask::FinishLength => {
                row.finish("length");
                None
            }
            Ask::FinishContentFilter => {
                row.finish("content-filter");
                None
            }
            Ask::FinishWrongly => {
                row.finish("because");
                None
            }
            Ask::EveryOperation => {
                let words = row.size().div_ceil(32) as usize;
                row.mask(&vec![u32::MAX; words]);
                row.bias(&[0], &[0.0]);
                row.penalize(64, 1.0, 0.0, 0.0);
                row.penalize_repeats(0.5, 1.5, 2, 64, &[0]);
                row.keep_top_k(5);
                row.keep_typical(1.0, 1);
                row.keep_top_p(0.99, 1);
                row.keep_min_p(0.01, 1);
                row.keep_top_sigma(3.0);
                row.keep_surprise(8.0, 0.1);
                row.exclude_top(0.9, 1.0);
                row.temperature(1.0);
                row.keep_best();
                let (max, sum, entropy) = row.statistics();
                assert!(max == sum && entropy == 0.0, "one candidate is left: {max} {sum} {entropy}");
                None
            }
            _ => None,
        }
    }
}

camshaft_plugin::export_sampler!(Asks);
