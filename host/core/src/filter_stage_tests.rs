use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::fake::ScriptedFilter;
use crate::filter_verdicts::{HELD_BYTES, REPLACEMENT_BYTES};
use crate::output::{Output, TextToken};

/// What a client got.
#[derive(Debug, Default, PartialEq)]
struct Got {
    text: String,
    tokens: u32,
    logprobs: Vec<u32>,
    end: Option<FinishReason>,
}

impl Got {
    fn add(&mut self, delta: Option<Delta>) {
        let Some(delta) = delta else { return };
        self.text.push_str(&delta.text);
        self.tokens += delta.tokens;
        self.logprobs.extend(delta.logprobs.into_iter().map(|told| told.token.0));
    }
}

/// Draws these tokens, numbered from 0 on, until the text ends. `Err`: the error, or where it was rewound to.
fn draw(output: &mut Output, tokens: &[Vec<u8>], full_at: Option<usize>) -> Result<Got, String> {
    let mut got = Got::default();
    for (index, bytes) in tokens.iter().enumerate() {
        let token = Token(index as u32);
        let logprob = Some(TokenLogprob { token, logprob: -1.0, top: Vec::new(), skipped: 0 });
        let end = (full_at == Some(index)).then_some(FinishReason::Length);
        match output.token(TextToken { token, bytes, logprob, own: None, end, early: false }) {
            Released::GoesOn(delta) => got.add(delta),
            Released::Ended(delta, reason) => {
                got.add(delta);
                got.end = Some(reason);
                return Ok(got);
            }
            Released::Rewound(rewound) => return Err(format!("rewound to {}", rewound.index)),
            Released::Failed(error) => return Err(format!("{error:?}")),
        }
    }
    match output.ended(FinishReason::Stop) {
        Released::Ended(delta, reason) => {
            got.add(delta);
            got.end = Some(reason);
            Ok(got)
        }
        other => Err(format!("{other:?}")),
    }
}

fn scripted(script: impl FnMut(Piece, &str) -> FilterVerdict + Send + 'static) -> Box<dyn TextFilter> {
    Box::new(ScriptedFilter { denies: true, script })
}

fn passes() -> Box<dyn TextFilter> {
    scripted(|piece, text| FilterVerdict::Pass(piece.start + text.len()))
}

/// The tokens of a text, cut anywhere, also inside characters.
fn cut(text: &str, sizes: &[usize]) -> Vec<Vec<u8>> {
    let (mut rest, mut out) = (text.as_bytes(), Vec::new());
    for &size in sizes.iter().chain(std::iter::repeat(&3)) {
        if rest.is_empty() {
            return out;
        }
        let (piece, tail) = rest.split_at(size.min(rest.len()));
        out.push(piece.to_vec());
        rest = tail;
    }
    out
}

proptest! {
    #[test]
    fn a_filter_that_always_passes_changes_nothing(
        text in "[abc\u{e4}\u{20ac}]{0,40}",
        stops in prop::collection::vec("[abc\u{e4}]{1,4}", 0..3),
        sizes in prop::collection::vec(0usize..5, 0..60),
        full_at in prop::option::of(0usize..20),
        filters in 1usize..3,
    ) {
        let tokens = cut(&text, &sizes);
        let none = draw(&mut Output::new(&stops, Vec::new()), &tokens, full_at);
        let passing = (0..filters).map(|_| passes()).collect();
        let mut some = draw(&mut Output::new(&stops, passing), &tokens, full_at).unwrap();
        let none = none.unwrap();
        if some.logprobs.len() + 1 == none.logprobs.len() {
            // A stop string cut the last token.
            let spelt: usize = tokens.iter().take(none.logprobs.len()).map(Vec::len).sum();
            prop_assert!(spelt > none.text.len());
            some.logprobs.extend(none.logprobs.last());
        }
        prop_assert_eq!(some, none);
    }

    /// What is replaced becomes `#`, which the text has nowhere.
    #[test]
    fn whatever_filters_say_all_that_was_passed_goes_out_and_nothing_beyond(
        text in "[abc\u{e4}\u{20ac}]{0,60}",
        sizes in prop::collection::vec(0usize..5, 0..60),
        choices in prop::collection::vec(prop::collection::vec((0u8..4, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..80), 1..4),
    ) {
        let tokens = cut(&text, &sizes);
        let replaced = Arc::new(Mutex::new(vec![false; text.len()]));
        // Per filter, up to where it has decided.
        let decided: Vec<Arc<AtomicUsize>> = choices.iter().map(|_| Arc::default()).collect();
        let filters = choices.iter().zip(&decided).map(|(choices, decided)| {
            let (mut choices, decided, replaced) = (choices.clone().into_iter().cycle(), decided.clone(), replaced.clone());
            scripted(move |piece, text| {
                assert_eq!(decided.load(Ordering::Relaxed), piece.start, "it sees what it has not decided on");
                assert!(piece.fresh >= piece.start && piece.fresh <= piece.start + text.len());
                let bounds: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
                let (kind, one, other) = choices.next().unwrap();
                let (from, to) = (bounds[one.index(bounds.len())], bounds[other.index(bounds.len())]);
                let (from, to) = (from.min(to), from.max(to));
                let end = piece.start + to;
                if kind == 0 && from < to {
                    replaced.lock().unwrap()[piece.start + from..end].fill(true);
                    decided.store(end, Ordering::Relaxed);
                    return FilterVerdict::Replace(Replacement { start: piece.start + from, end, text: "##".to_owned() });
                }
                let pass = if piece.last || kind == 1 { piece.start + text.len() } else { end };
                decided.store(pass, Ordering::Relaxed);
                FilterVerdict::Pass(pass)
            })
        });
        let mut output = Output::new(&[], filters.collect());
        let (mut got, mut written) = (Got::default(), 0);
        for (index, bytes) in tokens.iter().enumerate() {
            let token = Token(index as u32);
            let logprob = Some(TokenLogprob { token, logprob: -1.0, top: Vec::new(), skipped: 0 });
            match output.token(TextToken { token, bytes, logprob, own: None, end: None, early: false }) {
                Released::GoesOn(delta) => got.add(delta),
                other => prop_assert!(false, "{:?}", other),
            }
            written += bytes.len();
            let all = decided.iter().map(|decided| decided.load(Ordering::Relaxed)).min().unwrap();
            let visible = (0..all).filter(|&at| !replaced.lock().unwrap()[at]).count();
            prop_assert!(got.text.bytes().filter(|&byte| byte != b'#').count() <= visible, "at {} of {}", all, written);
        }
        let Released::Ended(delta, FinishReason::Stop) = output.ended(FinishReason::Stop) else { panic!("it ends") };
        got.add(delta);
        let replaced = replaced.lock().unwrap();
        let left: Vec<u8> = text.bytes().zip(replaced.iter()).filter(|(_, gone)| !**gone).map(|(byte, _)| byte).collect();
        let out: Vec<u8> = got.text.bytes().filter(|&byte| byte != b'#').collect();
        prop_assert_eq!(out, left);
        prop_assert_eq!(got.tokens as usize, tokens.len());
        // Log-probabilities spell no byte that was replaced.
        let mut at = 0;
        for (index, bytes) in tokens.iter().enumerate() {
            if got.logprobs.contains(&(index as u32)) {
                prop_assert!(!replaced[at..at + bytes.len()].contains(&true), "token {}", index);
            }
            at += bytes.len();
        }
    }
}

/// The end of a text of one-letter tokens under a filter that answers so to the piece at which `answer` says something.
fn answered(
    letters: usize,
    denies: bool,
    answer: impl Fn(Piece, &str) -> Option<FilterVerdict> + Send + 'static,
) -> Result<Got, String> {
    let script = move |piece: Piece, text: &str| {
        answer(piece, text).unwrap_or(FilterVerdict::Pass(if piece.last {
            piece.start + text.len()
        } else {
            piece.start
        }))
    };
    let filter = Box::new(ScriptedFilter { denies, script });
    draw(&mut Output::new(&[], vec![filter]), &vec![b"x".to_vec(); letters], None)
}

fn check(expected: &str, answer: impl Fn(Piece, &str) -> Option<FilterVerdict> + Clone + Send + 'static) {
    let error = answered(20, true, answer.clone()).unwrap_err();
    assert!(error.contains("FilterFault") && error.contains(expected), "{error}");
    // A filter that may be left out is, and what it held goes out.
    assert_eq!(answered(20, false, answer).map(|got| got.text), Ok("x".repeat(20)));
}

#[test]
fn verdicts_that_the_hook_does_not_allow_are_faults_by_name() {
    let at = |n: usize, verdict: FilterVerdict| {
        move |piece: Piece, text: &str| (piece.start + text.len() == n).then(|| verdict.clone())
    };
    let replace = |start, end, text: &str| FilterVerdict::Replace(Replacement { start, end, text: text.to_owned() });
    check("pass names byte 8, outside of 0 to 7", at(7, FilterVerdict::Pass(8)));
    check("rewind names byte 7, outside of 0 to 6", at(7, FilterVerdict::Rewind(7)));
    check(
        "finish names byte 9, outside of 0 to 7",
        at(7, FilterVerdict::Finish { at: 9, reason: FinishReason::Filtered }),
    );
    check("replace names byte 3, outside of 4 to 7", at(7, replace(3, 3, "")));
    check("replace names byte 8, outside of 4 to 7", at(7, replace(3, 8, "")));
    check("replaces by 1025 bytes, at most 1024", at(7, replace(3, 4, &"y".repeat(REPLACEMENT_BYTES + 1))));
    check("holds 20 bytes at the end of the text", |piece, _| piece.last.then_some(FilterVerdict::Pass(0)));
    check("pass names byte 0, outside of 1 to 2", |piece, text| {
        let end = piece.start + text.len();
        (end <= 2).then_some(FilterVerdict::Pass(if end == 1 { 1 } else { 0 }))
    });
}

#[test]
fn a_verdict_inside_a_character_is_a_fault() {
    for verdict in
        [FilterVerdict::Pass(1), FilterVerdict::Rewind(1), FilterVerdict::Finish { at: 1, reason: FinishReason::Stop }]
    {
        let told = verdict.clone();
        let error =
            draw(&mut Output::new(&[], vec![scripted(move |_, _| told.clone())]), &["é".into()], None).unwrap_err();
        assert!(error.contains("byte 1, inside a character"), "{verdict:?}: {error}");
    }
}

#[test]
fn what_is_held_replaced_and_said_is_bounded() {
    let held = |bytes: usize| {
        let holds = scripted(|piece, text| FilterVerdict::Pass(if piece.last { piece.start + text.len() } else { 0 }));
        draw(&mut Output::new(&[], vec![holds]), &vec![vec![b'x'; 1024]; bytes / 1024], None).map(|got| got.text.len())
    };
    assert_eq!(held(HELD_BYTES), Ok(HELD_BYTES));
    assert!(held(HELD_BYTES + 1024).unwrap_err().contains("holds 66560 bytes, at most 65536"));
    // Each replacement may be of the largest size, and all together may add no more than their bound.
    let added = |count: usize| {
        let grows = scripted(|piece, text| match text.len() {
            0 => FilterVerdict::Pass(piece.start),
            _ => {
                let text = "y".repeat(REPLACEMENT_BYTES);
                FilterVerdict::Replace(Replacement { start: piece.start, end: piece.start + 1, text })
            }
        });
        let got = draw(&mut Output::new(&[], vec![grows]), &vec![b"x".to_vec(); count], None);
        got.map(|got| got.text.len() - count)
    };
    let most = ADDED_BYTES / (REPLACEMENT_BYTES - 1);
    assert_eq!(added(most), Ok(most * (REPLACEMENT_BYTES - 1)));
    assert!(added(most + 1).unwrap_err().contains("bytes to the text, at most 65536"));
    let verdicts = |count: usize| {
        let replaces = scripted(|piece, _| {
            FilterVerdict::Replace(Replacement { start: piece.start, end: piece.start + 1, text: "y".to_owned() })
        });
        draw(&mut Output::new(&[], vec![replaces]), &[vec![b'x'; count]], None).map(|got| got.text)
    };
    assert_eq!(verdicts(VERDICTS - 1), Ok("y".repeat(VERDICTS - 1)));
    assert!(verdicts(VERDICTS + 1).unwrap_err().contains("gave 1024 verdicts"));
}

#[test]
fn a_refusal_ends_the_text_with_what_the_filter_says() {
    let refusal = Refusal { status: 451, code: "no".to_owned(), message: "not here".to_owned(), param: None };
    let told = refusal.clone();
    let error = answered(3, true, move |_, _| Some(FilterVerdict::Refuse(told.clone()))).unwrap_err();
    assert_eq!(error, format!("{:?}", WorkerError::Declined(Box::new(refusal))));
}

#[test]
fn a_text_that_a_filter_finishes_ends_there_for_all_filters() {
    // The first one holds all; the second finishes at byte 2 once it sees byte 4.
    let holds =
        scripted(|piece, text| FilterVerdict::Pass(if piece.last { piece.start + text.len() } else { piece.start }));
    let ends = scripted(|piece, text| match piece.start + text.len() {
        4.. => FilterVerdict::Finish { at: 2, reason: FinishReason::Filtered },
        _ => FilterVerdict::Pass(piece.start),
    });
    let got = draw(&mut Output::new(&[], vec![holds, ends]), &vec![b"x".to_vec(); 9], None).unwrap();
    let expected = Got { text: "xx".to_owned(), tokens: 2, logprobs: vec![0, 1], end: Some(FinishReason::Filtered) };
    assert_eq!(got, expected);
}

#[test]
fn overlapping_replacements_are_one_and_offsets_of_later_tokens_count_its_text() {
    let replace = |start, end, with: &'static str| {
        scripted(move |piece, text| match piece.start + text.len() {
            len @ 6.. if piece.start < end => {
                let _ = len;
                FilterVerdict::Replace(Replacement { start, end, text: with.to_owned() })
            }
            len if piece.start >= end => FilterVerdict::Pass(len),
            _ => FilterVerdict::Pass(piece.start),
        })
    };
    let mut output = Output::new(&[], vec![replace(3, 5, "late"), replace(2, 4, "[é]")]);
    let mut told = Vec::new();
    let mut text = String::new();
    for (index, letter) in "abcdefgh".bytes().enumerate() {
        let token = Token(index as u32);
        let logprob = Some(TokenLogprob { token, logprob: -1.0, top: Vec::new(), skipped: 0 });
        let Released::GoesOn(delta) =
            output.token(TextToken { token, bytes: &[letter], logprob, own: None, end: None, early: false })
        else {
            panic!("it goes on")
        };
        let delta = delta.unwrap_or_default();
        text.push_str(&delta.text);
        told.extend(delta.logprobs.into_iter().map(|told| (told.token.0, told.skipped)));
    }
    assert_eq!(text, "ab[é]fgh");
    assert_eq!(told, [(0, 0), (1, 0), (5, 3), (6, 0), (7, 0)]);
}

#[test]
fn a_rewind_takes_back_the_token_that_covers_the_byte_and_no_text_that_went_out() {
    // Tokens " as", " an", " AI": the space before "as" has been passed, but not without its token.
    let rewinds = || {
        scripted(|piece, text| match text.find("as an") {
            Some(at) => FilterVerdict::Rewind(piece.start + at),
            None if piece.last => FilterVerdict::Pass(piece.start + text.len()),
            None => FilterVerdict::Pass(piece.start + text.find("as").unwrap_or(text.len())),
        })
    };
    let tokens = |all: &[&str]| all.iter().map(|token| token.as_bytes().to_vec()).collect::<Vec<_>>();
    let rewound = draw(&mut Output::new(&[], vec![rewinds()]), &tokens(&["I", " as", " an", " AI"]), None);
    assert_eq!(rewound, Err("rewound to 1".to_owned()));
    let got = draw(&mut Output::new(&[], vec![rewinds()]), &tokens(&["I", " as", " we", " as"]), None).unwrap();
    assert_eq!(got.text, "I as we as");
    // A beginning of a stop string, held back, is in front of the phrase.
    let stop = ["as an AI".to_owned()];
    let rewound = draw(&mut Output::new(&stop, vec![rewinds()]), &tokens(&["I", " a", "s a", "nd"]), None);
    assert_eq!(rewound, Err("rewound to 1".to_owned()));
}

#[test]
fn regression_a_token_that_a_stop_string_cuts_is_not_spelt() {
    let tokens = ["c", "at"].map(|text| text.as_bytes().to_vec());
    let got = draw(&mut Output::new(&["t".to_owned()], vec![passes()]), &tokens, None).unwrap();
    assert_eq!((got.text.as_str(), got.tokens, got.logprobs), ("ca", 2, vec![0]));
}

#[test]
fn regression_a_token_that_went_on_where_a_filter_ended_the_text_is_not_spelt() {
    let filter = scripted(|piece, text| match text.find("cd") {
        Some(at) => FilterVerdict::Finish { at: piece.start + at + 1, reason: FinishReason::Filtered },
        None => FilterVerdict::Pass(piece.start + text.len()),
    });
    let tokens = ["ab", "cdef"].map(|text| text.as_bytes().to_vec());
    let got = draw(&mut Output::new(&[], vec![filter]), &tokens, None).unwrap();
    assert_eq!((got.text.as_str(), got.tokens, got.logprobs), ("abc", 2, vec![0]));
}

#[test]
fn regression_the_verdicts_of_one_step_share_its_time() {
    let asked: Arc<Mutex<Vec<bool>>> = Arc::default();
    let noted = asked.clone();
    let filter = scripted(move |piece, text| {
        noted.lock().unwrap().push(piece.goes_on);
        match text.find('x') {
            Some(at) => {
                let start = piece.start + at;
                FilterVerdict::Replace(Replacement { start, end: start + 1, text: "#".to_owned() })
            }
            None => FilterVerdict::Pass(piece.start + text.len()),
        }
    });
    let tokens = ["xxa", "b"].map(|text| text.as_bytes().to_vec());
    assert_eq!(draw(&mut Output::new(&[], vec![filter]), &tokens, None).unwrap().text, "##ab");
    assert_eq!(*asked.lock().unwrap(), [false, true, true, false]);
}
