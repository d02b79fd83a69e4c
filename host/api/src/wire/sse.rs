//! Writes server-sent events (WHATWG HTML, section 9.2).
use serde::Serialize;

/// The last frame of a stream without an error.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";
/// A comment, which clients skip. It keeps proxies from closing a silent connection.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Appends a comment with a name and a number.
pub(crate) fn comment(out: &mut Vec<u8>, name: &str, number: u32) {
    out.extend_from_slice(format!(": {name}: {number}\n\n").as_bytes());
}

/// Appends an event with `payload` as JSON.
pub(crate) fn write<T: Serialize>(out: &mut Vec<u8>, payload: &T) {
    let start = out.len();
    out.extend_from_slice(b"data: ");
    // Compact JSON has no raw line breaks: in strings they are escaped, and elsewhere there are none.
    if serde_json::to_writer(&mut *out, payload).is_err() {
        out.truncate(start);
        return;
    }
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Parses a stream as specified: lines end with CR, LF or CRLF, and an empty line ends an event.
    fn payloads(stream: &[u8]) -> Vec<String> {
        let text = std::str::from_utf8(stream).unwrap().replace("\r\n", "\n").replace('\r', "\n");
        let event = |block: &str| {
            let data = block.split('\n').filter_map(|line| line.strip_prefix("data:"));
            data.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
        };
        text.split_terminator("\n\n").map(event).filter(|data| !data.is_empty()).collect()
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\r\n\u{2028}\u{85}:]{0,8}(data: \\[DONE\\])?".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..4).prop_map(|pairs| pairs.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_payloads_round_trip_in_order(values in prop::collection::vec(any_json(), 0..5)) {
            let mut stream = Vec::new();
            for value in &values {
                write(&mut stream, value);
                stream.extend_from_slice(KEEP_ALIVE);
            }
            stream.extend_from_slice(DONE);
            let mut got = payloads(&stream);
            let last = got.pop();
            prop_assert_eq!(last.as_deref(), Some("[DONE]"));
            let got: Vec<Value> = got.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
            prop_assert_eq!(got, values);
        }

        #[test]
        fn a_frame_has_line_breaks_only_at_its_end(value in any_json()) {
            let mut frame = Vec::new();
            write(&mut frame, &value);
            let body = frame.strip_suffix(b"\n\n").unwrap();
            prop_assert!(!body.contains(&b'\n') && !body.contains(&b'\r'));
        }
    }

    #[test]
    fn writes_the_frame_that_clients_know() {
        let mut frame = Vec::new();
        write(&mut frame, &json!({"a": "x\ny"}));
        assert_eq!(frame, b"data: {\"a\":\"x\\ny\"}\n\n");
    }
}
