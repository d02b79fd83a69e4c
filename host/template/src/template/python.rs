//! What templates expect of Python where minijinja does otherwise: texts of values, JSON, tests and methods.
use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// How values are written: as `repr` does it, or as `json.dumps`.
struct Style<'a> {
    is_json: bool,
    between_items: &'a str,
    after_key: &'a str,
    /// Of one level. `None`: all on one line.
    indent: Option<String>,
    sorts_keys: bool,
}

const REPR: Style<'_> = Style { is_json: false, between_items: ", ", after_key: ": ", indent: None, sorts_keys: false };

pub(super) fn imitate(environment: &mut Environment<'static>) {
    environment.set_formatter(|out, _, value| Ok(out.write_str(&text(value)?)?));
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // What has a length and is got by index or key.
    environment.add_test("sequence", |value: &Value| value.len().is_some());
    environment.add_filter("string", text);
    environment.add_filter("tojson", to_json);
    environment.set_unknown_method_callback(method);
}

/// `str(value)`.
fn text(value: &Value) -> Result<String, Error> {
    let is_plain = matches!(value.kind(), ValueKind::String | ValueKind::Undefined);
    if is_plain { Ok(value.to_string()) } else { REPR.write(value, 0) }
}

/// The filter `tojson` of `transformers`: `json.dumps` without escapes of letters beyond ASCII, and its options.
#[allow(clippy::needless_pass_by_value, reason = "the shape that minijinja calls filters in")]
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = indent.map(|indent| indent.as_usize().map_or_else(|| indent.to_string(), |spaces| " ".repeat(spaces)));
    let default = [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
    let separators = options.get::<Option<Vec<String>>>("separators")?.unwrap_or(default.to_vec());
    let [between_items, after_key] = &separators[..] else {
        return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two texts"));
    };
    let sorts_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let is_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let json = Style { is_json: true, between_items, after_key, indent, sorts_keys }.write(value, 0)?;
    let escaped = |unit: u16| match u8::try_from(unit) {
        Ok(byte @ ..=0x7e) => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    };
    Ok(if is_ascii { json.encode_utf16().map(escaped).collect() } else { json })
}

impl Style<'_> {
    fn write(&self, value: &Value, level: usize) -> Result<String, Error> {
        let [open, close] = match value.kind() {
            ValueKind::Map => ["{", "}"],
            ValueKind::Seq | ValueKind::Iterable => match value.downcast_object_ref::<Tuple>() {
                Some(tuple) if !self.is_json => ["(", if tuple.len() == 1 { ",)" } else { ")" }],
                _ => ["[", "]"],
            },
            _ => return self.scalar(value),
        };
        let line =
            |level| self.indent.as_ref().map_or_else(String::new, |indent| format!("\n{}", indent.repeat(level)));
        let write_item = |item: &Value| {
            let line = line(level + 1);
            if open != "{" {
                return Ok(line + &self.write(item, level + 1)?);
            }
            // Keys of JSON are texts.
            let key = if self.is_json && item.as_str().is_none() { self.scalar(item)?.into() } else { item.clone() };
            let (key, value) = (self.write(&key, level + 1)?, self.write(&value.get_item(item)?, level + 1)?);
            Ok([&line, &key, self.after_key, &value].concat())
        };
        let mut items: Vec<Value> = value.try_iter()?.collect();
        if self.sorts_keys && open == "{" {
            items.sort();
        }
        let end = if items.is_empty() { String::new() } else { line(level) };
        let written = items.iter().map(write_item).collect::<Result<Vec<_>, Error>>()?.join(self.between_items);
        Ok([open, &written, &end, close].concat())
    }

    fn scalar(&self, value: &Value) -> Result<String, Error> {
        if value.is_number() && !value.is_integer() {
            let number = format!("{:?}", f64::try_from(value.clone())?);
            // Python's exponents have a sign and two digits.
            Ok(match number.split_once('e') {
                Some((digits, exponent)) => format!("{digits}e{:+03}", exponent.parse::<i32>().unwrap_or_default()),
                None => number,
            })
        } else if self.is_json {
            serde_json::to_string(value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
        } else {
            Ok(format!("{value:?}"))
        }
    }
}

/// Methods of texts that minijinja lacks.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let result = unknown_method_callback(state, value, name, args);
    let (Some(text), Some(argument)) = (value.as_str(), args.first().and_then(Value::as_str)) else { return result };
    let parts = |cut: Option<(&str, &str)>, uncut: [&str; 3]| {
        let parts = cut.map_or(uncut, |(left, right)| [left, argument, right]);
        Ok(Value::from_object(Tuple::from(parts.map(Value::from))))
    };
    match name {
        "removeprefix" => Ok(text.strip_prefix(argument).unwrap_or(text).into()),
        "removesuffix" => Ok(text.strip_suffix(argument).unwrap_or(text).into()),
        "partition" => parts(text.split_once(argument), [text, "", ""]),
        "rpartition" => parts(text.rsplit_once(argument), ["", "", text]),
        _ => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(expression: &str) -> String {
        let mut environment = Environment::new();
        imitate(&mut environment);
        let value = environment.compile_expression(expression).unwrap().eval(()).unwrap();
        text(&value).unwrap()
    }

    #[test]
    fn values_have_the_texts_that_python_gives_them() {
        let check = |expression: &str, expected: &str| assert_eq!(eval(expression), expected, "{expression}");
        check(
            "[1, 2.0, 0.0000001, 10000000000000000.0, 123456789.5, 0.0001]",
            "[1, 2.0, 1e-07, 1e+16, 123456789.5, 0.0001]",
        );
        check("{'a': none, 'b': [true, false]}", "{'a': None, 'b': [True, False]}");
        check(r#"['it\'s', 'a\nb', 'say "x"', '\\']"#, r#"["it's", 'a\nb', 'say "x"', '\\']"#);
        check("(1,)", "(1,)");
        check("('a', ())", "('a', ())");
        check("'é'.removeprefix('é') ~ 'ab'.removesuffix('b') ~ 'ab'.removeprefix('b')", "aab");
        check("'a=b=c'.partition('=')", "('a', '=', 'b=c')");
        check("'a=b=c'.rpartition('=')", "('a=b', '=', 'c')");
        check("'abc'.rpartition('=')", "('', '', 'abc')");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let check = |expression: &str, expected: &str| assert_eq!(eval(expression), expected, "{expression}");
        check("{'b': [1.0, 0.0000001, none], 'a': {}} | tojson", r#"{"b": [1.0, 1e-07, null], "a": {}}"#);
        check(r"('é<&', '\n') | tojson", r#"["é<&", "\n"]"#);
        check("'é🙂~' | tojson(ensure_ascii=true)", r#""\u00e9\ud83d\ude42~""#);
        check("{'b': [1, []], 1: {}} | tojson(indent=1)", "{\n \"b\": [\n  1,\n  []\n ],\n \"1\": {}\n}");
        check("[1, {'a': 2}] | tojson(indent='\t', separators=(' ,', '='))", "[\n\t1 ,\n\t{\n\t\t\"a\"=2\n\t}\n]");
        check("{'b': {'d': 1, 'c': 2}, 'a': 3} | tojson(sort_keys=true)", r#"{"a": 3, "b": {"c": 2, "d": 1}}"#);
        check("{true: 1, none: 2, 1.0: 3} | tojson", r#"{"true": 1, "null": 2, "1.0": 3}"#);
        check("[1, 2] | tojson(indent=none, separators=(',', ':'))", "[1,2]");
    }

    #[test]
    fn tests_hold_where_they_do_in_python() {
        for (test, holds) in [("iterable", "[], {}, ''"), ("sequence", "[], {}, '', (1,)")] {
            assert_eq!(eval(&format!("[{holds}] | reject('{test}') | list")), "[]", "{test}");
            assert_eq!(eval(&format!("[none, 1, true] | select('{test}') | list")), "[]", "{test}");
        }
    }
}
