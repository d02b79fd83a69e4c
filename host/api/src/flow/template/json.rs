//! The `tojson` filter, with the output of Python's `json.dumps(value, ensure_ascii=False)`.
use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Maximum indent, in spaces.
const MAX_INDENT: usize = 16;

/// Writes everything on one line, with `, ` and `: ` as separators.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Writes no HTML escapes, unlike the filter of the same name in plain Jinja.
#[allow(clippy::needless_pass_by_value, reason = "the shape that minijinja calls filters in")]
pub(super) fn filter(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    // Accept these because templates pass them. The output is never ASCII-escaped or sorted.
    for name in ["ensure_ascii", "separators", "sort_keys"] {
        let _ = options.get::<Option<Value>>(name)?;
    }
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(spaces) => {
            let spaces = " ".repeat(spaces.min(MAX_INDENT));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error))?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}
