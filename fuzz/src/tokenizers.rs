//! Texts for the tokenizers of every kind.
use std::sync::{Arc, LazyLock, OnceLock};

use camshaft_engine::{LoadOptions, LoadedModel, fuzz};

#[allow(unreachable_pub, clippy::expect_used, clippy::unwrap_used)]
#[path = "../../tests/src/patched.rs"]
mod patched;

const PRE: &str = "tokenizer.ggml.pre";
const ADD_SPECIAL: u8 = 1;
const PARSE_SPECIAL: u8 = 2;

/// The demo model with another pre-tokenizer, once a text was for it.
struct Patched {
    pre: &'static str,
    model: OnceLock<Arc<LoadedModel>>,
}

static MODELS: LazyLock<Vec<Patched>> = LazyLock::new(|| {
    let all = fuzz::pre_tokenizers().chain([fuzz::WORD_PIECES]);
    all.map(|pre| Patched { pre, model: OnceLock::new() }).collect()
});

/// Every byte but the letters from `w` to `z`, and some longer tokens.
fn word_pieces() -> Vec<Vec<u8>> {
    let bytes = (1..=u8::MAX).filter(|byte| !(b'w'..=b'z').contains(byte)).map(|byte| vec![byte]);
    let longer = ["\u{2581}", "\u{2581}the", "\u{2581}x", "the", "theth", "ababab", "\u{e9}a", "aaaaaaaaaaaaaaaaaaaab"];
    bytes.chain(longer.map(|token| token.as_bytes().to_vec())).collect()
}

/// The first byte chooses the pre-tokenizer, the second how special tokens are treated.
pub(crate) fn text(bytes: &[u8]) {
    let &[pre, flags, ref text @ ..] = bytes else { return };
    let Patched { pre, model } = &MODELS[usize::from(pre) % MODELS.len()];
    let model = model.get_or_init(|| load(pre));
    fuzz::text(model, pre, &String::from_utf8_lossy(text), flags & ADD_SPECIAL > 0, flags & PARSE_SPECIAL > 0);
}

fn load(pre: &str) -> Arc<LoadedModel> {
    let demo = include_bytes!("../../config/models/demo.gguf");
    let bytes = match pre {
        fuzz::WORD_PIECES => patched::with_vocabulary(demo, "bert", &word_pieces()),
        pre => patched::with_text(demo, PRE, Some(pre).filter(|pre| !pre.is_empty())),
    };
    LoadedModel::from_bytes(pre, &bytes, &LoadOptions::default()).unwrap_or_else(|error| panic!("{pre:?}: {error}"))
}
