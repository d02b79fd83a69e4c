//! The watch on fake vocabularies: no word ever appears, and nothing else is banned.
use camshaft_plugin::sampler::Policy;
use proptest::prelude::*;

use super::*;

/// Tokens by id; the last one ends the text.
#[derive(Debug, Clone)]
struct Fake {
    tokens: Vec<Vec<u8>>,
}

impl Fake {
    fn of(tokens: &[&str]) -> Self {
        let text = tokens.iter().map(|token| token.as_bytes().to_vec());
        Self { tokens: text.chain([b"</s>".to_vec()]).collect() }
    }

    fn end(&self) -> usize {
        self.tokens.len() - 1
    }

    fn filter(&self, ignore_case: bool, matches: impl Fn(&[u8]) -> bool) -> Vec<u32> {
        let folded = |token: &Vec<u8>| if ignore_case { token.to_ascii_lowercase() } else { token.clone() };
        (0u32..).zip(&self.tokens).filter(|(_, token)| matches(&folded(token))).map(|(id, _)| id).collect()
    }
}

impl Lookup for Fake {
    fn beginning_with(&self, prefix: &[u8], ignore_case: bool) -> Vec<u32> {
        self.filter(ignore_case, |token| token.starts_with(prefix))
    }

    fn containing(&self, needle: &[u8], ignore_case: bool) -> Vec<u32> {
        self.filter(ignore_case, |token| contains(token, needle))
    }

    fn ending_the_text(&self) -> Vec<u32> {
        vec![u32::try_from(self.end()).unwrap()]
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

fn watch(words: &[&str], ignore_case: bool, vocabulary: &Fake) -> Watch {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut watch = Watch::new(Words::new(&words, ignore_case).unwrap());
    watch.start(vocabulary);
    watch
}

/// The text of the tokens that are banned after `text`.
fn check(words: &[&str], tokens: &[&str], text: &str, expected: &[&str]) {
    let vocabulary = Fake::of(tokens);
    let mut watch = watch(words, true, &vocabulary);
    let tail = &text.as_bytes()[text.len().saturating_sub(watch.tail_bytes() as usize)..];
    let mut banned = watch.banned(tail, &vocabulary).to_vec();
    banned.sort_unstable();
    banned.dedup();
    let banned: Vec<&str> = banned.iter().map(|&id| tokens[id as usize]).collect();
    assert_eq!(banned, expected, "after {text:?}");
}

const TOKENS: [&str; 8] = ["b", "l", "u", "e", "blue", "ue", "uez", "sky-blue-"];

#[test]
fn bans_tokens_that_contain_a_word_from_the_first_token_on() {
    check(&["blue"], &TOKENS, "", &["blue", "sky-blue-"]);
    check(&["BLUE"], &TOKENS, "", &["blue", "sky-blue-"]);
}

#[test]
fn bans_the_rest_of_a_word_that_the_text_has_begun_and_longer_tokens_that_begin_with_it() {
    check(&["blue"], &TOKENS, "Bl", &["blue", "ue", "uez", "sky-blue-"]);
    check(&["blue"], &TOKENS, "a bLU", &["e", "blue", "sky-blue-"]);
    check(&["blue"], &TOKENS, "bl ", &["blue", "sky-blue-"]);
}

#[test]
fn follows_every_beginning_of_a_word_with_repeated_letters() {
    check(&["aa"], &["a", "ab", "b", "ba"], "b", &[]);
    check(&["aa"], &["a", "ab", "b", "ba"], "ba", &["a", "ab"]);
    check(&["aab"], &["a", "ab", "b", "ba"], "aa", &["ab", "b", "ba"]);
}

#[test]
fn bans_for_overlapping_words_together() {
    check(&["abc", "bcd"], &["a", "c", "cd", "d"], "ab", &["c", "cd"]);
    check(&["abc", "bcd"], &["a", "c", "cd", "d"], "xbc", &["d"]);
}

#[test]
fn respects_case_where_told_to() {
    let vocabulary = Fake::of(&["Red", "red", "ed"]);
    let mut watch = watch(&["Red"], false, &vocabulary);
    assert_eq!(watch.banned(b"r", &vocabulary), [0]);
    assert_eq!(watch.banned(b"R", &vocabulary), [0, 2]);
}

#[test]
fn never_bans_the_end_of_the_text() {
    let vocabulary = Fake::of(&["s", "a<", "b"]);
    let mut watch = watch(&["s", "a</s>"], true, &vocabulary);
    assert_eq!(watch.banned(b"a", &vocabulary), [0]);
}

#[test]
fn refuses_words_out_of_bounds() {
    let check = |words: Vec<String>, expected: Option<&str>| {
        let made = AvoidWords::new(Settings { words, ignore_case: true });
        match expected {
            None => assert!(made.is_ok()),
            Some(expected) => assert!(made.as_ref().is_err_and(|error| error.contains(expected)), "{made:?}"),
        }
    };
    check(vec![], Some("has 0 words"));
    check(vec!["w".to_owned(); 256], None);
    check(vec!["w".to_owned(); 257], Some("has 257 words"));
    check(vec!["w".repeat(64)], None);
    check(vec!["a".to_owned(), "w".repeat(65)], Some("settings.words[1] has 65 bytes"));
    check(vec![" \t".to_owned()], Some("settings.words[0] is empty"));
}

#[test]
fn ignores_case_unless_told_otherwise() {
    let settings: Settings = serde_json::from_str(r#"{"words": ["blue"]}"#).unwrap();
    assert!(settings.ignore_case);
    assert!(serde_json::from_str::<Settings>("{}").unwrap_err().to_string().contains("missing field `words`"));
}

/// Few letters, so that words, prefixes and tokens overlap often.
fn letters(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    proptest::collection::vec(prop::sample::select(vec!['a', 'b', 'A', 'c']), length).prop_map(String::from_iter)
}

proptest! {
    #[test]
    fn no_word_ever_appears_and_nothing_harmless_is_banned(
        words in proptest::collection::vec(letters(1..6), 1..5),
        tokens in proptest::collection::vec(letters(0..6), 1..24),
        wishes in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
        ignore_case in any::<bool>(),
    ) {
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let vocabulary = Fake::of(&tokens);
        let texts: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut watch = watch(&texts, ignore_case, &vocabulary);
        let appears = |text: &[u8]| {
            let fold = |bytes: &[u8]| if ignore_case { bytes.to_ascii_lowercase() } else { bytes.to_vec() };
            words.iter().any(|word| contains(&fold(text), &fold(word.as_bytes())))
        };
        let mut text = Vec::new();
        for wish in wishes {
            let tail = text.len().saturating_sub(watch.tail_bytes() as usize);
            let banned = watch.banned(&text[tail..], &vocabulary).to_vec();
            // Exactly the tokens that would complete a word are banned.
            for (id, token) in vocabulary.tokens.iter().enumerate().take(vocabulary.end()) {
                let longer = [&text[..], token].concat();
                prop_assert_eq!(banned.contains(&u32::try_from(id).unwrap()), appears(&longer), "{:?}", token);
            }
            let allowed: Vec<usize> =
                (0..vocabulary.end()).filter(|&id| !banned.contains(&u32::try_from(id).unwrap())).collect();
            if allowed.is_empty() {
                break;
            }
            text.extend_from_slice(&vocabulary.tokens[allowed[wish.index(allowed.len())]]);
        }
        prop_assert!(!appears(&text));
    }
}
