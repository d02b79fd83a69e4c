//! The demo model with another value of one metadata key, for tests of what a model's file decides.
//! (The tests of `camshaft-engine` include this file, too.)

/// Alignment of the tensors in a GGUF file that names none.
const ALIGNMENT: usize = 32;
const STRING: u32 = 8;
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
    let length = u64::from_le_bytes(gguf[at..at + 8].try_into().unwrap()) as usize;
    let end = at + 8 + length;
    // The key stays as one that nobody reads.
    let key = value.map_or_else(|| "x".repeat(key.len()), |_| key.to_owned());
    let mut patched = [&gguf[..start], &text(&key), &STRING.to_le_bytes(), &text(value.unwrap_or_default())].concat();
    patched.extend(text(FILLER));
    patched.extend(STRING.to_le_bytes());
    let grown = (patched.len() + 8).wrapping_sub(end);
    let filler = ".".repeat(ALIGNMENT - grown % ALIGNMENT);
    patched.extend(text(&filler));
    patched.extend(&gguf[end..]);
    let keys = u64::from_le_bytes(gguf[16..24].try_into().unwrap()) + 1;
    patched[16..24].copy_from_slice(&keys.to_le_bytes());
    patched
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}
