//! Writes server-sent events (WHATWG HTML, section 9.2).
use std::collections::VecDeque;
use std::io::Write as _;

use axum::body::Bytes;
use serde::Serialize;

/// The last frame of a stream without an error.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";
/// A comment, which clients skip. It keeps proxies from closing a silent connection.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

const FRAME_END: &[u8] = b"\n\n";
const DATA: &[u8] = b"data: ";
/// A piece that has reached this size takes no further event.
const PIECE_BYTES: usize = 16 << 10;

/// Appends a comment of one line.
pub(crate) fn say(out: &mut Vec<u8>, text: &str) {
    let _ = write!(out, ": {text}\n\n");
}

/// Appends an event with `payload` as JSON.
pub(crate) fn write<T: Serialize>(out: &mut Vec<u8>, payload: &T) {
    let start = out.len();
    out.extend_from_slice(DATA);
    // Compact JSON has no raw line breaks: in strings they are escaped, and elsewhere there are none.
    if serde_json::to_writer(&mut *out, payload).is_err() {
        out.truncate(start);
        return;
    }
    out.extend_from_slice(FRAME_END);
}

/// Appends `payload` as a line of JSON, for clients that read no events.
pub(crate) fn line<T: Serialize>(out: &mut Vec<u8>, payload: &T) {
    let start = out.len();
    // As in an event, it has no line breaks.
    match serde_json::to_writer(&mut *out, payload) {
        Ok(()) => out.push(b'\n'),
        Err(_) => out.truncate(start),
    }
}

/// Appends an event with a name, and `payload` as JSON.
pub(crate) fn write_named<T: Serialize>(out: &mut Vec<u8>, name: &str, payload: &T) {
    let start = out.len();
    let _ = writeln!(out, "event: {name}");
    let data = out.len();
    write(out, payload);
    if out.len() == data {
        out.truncate(start);
    }
}

/// A stream on its way to the client, in pieces: short events are sent together, and each long one is freed once it is sent.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    complete: VecDeque<Bytes>,
    open: Vec<u8>,
}

impl Pieces {
    /// Where the next event is written.
    pub(crate) fn next(&mut self) -> &mut Vec<u8> {
        if self.open.len() >= PIECE_BYTES {
            self.complete.push_back(Bytes::from(std::mem::take(&mut self.open)));
        }
        &mut self.open
    }

    /// The next piece to send.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let open = || (!self.open.is_empty()).then(|| Bytes::from(std::mem::take(&mut self.open)));
        self.complete.pop_front().or_else(open)
    }

    /// Whether a piece is ready that takes no further event.
    pub(crate) fn is_full(&self) -> bool {
        !self.complete.is_empty() || self.open.len() >= PIECE_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.complete.is_empty() && self.open.is_empty()
    }
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
    fn short_events_are_sent_together_and_long_ones_alone() {
        let mut pieces = Pieces::default();
        for bytes in [PIECE_BYTES - 1, 1, PIECE_BYTES + 1, 5, 6] {
            pieces.next().extend(std::iter::repeat_n(b'x', bytes));
        }
        assert!(!pieces.is_empty());
        let sizes: Vec<usize> = std::iter::from_fn(|| pieces.take()).map(|piece| piece.len()).collect();
        assert_eq!(sizes, [PIECE_BYTES, PIECE_BYTES + 1, 11]);
        assert!(pieces.is_empty());
    }

    #[test]
    fn a_named_event_has_its_name_before_its_data() {
        let mut frame = Vec::new();
        write_named(&mut frame, "ping", &json!({}));
        assert_eq!(frame, b"event: ping\ndata: {}\n\n");
    }

    #[test]
    fn writes_the_frame_that_clients_know() {
        let mut frame = Vec::new();
        write(&mut frame, &json!({"a": "x\ny"}));
        assert_eq!(frame, b"data: {\"a\":\"x\\ny\"}\n\n");
    }
}
