//! The demo model with other metadata, for tests of what a model's file decides.
//! (The tests of `camshaft-engine` include this file, too.)

use std::ops::Range;

/// Alignment of the tensors in a GGUF file that names none.
const ALIGNMENT: usize = 32;
const BYTE: u32 = 0;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// Control tokens at the start of the demo model's vocabulary.
const SPECIALS: usize = 6;
/// Where the number of keys stands.
const KEYS: usize = 16;
/// A key whose value fills up to the alignment, so that no tensor moves against it.
const FILLER: &str = "camshaft.filler";

/// `gguf` with the text `value` for `key`, which it must have as a text; without `value` it loses the key.
///
/// # Panics
/// The file has no such key.
pub fn with_text(gguf: &[u8], key: &str, value: Option<&str>) -> Vec<u8> {
    let entry = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &STRING.to_le_bytes()].concat();
    let start = gguf.windows(entry.len()).position(|window| window == entry).expect("the file has the key");
    let at = start + entry.len();
    let end = at + 8 + number(gguf, at);
    // The key stays as one that nobody reads.
    let key = value.map_or_else(|| "x".repeat(key.len()), |_| key.to_owned());
    let entry = [&text(&key)[..], &STRING.to_le_bytes(), &text(value.unwrap_or_default())].concat();
    replaced(gguf, start..end, &entry)
}

/// `gguf` with one more key, whose value is a text.
#[allow(dead_code)]
pub fn with_new_text(gguf: &[u8], key: &str, value: &str) -> Vec<u8> {
    with_entry(gguf, &[&text(key)[..], &STRING.to_le_bytes(), &text(value)].concat())
}

/// The same with bytes.
#[allow(dead_code)]
pub fn with_new_bytes(gguf: &[u8], key: &str, value: &[u8]) -> Vec<u8> {
    let array = [ARRAY.to_le_bytes(), BYTE.to_le_bytes()].concat();
    with_entry(gguf, &[&text(key)[..], &array, &(value.len() as u64).to_le_bytes(), value].concat())
}

fn with_entry(gguf: &[u8], entry: &[u8]) -> Vec<u8> {
    let mut patched = replaced(gguf, KEYS + 8..KEYS + 8, entry);
    let keys = number(&patched, KEYS) as u64 + 1;
    patched[KEYS..KEYS + 8].copy_from_slice(&keys.to_le_bytes());
    patched
}

/// `gguf` with the vocabulary of another kind of model: its special tokens, then `tokens`, then some that no text spells.
///
/// # Panics
/// The file has no vocabulary, or a smaller one.
#[allow(dead_code)]
pub fn with_vocabulary(gguf: &[u8], kind: &str, tokens: &[Vec<u8>]) -> Vec<u8> {
    let key = "tokenizer.ggml.tokens";
    let entry = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &ARRAY.to_le_bytes(), &STRING.to_le_bytes()];
    let entry = entry.concat();
    let start = gguf.windows(entry.len()).position(|window| window == entry).expect("the file has a vocabulary");
    let count = number(gguf, start + entry.len());
    let mut end = start + entry.len() + 8;
    let mut all = Vec::new();
    for index in 0..count {
        let token = &gguf[end + 8..end + 8 + number(gguf, end)];
        end += 8 + token.len();
        // Words begin with another character, and the parts after it are shorter.
        let unused = || format!("[unused {index}]").into_bytes();
        all.push(match index.checked_sub(SPECIALS) {
            None => token.to_vec(),
            Some(other) => tokens.get(other).cloned().unwrap_or_else(unused),
        });
    }
    assert!(count >= SPECIALS + tokens.len(), "{count} tokens in all");
    let strings = all.iter().flat_map(|token| [&(token.len() as u64).to_le_bytes()[..], token].concat());
    let entry = entry.iter().copied().chain((count as u64).to_le_bytes()).chain(strings).collect::<Vec<u8>>();
    with_text(&replaced(gguf, start..end, &entry), "tokenizer.ggml.model", Some(kind))
}

/// `gguf` with another key and value in place of those at `range`.
fn replaced(gguf: &[u8], range: Range<usize>, entry: &[u8]) -> Vec<u8> {
    let mut patched = [&gguf[..range.start], entry].concat();
    let keys = number(gguf, KEYS);
    // llama.cpp refuses a file that has a key twice.
    patched.extend(text(&format!("{FILLER}-{keys}")));
    patched.extend(STRING.to_le_bytes());
    let grown = (patched.len() + 8).wrapping_sub(range.end);
    let filler = ".".repeat(ALIGNMENT - grown % ALIGNMENT);
    patched.extend(text(&filler));
    patched.extend(&gguf[range.end..]);
    patched[KEYS..KEYS + 8].copy_from_slice(&(keys as u64 + 1).to_le_bytes());
    patched
}

fn number(gguf: &[u8], at: usize) -> usize {
    u64::from_le_bytes(gguf[at..at + 8].try_into().unwrap()) as usize
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}
