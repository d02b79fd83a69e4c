use proptest::prelude::*;

use super::*;

fn patterns(of: &[&str], max_match_bytes: usize) -> Patterns {
    let of: Vec<String> = of.iter().map(|pattern| (*pattern).to_owned()).collect();
    Patterns::new(&of, false, max_match_bytes).unwrap()
}

#[test]
fn regression_a_search_takes_steps_in_proportion_to_the_text() {
    let address = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}";
    let empty = ["a[^z]*y", "(?:)", "a[^q]*q"];
    for of in [&[address][..], &["a[^z]*y"], &["a.*y", "a.*w"], &["(a+)+y"], &["(?:a[^z]*y)?"], &empty] {
        for max_match_bytes in [1, 1024, 4096, 16384] {
            let mut patterns = patterns(of, max_match_bytes);
            for text in ["a".repeat(20000), "a".repeat(16383) + "z", "ab ".repeat(6000) + "z", "é".repeat(9000)] {
                for last in [false, true] {
                    patterns.find("", &text, last);
                    // Trials, the last one of which may read all, two scans backwards, and one trial more.
                    let (steps, bound) = (patterns.steps, (TRIED_STEPS + 4) * text.len());
                    assert!(steps <= bound, "{of:?} {max_match_bytes} {last} {steps} of {bound}");
                }
            }
        }
    }
}

#[test]
fn regression_a_pattern_that_is_refused_is_named_with_the_reason_in_one_line() {
    let refused = |pattern: &str, ignore_case| {
        let of = ["ok".to_owned(), pattern.to_owned()];
        Patterns::new(&of, ignore_case, 1024).err().unwrap_or_default()
    };
    for (pattern, ignore_case, why) in [
        (r"ü\b", false, r"know no words: write (?-u:\b)"),
        (r"\p{L}", false, "at byte 0"),
        ("größe|secret", true, "settings.ignore-case = true does not support"),
        ("a(", false, "unclosed group at byte 1"),
        (r"(a)\1", false, "backreferences are not supported at byte 3"),
        ("(\n", false, r"unclosed group at byte 0): (\n"),
    ] {
        let error = refused(pattern, ignore_case);
        assert!(error.starts_with("settings.patterns[1] ") && error.contains(why), "{error}");
        assert!(!error.contains('\n') && !error.contains("feature"), "{error}");
    }
    // Whether it has the tables, a build decides.
    assert!(unsupported(&ErrorKind::UnicodePerlClassNotFound).starts_with("there are no classes of Unicode"));
    assert!(unsupported(&ErrorKind::UnicodeCaseUnavailable).starts_with("the case of letters cannot be ignored"));
    assert!(refused(&("é".repeat(127) + "("), false).ends_with("é("));
    assert!(refused(&("é".repeat(128) + "("), false).ends_with("é…"));
    for pattern in [r"ü(?-u:\b)", r"ü(?-u:\w)+", "größe|secret"] {
        assert_eq!(refused(pattern, false), "", "{pattern}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn scans_find_what_trying_every_beginning_finds(
        before in "[ab1\u{e9} ]?",
        text in "[ab1\u{e9}. \n]{1,14}",
        of in prop::collection::vec(prop::sample::select(vec![
            "ab", "a+", "(a|1)+b", "b. ", r"\ba", r"a\B1", "a1?a", "é", "[^a]b", "1{2,4}", "b$", "^a", "a.*b", "a[^1]*b", "x*", "",
            "a*?", "|b1", "(?m)^b", "(a*)*b", r"(?m)1$", r"a\b", "a(b|ba)*1", "b*a*", "[a&&b]1", r"\.|a^b",
        ]), 1..4),
        max_match_bytes in 1usize..16,
        last in any::<bool>(),
    ) {
        let of: Vec<&str> = of.into_iter().map(|pattern| if pattern.is_empty() { "(?:)" } else { pattern }).collect();
        let mut patterns = patterns(&of, max_match_bytes);
        patterns.steps = 0;
        let tried = patterns.search(&before, &text, last, usize::MAX);
        let scanned = patterns.search(&before, &text, last, 0);
        prop_assert_eq!(scanned, tried, "{:?} {:?} {:?}", of, before, text);
        patterns.steps = 0;
        patterns.search(&before, &text, last, 0);
        // Every beginning that a scan finds is one.
        prop_assert!(patterns.steps <= 3 * (before.len() + text.len()), "{} steps {:?} {:?}", patterns.steps, of, text);
    }
}
