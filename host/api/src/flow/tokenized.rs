//! The answer to a text that was tokenized. A long one is written while the client takes it: whole, it would take several times its
//! tokens.
use std::io::Write as _;

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Offsets;

use crate::flow::budget::Share;
use crate::flow::kept::{self, PIECE_BYTES};

#[derive(Debug)]
pub(crate) struct Tokenized {
    pub(crate) tokens: Vec<Token>,
    /// Start and end of what each token was made of, in bytes. Null if nobody knows: the tokens do not spell the text.
    pub(crate) offsets: Option<Vec<Offsets>>,
}

/// Where the writing of an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Tokens(usize),
    Offsets(usize),
    End,
}

/// `{"tokens":[…],"offsets":[[…],…]}`. The share holds the tokens until the client has taken their text.
pub(crate) fn respond(tokenized: Tokenized, share: Share) -> Response {
    let held = tokenized.tokens.capacity() * size_of::<Token>()
        + tokenized.offsets.as_ref().map_or(0, Vec::capacity) * size_of::<Offsets>();
    let bytes = tokenized.bytes();
    let mut at = At::Tokens(0);
    let pieces = std::iter::from_fn(move || tokenized.piece(&mut at));
    let body = match bytes {
        ..=PIECE_BYTES => kept::body(pieces.flatten().collect(), share),
        _ => kept::pieces(bytes, held, pieces, share),
    };
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

impl Tokenized {
    /// Length of the answer's text.
    fn bytes(&self) -> usize {
        let list = |entries: usize, inner: usize| 2 + inner + entries.saturating_sub(1);
        let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
        let tokens = list(self.tokens.len(), self.tokens.iter().map(|token| digits(token.0)).sum());
        let pair = |(start, end): &Offsets| 3 + digits(*start) + digits(*end);
        let offsets = self.offsets.as_ref().map_or("null".len(), |all| list(all.len(), all.iter().map(pair).sum()));
        r#"{"tokens":,"offsets":}"#.len() + tokens + offsets
    }

    /// The next part of the answer's text; `None` behind the last one.
    fn piece(&self, at: &mut At) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(PIECE_BYTES + 64);
        while *at != At::End && out.len() < PIECE_BYTES {
            *at = self.write(&mut out, *at);
        }
        (!out.is_empty()).then_some(out)
    }

    /// Writes one entry of a list with what stands before it. Returns what comes next.
    fn write(&self, out: &mut Vec<u8>, at: At) -> At {
        match at {
            At::Tokens(index) => {
                if index == 0 {
                    out.extend_from_slice(b"{\"tokens\":[");
                }
                let Some(token) = self.tokens.get(index) else {
                    out.extend_from_slice(b"],\"offsets\":");
                    return At::Offsets(0);
                };
                let comma = if index == 0 { "" } else { "," };
                // Writing into memory never fails.
                let _ = write!(out, "{comma}{}", token.0);
                At::Tokens(index + 1)
            }
            At::Offsets(index) => {
                let Some(offsets) = &self.offsets else {
                    out.extend_from_slice(b"null}");
                    return At::End;
                };
                if index == 0 {
                    out.push(b'[');
                }
                let Some((start, end)) = offsets.get(index) else {
                    out.extend_from_slice(b"]}");
                    return At::End;
                };
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(out, "{comma}[{start},{end}]");
                At::Offsets(index + 1)
            }
            At::End => At::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::budget::Budget;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    /// The answer's text, and the sizes of its pieces.
    async fn sent(count: u32, has_offsets: bool) -> (Value, Vec<usize>) {
        let tokens: Vec<Token> = (0..count).map(Token).collect();
        let offsets = has_offsets.then(|| (0..count).map(|at| (at, at + 1)).collect());
        let budget = Budget::new(1 << 30);
        let response = respond(Tokenized { tokens, offsets }, budget.share(&"a".into()));
        let mut body = response.into_body();
        let announced = http_body::Body::size_hint(&body).exact().unwrap();
        let (mut text, mut sizes) = (Vec::new(), Vec::new());
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            sizes.push(piece.len());
            text.extend_from_slice(&piece);
        }
        assert_eq!(announced, text.len() as u64);
        (serde_json::from_slice(&text).unwrap(), sizes)
    }

    #[tokio::test]
    async fn an_answer_is_the_same_whole_and_in_pieces() {
        for count in [0, 1, 2, 1000, 5000, 100_000] {
            for has_offsets in [true, false] {
                let (got, sizes) = sent(count, has_offsets).await;
                let tokens: Vec<u32> = (0..count).collect();
                let offsets: Vec<(u32, u32)> = (0..count).map(|at| (at, at + 1)).collect();
                let expected = json!({"tokens": tokens, "offsets": has_offsets.then_some(offsets)});
                assert!(got == expected, "{count} {has_offsets}");
                assert!(sizes.iter().all(|size| *size < PIECE_BYTES + 64), "{sizes:?}");
                assert_eq!(sizes.len() > 1, count >= 5000, "{count} {has_offsets}: {sizes:?}");
            }
        }
    }

    #[tokio::test]
    async fn regression_a_long_answer_takes_no_more_than_its_tokens() {
        let budget = Budget::new(1 << 30);
        let tokens: Vec<Token> = vec![Token(123_456); 1 << 20];
        let offsets = vec![(1_000_000, 1_000_001); 1 << 20];
        let response = respond(Tokenized { tokens, offsets: Some(offsets) }, budget.share(&"a".into()));
        let taken = 12 << 20;
        assert!(http_body::Body::size_hint(response.body()).exact().unwrap() > 24 << 20);
        let mut others = budget.share(&"b".into());
        // Of two tenants the second may hold as much as is left free.
        others.grow(((1 << 30) - taken) / 2).unwrap();
        others.grow(2).unwrap_err();
        drop(response);
        others.grow(2).unwrap();
    }
}
