//! Writes server-sent events (WHATWG HTML, section 9.2).
use serde::Serialize;

/// The last frame of a stream without an error.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";
/// A comment, which clients skip. It keeps proxies from closing a silent connection.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Appends a comment with a name and a number.
pub(crate) fn comment(out: &mut Vec<u8>, name: &str, number: u32) {
    say(out, &format!("{name}: {number}"));
}

/// Appends a comment of one line.
pub(crate) fn say(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(format!(": {text}\n\n").as_bytes());
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
    out.extend_from_slice(format!("event: {name}\n").as_bytes());
    let data = out.len();
    write(out, payload);
    if out.len() == data {
        out.truncate(start);
    }
}

/// A frame of a stream that this server has written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Without its colon.
    Comment(String),
    Data(String),
}

/// Splits a stream that this server has written into its frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    unread: Vec<u8>,
}

impl Frames {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// The frames that are complete.
    pub(crate) fn complete(&mut self) -> Vec<Frame> {
        let Some(end) = self.unread.windows(2).rposition(|pair| pair == b"\n\n") else { return Vec::new() };
        let rest = self.unread.split_off(end + 2);
        let complete = std::mem::replace(&mut self.unread, rest);
        let text = String::from_utf8_lossy(&complete);
        let frame = |frame: &str| match frame.strip_prefix("data: ") {
            Some(data) => Frame::Data(data.to_owned()),
            None => Frame::Comment(frame.trim_start_matches(':').trim().to_owned()),
        };
        text.split_terminator("\n\n").map(frame).collect()
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
    fn a_stream_that_is_cut_anywhere_has_the_same_frames() {
        let mut stream = Vec::new();
        comment(&mut stream, "x-queue-position", 3);
        write(&mut stream, &json!({"a": "x\n\ny"}));
        stream.extend_from_slice(KEEP_ALIVE);
        stream.extend_from_slice(DONE);
        let data = |text: &str| Frame::Data(text.to_owned());
        let said = |text: &str| Frame::Comment(text.to_owned());
        let expected = [said("x-queue-position: 3"), data("{\"a\":\"x\\n\\ny\"}"), said("keep-alive"), data("[DONE]")];
        for cut in 0..stream.len() {
            let mut frames = Frames::default();
            frames.push(&stream[..cut]);
            let mut got = frames.complete();
            frames.push(&stream[cut..]);
            got.extend(frames.complete());
            assert_eq!(got, expected, "cut at {cut}");
        }
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
