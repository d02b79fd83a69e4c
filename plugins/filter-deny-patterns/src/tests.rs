use camshaft_plugin::filter::testing::{Step, Text};
use proptest::prelude::*;

use super::*;

fn settings(patterns: &[&str], action: Action) -> Settings {
    let ignore_case = patterns.iter().all(|pattern| pattern.is_ascii());
    let patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    Settings { patterns, ignore_case, action, replacement: "#".to_owned(), max_match_bytes: 40 }
}

/// What goes out of these pieces, with what is held marked by `|`.
fn check(patterns: &[&str], pieces: &[&str], expected: &str) {
    let mut filter = DenyPatterns::new(settings(patterns, Action::Redact)).unwrap();
    let mut text = Text::default();
    for piece in pieces {
        assert_eq!(text.add(&mut filter, piece, false), Step::GoesOn);
    }
    let mut got = text.out().to_owned();
    if text.held() > 0 {
        got.push_str(&format!("|{}", text.held()));
    }
    assert_eq!(got, expected, "{patterns:?} {pieces:?}");
}

#[test]
fn finds_patterns_over_the_borders_of_pieces_and_holds_no_more_than_it_must() {
    check(&["secret"], &["a se", "cre"], "a |5");
    check(&["secret"], &["a se", "cret", "s", "."], "a #s.");
    check(&["secret"], &["a se", "at"], "a seat");
    check(&["[0-9]{3}-[0-9]{4}"], &["call 555-", "1234 or 555-12x"], "call # or 555-12x");
    check(&["ab*"], &["xab", "bb"], "x|4");
    // The end of a match is known two characters late.
    check(&["ab*"], &["xab", "bb", "c"], "x|5");
    check(&["ab*"], &["xab", "bb", "c", "d"], "x#cd");
    check(&["one", "one two"], &["one", " two "], "# two ");
    check(&[r"\bcat\b"], &["concat cat", "s cat. x"], "concat cats #. x");
    check(&["é+"], &["caf", "é", "és."], "caf#s.");
    check(&["SECRET"], &["a Secret. "], "a #. ");
}

#[test]
fn what_is_at_the_end_counts_as_the_end() {
    let mut filter = DenyPatterns::new(settings(&["end$", "x*"], Action::Redact)).unwrap();
    let mut text = Text::default();
    text.add(&mut filter, "the end, the en", false);
    text.add(&mut filter, "d", true);
    assert_eq!(text.out(), "the end, the #");
}

#[test]
fn finishes_before_a_match_as_soon_as_there_is_one() {
    let mut filter = DenyPatterns::new(settings(&["ab+"], Action::Finish)).unwrap();
    let mut text = Text::default();
    assert_eq!(text.add(&mut filter, "xxa", false), Step::GoesOn);
    assert_eq!(text.add(&mut filter, "b", false), Step::GoesOn);
    let ending = Ending { at: 2, reason: Reason::ContentFilter };
    assert_eq!(text.add(&mut filter, "b", false), Step::Finished(ending));
    assert_eq!(text.out(), "xx");
}

#[test]
fn does_not_hold_for_longer_than_a_match_may_be() {
    check(&["a.*z"], &["a", &"b".repeat(39)], "|40");
    check(&["a.*z"], &["a", &"b".repeat(40)], &format!("a{}", "b".repeat(40)));
    check(&["a.*"], &["a", &"b".repeat(39), "b"], "#b");
}

#[test]
fn refuses_settings_out_of_bounds() {
    let refused = |patterns: Vec<String>| {
        DenyPatterns::new(Settings { patterns, ..settings(&[], Action::Redact) }).err().unwrap_or_default()
    };
    assert!(refused(vec![]).contains("has 0 patterns"));
    assert_eq!(refused(vec!["p".to_owned(); 64]), "");
    assert!(refused(vec!["p".to_owned(); 65]).contains("has 65 patterns"));
    assert_eq!(refused(vec!["p".repeat(512)]), "");
    assert!(refused(vec!["p".repeat(513)]).contains("settings.patterns[0] has 513 bytes"));
    assert!(refused(vec!["p".to_owned(), "(".to_owned()]).contains("settings.patterns[1] is not a pattern"));
    assert!(refused(vec!["(?:a{100}){1000}".to_owned()]).contains("too large"));
    let other = |max_match_bytes, replacement: String| {
        let settings = settings(&["p"], Action::Redact);
        DenyPatterns::new(Settings { max_match_bytes, replacement, ..settings }).err().unwrap_or_default()
    };
    assert_eq!(other(1, "r".repeat(256)) + &other(16384, String::new()), "");
    assert!(other(0, String::new()).contains("settings.max-match-bytes is 0"));
    assert!(other(16385, String::new()).contains("settings.max-match-bytes is 16385"));
    assert!(other(1, "r".repeat(257)).contains("settings.replacement has 257 bytes"));
}

proptest! {
    #[test]
    fn any_division_of_a_text_gives_what_the_whole_text_gives(
        text in "[ab1\u{e9}. ]{0,60}",
        patterns in prop::collection::vec(prop::sample::select(vec![
            "ab", "a+", "(a|1)+b", "b. ", r"\ba", "a1?a", "é", "[^a]b", "1{2,4}", "b$", "^a", "a.*b",
        ]), 1..4),
        sizes in prop::collection::vec(1usize..6, 0..60),
    ) {
        let out = |pieces: &[&str]| {
            let mut filter = DenyPatterns::new(settings(&patterns, Action::Redact)).unwrap();
            let mut out = Text::default();
            for piece in pieces {
                out.add(&mut filter, piece, false);
            }
            out.add(&mut filter, "", true);
            out.out().to_owned()
        };
        let (mut pieces, mut rest) = (Vec::new(), text.as_str());
        for size in sizes {
            let at = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
            let (piece, tail) = rest.split_at(at);
            pieces.push(piece);
            rest = tail;
        }
        pieces.push(rest);
        // A match of the whole text may be longer than what is held for.
        prop_assume!(!patterns.contains(&"a.*b") || text.len() <= 40);
        prop_assert_eq!(out(&pieces), out(&[&text]));
    }
}
