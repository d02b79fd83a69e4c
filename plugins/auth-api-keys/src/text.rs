//! Finds one key in the text of many settings, without parsing the others.
//!
//! The host checks settings by an instance of its own before it serves with them, and then hands the same text to the
//! instance of every request. Parsing 1000 keys takes milliseconds. So whoever has parsed and checked a text keeps its
//! fingerprint and an index of its entries in the plugin's state, and who finds them there parses only the entry of the
//! digest that was presented. The time of a look-up tells of digests, which say nothing about a key.

use crate::keys::{self, Owner};
use crate::settings::KeySettings;

/// A line of the index: the first bytes of a digest, and the offset of its entry in the text.
const ENTRY_BYTES: usize = PREFIX_BYTES + size_of::<u32>();
const PREFIX_BYTES: usize = 8;

/// A number that tells texts apart.
pub(crate) fn fingerprint(text: &str) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    // Independent lanes, so that the multiplications overlap.
    let (mut a, mut b, mut c, mut d) = (1u64, 2u64, 3u64, 4u64);
    let (groups, last) = words.as_chunks::<4>();
    let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    for group in groups {
        a = mix(a, u64::from_le_bytes(group[0]));
        b = mix(b, u64::from_le_bytes(group[1]));
        c = mix(c, u64::from_le_bytes(group[2]));
        d = mix(d, u64::from_le_bytes(group[3]));
    }
    let lanes = [a, b, c, d];
    let rest = rest.iter().fold(text.len() as u64, |sum, &byte| sum << 8 | u64::from(byte));
    let last = last.iter().map(|word| u64::from_le_bytes(*word)).chain([rest]);
    let all = lanes.into_iter().chain(last);
    all.fold(FACTOR, mix)
}

/// Where the entries of a text begin, by the digests of their keys: `ENTRY_BYTES` for each entry, ascending. `None` if not
/// every one of the `count` keys is found. The text has the form in which the host writes JSON, and was checked.
pub(crate) fn index(text: &str, count: usize) -> Option<Vec<u8>> {
    // Inside a string a quotation mark follows a backslash: this is a field, not a value.
    let fields = text.match_indices("\"sha256\":\"").map(|(at, _)| at);
    let mut index: Vec<[u8; ENTRY_BYTES]> = fields.filter_map(|field| indexed(text, field)).collect();
    index.sort_unstable();
    (index.len() == count).then(|| index.concat())
}

/// The line of the index for the entry that has its digest at `field`. Only the beginning of the entry parses as one.
fn indexed(text: &str, field: usize) -> Option<[u8; ENTRY_BYTES]> {
    let begins = text[..field + 1].rmatch_indices("{\"").map(|(at, _)| at);
    let (at, entry) = begins.into_iter().find_map(|at| Some((at, entry(text, at)?)))?;
    let digest = keys::digest(&entry.sha256)?;
    let mut line = [0; ENTRY_BYTES];
    line[..PREFIX_BYTES].copy_from_slice(&digest[..PREFIX_BYTES]);
    line[PREFIX_BYTES..].copy_from_slice(&u32::try_from(at).ok()?.to_le_bytes());
    Some(line)
}

/// The owner of the key with this digest, by the index of the text.
pub(crate) fn find(text: &str, index: &[u8], digest: &[u8; 32]) -> Option<Owner> {
    let (lines, _) = index.as_chunks::<ENTRY_BYTES>();
    let prefix = &digest[..PREFIX_BYTES];
    let first = lines.partition_point(|line| line[..PREFIX_BYTES] < *prefix);
    let mut same = lines[first..].iter().take_while(|line| line[..PREFIX_BYTES] == *prefix);
    same.find_map(|&[.., a, b, c, d]| {
        let entry = entry(text, u32::from_le_bytes([a, b, c, d]) as usize)?;
        (keys::digest(&entry.sha256)? == *digest).then(|| keys::owner_of(entry))?
    })
}

/// The entry that begins at this place, if one does.
fn entry(text: &str, at: usize) -> Option<KeySettings> {
    serde_json::Deserializer::from_str(text.get(at..)?).into_iter().next()?.ok()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn digest(key: &str) -> [u8; 32] {
        Sha256::digest(key.as_bytes()).into()
    }

    fn hex(key: &str) -> String {
        digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The host's JSON of `count` keys, with names that look like the syntax around them.
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
        let index = index(&text, 1024).unwrap();
        for i in 0..1024 {
            let found = find(&text, &index, &digest(&format!("key-{i}"))).unwrap_or_else(|| panic!("key-{i}"));
            assert_eq!((found.principal.tenant, found.principal.weight), (format!("tenant-{i}{{"), 2.5));
            assert_eq!(found.principal.allowed_models.unwrap().len(), 4);
        }
        for wrong in ["key-1024", "", "x"] {
            assert_eq!(find(&text, &index, &digest(wrong)), None, "{wrong}");
        }
        let mut near = digest("key-7");
        near[31] ^= 1;
        assert_eq!(find(&text, &index, &near), None, "a digest that begins like that of a key");
    }

    #[test]
    fn an_index_of_another_text_finds_nothing_that_is_not_there() {
        let text = settings(8);
        assert_eq!(index(&text, 7), None, "more entries than keys");
        assert_eq!(index(&text, 9), None, "fewer entries than keys");
        assert_eq!(index("{\"keys\":[]}", 0), Some(Vec::new()));
        let index = index(&text, 8).unwrap();
        for other in ["", "{}", &settings(1), &text[..text.len() / 2], &settings(9)[1..]] {
            for i in 1..8 {
                let key = format!("key-{i}");
                let found = find(other, &index, &digest(&key));
                assert!(found.is_none_or(|found| found.principal.tenant == format!("tenant-{i}{{")), "{key}");
            }
        }
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
