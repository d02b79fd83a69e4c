//! Counts the frames of an HTTP/2 client that concern its whole connection: for each of them the server looks at every
//! stream, so a few bytes cost as much as hundreds of requests.
use std::time::Duration;

use tokio::time::Instant;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Of every frame: length (24 bits), type, flags and stream.
const HEAD_BYTES: usize = 9;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// As many at once, and then one a second. Clients send one or two.
const AT_ONCE: u64 = 64;

/// Where in what the client sends the next byte belongs.
#[derive(Debug, Clone, Copy)]
enum At {
    /// After so many bytes of the preface.
    Preface(usize),
    /// After so many bytes of a frame's head.
    Head([u8; HEAD_BYTES], usize),
    /// Before so many bytes of a frame's payload.
    Payload(usize),
    /// The client speaks something else.
    Elsewhere,
}

/// What was read of a connection so far.
#[derive(Debug)]
pub(crate) struct Frames {
    at: At,
    /// Such frames, of which one is forgotten each second from `since` on.
    seen: u64,
    since: Instant,
}

/// The client sends too many such frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client sends more than {AT_ONCE} SETTINGS and GOAWAY frames, and more than one a second")]
pub(crate) struct TooMany;

impl Frames {
    pub(crate) fn new() -> Self {
        Self { at: At::Preface(0), seen: 0, since: Instant::now() }
    }

    /// The client has sent this.
    ///
    /// # Errors
    /// It sends too many.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<(), TooMany> {
        while let Some(&first) = bytes.first() {
            let taken = match &mut self.at {
                At::Elsewhere => return Ok(()),
                At::Preface(done) if PREFACE[*done] != first => {
                    self.at = At::Elsewhere;
                    return Ok(());
                }
                At::Preface(done) => {
                    *done += 1;
                    if *done == PREFACE.len() {
                        self.at = At::Head([0; HEAD_BYTES], 0);
                    }
                    1
                }
                At::Head(head, done) => {
                    head[*done] = first;
                    *done += 1;
                    if *done == HEAD_BYTES {
                        let (head, [high, middle, low, kind, ..]) = (*head, *head);
                        let payload = u32::from_be_bytes([0, high, middle, low]) as usize;
                        self.at = if payload == 0 { At::Head(head, 0) } else { At::Payload(payload) };
                        if [SETTINGS, GOAWAY].contains(&kind) {
                            self.count()?;
                        }
                    }
                    1
                }
                At::Payload(left) => {
                    let taken = bytes.len().min(*left);
                    *left -= taken;
                    if *left == 0 {
                        self.at = At::Head([0; HEAD_BYTES], 0);
                    }
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), TooMany> {
        let passed = self.since.elapsed().as_secs();
        self.since += Duration::from_secs(passed);
        self.seen = self.seen.saturating_sub(passed) + 1;
        if self.seen > AT_ONCE { Err(TooMany) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        [&length[1..], &[kind, 0], &[0; 4], &vec![SETTINGS; payload][..]].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn regression_settings_and_goaways_are_counted_however_they_are_cut_into_pieces() {
        for piece in [1, 2, 5, 9, 14, 1000] {
            for kind in [SETTINGS, GOAWAY] {
                let mut frames = Frames::new();
                let mut read = |bytes: &[u8]| bytes.chunks(piece).try_for_each(|piece| frames.read(piece));
                read(PREFACE).unwrap();
                for _ in 0..AT_ONCE {
                    read(&[frame(0, 300), frame(kind, 6), frame(6, 8), frame(8, 4), frame(1, 0)].concat()).unwrap();
                }
                read(&frame(1, 20)).unwrap();
                tokio::time::advance(Duration::from_secs(1)).await;
                read(&frame(kind, 0)).unwrap();
                // A connection that was quiet for long has no more for that.
                tokio::time::advance(Duration::from_secs(10_000)).await;
                (0..AT_ONCE).for_each(|_| read(&frame(kind, 0)).unwrap());
                assert_eq!(read(&frame(kind, 0)), Err(TooMany), "pieces of {piece} bytes");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_http2_is_not_looked_at() {
        let mut frames = Frames::new();
        frames.read(b"PRIVATE").unwrap();
        for _ in 0..2 * AT_ONCE {
            frames.read(&[PREFACE, &frame(SETTINGS, 0)].concat()).unwrap();
        }
        assert_eq!(frames.seen, 0);
    }
}
