use camshaft_plugin::filter::testing::{Step, Text};
use proptest::prelude::*;

use super::*;

fn filter(phrases: &[&str]) -> RewindPhrases {
    let phrases = phrases.iter().map(|phrase| (*phrase).to_owned()).collect();
    RewindPhrases::new(Settings { phrases, ignore_case: true, max_rewinds: 3 }).unwrap()
}

fn check(pieces: &[&str], expected_out: &str, expected: Step) {
    let (mut filter, mut text, mut step) = (filter(&["as an AI", "sorry"]), Text::default(), Step::GoesOn);
    for piece in pieces {
        assert_eq!(step, Step::GoesOn, "before {piece:?}");
        step = text.add(&mut filter, piece, false);
    }
    assert_eq!((text.out(), step), (expected_out, expected), "{pieces:?}");
}

#[test]
fn holds_what_may_become_a_phrase_and_takes_back_what_has() {
    check(&["I think"], "I think", Step::GoesOn);
    check(&["Well, as", " an a"], "Well, ", Step::GoesOn);
    check(&["Well, as", " an", " ai"], "Well, ", Step::Rewound(6));
    check(&["Well, as", " an", " ant"], "Well, as an ant", Step::GoesOn);
    check(&["unSORRYed"], "", Step::Rewound(2));
}

#[test]
fn a_phrase_that_begins_in_what_went_out_is_taken_back_from_where_it_can_be() {
    let (mut filter, mut text) = (filter(&["ab", "cd"]), Text::default());
    // `a` goes out, because `c` follows; then `c` is taken back, and `b` follows instead.
    assert_eq!(text.add(&mut filter, "ac", false), Step::GoesOn);
    assert_eq!(text.add(&mut filter, "d", false), Step::Rewound(1));
    assert_eq!(text.out(), "a");
    assert_eq!(text.add(&mut filter, "b", false), Step::Rewound(1));
    assert_eq!(text.add(&mut filter, "x", true), Step::GoesOn);
    assert_eq!(text.out(), "ax");
}

#[test]
fn ends_the_text_before_a_phrase_that_comes_again_and_again() {
    let (mut filter, mut text) = (filter(&["no"]), Text::default());
    for _ in 0..3 {
        assert_eq!(text.add(&mut filter, "no", false), Step::Rewound(0));
    }
    let expected = Step::Finished(Ending { at: 0, reason: Reason::ContentFilter });
    assert_eq!(text.add(&mut filter, "no", false), expected);
}

#[test]
fn refuses_settings_out_of_bounds() {
    let refused = |phrases: Vec<String>, max_rewinds: u32| {
        RewindPhrases::new(Settings { phrases, ignore_case: true, max_rewinds }).err().unwrap_or_default()
    };
    assert!(refused(vec![], 1).contains("has 0 phrases"));
    assert!(refused(vec!["p".to_owned(); 257], 1).contains("has 257 phrases"));
    assert_eq!(refused(vec!["p".repeat(256); 256], 127), "");
    assert!(refused(vec!["p".to_owned(), "p".repeat(257)], 1).contains("settings.phrases[1] has 257 bytes"));
    assert!(refused(vec![String::new()], 1).contains("settings.phrases[0] is empty"));
    assert!(refused(vec!["p".to_owned()], 128).contains("settings.max-rewinds is 128"));
    let settings: Settings = serde_json::from_str(r#"{"phrases": ["no"]}"#).unwrap();
    assert_eq!((settings.ignore_case, settings.max_rewinds), (true, 100));
}

fn letters(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!['a', 'b', 'A', 'é']), length).prop_map(String::from_iter)
}

proptest! {
    #[test]
    fn no_phrase_ever_goes_out_and_everything_else_does(
        phrases in prop::collection::vec(letters(1..5), 1..4),
        pieces in prop::collection::vec(letters(1..4), 0..40),
    ) {
        let settings = Settings { phrases: phrases.clone(), ignore_case: true, max_rewinds: 127 };
        let (mut filter, mut text, mut kept) = (RewindPhrases::new(settings).unwrap(), Text::default(), String::new());
        for (index, piece) in pieces.iter().enumerate() {
            kept.push_str(piece);
            if let Step::Rewound(at) = text.add(&mut filter, piece, index + 1 == pieces.len()) {
                kept.truncate(usize::try_from(at).unwrap());
            }
        }
        text.add(&mut filter, "", true);
        prop_assert_eq!(text.out(), &kept);
        let folded = kept.to_ascii_lowercase();
        for phrase in &phrases {
            prop_assert!(!folded.contains(&phrase.to_ascii_lowercase()), "{:?} in {:?}", phrase, kept);
        }
    }
}
