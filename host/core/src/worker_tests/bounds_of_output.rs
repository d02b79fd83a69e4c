//! What ends a generation, and what keeps it from ending: tokens, a minimum, a time.
use super::*;
use crate::message::Ends;
use crate::thinking::ThinkingBudget;

fn finished(result: &(String, Option<Event>)) -> (FinishReason, u32) {
    let Some(Event::Finished { reason, usage, .. }) = result.1 else { panic!("{result:?}") };
    (reason, usage.generated_tokens)
}

/// A request, without end tokens, whose text is known.
fn endless(id: u64) -> Start {
    Start { ignore_eos: true, ..start(id, "abc") }
}

#[test]
fn a_stop_token_ends_the_text_and_is_no_part_of_it() {
    let (text, _) = alone(endless(1));
    let third = Token(u32::from(text.as_bytes()[3]));
    let at = text.bytes().position(|byte| u32::from(byte) == third.0).unwrap();
    let ends = Ends { tokens: vec![third], ..Ends::default() };
    let got = alone(Start { ends, ..endless(1) });
    assert_eq!(got.0, text[..at]);
    assert_eq!(finished(&got), (FinishReason::Stop, at as u32 + 1));
}

#[test]
fn no_end_token_stop_token_or_stop_string_ends_a_text_that_is_too_short() {
    let eager = |start: Start| {
        let mut bench = Bench::native();
        bench.engine.end_logit = 100.0;
        bench.begin(start);
        bench.run();
        bench.results().remove(&1).unwrap()
    };
    let ends = |min_tokens| Ends { min_tokens, ..Ends::default() };
    assert_eq!(finished(&eager(start(1, "abc"))), (FinishReason::Stop, 1), "the end token is the likeliest");
    for least in [1, 7, 39] {
        let got = eager(Start { ends: ends(least), ..start(1, "abc") });
        assert_eq!(finished(&got), (FinishReason::Stop, least + 1), "the end comes right after them");
        assert_eq!(got.0.len(), least as usize);
    }
    assert_eq!(finished(&eager(Start { ends: ends(40), ..start(1, "abc") })), (FinishReason::Length, 40));
    // What the text begins with would stop it.
    let (text, _) = alone(endless(1));
    let stop = vec![text[..2].to_owned()];
    let at_once = alone(Start { stop: stop.clone(), ..endless(1) });
    assert_eq!((at_once.0.as_str(), finished(&at_once).0), ("", FinishReason::StopString(0)));
    let later = alone(Start { stop, ends: ends(2), ..endless(1) });
    assert!(later.0.starts_with(&text[..2]), "{later:?}");
}

#[test]
fn a_stop_token_is_not_drawn_before_the_minimum() {
    let (text, _) = alone(endless(1));
    let first = Token(u32::from(text.as_bytes()[0]));
    let ends = Ends { tokens: vec![first], min_tokens: 5, ..Ends::default() };
    let (got, _) = alone(Start { ends, ..endless(1) });
    assert!(!got[..5].contains(char::from(first.0 as u8)), "{got}");
}

#[test]
fn a_generation_whose_time_is_up_ends_with_what_it_has() {
    let ms = Duration::from_millis;
    let (whole, _) = alone(endless(1));
    let ends = Ends { max_duration: Some(ms(10)), ..Ends::default() };
    let mut bench = Bench::native();
    // Held back for a stop string that never comes.
    let stop = vec![format!("{}!", &whole[3..4])];
    bench.begin(Start { ends, stop, ..endless(1) });
    for now in [0, 3, 6, 9, 10] {
        bench.now = ms(100 + now);
        bench.step();
    }
    let results = bench.results();
    assert_eq!(finished(&results[&1]), (FinishReason::Expired, 4), "four steps were before its end");
    assert_eq!(results[&1].0, whole[..4]);
    assert!(bench.worker.is_idle() && bench.worker.check());
}

#[test]
fn a_generation_without_a_token_is_left_to_its_deadline() {
    let ends = Ends { max_duration: Some(Duration::ZERO), ..Ends::default() };
    let mut bench = Bench::native();
    bench.begin(Start { ends, ..start(1, &"a long prompt ".repeat(8)) });
    bench.now = Duration::from_secs(1);
    bench.step();
    assert!(bench.results()[&1].1.is_none(), "its prompt is not complete");
    bench.run();
    assert_eq!(finished(&bench.results()[&1]), (FinishReason::Expired, 1));
}

#[test]
fn a_preempted_generation_ends_in_its_time_too() {
    let ends = Ends { max_duration: Some(Duration::from_millis(5)), ..Ends::default() };
    let mut bench = Bench::native();
    bench.begin(Start { ends, ..endless(1) });
    bench.steps(3);
    bench.command(Command::Pause { id: RequestId(1) });
    bench.begin(endless(2));
    bench.now = Duration::from_millis(6);
    bench.step();
    assert_eq!(finished(&bench.results()[&1]), (FinishReason::Expired, 3));
    bench.run();
}

#[test]
fn nothing_is_drawn_where_no_token_is_asked_for() {
    let got = alone(Start { max_tokens: 0, ..start(1, "abc") });
    assert_eq!((got.0.as_str(), finished(&got)), ("", (FinishReason::Length, 0)));
}

fn thinking(tokens: u32, is_open: bool) -> Ends {
    let (begin, end) = ("<t>".to_owned(), "</t>".to_owned());
    let close = end.bytes().map(u32::from).collect();
    Ends { thinking: Some(ThinkingBudget { tokens, begin, end, close, is_open, repeats: false }), ..Ends::default() }
}

#[test]
fn thinking_is_closed_once_its_budget_is_spent() {
    let (text, _) = alone(endless(1));
    for tokens in [0, 3, 7] {
        let (got, _) = alone(Start { ends: thinking(tokens, true), ..endless(1) });
        let at = got.find("</t>").expect("it is closed");
        assert_eq!((at, &got[..at]), (tokens as usize, &text[..at]), "what comes before is as without a budget");
        assert_eq!(got.matches("</t>").count(), 1);
    }
    assert_eq!(alone(Start { ends: thinking(3, false), ..endless(1) }).0, text, "what does not think is not bounded");
    assert_eq!(alone(Start { ends: thinking(1000, true), ..endless(1) }).0, text, "nor what thinks less");
}
