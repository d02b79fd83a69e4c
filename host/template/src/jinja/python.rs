//! What templates expect of Python where minijinja does otherwise: texts of values, tests, methods, and `%` between texts.
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error, State, context, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json;

/// The function that stands for `%`.
pub(super) const MODULO: &str = "modulo__";

pub(super) fn imitate(environment: &mut Environment<'static>) {
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&text(value)?)?),
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // What has a length and is got by index or key.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("tojson", json::filter);
    environment.set_unknown_method_callback(method);
    environment.add_function(MODULO, modulo);
}

/// `str(value)`.
fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            repr(value, &mut out)?;
            Ok(out)
        }
    }
}

/// `repr(value)`.
fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => repr_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            let (open, close) = match value.len() {
                Some(1) if is_tuple => ("(", ",)"),
                _ if is_tuple => ("(", ")"),
                _ => ("[", "]"),
            };
            out.push_str(open);
            for (at, item) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        // Functions and the like: what minijinja writes of them may hold anything.
        ValueKind::Plain => out.push_str("<object>"),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if letter == quote => out.extend(['\\', letter]),
            _ if letter.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(letter))),
            _ => out.push(letter),
        }
    }
    out.push(quote);
}

/// `repr` of a float: the shortest digits that are read back as it, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        let name = if number.is_nan() { "nan" } else { "inf" };
        return if number < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        exponent @ (..-4 | 16..) => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
        _ => format!("{number:?}"),
    }
}

/// Methods of texts and lists.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), [argument]) = (value.as_str(), args)
        && let Some(argument) = argument.as_str()
    {
        match name {
            "removeprefix" => return Ok(Value::from(text.strip_prefix(argument).unwrap_or(text))),
            "removesuffix" => return Ok(Value::from(text.strip_suffix(argument).unwrap_or(text))),
            "partition" | "rpartition" => {
                let is_first = name == "partition";
                let cut = if is_first { text.split_once(argument) } else { text.rsplit_once(argument) };
                let parts = match cut {
                    Some((before, after)) => [before, argument, after],
                    None if is_first => [text, "", ""],
                    None => ["", "", text],
                };
                return Ok(Value::from_object(Tuple::from(parts.map(Value::from))));
            }
            _ => {}
        }
    }
    unknown_method_callback(state, value, name, args)
}

/// `left % right`: a text is a format.
#[allow(clippy::needless_pass_by_value, reason = "the shape that minijinja calls functions in")]
fn modulo(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    if left.as_str().is_none() {
        return state.env().compile_expression("left % right")?.eval(context! { left, right });
    }
    let arguments = match right.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple.clone().into_vec(),
        None => vec![right],
    };
    Value::from_function(filters::format).call(state, &[&[left], &arguments[..]].concat())
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
    fn tests_hold_where_they_do_in_python() {
        for (test, holds) in [("iterable", "[], {}, ''"), ("sequence", "[], {}, '', (1,)")] {
            assert_eq!(eval(&format!("[{holds}] | reject('{test}') | list")), "[]", "{test}");
            assert_eq!(eval(&format!("[none, 1, true] | select('{test}') | list")), "[]", "{test}");
        }
    }
}
