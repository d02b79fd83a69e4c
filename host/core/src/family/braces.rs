//! Arguments as an object with unquoted keys, whose strings stand between two markers, made into JSON.
use crate::family::json::{Json, Progress, push_escaped};
use crate::family::marker::{Found, Markers};
use crate::family::nesting::Nesting;
use crate::family::prefix::{Cursor, Stop};

/// Bytes of a key, at most.
pub(crate) const KEY_BYTES: usize = 128;

/// An object of which some text has come.
#[derive(Debug, Clone)]
pub(crate) struct Braces {
    quote: &'static str,
    quotes: Markers,
    nesting: Nesting,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    Value,
    FirstItem,
    Key,
    FirstKey,
    After,
    Text,
    Number(Json),
}

/// Whether an object's key can be written without quotes.
pub(crate) fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES).contains(&key.len())
        && key.trim_ascii() == key
        && !key.contains([':', '{', '}', '[', ']', ',', '<', '"'])
}

impl Braces {
    pub(crate) fn new(quote: &'static str) -> Self {
        let quotes = Markers::new(vec![quote.to_owned()]);
        Self { quote, quotes, nesting: Nesting::default(), stage: Stage::Value }
    }

    /// As [`crate::family::arguments::Arguments::feed`].
    pub(crate) fn feed(&mut self, text: &str, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let mut cursor = Cursor::new(&text[at..]);
            let step = match self.stage {
                Stage::Text => self.text(&mut cursor, out),
                Stage::Number(_) => self.number(&mut cursor, out),
                _ => self.step(&mut cursor, out).map_err(|stop| (0, stop)),
            };
            match step {
                Ok(()) if self.nesting.is_empty() => return (at + cursor.at(), Progress::Done),
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

    /// Passes on what there is of a number, however long it is.
    fn number(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), (usize, Stop)> {
        let Stage::Number(json) = &mut self.stage else { return Ok(()) };
        let rest = cursor.rest();
        let (used, progress) = json.feed(rest.as_bytes());
        out.push_str(&rest[..used]);
        match progress {
            Progress::Done => {
                cursor.skip(used);
                self.stage = Stage::After;
                Ok(())
            }
            Progress::More => Err((used, Stop::More)),
            Progress::Broken => Err((used, Stop::Fail)),
        }
    }

    fn step(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        cursor.space()?;
        let next = cursor.peek()?;
        match self.stage {
            Stage::FirstKey if next == '}' => self.close(cursor, out),
            Stage::FirstItem if next == ']' => self.close(cursor, out),
            Stage::Key | Stage::FirstKey => self.key(cursor, out),
            Stage::After if next == ',' => {
                cursor.skip(1);
                out.push_str(", ");
                self.stage = if self.nesting.in_object() { Stage::Key } else { Stage::Value };
                Ok(())
            }
            Stage::After => self.close(cursor, out),
            Stage::Value | Stage::FirstItem | Stage::Text | Stage::Number(_) => self.value(cursor, out),
        }
    }

    fn key(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        let key = match cursor.literal(self.quote) {
            Ok(()) => {
                let key = cursor.until_marker(self.quote, KEY_BYTES)?;
                cursor.spaced(":")?;
                key
            }
            Err(Stop::More) => return Err(Stop::More),
            Err(Stop::Fail) => match cursor.until(':', KEY_BYTES)?.trim_ascii() {
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
        match next {
            '{' | '[' => {
                cursor.skip(1);
                out.push(next);
                self.nesting.open(next == '{');
                self.stage = if next == '{' { Stage::FirstKey } else { Stage::FirstItem };
            }
            '-' | '0'..='9' => self.stage = Stage::Number(Json::new()),
            't' => self.word("true", cursor, out)?,
            'f' => self.word("false", cursor, out)?,
            'n' => self.word("null", cursor, out)?,
            _ => {
                cursor.literal(self.quote)?;
                out.push('"');
                self.stage = Stage::Text;
            }
        }
        Ok(())
    }

    fn word(&mut self, word: &str, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        cursor.literal(word)?;
        out.push_str(word);
        self.stage = Stage::After;
        Ok(())
    }

    fn close(&mut self, cursor: &mut Cursor<'_>, out: &mut String) -> Result<(), Stop> {
        let end = if self.nesting.in_object() { '}' } else { ']' };
        if cursor.peek()? != end {
            return Err(Stop::Fail);
        }
        cursor.skip(1);
        out.push(end);
        self.nesting.close();
        self.stage = Stage::After;
        Ok(())
    }
}
