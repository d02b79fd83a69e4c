//! What a grammar is certain of is drafted, and masks are computed beside the step: neither changes what is drawn.
use std::sync::Barrier;

use serde_json::json;

use super::grammars::{Schemas, bench, constrained, schema, uniform};
use super::*;
use crate::grammar::{Grammar, GrammarSpec};
use crate::threads::Spawner;

#[test]
fn the_same_tokens_come_with_and_without_drafts_and_with_masks_computed_beside() {
    let mut schemas = Schemas(7);
    let (mut steps_saved, mut drafts) = (0, 0);
    for id in 0..60u64 {
        let grammar = schema(&schemas.object(3));
        let request = Start { logprobs: Some(2), ..constrained(id, &grammar) };
        let run = |prepare: fn(&mut Bench)| {
            let mut bench = bench();
            prepare(&mut bench);
            bench.begin(request.clone());
            let mut steps = 0;
            while bench.step() != Step::Idle {
                steps += 1;
            }
            let deltas: Vec<_> = bench
                .events
                .iter()
                .filter_map(|event| match event {
                    Event::Delta { delta, .. } => Some(delta.clone()),
                    _ => None,
                })
                .collect();
            let (text, end) = bench.results().remove(&id).unwrap();
            let Some(Event::Finished { reason, usage, .. }) = end else { panic!("{end:?}") };
            assert_eq!(deltas.iter().map(|delta| delta.text.as_str()).collect::<String>(), text);
            let logprobs: Vec<_> = deltas.into_iter().flat_map(|delta| delta.logprobs).collect();
            (text, reason, usage.generated_tokens, logprobs, steps, usage.accepted_tokens)
        };
        let alone = |bench: &mut Bench| bench.engine.reuse = Reuse::Whole;
        let plain = run(alone);
        let forced = run(|_| {});
        let beside = run(|bench| {
            bench.worker.masks = Some(MaskThreads::new(Spawner::detached(), Spawner::detached(), Box::new(|| true)))
        });
        let crowded = run(|bench| {
            let nobody = Spawner::new(|_, _| panic!("a thread beside the step, for which there is no room"));
            bench.worker.masks = Some(MaskThreads::new(nobody, Spawner::detached(), Box::new(|| false)));
        });
        let guessed = run(|bench| bench.draft_by_lookup(4));
        let both = run(|bench| {
            bench.draft_by_lookup(4);
            bench.worker.masks = Some(MaskThreads::new(Spawner::detached(), Spawner::detached(), Box::new(|| true)));
        });
        for other in [&forced, &beside, &crowded, &guessed, &both] {
            assert_eq!((&plain.0, plain.1, plain.2, &plain.3), (&other.0, other.1, other.2, &other.3));
        }
        assert_eq!((forced.4, forced.5), (beside.4, 0));
        steps_saved += plain.4 - forced.4;
        drafts += guessed.5;
    }
    assert!(steps_saved > 0 && drafts > 0, "{steps_saved} steps saved, {drafts} tokens guessed");
}

#[test]
fn a_model_that_spells_the_certain_text_in_its_own_way_gets_few_drafts_of_it() {
    let letters = |hash: u64, token: u32| if token < 128 { 20.0 } else { uniform(hash, token) };
    let pieces = |hash: u64, token: u32| if token < 128 { -20.0 } else { uniform(hash, token) };
    let grammar = schema(&json!({ "const": "name".repeat(200) }));
    let run = |logit: fn(u64, u32) -> f32| {
        let mut bench = bench();
        bench.engine.logit = Some(logit);
        bench.begin(constrained(1, &grammar));
        let mut steps = 0;
        loop {
            match bench.step() {
                Step::Idle => break,
                // A row takes as long as all that a step takes beside them.
                Step::Decoded { tokens } => bench.now += Duration::from_millis(1 + tokens as u64),
                Step::Prepared => {}
            }
            steps += 1;
        }
        let (_, Some(Event::Finished { usage, .. })) = &bench.results()[&1] else { panic!("{:?}", bench.events) };
        (usage.generated_tokens as usize, bench.engine.decoded, steps)
    };
    let (tokens, decoded, _) = run(letters);
    assert_eq!(tokens, 802, "a letter at a time");
    assert!(decoded < tokens + 300, "{decoded} rows");
    let (tokens, decoded, steps) = run(pieces);
    // Of the pieces, several spell the same.
    assert!(tokens > 2 * steps && decoded < tokens + 300, "{tokens} tokens, {decoded} rows, {steps} steps");
}

#[test]
fn slow_masks_hold_up_nobody_else_and_nothing_that_is_drawn_changes() {
    // All of it is certain, and much is spelled to find that out.
    let text = "start: a{100000}\na: b{100000}\nb: \"c\"{100000}";
    let slow = Arc::new(Grammar::new(GrammarSpec::Lark { text: text.to_owned() }));
    let quick = schema(&Schemas(3).object(3));
    let prompt = "What all of them begin with takes several steps. ".repeat(6);
    let run = |threads: Option<MaskThreads>, gate: Option<&Barrier>| {
        let mut bench = bench();
        bench.worker.masks = threads;
        let request = |id, grammar: &Arc<Grammar>| Start {
            prompt: start(id, &prompt).prompt,
            max_tokens: 40,
            ..constrained(id, grammar)
        };
        bench.begin(Start { max_tokens: 40, ..constrained(1, &slow) });
        bench.steps(3);
        // The next one with it is slow from its beginning, and the one behind it shares its prompt.
        [request(3, &slow), request(2, &quick)].into_iter().for_each(|request| bench.begin(request));
        let has_ended = |bench: &Bench, id: u64| bench.results().get(&id).is_some_and(|(_, end)| end.is_some());
        while !has_ended(&bench, 2) {
            assert_ne!(bench.step(), Step::Idle);
        }
        assert!(gate.is_none() || !has_ended(&bench, 1) && !has_ended(&bench, 3));
        bench.command(Command::Cancel { id: RequestId(3) });
        gate.map(Barrier::wait);
        bench.run();
        [1, 2].map(|id| bench.results().remove(&id).unwrap().0)
    };
    let alone = run(None, None);
    assert_eq!(alone[0], "c".repeat(40));
    let gate = Arc::new(Barrier::new(2));
    let behind = gate.clone();
    let apart = Spawner::new(move |name, body| {
        let gate = behind.clone();
        let body = move || {
            gate.wait();
            body();
        };
        Spawner::detached().spawn(name, Box::new(body))
    });
    assert_eq!(run(Some(MaskThreads::new(Spawner::detached(), apart, Box::new(|| false))), Some(&gate)), alone);
    // Where it cannot be started, or has died, the step computes them.
    let none = Spawner::new(|_, _| Err(std::io::Error::other("no thread")));
    assert_eq!(run(Some(MaskThreads::new(Spawner::detached(), none, Box::new(|| false))), None), alone);
    let dies = Spawner::new(|_, body| {
        drop(body);
        Ok(())
    });
    assert_eq!(run(Some(MaskThreads::new(Spawner::detached(), dies, Box::new(|| false))), None), alone);
}
