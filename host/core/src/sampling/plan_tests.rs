use super::*;
use crate::ids::Token;
use crate::sampling::StandardChain;

fn row() -> Row {
    let mut row = Row::new(&[Token(1)], 1);
    row.load(&[0.0; 8]).unwrap();
    row
}

fn next(row: &mut Row, token: u32, bytes: &[u8]) {
    row.accept(Token(token), bytes);
    row.load(&[0.0; 8]).unwrap();
}

#[test]
fn a_plan_without_conditions_sleeps() {
    let mut plan = Plan::default();
    plan.push(Step::KeepTopK(2)).unwrap();
    assert!(plan.sleeps() && !plan.wakes(&row()));
    let mut row = row();
    plan.apply(&mut row).unwrap();
    assert_eq!(row.candidates(), 2);
}

#[test]
fn wakes_after_one_of_its_tokens() {
    let mut plan = Plan::default();
    plan.wake_on_tokens(&[5, 1]).unwrap();
    let mut row = row();
    assert!(!plan.wakes(&row), "the prompt's last token is 1, but none was drawn");
    next(&mut row, 5, b"a");
    assert!(plan.wakes(&row));
    next(&mut row, 2, b"b");
    assert!(!plan.wakes(&row) && !plan.sleeps());
}

#[test]
fn wakes_where_its_text_ends_however_tokens_split_it() {
    let mut plan = Plan::default();
    plan.wake_on_suffix(b"stop").unwrap();
    let mut row = row();
    for (bytes, wakes) in [
        (&b"st"[..], false),
        (b"op", true),
        (b"", false),
        (b"!", false),
        (b"xstopy", true),
        (b"stop", true),
        (b"s", false),
    ] {
        next(&mut row, 3, bytes);
        assert_eq!(plan.wakes(&row), wakes, "{bytes:?}");
    }
}

#[test]
fn wakes_for_the_first_token_and_every_few() {
    let mut plan = Plan::default();
    plan.wake_every(3).unwrap();
    let mut row = row();
    let mut woken = Vec::new();
    for _ in 0..7 {
        woken.push(plan.wakes(&row));
        next(&mut row, 2, b"x");
    }
    assert_eq!(woken, [true, false, false, true, false, false, true]);
}

#[test]
fn wakes_above_an_entropy_of_what_the_steps_left() {
    let mut plan = Plan::default();
    plan.wake_above_entropy(2.0).unwrap();
    let mut row = row();
    assert!(plan.wakes(&row), "ln 8 = 2.08");
    row.keep_top_k(7);
    assert!(!plan.wakes(&row), "ln 7 = 1.95");
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    let mut plan = Plan::default();
    for _ in 0..MAX_STEPS {
        plan.push(Step::KeepBest).unwrap();
    }
    assert_eq!(plan.push(Step::KeepBest), Err(PlanError::TooManySteps));
    let mut plan = Plan::default();
    plan.push(Step::Ban(vec![0; MAX_ENTRIES - 1])).unwrap();
    plan.wake_on_tokens(&[1]).unwrap();
    assert_eq!(plan.wake_on_tokens(&[2]), Err(PlanError::TooManyEntries));
    assert_eq!(plan.wake_on_suffix(b""), Err(PlanError::SuffixLength(0)));
    assert!(plan.wake_on_suffix(&[b'x'; MAX_SUFFIX_BYTES]).is_ok());
    assert_eq!(plan.wake_on_suffix(&[b'x'; MAX_SUFFIX_BYTES + 1]), Err(PlanError::SuffixLength(MAX_SUFFIX_BYTES + 1)));
    for _ in 1..MAX_SUFFIXES {
        plan.wake_on_suffix(b"x").unwrap();
    }
    assert_eq!(plan.wake_on_suffix(b"x"), Err(PlanError::TooManySuffixes));
    assert_eq!(plan.wake_every(0), Err(PlanError::Never));
    assert!(plan.wake_above_entropy(f32::NAN).is_err());
}

#[test]
fn numbers_that_no_row_takes_are_found_before_the_first_row() {
    for step in [
        Step::Temperature(f32::NAN),
        Step::Temperature(0.0),
        Step::Bias { ids: vec![1], values: vec![] },
        Step::Bias { ids: vec![1], values: vec![f32::NAN] },
        Step::Penalize { last_n: 1, repeat: 0.0, frequency: 0.0, presence: 0.0 },
        Step::KeepTopP { p: 0.0, min_keep: 1 },
        Step::KeepMinP { p: 1.5, min_keep: 1 },
        Step::KeepTypical { p: f32::NAN, min_keep: 1 },
        Step::KeepTopSigma(-1.0),
        Step::ExcludeTop { threshold: 0.0, probability: 0.5 },
        Step::KeepSurprise { target: 0.0, rate: 0.1 },
        Step::Ban(vec![8]),
        Step::AllowOnly(vec![0; 9]),
        Step::Mask(vec![0; 2]),
    ] {
        let mut plan = Plan::default();
        plan.push(step.clone()).unwrap();
        assert!(plan.prepare(8, 8).is_err(), "{step:?}");
        let (checked, applied) = (step.check(8).unwrap_err(), step.apply(&mut row()).unwrap_err());
        assert_eq!(checked.to_string(), applied.to_string(), "one rule for both");
    }
    let mut plan = Plan::default();
    plan.wake_on_tokens(&[8]).unwrap();
    assert!(plan.prepare(8, 8).is_err() && plan.prepare(9, 8).is_ok());
}

fn typical(size: usize, steps: usize) -> Result<(), PlanError> {
    let mut plan = Plan::default();
    (0..steps).try_for_each(|_| plan.push(Step::KeepTypical { p: 0.9, min_keep: 1 })).unwrap();
    plan.prepare(size, 1000)
}

#[test]
fn a_plan_takes_as_much_work_as_the_bound_and_one_past_it_is_refused() {
    const SIZE: usize = 1 << 20;
    // 24 passes over the vocabulary each; the bound is 64 passes and 2^20 more.
    assert_eq!(typical(SIZE, 2), Ok(()));
    assert_eq!(typical(SIZE, 3), Err(PlanError::TooMuchWork { work: 72 << 20, max: 65 << 20 }));
    let mut plan = Plan::default();
    [
        Step::KeepTypical { p: 0.9, min_keep: 1 },
        Step::KeepTypical { p: 0.9, min_keep: 1 },
        Step::KeepTopP { p: 0.9, min_keep: 1 },
    ]
    .into_iter()
    .chain([Step::Temperature(0.5), Step::Temperature(0.5)])
    .try_for_each(|step| plan.push(step))
    .unwrap();
    // 24 + 24 + 12 + 2 + 2 passes leave 2^20, which is 2^17 tokens of the history.
    plan.push(Step::Penalize { last_n: 1, repeat: 1.5, frequency: 0.0, presence: 0.0 }).unwrap();
    assert_eq!(plan.prepare(SIZE, 1 << 17), Ok(()));
    assert!(matches!(plan.prepare(SIZE, (1 << 17) + 1), Err(PlanError::TooMuchWork { .. })));
}

#[test]
fn steps_after_few_candidates_are_left_take_little() {
    let mut plan = Plan::default();
    plan.push(Step::KeepTopK(40)).unwrap();
    (1..MAX_STEPS).for_each(|_| plan.push(Step::KeepTypical { p: 0.9, min_keep: 1 }).unwrap());
    assert_eq!(plan.prepare(1 << 18, 1 << 17), Ok(()));
}

#[test]
fn the_standard_chain_with_all_its_parameters_fits_every_model() {
    use crate::sampling::{LogitBias, SamplingParams};
    for size in [1000, 32_000, 262_144] {
        let params = SamplingParams {
            top_k: 0,
            top_p: 0.9,
            min_p: 0.1,
            typical_p: 0.9,
            repeat_penalty: 1.1,
            frequency_penalty: 0.5,
            logit_bias: (0..300).map(|token| LogitBias { token: Token(token), bias: 1.0 }).collect(),
            ..SamplingParams::default()
        };
        let mut plan = Plan::default();
        StandardChain::new(params).steps().iter().try_for_each(|step| plan.push(step.clone())).unwrap();
        assert_eq!(plan.prepare(size, 131_072), Ok(()), "{size}");
    }
}

#[test]
fn a_prepared_plan_does_what_its_steps_do() {
    let steps = [
        Step::Bias { ids: vec![3, 1], values: vec![2.0, -1.0] },
        Step::PenalizeRepeats(crate::sampling::Repeats {
            multiplier: 1.0,
            base: 2.0,
            allowed: 1,
            last_n: 8,
            breakers: vec![7, 6],
        }),
        Step::Ban(vec![0]),
        Step::AllowOnly(vec![1, 2, 3, 5]),
        Step::Mask(vec![0b1010_1110]),
        Step::KeepTopK(3),
    ];
    let rows = [false, true].map(|prepared| {
        let mut plan = Plan::default();
        steps.iter().try_for_each(|step| plan.push(step.clone())).unwrap();
        if prepared {
            plan.prepare(8, 8).unwrap();
        }
        let mut row = Row::new(&[Token(1), Token(2), Token(1)], 1);
        row.load(&[0.5, 0.1, 0.2, 0.3, 0.4, 0.9, 0.8, 0.7]).unwrap();
        plan.apply(&mut row).unwrap();
        row.top(8)
    });
    assert_eq!(rows[0], rows[1]);
    assert_eq!(rows[0].len(), 3);
}
