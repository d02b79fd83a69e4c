//! The `tojson` filter, with the output of Python's `json.dumps(value, ensure_ascii=False)` and its options.
use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::python;

/// Maximum indent, in bytes.
const MAX_INDENT: usize = 16;

/// How JSON is written.
struct Dumps {
    between_items: String,
    after_key: String,
    /// Of one level. `None`: all on one line.
    indent: Option<String>,
    is_ascii: bool,
    level: usize,
    is_empty: bool,
}

impl Dumps {
    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.level).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: u8) -> io::Result<()> {
        self.level += 1;
        self.is_empty = true;
        writer.write_all(&[bracket])
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: u8) -> io::Result<()> {
        self.level -= 1;
        if !std::mem::replace(&mut self.is_empty, false) {
            self.line(writer)?;
        }
        writer.write_all(&[bracket])
    }

    fn item<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.between_items.as_bytes())?;
        }
        self.is_empty = false;
        self.line(writer)
    }
}

impl Formatter for Dumps {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python::float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        fragment.chars().try_for_each(|letter| match letter {
            '\0'..='\x7e' => writer.write_all(&[letter as u8]),
            _ => letter.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}")),
        })
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b'[')
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b']')
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b'{')
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b'}')
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.after_key.as_bytes())
    }
}

/// Writes no HTML escapes, unlike the filter of the same name in plain Jinja.
#[allow(clippy::needless_pass_by_value, reason = "the shape that minijinja calls filters in")]
pub(super) fn filter(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = indent.map(|indent| match (indent.as_usize(), indent.as_str()) {
        (Some(spaces), _) => Ok(" ".repeat(spaces.min(MAX_INDENT))),
        (None, Some(text)) if text.len() <= MAX_INDENT => Ok(text.to_owned()),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "indent must be a small number or a short text")),
    });
    let indent = indent.transpose()?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let [between_items, after_key] = match separators.map(<[String; 2]>::try_from) {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
        Some(Ok(both)) => both,
        Some(Err(_)) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two texts")),
    };
    let is_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorts = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut out = Vec::new();
    let dumps = Dumps { between_items, after_key, indent, is_ascii, level: 0, is_empty: false };
    let mut serializer = Serializer::with_formatter(&mut out, dumps);
    let written = if sorts {
        serde_json::to_value(value).and_then(|mut value| {
            value.sort_all_objects();
            value.serialize(&mut serializer)
        })
    } else {
        value.serialize(&mut serializer)
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error))?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}
