//! Arguments as an object with bare keys, whose strings stand between two markers, made into JSON.
use crate::family::elements::push_escaped;
use crate::family::json::{DEPTH, Json, Progress};
use crate::family::marker::{Found, Markers};
use crate::family::prefix::{Cursor, Stop};

/// Bytes of a key, and of a number, at most.
pub(crate) const WORD_BYTES: usize = 128;

/// An object of which some text has come.
#[derive(Debug, Clone)]
pub(crate) struct Braces {
    quote: &'static str,
    quotes: Markers,
    /// A bit for each open object (1) or list (0), the innermost last.
    open: u128,
    depth: u32,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Value,
    FirstItem,
    Key,
    FirstKey,
    After,
    Text,
}

/// Whether an object's key can be written bare.
pub(crate) fn is_key(key: &str) -> bool {
    (1..=WORD_BYTES).contains(&key.len())
        && key.trim_ascii() == key
        && !key.contains([':', '{', '}', '[', ']', ',', '<', '"'])
}

impl Braces {
    pub(crate) fn new(quote: &'static str) -> Self {
        let quotes = Markers::new(vec![quote.to_owned()]);
        Self { quote, quotes, open: 0, depth: 0, stage: Stage::Value }
    }

    /// As [`crate::family::arguments::Arguments::feed`].
    pub(crate) fn feed(&mut self, text: &str, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let mut cursor = Cursor::new(&text[at..]);
            let step =
                if let Stage::Text = self.stage { self.text(&mut cursor, out) } else { self.step(&mut cursor, out) };
            match step {
                Ok(()) if self.depth == 0 => return (at + cursor.at(), Progress::Done),
                Ok(()) => at += cursor.at(),
                Err((used, Stop::More)) => return (at + used, Progress::More),
                Err((used, Stop::Fail)) => return (at + used, Progress::Broken),
            }
        }
    }

    /// Text of a string. Passes on all that cannot be the end of it.
    fn text(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), (usize, Stop)> {
        match self.quotes.find(cursor.rest()) {
            Found::Marker { at, .. } => {
                push_escaped(&cursor.rest()[..at], out);
                out.push('"');
                cursor.skip(at + self.quote.len());
                self.stage = Stage::After;
                Ok(())
            }
            Found::Rest { at } => {
                push_escaped(&cursor.rest()[..at], out);
                Err((at, Stop::More))
            }
        }
    }

    fn step(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), (usize, Stop)> {
        let stage = self.stage;
        let step = (|| {
            cursor.space()?;
            let next = cursor.peek()?;
            match stage {
                Stage::FirstKey if next == '}' => self.close(cursor, out),
                Stage::FirstItem if next == ']' => self.close(cursor, out),
                Stage::Key | Stage::FirstKey => self.key(cursor, out),
                Stage::After if next == ',' => {
                    cursor.skip(1);
                    out.push_str(", ");
                    self.stage = if self.in_object() { Stage::Key } else { Stage::Value };
                    Ok(())
                }
                Stage::After => self.close(cursor, out),
                Stage::Value | Stage::FirstItem | Stage::Text => self.value(cursor, out),
            }
        })();
        step.map_err(|stop| (0, stop))
    }

    fn key(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        let key = match cursor.literal(self.quote) {
            Ok(()) => {
                let key = cursor.until_marker(self.quote, WORD_BYTES)?;
                cursor.spaced(":")?;
                key
            }
            Err(Stop::More) => return Err(Stop::More),
            Err(Stop::Fail) => match cursor.until(':', WORD_BYTES)?.trim_ascii() {
                key if is_key(key) => key,
                _ => return Err(Stop::Fail),
            },
        };
        out.push('"');
        push_escaped(key, out);
        out.push_str("\": ");
        self.stage = Stage::Value;
        Ok(())
    }

    fn value(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        let next = cursor.peek()?;
        if let '{' | '[' = next {
            if self.depth == DEPTH {
                return Err(Stop::Fail);
            }
            cursor.skip(1);
            out.push(next);
            self.open = self.open << 1 | u128::from(next == '{');
            self.depth += 1;
            self.stage = if next == '{' { Stage::FirstKey } else { Stage::FirstItem };
            return Ok(());
        }
        match cursor.literal(self.quote) {
            Ok(()) => {
                out.push('"');
                self.stage = Stage::Text;
                Ok(())
            }
            Err(Stop::More) => Err(Stop::More),
            Err(Stop::Fail) => self.scalar(cursor, out),
        }
    }

    /// A number, `true`, `false` or `null`, up to what follows it.
    fn scalar(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        let rest = cursor.window(WORD_BYTES + 4);
        let len = rest.find([',', '}', ']', ' ', '\n']);
        if len.unwrap_or(rest.len()) > WORD_BYTES {
            return Err(Stop::Fail);
        }
        let Some(len) = len else { return Err(Stop::More) };
        // Only a number needs the byte after it.
        let (used, progress) = Json::new().feed(&rest.as_bytes()[..=len]);
        if (used, progress) != (len, Progress::Done) || rest.starts_with('"') {
            return Err(Stop::Fail);
        }
        out.push_str(&rest[..len]);
        cursor.skip(len);
        self.stage = Stage::After;
        Ok(())
    }

    fn close(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        let end = if self.in_object() { '}' } else { ']' };
        if cursor.peek()? != end {
            return Err(Stop::Fail);
        }
        cursor.skip(1);
        out.push(end);
        self.open >>= 1;
        self.depth -= 1;
        self.stage = Stage::After;
        Ok(())
    }

    fn in_object(&self) -> bool {
        self.open & 1 == 1
    }
}
