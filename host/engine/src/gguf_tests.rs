//! Tests of the preflight.
use std::io::Write;

use super::*;

fn demo() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/models/demo.gguf")).unwrap()
}

fn check(bytes: &[u8]) -> Result<(), Refused> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    preflight(&mut file).map(drop)
}

fn refusal(bytes: &[u8]) -> String {
    match check(bytes) {
        Err(Refused::Bad(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn accepts_the_demo_model_and_refuses_every_cut_of_it() {
    let demo = demo();
    check(&demo).unwrap();
    let cuts = (0..200).chain((4096..demo.len()).step_by(4096)).chain([demo.len() - 1]);
    for cut in cuts {
        assert!(matches!(check(&demo[..cut]), Err(Refused::Bad(_))), "cut at {cut}");
    }
    assert!(refusal(&demo[..demo.len() - 1]).contains("truncated"));
    assert!(refusal(&demo[..100]).contains("truncated at byte"));
    assert!(refusal(b"").contains("truncated"));
    assert!(refusal(b"PK\x03\x04 not a model").contains("not a GGUF file"));
}

#[test]
fn never_panics_on_flipped_bytes_of_the_header() {
    let demo = demo();
    let head = demo.len().min(40_000);
    let mut refused = 0;
    for at in (0..head).step_by(7).chain(0..64) {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = demo.clone();
            bytes[at] ^= flip;
            refused += u32::from(check(&bytes).is_err());
            if at >= 64 {
                break;
            }
        }
    }
    assert!(refused > 100, "only {refused} were refused");
}

/// A file with the given metadata, one tensor of eight f32, and `data` bytes of tensor data.
fn file(alignment: u32, model: &str, kinds: &[i32], data: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    out.extend(MAGIC);
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend(3u64.to_le_bytes());
    text(&mut out, "general.alignment");
    out.extend(4u32.to_le_bytes());
    out.extend(alignment.to_le_bytes());
    text(&mut out, "tokenizer.ggml.model");
    out.extend(8u32.to_le_bytes());
    text(&mut out, model);
    text(&mut out, "tokenizer.ggml.token_type");
    out.extend(9u32.to_le_bytes());
    out.extend(5u32.to_le_bytes());
    out.extend((kinds.len() as u64).to_le_bytes());
    kinds.iter().for_each(|kind| out.extend(kind.to_le_bytes()));
    text(&mut out, "t");
    out.extend(1u32.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    let align = if alignment.is_power_of_two() { alignment as usize } else { 32 };
    out.resize(out.len().div_ceil(align) * align + data, 0);
    out
}

#[test]
fn requires_byte_tokens_in_a_sentencepiece_vocabulary() {
    assert!(refusal(&file(32, "llama", &[1, 1], 32)).contains("no byte tokens"));
    check(&file(32, "llama", &[1, 6], 32)).unwrap();
    check(&file(32, "gpt2", &[1, 1], 32)).unwrap();
}

#[test]
fn refuses_a_vocabulary_with_a_token_twice() {
    let mut demo = demo();
    let find = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).position(|w| w == needle).unwrap();
    let (end, user) = (find(&demo, b"<|end|>"), find(&demo, b"<|bos|>"));
    demo.copy_within(end..end + 7, user);
    assert!(refusal(&demo).contains("twice"));
}

#[test]
fn checks_the_bounds_of_alignment_and_data() {
    assert!(refusal(&file(33, "gpt2", &[], 32)).contains("general.alignment = 33"));
    assert!(refusal(&file(1 << 21, "gpt2", &[], 32)).contains("general.alignment"));
    check(&file(64, "gpt2", &[], 32)).unwrap();
    assert!(refusal(&file(64, "gpt2", &[], 31)).contains("truncated"));
}
