//! Entry points of the fuzz targets: texts for every tokenizer, and model files.
use std::io::Cursor;
use std::sync::Arc;

use crate::encoder;
use crate::gguf::{self, Refused};
use crate::load::LoadedModel;

/// Longer texts are not compared with llama.cpp: on some it recurses for each character.
const COMPARED_BYTES: usize = 1024;
/// llama.cpp aborts on white space with this kind.
const ABORTS_ON_BLANKS: &str = "whitespace";

/// Stands for a vocabulary of BERT's kind, among the names of pre-tokenizers.
pub const WORD_PIECES: &str = "bert";

/// The values of `tokenizer.ggml.pre` whose texts can be tokenized.
pub fn pre_tokenizers() -> impl Iterator<Item = &'static str> {
    encoder::kinds::names()
}

/// Tokenizes with a BPE model whose pre-tokenizer is `pre`, or with one of another kind. Checks that there are no more
/// tokens than bytes (and one for each word of [`WORD_PIECES`]), that tokens of text spell it, and that they are llama.cpp's.
///
/// # Panics
/// If they are not.
pub fn text(model: &Arc<LoadedModel>, pre: &str, text: &str, add_special: bool, parse_special: bool) {
    let tokens = model.tokenizer().tokenize(text, add_special, parse_special);
    let vocabulary = &model.info().vocabulary;
    let most = if pre == WORD_PIECES { 2 * text.len() } else { text.len() };
    assert!(tokens.len() <= most + 2, "{pre}: {} tokens of {} bytes", tokens.len(), text.len());
    assert!(tokens.iter().all(|token| (token.0 as usize) < vocabulary.size()), "{pre}: unknown tokens of {text:?}");
    if pre == ABORTS_ON_BLANKS && text.contains(char::is_whitespace) {
        return;
    }
    if !add_special && !parse_special && encoder::kinds::spells_bytes(pre) {
        let pieces: Vec<u8> =
            tokens.iter().filter_map(|&token| vocabulary.token_bytes(token)).flatten().copied().collect();
        assert_eq!(String::from_utf8_lossy(&pieces), text, "{pre}");
    }
    if text.len() <= COMPARED_BYTES {
        let theirs = model.model.vocab().tokenize(text, add_special, parse_special);
        assert_eq!(tokens, theirs, "{pre}, {add_special}, {parse_special}: {text:?}");
    }
}

/// Examines a model's file as before every load.
///
/// # Panics
/// If a refusal gives no reason, or what was read is larger than the file.
pub fn gguf(bytes: &[u8]) {
    match gguf::preflight(&mut Cursor::new(bytes)) {
        Ok(gguf::Header { tokenizer: keys, .. }) => {
            let merges: usize = keys.merges.iter().map(|merge| merge.len() + 8).sum();
            assert!(keys.model.len() + keys.pre.len() + merges <= bytes.len());
        }
        Err(Refused::Bad(why)) => assert!(!why.is_empty()),
        Err(Refused::Io(error)) => panic!("bytes in memory cannot be read: {error}"),
    }
}
