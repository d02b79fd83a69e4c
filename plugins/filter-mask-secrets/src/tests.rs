use camshaft_plugin::filter::testing::Text;
use proptest::prelude::*;

use super::*;

fn all() -> MaskSecrets {
    MaskSecrets::new(serde_json::from_str(r#"{"key-prefixes": ["my."]}"#).unwrap()).unwrap()
}

fn out(pieces: &[&str]) -> String {
    let (mut filter, mut text) = (all(), Text::default());
    for piece in pieces {
        text.add(&mut filter, piece, false);
    }
    text.add(&mut filter, "", true);
    text.out().to_owned()
}

fn check(text: &str, expected: &str) {
    assert_eq!(out(&[text]), expected, "{text}");
}

#[test]
fn masks_keys_of_known_shapes() {
    check("key sk-abcdefghijklmnop123, yes", "key [key], yes");
    check("AKIAIOSFODNN7EXAMPLE is one", "[key] is one");
    check("ghp_0123456789abcdefABCDEF0123456789abcd.", "[key].");
    check("(eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl)", "([key])");
    check("my.0123456789abcdef!", "[key]!");
    check("sk-short and task-force-of-many-words-here", "sk-short and task-force-of-many-words-here");
    check("x=sk-abcdefghijklmnop", "x=[key]");
}

#[test]
fn masks_addresses() {
    check("Write to jane.doe+x@mail.example.com.", "Write to [email].");
    check("<a@b.co>, c@d", "<[email]>, c@d");
    check("a@b.c and @example.com and x@1.2", "a@b.c and @example.com and x@1.2");
    check("a@b.com,c@d.org a@@b.com", "[email],[email] a@@b.com");
}

#[test]
fn masks_card_numbers_whose_check_digit_is_right() {
    check("4111 1111 1111 1111", "[card]");
    check("pay 4111-1111-1111-1111 now", "pay [card] now");
    check("378282246310005 or 4111111111111112", "[card] or 4111111111111112");
    check("at 12 4111 1111 1111 1111 30", "at 12 [card] 30");
    check("0000 0000 0000 0000", "0000 0000 0000 0000");
    check("4111 1111  1111 1111", "4111 1111  1111 1111");
    check("x4111111111111111", "x4111111111111111");
}

#[test]
fn regression_masks_card_numbers_that_signs_touch() {
    for (before, after) in
        [("_", "_"), ("No.", ""), ("+", "."), ("v1.", ","), ("100%", ""), ("a@", "@b"), ("1-2 v3.", "")]
    {
        check(&format!("{before}4111 1111 1111 1111{after}"), &format!("{before}[card]{after}"));
    }
    check("4111\u{a0}1111\u{a0}1111\u{a0}1111 4111\u{202f}1111\u{2011}1111-1111", "[card] [card]");
    check("x4111 1111 1111 1111 and 4111 1111 1111 1111x", "x4111 1111 1111 1111 and 4111 1111 1111 1111x");
}

#[test]
fn regression_masks_addresses_with_letters_beyond_ascii() {
    check("jürgen@example.com, me@münchen.de; ju\u{308}rgen@example.com", "[email], [email]; [email]");
    check("имя@почта.рф und 1\u{a0}2@b.com", "[email] und 1\u{a0}[email]");
}

#[test]
fn holds_words_and_no_more() {
    let (mut filter, mut text) = (all(), Text::default());
    for (piece, expected, held) in [
        ("One, two", "One, ", 3),
        (" 4111 ", "One, two ", 5),
        ("é", "One, two 4111 ", 2),
        ("。", "One, two 4111 é。", 0),
    ] {
        text.add(&mut filter, piece, false);
        assert_eq!((text.out(), text.held()), (expected, held), "{piece:?}");
    }
    text.add(&mut filter, &"x".repeat(words::MAX_BYTES + 1), false);
    assert_eq!(text.held(), 1, "a word that long is cut");
}

#[test]
fn regression_a_key_is_masked_to_its_end_however_long_it_is() {
    let key = format!("sk-{}", "aB3_".repeat(224));
    check(&format!("key {key}, yes"), "key [key], yes");
    for size in [1, 7, 511, 512, 513] {
        let text = format!("key {key} yes");
        let pieces: Vec<&str> = text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
        assert_eq!(out(&pieces), "key [key] yes", "pieces of {size} bytes");
    }
    let token = format!("eyJ{}.{}.{}", "a".repeat(400), "b".repeat(400), "c".repeat(400));
    check(&format!("{token} yes"), "[key] yes");
    for before in 490..520 {
        let text = format!("{}.sk-abcdefghijklmnop123 yes", "x".repeat(before));
        check(&text, &format!("{}.[key] yes", "x".repeat(before)));
    }
}

#[test]
fn refuses_prefixes_out_of_bounds() {
    let refused = |key_prefixes: Vec<String>| {
        let settings = Settings { keys: true, email_addresses: true, card_numbers: true, key_prefixes };
        MaskSecrets::new(settings).err().unwrap_or_default()
    };
    assert_eq!(refused(vec!["abc".to_owned(); 64]) + &refused(vec!["a".repeat(32)]), "");
    assert!(refused(vec!["abc".to_owned(); 65]).contains("has 65 prefixes"));
    for prefix in ["ab".to_owned(), "a".repeat(33), "a b".to_owned()] {
        assert!(refused(vec!["abc".to_owned(), prefix]).contains("settings.key-prefixes[1]"));
    }
    let off = Settings { keys: false, email_addresses: false, card_numbers: false, key_prefixes: vec![] };
    let (mut filter, mut text) = (MaskSecrets::new(off).unwrap(), Text::default());
    text.add(&mut filter, "a@b.com sk-abcdefghijklmnop123 4111111111111111", true);
    assert!(!text.out().contains('['), "{}", text.out());
}

proptest! {
    #[test]
    fn any_division_of_a_text_gives_the_same(
        parts in prop::collection::vec(prop::sample::select(vec![
            "4111 1111 1111 1111", "4111", " ", "-", "a@b.com", "a", "@", ".", "sk-", "abcdefghijklmnop", "é", "1", ",", "5500-0000-0000-0004",
        ]), 0..20),
        sizes in prop::collection::vec(1usize..7, 0..200),
    ) {
        let text = parts.concat();
        let (mut pieces, mut rest) = (Vec::new(), text.as_str());
        for size in sizes {
            let at = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
            let (piece, tail) = rest.split_at(at);
            pieces.push(piece);
            rest = tail;
        }
        pieces.push(rest);
        prop_assert_eq!(out(&pieces), out(&[&text]));
    }

    #[test]
    fn regression_a_card_number_is_masked_in_any_surrounding(
        number in prop::sample::select(vec!["4111111111111111", "378282246310005", "5500000000000004", "6304000000000000"]),
        separators in prop::collection::vec(prop::sample::select(vec!["", " ", "-", "\u{a0}", "\u{202f}"]), 18),
        before in "([a-z0-9@. ]{0,6}[._%+@,(é号\u{a0}: -])?",
        after in "([._%+@,)号\u{a0}: -][a-z0-9@. ]{0,6})?",
    ) {
        let grouped: String = number.chars().zip(separators.iter().chain([&""])).enumerate().map(|(index, (digit, separator))| {
            if index + 1 < number.len() { format!("{digit}{separator}") } else { digit.to_string() }
        }).collect();
        let text = format!("{before}{grouped}{after}");
        for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (one, other) = text.split_at(at);
            let out = out(&[one, other]);
            // With what is around it, it may be an address, or its digits another number.
            prop_assert!(out.contains('[') && !out.contains(&grouped), "{} becomes {}", text, out);
        }
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        prop_assert_eq!(out(&characters), out(&[&text]));
    }

    #[test]
    fn every_card_number_is_found_and_no_other(digits in prop::collection::vec(0u8..10, 12..19), wrong in 1u8..10) {
        let number = |check: u8| -> String { digits.iter().chain([&check]).map(|digit| char::from(b'0' + digit)).collect() };
        // The reference: doubled digits have the sum of their own digits.
        let sum: u32 = digits.iter().rev().enumerate().map(|(index, &digit)| {
            let value = u32::from(digit) * if index % 2 == 0 { 2 } else { 1 };
            value / 10 + value % 10
        }).sum();
        let check = ((10 - sum % 10) % 10) as u8;
        prop_assume!(digits.iter().any(|&digit| digit != 0) || check != 0);
        prop_assert_eq!(out(&[&number(check)]), "[card]");
        let other = number((check + wrong) % 10);
        prop_assert_eq!(out(&[&other]), other);
    }
}
