//! Finds one key in the text of many settings, without parsing the others.
//!
//! The host checks settings by an instance of its own before it serves with them, and then hands the same text to the
//! instance of every request. Parsing 1000 keys takes milliseconds. So whoever has parsed and checked a text marks its
//! fingerprint in the plugin's state, and who finds the mark looks only for the one digest that was presented. A search
//! reveals by its time where a digest lies, but the digest of a guess says nothing about a key.
use camshaft_plugin::auth::Principal;

use crate::keys;
use crate::settings::KeySettings;

/// Hexadecimal digits of a digest, and of the runs of them by which the search advances.
const DIGITS: usize = 64;
const RUN: usize = 3;
const RUNS: usize = 1 << (4 * RUN);

/// A number that tells texts apart.
pub(crate) fn fingerprint(text: &str) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    // Independent lanes, so that the multiplications overlap.
    let mut lanes = [1u64, 2, 3, 4];
    let (groups, last) = words.as_chunks::<4>();
    let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    for group in groups {
        for (lane, word) in lanes.iter_mut().zip(group) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    let rest = rest.iter().fold(text.len() as u64, |sum, &byte| sum << 8 | u64::from(byte));
    let last = last.iter().map(|word| u64::from_le_bytes(*word)).chain([rest]);
    let all = lanes.into_iter().chain(last);
    all.fold(FACTOR, mix)
}

/// The owner of the key with this digest. The text has the form in which the host writes JSON, and was checked.
pub(crate) fn find(text: &str, digest: &[u8; 32]) -> Option<Principal> {
    const BEFORE: &[u8] = b"\"sha256\":\"";
    let needle = hexadecimal(digest);
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(at) = search(bytes, &needle, from) {
        from = at + 1;
        let key = at.checked_sub(BEFORE.len()).filter(|&key| bytes[key..at] == *BEFORE);
        let closed = bytes.get(at + DIGITS) == Some(&b'"');
        if let Some(key) = key.filter(|_| closed)
            && let Some(entry) = entry_around(text, key, &needle)
        {
            return keys::principal_of(entry);
        }
    }
    None
}

/// Parses the entry that has its digest at `key`. Inside a string a quotation mark follows a backslash, so only the
/// beginning of the entry parses as one.
fn entry_around(text: &str, key: usize, needle: &[u8; DIGITS]) -> Option<KeySettings> {
    let begins = text[..key + 1].rmatch_indices("{\"").map(|(at, _)| at);
    begins.into_iter().find_map(|at| {
        let mut entries = serde_json::Deserializer::from_str(&text[at..]).into_iter::<KeySettings>();
        let entry = entries.next()?.ok()?;
        entry.sha256.as_bytes().eq_ignore_ascii_case(needle).then_some(entry)
    })
}

fn hexadecimal(digest: &[u8; 32]) -> [u8; DIGITS] {
    let mut digits = [0; DIGITS];
    for (pair, byte) in digits.chunks_mut(2).zip(digest) {
        for (digit, value) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = b"0123456789abcdef"[usize::from(value)];
        }
    }
    digits
}

/// The value of a hexadecimal digit of either case; above 15 for anything else.
fn value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 16,
    }
}

/// The index of a run of digits; `None` if one is no digit.
fn run(digits: &[u8]) -> Option<usize> {
    let mut index = 0;
    for &digit in digits {
        let value = value(digit);
        if value > 15 {
            return None;
        }
        index = index << 4 | usize::from(value);
    }
    Some(index)
}

/// Where the digits of `needle`, in either case, begin in `text` from `from` on (Horspool 1980, over runs of digits): most
/// steps pass almost as many bytes as the needle has.
fn search(text: &[u8], needle: &[u8; DIGITS], from: usize) -> Option<usize> {
    const FAR: u8 = (DIGITS - RUN + 1) as u8;
    let mut steps = [FAR; RUNS];
    for end in RUN..DIGITS {
        steps[run(&needle[end - RUN..end])?] = (DIGITS - end) as u8;
    }
    let last = run(&needle[DIGITS - RUN..])?;
    let mut end = from + DIGITS;
    while end <= text.len() {
        let found = run(&text[end - RUN..end]);
        if found == Some(last) && text[end - DIGITS..end].eq_ignore_ascii_case(needle) {
            return Some(end - DIGITS);
        }
        end += usize::from(found.map_or(FAR, |found| steps[found]));
    }
    None
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn digest(key: &str) -> [u8; 32] {
        Sha256::digest(key.as_bytes()).into()
    }

    fn hex(key: &str) -> String {
        String::from_utf8(hexadecimal(&digest(key)).to_vec()).unwrap()
    }

    /// The host's JSON of so many keys, with names that look like the syntax around them.
    fn settings(count: u32) -> String {
        let entry = |i: u32| {
            let sha256 =
                if i.is_multiple_of(2) { hex(&format!("key-{i}")) } else { hex(&format!("key-{i}")).to_uppercase() };
            let models = ["x,{", "{\"sha256\":\"", &hex("key-0"), "}]"];
            serde_json::json!({
                "name": format!("{i},{{"), "sha256": sha256, "tenant": format!("tenant-{i}{{"),
                "allowed-models": models, "weight": 2.5, "cache-namespace": format!("\\\"{{\"{i}"),
            })
        };
        let keys: Vec<_> = (0..count).map(entry).collect();
        serde_json::json!({"anonymous-loopback": true, "keys": keys}).to_string()
    }

    #[test]
    fn finds_every_key_of_many_and_no_other() {
        let text = settings(1024);
        for i in [0, 1, 2, 511, 1022, 1023] {
            let found = find(&text, &digest(&format!("key-{i}"))).unwrap_or_else(|| panic!("key-{i}"));
            assert_eq!((found.tenant, found.weight), (format!("tenant-{i}{{"), 2.5));
            assert_eq!(found.allowed_models.unwrap().len(), 4);
        }
        for wrong in ["key-1024", "", "x"] {
            assert_eq!(find(&text, &digest(wrong)), None, "{wrong}");
        }
        assert_eq!(find("", &digest("key-0")), None);
        assert_eq!(find(&hex("key-0"), &digest("key-0")), None, "digits alone are no key");
    }

    #[test]
    fn texts_that_differ_have_other_fingerprints() {
        let text = settings(3);
        let mut seen = std::collections::BTreeSet::from([fingerprint(&text), fingerprint(""), fingerprint("\0")]);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(seen.insert(fingerprint(&String::from_utf8(bytes).unwrap())), "byte {at}");
            if at > 0 {
                assert!(seen.insert(fingerprint(&text[..at])), "the first {at}");
            }
        }
    }
}
