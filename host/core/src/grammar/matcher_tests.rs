use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::grammar::{Grammar, GrammarSpec, GrammarStore};
use crate::vocabulary::Vocabulary;

const END: u32 = 256;

/// Bytes, an end token, and some words of several bytes.
fn store() -> GrammarStore {
    let words = ["{\"", "\":", "\"}", "name", "nam", "e\"", "true", "12"];
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let pieces = bytes.chain([Vec::new()]).chain(words.map(|word| word.as_bytes().to_vec()));
    GrammarStore::new(Arc::new(Vocabulary::new(pieces, vec![Token(END)])))
}

fn matcher(store: &GrammarStore, spec: GrammarSpec) -> Matcher {
    store.matcher(&Grammar::new(spec)).unwrap()
}

fn regex(pattern: &str) -> GrammarSpec {
    GrammarSpec::Regex { pattern: pattern.to_owned() }
}

fn schema(schema: &serde_json::Value) -> GrammarSpec {
    GrammarSpec::JsonSchema { schema: schema.to_string() }
}

fn allowed(mask: &Mask) -> Vec<u32> {
    (0..265).filter(|token| mask.allows(Token(*token))).collect()
}

fn spell(matcher: &mut Matcher, text: &str) -> bool {
    let mut complete = false;
    for byte in text.bytes() {
        complete = matcher.accept(Token(byte.into())).unwrap();
    }
    complete
}

#[test]
fn a_mask_has_the_tokens_that_may_follow_and_end_tokens_where_the_text_may_end() {
    let store = store();
    let mut matcher = matcher(&store, regex("a+b?"));
    assert_eq!(allowed(&matcher.mask().unwrap()), [97]);
    assert!(!spell(&mut matcher, "a"));
    let mask = matcher.mask().unwrap();
    assert_eq!(allowed(&mask), [97, 98, END]);
    assert!(!mask.is_final());
    assert!(spell(&mut matcher, "b"));
    let mask = matcher.mask().unwrap();
    assert_eq!(allowed(&mask), [END]);
    assert!(mask.is_final());
    assert_eq!(matcher.accept(Token(97)), Err(MatcherError::NotAllowed(Token(97))));
    assert_eq!(matcher.accept(Token(9999)), Err(MatcherError::NotAllowed(Token(9999))));
}

#[test]
fn a_token_that_is_not_allowed_is_refused_and_changes_nothing() {
    let store = store();
    let mut matcher = matcher(&store, regex("abc"));
    spell(&mut matcher, "a");
    assert_eq!(matcher.accept(Token(97)), Err(MatcherError::NotAllowed(Token(97))));
    assert_eq!(allowed(&matcher.mask().unwrap()), [98]);
    assert!(spell(&mut matcher, "bc"));
}

#[test]
fn what_is_certain_is_spelled_with_the_longest_tokens() {
    let store = store();
    let object = serde_json::json!({ "type": "object", "properties": { "name": { "const": true } }, "required": ["name"], "additionalProperties": false });
    let mut matcher = matcher(&store, schema(&object));
    // Whitespace may come first, or the whole beginning.
    assert!(matcher.forced(8).is_empty());
    spell(&mut matcher, "{\"");
    let forced = matcher.forced(8);
    let text: Vec<u8> =
        forced.iter().flat_map(|token| store.vocabulary().token_bytes(*token).unwrap().to_vec()).collect();
    assert!(b"name\"".starts_with(&text) && text.starts_with(b"name"), "{text:?}");
    assert_eq!(forced[0], Token(END + 4), "`name`, not `nam`");
    assert_eq!(matcher.forced(1).len(), 1);
    assert!(matcher.forced(0).is_empty());
}

#[test]
fn what_is_certain_for_long_is_spelled_as_far_as_it_is_asked_for() {
    let store = store();
    let mut matcher = matcher(&store, GrammarSpec::Choice { texts: vec!["name1".repeat(1000)] });
    let turn = [Token(END + 4), Token(u32::from(b'1'))];
    for _ in 0..998 {
        assert_eq!(matcher.forced(4), [turn, turn].concat());
        assert!(turn.iter().all(|token| !matcher.accept(*token).unwrap()));
    }
    assert_eq!(matcher.forced(4), [turn[0], turn[1], turn[0]], "to its end, whose 1 could be part of 12");
}

#[test]
fn a_draft_is_allowed_up_to_the_first_token_that_does_not_fit() {
    let store = store();
    let mut matcher = matcher(&store, regex("[0-9]{3}x"));
    let tokens = |ids: &[u32]| ids.iter().copied().map(Token).collect::<Vec<_>>();
    assert_eq!(matcher.allowed(&tokens(&[49, 50, 120])), 2);
    assert_eq!(matcher.allowed(&tokens(&[264, 50, 120, 48])), 3);
    assert_eq!(matcher.allowed(&tokens(&[120])), 0);
    assert_eq!(matcher.allowed(&tokens(&[49, 100_000])), 1);
    spell(&mut matcher, "123x");
    assert_eq!(matcher.allowed(&tokens(&[49])), 0);
}

#[test]
fn a_character_of_several_bytes_may_be_split_between_tokens() {
    let store = store();
    let mut matcher = matcher(&store, GrammarSpec::Choice { texts: vec!["é€😀".to_owned()] });
    for byte in "é€😀".bytes() {
        assert_eq!(allowed(&matcher.mask().unwrap()), [u32::from(byte)]);
        matcher.accept(Token(byte.into())).unwrap();
    }
    assert!(matcher.mask().unwrap().is_final());
}

#[test]
fn a_mask_that_takes_too_much_work_is_an_error_and_not_a_panic() {
    let store = store();
    // So ambiguous that each position has more items than are computed.
    let text = "start: a\na: b* b* b* b* b* b* b* b*\nb: (c | c c | c c c)*\nc: \"x\" | \"xx\" | \"xxx\" | \"xxxx\""
        .to_owned();
    let Ok(mut matcher) = store.matcher(&Grammar::new(GrammarSpec::Lark { text })) else { return };
    for _ in 0..200 {
        match matcher.mask() {
            Ok(_) => assert!(matcher.accept(Token(u32::from(b'x'))).is_ok()),
            Err(error) => {
                assert!(matches!(error, MatcherError::TooComplex(_)), "{error}");
                return;
            }
        }
    }
}

#[test]
fn a_lexer_that_has_learned_too_much_for_one_generation_is_not_shared_with_the_next() {
    let store = store();
    let long = regex("[a-z]{25000}");
    let mut first = matcher(&store, long.clone());
    let ended = loop {
        match first.mask() {
            Ok(mask) => assert!(mask.allows(Token(97)) && first.accept(Token(97)).is_ok()),
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, MatcherError::TooComplex(_)), "{ended}");
    let mut next = matcher(&store, long);
    assert!(next.mask().is_ok_and(|mask| mask.allows(Token(97))) && spell(&mut next, "aaa") != next.mask().is_ok());
}

/// Every split of the text into two is another reading of it.
#[test]
fn regression_generations_with_a_slow_grammar_do_not_wait_for_each_others_lexer() {
    let store = store();
    let grammar = Grammar::new(regex("[a-z]{3,9}(ab|ba)+"));
    let _used = store.compile(&grammar).unwrap();
    let [mut apart, mut other] = [(), ()].map(|()| store.matcher(&grammar).unwrap());
    apart.compiled.is_slow.store(true, Ordering::Relaxed);
    let states = |matcher: &mut Matcher| matcher.parser.parser.lexer_stats().num_states;
    let before = states(&mut other);
    apart.prepare(&[]);
    let spells =
        |matcher: &mut Matcher| "xyzab".bytes().for_each(|byte| _ = matcher.accept(Token(byte.into())).unwrap());
    spells(&mut apart);
    assert!(states(&mut apart) > before && states(&mut other) == before, "each has its own");
    spells(&mut other);
    assert_eq!(apart.mask(), other.mask());
}

#[test]
fn regression_an_ambiguous_grammar_comes_to_an_end_instead_of_taking_ever_longer() {
    let store = store();
    let text = "root ::= e\ne ::= e e | [a-z ] | \"\"".to_owned();
    let mut matcher = matcher(&store, GrammarSpec::Gbnf { text });
    for _ in 0..2000 {
        match matcher.mask() {
            Ok(mask) => assert!(mask.allows(Token(u32::from(b'x'))) && matcher.accept(Token(u32::from(b'x'))).is_ok()),
            Err(error) => {
                assert!(matches!(error, MatcherError::TooComplex(_)), "{error}");
                return;
            }
        }
    }
    panic!("it goes on and on");
}

#[derive(Debug, Clone)]
enum Act {
    Take(u8),
    Back(u8),
    Prepare(Vec<u8>),
    Force,
    Check(Vec<u8>),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => any::<u8>().prop_map(Act::Take),
        1 => any::<u8>().prop_map(Act::Back),
        1 => prop::collection::vec(any::<u8>(), 0..6).prop_map(Act::Prepare),
        1 => Just(Act::Force),
        1 => prop::collection::vec(any::<u8>(), 0..6).prop_map(Act::Check),
    ]
}

proptest! {
    /// Whatever was prepared, forced, checked and taken back, the masks are those of a matcher that took the same tokens alone.
    #[test]
    fn masks_depend_on_the_tokens_alone(acts in prop::collection::vec(act(), 1..40), which in 0usize..4) {
        let store = store();
        let object = serde_json::json!({
            "type": "object", "additionalProperties": false, "required": ["name"],
            "properties": { "name": { "type": "string", "maxLength": 6 }, "n": { "type": "integer" }, "t": { "const": true } },
        });
        let specs = [
            schema(&object),
            GrammarSpec::JsonObject,
            regex("(name|nam)?e\"[0-9]{1,4}(true)*"),
            GrammarSpec::Lark { text: "start: \"name\" X* | \"{\\\"\" start \"}\"\nX: /[a-c12]+/".to_owned() },
        ];
        let mut matcher = matcher(&store, specs[which].clone());
        let mut taken: Vec<Token> = Vec::new();
        for act in acts {
            let mask = matcher.mask().unwrap();
            if mask.is_final() {
                break;
            }
            let open: Vec<u32> = allowed(&mask).into_iter().filter(|token| *token != END).collect();
            let choose = |pick: u8| Token(open[usize::from(pick) % open.len()]);
            match act {
                Act::Take(pick) => {
                    taken.push(choose(pick));
                    matcher.accept(choose(pick)).unwrap();
                }
                Act::Back(count) => {
                    let left = taken.len().saturating_sub(usize::from(count) % 5);
                    taken.truncate(left);
                    matcher.rewind(left);
                }
                Act::Prepare(picks) => matcher.prepare(&picks.iter().map(|pick| choose(*pick)).collect::<Vec<_>>()),
                Act::Force => drop(matcher.forced(4)),
                Act::Check(picks) => {
                    let draft: Vec<Token> = picks.iter().map(|pick| choose(*pick)).collect();
                    let fits = matcher.allowed(&draft);
                    prop_assert!(draft.is_empty() || fits > 0);
                }
            }
            let mut alone = Matcher::new(matcher.compiled.clone());
            for token in &taken {
                alone.accept(*token).unwrap();
            }
            prop_assert_eq!(matcher.position(), taken.len());
            prop_assert_eq!(matcher.mask(), alone.mask(), "{:?}", taken);
        }
    }
}
