//! Tests of tokenizers: the same tokens as llama.cpp's for every pre-tokenizer it knows, and long texts on small stacks.
use std::sync::Arc;

use camshaft_core::ids::Token;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::encoder::kinds;
use crate::load::LoadOptions;

#[allow(unreachable_pub)]
#[path = "../../../../tests/src/patched.rs"]
mod patched;

const PRE: &str = "tokenizer.ggml.pre";
/// Any recursion that grows with the text overflows it: it has one byte for each of the text's.
const SMALL_STACK: usize = LONG;
const LONG: usize = 256 << 10;

/// The demo model with another pre-tokenizer; an empty one means none.
fn model(pre: &str) -> Arc<LoadedModel> {
    let bytes = patched::with_text(&demo(), PRE, Some(pre).filter(|pre| !pre.is_empty()));
    LoadedModel::from_bytes(pre, &bytes, &LoadOptions::default()).unwrap_or_else(|error| panic!("{pre:?}: {error}"))
}

#[test]
fn regression_a_vocabulary_whose_texts_only_a_recursion_could_cut_is_refused() {
    let demo = std::fs::read("../../config/models/demo.gguf").unwrap();
    let mut dna = patched::with_text(&demo, "tokenizer.ggml.model", Some("hybriddna"));
    // Another patch fills up with a key of this name again, and a file has each key once.
    let filler = dna.windows(15).position(|window| window == b"camshaft.filler").unwrap();
    dna[filler..filler + 15].copy_from_slice(b"camshaft.filled");
    // Its texts are cut by the pre-tokenizer, too: by those that recurse they would be by recursion.
    for (pre, refused) in [("tekken", true), ("falcon", true), ("", true), ("llama-bpe", false)] {
        let bytes = patched::with_text(&dna, PRE, Some(pre).filter(|pre| !pre.is_empty()));
        let loaded = LoadedModel::from_bytes(pre, &bytes, &LoadOptions::default());
        let said = loaded.err().map(|error| error.to_string());
        assert_eq!(said.is_some(), refused, "{pre:?}: {said:?}");
        let words = "texts cannot be tokenized safely: hybriddna";
        assert!(said.as_ref().is_none_or(|said| said.contains(words)), "{pre:?}: {said:?}");
    }
}

#[test]
fn regression_a_file_that_counts_tokens_and_names_none_does_not_end_the_process() {
    let demo = std::fs::read("../../config/models/demo.gguf").unwrap();
    let bytes = patched::with_text(&demo, "tokenizer.ggml.model", Some("no_vocab"));
    let said = LoadedModel::from_bytes("none", &bytes, &LoadOptions::default()).err().map(|error| error.to_string());
    assert!(said.as_ref().is_some_and(|said| said.contains("the model has no vocabulary")), "{said:?}");
}

/// What llama.cpp makes of a text by itself. Only for texts that it survives.
fn reference(model: &LoadedModel, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
    model.model.vocab().tokenize(text, add_special, parse_special)
}

/// Characters that patterns tell apart, and some that belong together.
#[rustfmt::skip]
const PIECES: [&str; 79] = [
    "a", "b", "Z", "the", " the", "'s", "'LL", "'", "1", "12", "345", " ", "  ", "   ", "\n", "\r", "\r\n", "\t",
    "\u{b}", "\u{85}", "\u{a0}", "\u{3000}", ".", ",", "!", "?", "/", "(", "|", "<", "$", "^", "~", "`", "_", "-",
    "é", "É", "ß", "\u{301}", "\u{94d}", "क", "一", "龥", "あ", "カ", "ー", "한", "ㄱ", "ㄅ", "ก", "٣", "Ⅷ", "½", "€", "…",
    "。", "，", "！", "“", "।", "🙂", "\u{200d}", "\u{feff}", "\u{0}", "\u{1b}", "\u{2ffc}", "\u{1f6dc}", "\u{378}",
    "\u{e000}", "𐐀", "ǅ", "ʰ", "µ", "<|end|>", "<|bos|>", "IMGIMGABZ", "<sentinel:12>", "once upon",
];

/// Texts of such pieces.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![8 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)];
    (prop::collection::vec((piece, 1usize..4), 0..24), prop::collection::vec(Just(" "), 0..700)).prop_map(
        |(pieces, blanks)| {
            let mut text: String = pieces.iter().map(|(piece, times)| piece.repeat(*times)).collect();
            let middle = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
            // A long run of white space in one text of three or so.
            if blanks.len() > 400 {
                text.insert_str(middle, &blanks.concat());
            }
            text
        },
    )
}

/// llama.cpp aborts on some texts with this kind, because it looks up merges of text with spaces.
fn aborts_on_spaces(pre: &str) -> bool {
    pre == "whitespace"
}

#[test]
fn every_kind_has_the_tokens_of_llama_cpp() {
    for pre in kinds::names() {
        let model = model(pre);
        let tokenizer = model.tokenizer();
        let mut runner = TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
        let checked = runner.run(&(texts(), any::<bool>(), any::<bool>()), |(text, add, parse)| {
            let text = if aborts_on_spaces(pre) { text.replace(' ', "") } else { text };
            prop_assert_eq!(tokenizer.tokenize(&text, add, parse), reference(&model, &text, add, parse), "{:?}", text);
            Ok(())
        });
        checked.unwrap_or_else(|error| panic!("{pre:?}: {error}"));
    }
}

/// A SentencePiece vocabulary has characters of its own.
#[test]
fn given_models_regression_a_sentencepiece_vocabulary_is_not_searched_by_llama_cpp_and_has_its_tokens() {
    let folder = std::env::var_os("CAMSHAFT_MODELS").expect("CAMSHAFT_MODELS names the folder of the models");
    let path = std::path::Path::new(&folder).join("stories260K-f32.gguf");
    let model = LoadedModel::from_file(&path, &LoadOptions::default()).unwrap();
    assert!(!model.encoder.leaves_texts_to_llama());
    let tokenizer = model.tokenizer();
    let word = prop_oneof![texts(), "[a-z ]{0,40}", "( |\u{2581}|<s>|</s>|<0x41>|Once upon a time, |\n){0,20}"];
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&(word, any::<bool>(), any::<bool>()), |(text, add, parse)| {
        prop_assert_eq!(tokenizer.tokenize(&text, add, parse), reference(&model, &text, add, parse), "{:?}", text);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    for text in long_texts() {
        assert!(!tokenizer.tokenize(&text, true, false).is_empty());
    }
}

fn demo() -> Vec<u8> {
    std::fs::read("../../config/models/demo.gguf").unwrap()
}

/// The demo model as one of BERT's kind with such tokens.
fn wordpiece(tokens: &[Vec<u8>]) -> Arc<LoadedModel> {
    let bytes = patched::with_vocabulary(&demo(), "bert", tokens);
    let model = LoadedModel::from_bytes("bert", &bytes, &LoadOptions::default()).unwrap();
    assert!(!model.encoder.leaves_texts_to_llama());
    model
}

/// Spells the bytes of every word, so that nothing that happens to a character is hidden by an unknown word.
fn bytes_of_words() -> Vec<Vec<u8>> {
    ["\u{2581}".as_bytes().to_vec()].into_iter().chain((1..=u8::MAX).map(|byte| vec![byte])).collect()
}

#[test]
fn wordpiece_reads_every_character_as_llama_cpp_does() {
    let model = wordpiece(&bytes_of_words());
    let tokenizer = model.tokenizer();
    let check = |text: &str| tokenizer.tokenize(text, false, false) == reference(&model, text, false, false);
    let characters: Vec<char> = ('\0'..=char::MAX).collect();
    let mut different: Vec<char> = Vec::new();
    for some in characters.chunks(256) {
        let alone = |c: &char| format!("{c} ");
        let between = |c: &char| format!("a{c}B ");
        let text: String = some.iter().flat_map(|c| [alone(c), between(c)]).collect();
        if !check(&text) {
            different.extend(some.iter().copied().filter(|c| !check(&alone(c)) || !check(&between(c))));
        }
    }
    assert!(different.is_empty(), "{}: {different:x?}", different.len());
}

/// Words, and characters that end them, change in them or vanish from them.
fn words() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => texts(),
        1 => "[a-eA-E]{0,60}",
        1 => "([a-e]|[A-E]|é|É|e\u{301}|日|한|ß| |,|\u{200b}|\n|\\[UNK\\]|<\\|end\\|>){0,30}",
    ]
}

#[test]
fn wordpiece_has_the_tokens_of_llama_cpp() {
    let few =
        ["\u{2581}", "\u{2581}a", "\u{2581}ab", "\u{2581}abcde", "a", "b", "cd", "cde", "e", "abcdeabcdeabcdeabcde"];
    let few: Vec<Vec<u8>> = few.iter().map(|token| token.as_bytes().to_vec()).collect();
    for model in [wordpiece(&bytes_of_words()), wordpiece(&few), wordpiece(&few[1..])] {
        let tokenizer = model.tokenizer();
        let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
        let checked = runner.run(&(words(), any::<bool>(), any::<bool>()), |(text, add, parse)| {
            prop_assert_eq!(tokenizer.tokenize(&text, add, parse), reference(&model, &text, add, parse), "{:?}", text);
            Ok(())
        });
        checked.unwrap_or_else(|error| panic!("{error}"));
        // llama.cpp takes some seconds for more.
        for unit in ["a", "abcde", "abcdeabcdeabcdeabcdd", "e", "q", " ", "é", "日本語", "\u{301}", "a,"] {
            let text = unit.repeat((64 << 10) / unit.len());
            assert_eq!(tokenizer.tokenize(&text, true, false), reference(&model, &text, true, false), "{unit:?}");
        }
    }
}

#[test]
fn given_models_wordpiece_has_the_tokens_of_llama_cpp() {
    let folder = std::env::var_os("CAMSHAFT_MODELS").expect("CAMSHAFT_MODELS names the folder of the models");
    let path = std::path::Path::new(&folder).join("all-MiniLM-L6-v2-q8_0.gguf");
    let model = LoadedModel::from_file(&path, &LoadOptions::default()).unwrap();
    let tokenizer = model.tokenizer();
    let word = prop_oneof![
        words(),
        "[a-z]{0,60}",
        "([a-z]{1,12}[ ,.']){0,40}",
        "(\\[CLS\\]|\\[MASK\\]|Hello, World! |[a-zé])*"
    ];
    let mut runner = TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&(word, any::<bool>(), any::<bool>()), |(text, add, parse)| {
        prop_assert_eq!(tokenizer.tokenize(&text, add, parse), reference(&model, &text, add, parse), "{:?}", text);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    let characters: Vec<char> = ('\0'..=char::MAX).collect();
    for some in characters.chunks(64) {
        let text: String = some.iter().flat_map(|c| ['a', *c, 'b', ' ', *c, ' ']).collect();
        assert_eq!(tokenizer.tokenize(&text, true, false), reference(&model, &text, true, false), "{text:?}");
    }
    let offsets = |text: &str| {
        let encode = Encode { add_special: true, offsets: true, ..Encode::of(text) };
        tokenizer.encode(encode).offsets.unwrap()
    };
    assert_eq!(offsets("日本語 text"), [(0, 0), (0, 3), (3, 6), (6, 9), (10, 14), (14, 14)]);
    assert_eq!(offsets("Hello, World!"), [(0, 0), (0, 5), (5, 6), (7, 12), (12, 13), (13, 13)]);
}

/// As many as are wanted are there, and of the rest no more than tell that there are more.
#[test]
fn a_text_that_has_more_tokens_than_are_wanted_is_not_read_to_its_end() {
    let text = "7 a ".repeat(LONG / 4);
    for (name, model) in [("tekken", model("tekken")), ("wordpiece", wordpiece(&bytes_of_words()))] {
        let encode = Encode { offsets: true, ..Encode::of(&text) };
        let tokenizer = model.tokenizer();
        let Encoded { tokens: all, offsets } = tokenizer.encode(encode);
        assert_eq!(offsets.map(|offsets| offsets.len()), Some(all.len()), "{name}");
        for most in [0, 1, 100, all.len() - 1] {
            let Encoded { tokens: some, offsets } = tokenizer.encode(Encode { most, ..encode });
            assert!(offsets.is_none() || some.len() == all.len(), "{name}: of a part of the tokens");
            assert!(some.len() > most && some.len() < most + 10, "{name}: {} of {most}", some.len());
            assert!(all.starts_with(&some), "{name}");
        }
        assert_eq!(tokenizer.encode(Encode { most: all.len(), ..encode }).tokens, all, "{name}");
    }
}

/// llama.cpp reads no more than becomes too many tokens for certain, whatever it is.
#[test]
fn regression_a_text_that_is_left_to_llama_cpp_is_not_read_to_its_end_either() {
    let model = model("qwen2");
    assert!(model.encoder.leaves_texts_to_llama());
    let tokenizer = model.tokenizer();
    let longest = "<|assistant|>".len();
    for text in ["a".repeat(LONG), "7 a ".repeat(LONG / 4), "\u{4e2d}".repeat(LONG / 3)] {
        let encode = Encode { offsets: true, ..Encode::of(&text) };
        let all = tokenizer.encode(encode).tokens;
        for most in [0, 1, 100, all.len() - 1] {
            let some = tokenizer.encode(Encode { most, ..encode }).tokens;
            assert!(some.len() > most && some.len() <= longest * (most + 1) + 2, "{} of {most}", some.len());
        }
        assert_eq!(tokenizer.encode(Encode { most: all.len(), ..encode }).tokens, all);
    }
}

#[test]
fn special_tokens_have_the_offsets_of_their_spelling() {
    for model in [model("qwen2"), model("tekken"), wordpiece(&bytes_of_words())] {
        let text = "ab<|end|><|bos|> c";
        let encode = Encode { parse_special: true, offsets: true, ..Encode::of(text) };
        let encoded = model.tokenizer().encode(encode);
        let found: Vec<_> = encoded.tokens.iter().zip(encoded.offsets.unwrap()).collect();
        let of = |token: u32| found.iter().filter(|found| found.0.0 == token).map(|found| found.1).collect::<Vec<_>>();
        assert_eq!((of(1), of(0)), (vec![(2, 9)], vec![(9, 16)]));
        assert!(found.last().is_some_and(|found| found.1.1 == 18), "{found:?}");
    }
}

#[test]
fn regression_vocabularies_with_thousands_of_special_tokens_are_not_searched_by_llama_cpp() {
    for pre in ["gemma4", "granite-embed-multi-311m", "sarvam-moe"] {
        assert!(!model(pre).encoder.leaves_texts_to_llama(), "{pre}");
    }
}

#[test]
fn every_character_is_in_the_category_of_llama_cpp() {
    // Between letters and numbers, punctuation and marks, each category is cut differently.
    for pre in ["deepseek-v3", "deepseek-llm"] {
        let model = model(pre);
        let tokenizer = model.tokenizer();
        let characters: Vec<char> =
            ('\0'..=char::MAX).filter(|c| *c as u32 <= 0x3_2400 || (*c as u32).is_multiple_of(97)).collect();
        for some in characters.chunks(64) {
            let text: String = some.iter().flat_map(|c| ['a', *c, '1', *c, '.', *c, ' ', *c]).collect();
            assert_eq!(
                tokenizer.tokenize(&text, false, false),
                reference(&model, &text, false, false),
                "{pre:?} {text:?}"
            );
        }
    }
}

/// Texts of `LONG` bytes without the boundaries that patterns need.
fn long_texts() -> Vec<String> {
    let units = ["a", "A", "!", "1", " ", "\n", "é", "一", "\u{301}", "aA", "a1", " a", "a!", "🙂", "\u{0}", "<|end|>"];
    let mut texts: Vec<String> = units.iter().map(|unit| unit.repeat(LONG / unit.len())).collect();
    texts.push(format!("{}x", " ".repeat(LONG - 1)));
    texts
}

#[test]
fn regression_a_text_without_spaces_does_not_overflow_a_small_stack() {
    // One name of each kind that is cut here, and of each loop in llama.cpp.
    let loops = ["llama-bpe", "gpt-2", "starcoder", "qwen2", "qwen35", "kimi-k2", "mmbert", "laguna"];
    for pre in kinds::first_names().chain(loops) {
        let tokenizer = model(pre).tokenizer();
        let run =
            move || long_texts().iter().map(|text| tokenizer.tokenize(text, true, true).len()).collect::<Vec<_>>();
        let thread = std::thread::Builder::new().stack_size(SMALL_STACK).spawn(run).unwrap();
        let lengths = thread.join().unwrap();
        assert!(lengths.iter().all(|&length| length > 0), "{pre:?}: {lengths:?}");
    }
}

#[test]
fn finds_control_tokens_and_only_them() {
    let tokenizer = model("").tokenizer();
    assert!(tokenizer.has_control("say <|end|>") && !tokenizer.has_control("say <|end|") && !tokenizer.has_control(""));
    assert_eq!(tokenizer.tokenize("", false, true), []);
}
