use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::filter::Replacement;
use crate::ids::Token;
use crate::message::{FinishReason, TokenLogprob};
use crate::output::{Output, TextToken};
use crate::policy::{Fault, FaultKind};

/// What a monitored filter was shown, and what was counted of it.
#[derive(Debug, Default, Clone)]
struct Told(Arc<Mutex<(Vec<String>, Vec<&'static str>)>>);

impl Told {
    fn shown(&self) -> Vec<String> {
        self.0.lock().unwrap().0.clone()
    }

    fn counted(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().1.clone()
    }
}

struct Scripted<F> {
    told: Told,
    script: F,
}

impl<F: FnMut(Piece, &str) -> FilterVerdict + Send> TextFilter for Scripted<F> {
    fn check(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault> {
        let text = text.since(piece.start);
        self.told.0.lock().unwrap().0.push(text.to_owned());
        Ok((self.script)(piece, text))
    }

    fn refused(&mut self, detail: String) -> Fault {
        self.told.0.lock().unwrap().1.push("fault");
        Fault { plugin: "scripted".into(), kind: FaultKind::InvalidOutput, detail }
    }

    fn denies(&self) -> bool {
        true
    }

    fn is_monitored(&self) -> bool {
        true
    }

    fn differs(&mut self, kind: Difference, _: Option<&Refusal>) {
        self.told.0.lock().unwrap().1.push(kind.as_str());
    }
}

fn monitor(script: impl FnMut(Piece, &str) -> FilterVerdict + Send + 'static) -> (FilterMonitor, Told) {
    let told = Told::default();
    let filter = Scripted { told: told.clone(), script };
    (FilterMonitor::new(vec![Box::new(filter)]), told)
}

fn end(piece: Piece, text: &str) -> usize {
    piece.start + text.len()
}

#[test]
fn counts_replacements_and_is_asked_about_what_follows_them() {
    let (mut monitor, told) = monitor(|piece, text| match text.find('x') {
        Some(at) => {
            let start = piece.start + at;
            FilterVerdict::Replace(Replacement { start, end: start + 1, text: "y".to_owned() })
        }
        None => FilterVerdict::Pass(end(piece, text)),
    });
    monitor.advance("axbx", false);
    monitor.advance("c", true);
    assert_eq!(told.counted(), ["replace", "replace"]);
    assert_eq!(told.shown(), ["axbx", "bx", "c"]);
}

#[test]
fn one_that_would_rewind_goes_on_behind_what_it_would_have_taken_back() {
    let (mut monitor, told) = monitor(|piece, text| match text.find("bad") {
        Some(at) => FilterVerdict::Rewind(piece.start + at),
        None => FilterVerdict::Pass(end(piece, text)),
    });
    ["a bad", " word", " and bad"].into_iter().for_each(|text| monitor.advance(text, false));
    assert_eq!(
        (told.counted(), told.shown()),
        (vec!["rewind", "rewind"], vec!["a bad".into(), " word".into(), " and bad".into()])
    );
}

#[test]
fn one_that_would_end_the_generation_is_asked_no_more() {
    let finish: fn(Piece, &str) -> FilterVerdict =
        |piece, _| FilterVerdict::Finish { at: piece.start, reason: FinishReason::Stop };
    let refuse: fn(Piece, &str) -> FilterVerdict = |_, _| {
        FilterVerdict::Refuse(Refusal { status: 400, code: "c".to_owned(), message: "m".to_owned(), param: None })
    };
    for (script, kind) in [(finish, "finish"), (refuse, "refuse")] {
        let (mut monitor, told) = monitor(script);
        monitor.advance("a", false);
        monitor.advance("b", true);
        assert_eq!((told.counted(), told.shown()), (vec![kind], vec!["a".to_owned()]));
    }
}

#[test]
fn what_is_held_at_the_end_is_a_difference_and_what_is_held_too_long_a_fault() {
    let holds: fn(Piece, &str) -> FilterVerdict = |piece, _| FilterVerdict::Pass(piece.start);
    let (mut short, told) = monitor(holds);
    short.advance("abc", false);
    short.advance("", true);
    assert_eq!((told.counted(), told.shown()), (vec!["hold-at-end"], vec!["abc".to_owned(), "abc".to_owned()]));
    for (more, counted) in [(0, vec![]), (1, vec!["fault"])] {
        let (mut long, told) = monitor(holds);
        long.advance(&"x".repeat(HELD_BYTES + more), false);
        assert_eq!(told.counted(), counted);
        assert_eq!(long.links.len(), usize::from(more == 0), "asked no more after a fault");
    }
}

#[test]
fn verdicts_that_the_hook_does_not_allow_are_faults_and_so_are_endless_ones() {
    let outside: fn(Piece, &str) -> FilterVerdict = |piece, text| FilterVerdict::Pass(end(piece, text) + 1);
    let inside: fn(Piece, &str) -> FilterVerdict = |piece, _| FilterVerdict::Pass(piece.start + 1);
    let endless: fn(Piece, &str) -> FilterVerdict = |piece, _| {
        let (start, end) = (piece.start, piece.start + 2);
        FilterVerdict::Replace(Replacement { start, end, text: String::new() })
    };
    for (script, text) in [(outside, "a".to_owned()), (inside, "é".to_owned()), (endless, "é".repeat(VERDICTS + 1))] {
        let (mut monitor, told) = monitor(script);
        monitor.advance(&text, false);
        assert_eq!((told.counted().last(), monitor.links.len()), (Some(&"fault"), 0));
    }
}

#[test]
fn what_others_take_back_is_taken_from_it_too() {
    let (mut monitor, told) = monitor(|piece, text| {
        assert_eq!(piece.rewinds, u32::from(!text.starts_with('a')));
        FilterVerdict::Pass(end(piece, text))
    });
    monitor.advance("ab", false);
    monitor.cut(1);
    monitor.advance("cd", false);
    assert_eq!((told.counted(), told.shown()), (Vec::<&str>::new(), vec!["ab".to_owned(), "cd".to_owned()]));
    assert_eq!(monitor.window.end(), 3);
    let text = "x".repeat(3 * KEPT);
    monitor.advance(&text, false);
    monitor.cut(1);
    assert!(monitor.links.is_empty(), "that text is not kept");
}

/// Everything that a client gets of these tokens, delta by delta.
fn drawn(tokens: &[Vec<u8>], filters: Vec<Box<dyn TextFilter>>) -> Vec<String> {
    let mut output = Output::new(&["ab".to_owned()], filters);
    let mut out = Vec::new();
    for (index, bytes) in tokens.iter().enumerate() {
        let token = Token(index as u32);
        let logprob = Some(TokenLogprob { token, logprob: -1.0, top: Vec::new(), skipped: 0 });
        let released = output.token(TextToken { token, bytes, logprob, own: None, end: None, early: false });
        out.push(format!("{released:?}"));
        if matches!(released, crate::filter_stage::Released::Ended(..)) {
            return out;
        }
    }
    out.push(format!("{:?}", output.ended(FinishReason::Stop)));
    out
}

proptest! {
    #[test]
    fn clients_get_byte_for_byte_what_they_get_without_it(
        tokens in prop::collection::vec(prop::collection::vec(prop::sample::select(b"abc\xc3\xa9 ".to_vec()), 0..4), 1..30),
        verdicts in prop::collection::vec((0u8..6, 0usize..9), 1..60),
        enforced in any::<bool>(),
    ) {
        let pass = || -> Box<dyn TextFilter> {
            Box::new(crate::fake::ScriptedFilter { denies: true, script: |piece: Piece, text: &str| FilterVerdict::Pass(end(piece, text)) })
        };
        let before = || -> Vec<Box<dyn TextFilter>> { if enforced { vec![pass()] } else { Vec::new() } };
        let mut script = verdicts.into_iter().cycle();
        let wild = move |piece: Piece, _: &str| {
            let (kind, by) = script.next().unwrap_or_default();
            let at = piece.start + by;
            match kind {
                0 => FilterVerdict::Pass(at),
                1 => FilterVerdict::Replace(Replacement { start: at, end: at + 1, text: "?".to_owned() }),
                2 => FilterVerdict::Rewind(at),
                3 => FilterVerdict::Finish { at, reason: FinishReason::Filtered },
                _ => FilterVerdict::Pass(piece.start),
            }
        };
        let mut with = before();
        with.push(Box::new(Scripted { told: Told::default(), script: wild }));
        prop_assert_eq!(drawn(&tokens, with), drawn(&tokens, before()));
    }
}
