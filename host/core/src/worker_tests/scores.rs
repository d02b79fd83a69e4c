//! Log-probabilities of a prompt's tokens.
use super::*;
use crate::message::TokenLogprob;
use crate::sampling::LogSoftmax;

/// The log-probabilities that were told of a request.
fn scores(bench: &Bench, id: u64) -> Vec<TokenLogprob> {
    let of = |event: &Event| match event {
        Event::Delta { id: of, delta } if of.0 == id => delta.logprobs.clone(),
        _ => Vec::new(),
    };
    bench.events.iter().flat_map(of).collect()
}

/// What the engine says of each token of a prompt but the first, computed one by one.
fn expected(prompt: &str) -> Vec<f32> {
    let mut engine = FakeEngine::new(LIMITS, 3);
    let mut batch = crate::engine::Batch::default();
    let tokens: Vec<Token> = prompt.bytes().map(|byte| Token(u32::from(byte))).collect();
    let one = |(position, pair): (usize, &[Token])| {
        batch.clear();
        batch.push(pair[0], position as u32, crate::ids::SeqId(0), true);
        engine.decode(&batch).unwrap();
        LogSoftmax::new(engine.logits(0)).of(pair[1])
    };
    tokens.windows(2).enumerate().map(one).collect()
}

fn scored(id: u64, prompt: &str) -> Start {
    Start { score_prompt: true, logprobs: Some(2), max_tokens: 0, ..start(id, prompt) }
}

#[test]
fn every_token_of_a_prompt_but_the_first_has_its_log_probability() {
    for length in [1, 2, 31, 33, 34, 100] {
        let prompt: String = "the quick brown fox jumps over it. ".repeat(4)[..length].to_owned();
        let mut bench = Bench::native();
        bench.begin(scored(1, &prompt));
        bench.run();
        let told = scores(&bench, 1);
        assert_eq!(told.iter().map(|told| told.logprob).collect::<Vec<_>>(), expected(&prompt), "{length}");
        let tokens: Vec<u32> = told.iter().map(|told| told.token.0).collect();
        assert_eq!(tokens, prompt.bytes().skip(1).map(u32::from).collect::<Vec<_>>());
        assert!(told.iter().all(|told| told.top.len() == 2 && told.top[0].1 >= told.logprob));
    }
}

#[test]
fn a_prompt_is_scored_whatever_of_it_is_cached_or_computed_by_others() {
    let prompt = "a prompt that several requests have in common, twice over";
    let mut bench = Bench::native();
    bench.begin(start(1, prompt));
    bench.run();
    bench.begin(start(2, prompt));
    bench.begin(scored(3, prompt));
    bench.begin(scored(4, prompt));
    bench.run();
    for id in [3, 4] {
        let told: Vec<f32> = scores(&bench, id).iter().map(|told| told.logprob).collect();
        assert_eq!(told, expected(prompt), "{id}");
    }
    assert_eq!(ignore_cached(bench.results()[&2].clone()), alone(start(2, prompt)));
}

#[test]
fn scores_come_once_and_before_the_text_also_after_a_preemption() {
    let prompt = "a prompt that is long enough to take several steps, as only some rows of each give logits";
    let mut bench = Bench::native();
    bench.begin(Start { max_tokens: 5, ignore_eos: true, ..scored(1, prompt) });
    bench.step();
    let so_far = scores(&bench, 1).len();
    assert!(so_far > 0 && so_far < prompt.len() - 1, "{so_far}");
    bench.command(Command::Preempt { id: RequestId(1) });
    bench.run();
    let told = scores(&bench, 1);
    assert_eq!(told.len(), prompt.len() - 1 + 5);
    assert_eq!(told[..prompt.len() - 1].iter().map(|told| told.logprob).collect::<Vec<_>>(), expected(prompt));
    let text: String = told[prompt.len() - 1..].iter().map(|told| char::from(told.token.0 as u8)).collect();
    assert_eq!(text, bench.results()[&1].0);
}

#[test]
fn a_step_scores_no_more_rows_than_its_bound() {
    let prompt = "x".repeat(100);
    let mut bench = Bench::native();
    bench.begin(scored(1, &prompt));
    bench.begin(scored(2, &prompt.replace('x', "y")));
    bench.step();
    assert_eq!(scores(&bench, 1).len() + scores(&bench, 2).len(), 32);
    bench.run();
    assert_eq!((scores(&bench, 1).len(), scores(&bench, 2).len()), (99, 99));
}

#[test]
fn regression_the_token_that_ends_a_scored_text_has_its_log_probability() {
    let prompt = "what comes next";
    let drawn = |ends: Vec<Token>| {
        let mut bench = Bench::native();
        let ends = crate::message::Ends { tokens: ends, ..Default::default() };
        bench.begin(Start { max_tokens: 1, ends, ..scored(1, prompt) });
        bench.run();
        let told = scores(&bench, 1);
        assert_eq!(told.len(), prompt.len());
        (bench.results()[&1].0.clone(), told.last().cloned().unwrap())
    };
    let (text, first) = drawn(Vec::new());
    assert_eq!(text.len(), 1);
    // The same token, which now adds no text.
    assert_eq!(drawn(vec![first.token]), (String::new(), first));
}
