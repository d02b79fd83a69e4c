//! Tests of the preflight.
use std::io::Write;

use super::*;

fn demo() -> Vec<u8> {
    std::fs::read("../../config/models/demo.gguf").unwrap()
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

/// A file with the given vocabulary and further keys, one tensor of eight f32, and `data` bytes of tensor data.
fn file(alignment: u32, model: &str, tokens: &[(&[u8], i32)], more: &[(&str, u32)], data: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let text = |out: &mut Vec<u8>, text: &[u8]| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text);
    };
    let list = |out: &mut Vec<u8>, key: &str, kind: u32| {
        text(out, key.as_bytes());
        out.extend(9u32.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((tokens.len() as u64).to_le_bytes());
    };
    out.extend(MAGIC);
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend((4 + more.len() as u64).to_le_bytes());
    for (key, value) in [("general.alignment", alignment)].iter().chain(more) {
        text(&mut out, key.as_bytes());
        out.extend(4u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    text(&mut out, b"tokenizer.ggml.model");
    out.extend(8u32.to_le_bytes());
    text(&mut out, model.as_bytes());
    list(&mut out, "tokenizer.ggml.token_type", 5);
    tokens.iter().for_each(|(_, kind)| out.extend(kind.to_le_bytes()));
    list(&mut out, "tokenizer.ggml.tokens", 8);
    tokens.iter().for_each(|(token, _)| text(&mut out, token));
    text(&mut out, b"t");
    out.extend(1u32.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    let align = if alignment.is_power_of_two() { alignment as usize } else { 32 };
    out.resize(out.len().div_ceil(align) * align + data, 0);
    out
}

#[test]
fn regression_every_byte_has_a_token_in_a_sentencepiece_vocabulary() {
    let named: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let whole: Vec<(&[u8], i32)> = named.iter().map(|name| (name.as_bytes(), 6)).collect();
    let check_tokens = |model: &str, tokens: &[(&[u8], i32)]| check(&file(32, model, tokens, &[], 32));
    check_tokens("llama", &whole).unwrap();
    // llama.cpp reads a text up to its first NUL.
    assert!(check_tokens("llama\0", &whole[1..]).is_err());
    for byte in [0, 0x0a, 0x41, 0xff] {
        let mut tokens = whole.clone();
        tokens[byte] = (b"zzz", 6);
        let why = refusal(&file(32, "llama", &tokens, &[], 32));
        assert!(why.ends_with(&format!("no token for the byte 0x{byte:02X}")), "{why}");
        check_tokens("gpt2", &tokens).unwrap();
        // The byte itself will do, but for NUL, which ends a text.
        let raw = [byte as u8];
        tokens[byte] = (&raw, 1);
        assert_eq!(check_tokens("llama", &tokens).is_ok(), byte != 0, "{byte}");
    }
    assert!(check_tokens("llama", &[]).is_err());
}

#[test]
fn regression_a_token_has_a_bound() {
    let (longest, longer) = (vec![b'a'; 1024], vec![b'a'; 1025]);
    for kind in [1, 2, 3, 4] {
        check(&file(32, "gpt2", &[(b"b", 1), (&longest, kind)], &[], 32)).unwrap();
        let why = refusal(&file(32, "gpt2", &[(b"b", 1), (&longer, kind)], &[], 32));
        assert!(why.contains("its token 1 has 1025 bytes, more than 1024"), "{why}");
    }
}

#[test]
fn refuses_a_vocabulary_with_a_token_twice() {
    let mut demo = demo();
    let find = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).position(|w| w == needle).unwrap();
    let (end, user) = (find(&demo, b"<|end|>"), find(&demo, b"<|bos|>"));
    demo.copy_within(end..end + 7, user);
    assert!(refusal(&demo).contains("twice"));
    assert!(refusal(&file(32, "gpt2", &[(b"a\0b", 1), (b"a", 1)], &[], 32)).contains("twice"));
    check(&file(32, "gpt2", &[(b"", 1), (b"\0", 1)], &[], 32)).unwrap();
}

#[test]
fn checks_the_bounds_of_alignment_and_data() {
    assert!(refusal(&file(33, "gpt2", &[], &[], 32)).contains("general.alignment = 33"));
    assert!(refusal(&file(1 << 21, "gpt2", &[], &[], 32)).contains("general.alignment"));
    check(&file(64, "gpt2", &[], &[], 32)).unwrap();
    assert!(refusal(&file(64, "gpt2", &[], &[], 31)).contains("truncated"));
}

#[test]
fn regression_a_context_length_has_a_bound_and_a_key_no_nul() {
    let with = |key: &str, value: u32| file(32, "gpt2", &[], &[(key, value)], 32);
    check(&with("llama.context_length", i32::MAX as u32)).unwrap();
    let why = refusal(&with("llama.context_length", 1 << 31));
    assert_eq!(why, "llama.context_length = 2147483648 is more than 2147483647");
    assert!(refusal(&with("tokenizer.ggml.tokens\0x", 1)).contains("NUL"));
}

#[test]
fn regression_a_file_with_much_behind_its_tensors_is_refused() {
    // A sparse file: nothing is written.
    let check_with = |trailing_bytes: u64| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&demo()).unwrap();
        file.set_len(demo().len() as u64 + trailing_bytes).unwrap();
        preflight(&mut file).map(drop)
    };
    // The demo model ends with its tensors, or less than their alignment later.
    assert!((0..32).any(|bytes| check_with(MAX_TRAILING_BYTES - bytes).is_ok()));
    for past in [MAX_TRAILING_BYTES + 1, 200 << 30] {
        let Err(Refused::Bad(why)) = check_with(past) else { panic!("{past} bytes") };
        assert!(why.contains("bytes that may follow"), "{why}");
    }
}

/// A file with one key: an array that begins with `items`, and has `count` of them.
fn array(key: &str, kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend([0, 1, key.len() as u64].map(u64::to_le_bytes).concat());
    out.extend(key.as_bytes());
    out.extend([9, kind].map(u32::to_le_bytes).concat());
    out.extend(count.to_le_bytes());
    out.extend(items);
    out
}

#[test]
fn keeps_the_lists_for_layers_that_llama_cpp_can_use() {
    let kept = |key: &str, kind: u32, count: u64, item: &[u8]| {
        let bytes = array(key, kind, count, &item.repeat(count as usize));
        let header = preflight(&mut io::Cursor::new(bytes)).unwrap();
        header.lists.get(key).map(<[u32]>::to_vec)
    };
    let two = 2u32.to_le_bytes();
    for key in ["x.attention.head_count", "x.attention.head_count_kv", "x.feed_forward_length"] {
        assert_eq!(kept(key, 4, 3, &two), Some(vec![2; 3]), "{key}");
        assert_eq!(kept(key, 5, 512, &two), Some(vec![2; 512]), "{key}");
        assert_eq!(kept(key, 5, 513, &two), None, "{key}");
        assert_eq!(kept(key, 6, 3, &two), None, "{key}");
        assert_eq!(kept(key, 8, 3, &0u64.to_le_bytes()), None, "{key}");
        for (count, items) in [(3, 11), (513, 513 * 4 - 1), (u64::MAX, 12)] {
            assert!(refusal(&array(key, 4, count, &vec![0; items])).contains("truncated"), "{key}: {count}");
        }
    }
    assert_eq!(kept("x.expert_feed_forward_length", 4, 3, &two), None);
}

#[test]
fn regression_a_header_has_a_bound_whatever_it_says_it_holds() {
    // A sparse file with one key: an array of `count` items.
    let check_with = |kind: u32, count: u64, item_bytes: u64| {
        let head = array("x", kind, count, &[]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&head).unwrap();
        file.set_len(head.len() as u64 + count * item_bytes).unwrap();
        (preflight(&mut file).map(drop), head.len() as u64)
    };
    let (_, head) = check_with(0, 0, 1);
    let fits = MAX_HEADER_BYTES - head;
    assert!(check_with(0, fits, 1).0.is_ok());
    for (kind, count, item_bytes) in [(0, fits + 1, 1), (8, fits / 8 + 1, 8), (8, 25 << 30, 8), (9, 25 << 30, 12)] {
        let (Err(Refused::Bad(why)), _) = check_with(kind, count, item_bytes) else { panic!("{count} of {kind}") };
        assert!(why.contains("bytes that a header may have"), "{why}");
    }
}
