//! What filters and methods cost beyond the one instruction that each of them is: the bytes that they read and write come
//! out of a budget of the rendering. Operators cost an instruction, whatever they work on: nothing can be put in front of
//! them.
use minijinja::filters;
use minijinja::functions::Function;
use minijinja::value::{FunctionArgs, FunctionResult, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::python::{self, MODULO};

/// Bound of the bytes that the filters and methods of one rendering work on. Past it the request is refused.
pub(super) const COST_BYTES: u64 = 256 << 20;
/// What a value costs besides its text.
const VALUE_BYTES: u64 = 16;

/// Of a rendering, so far.
struct Spent(u64);

/// How the cost follows from the arguments, of which the first is what the filter or method is applied to.
#[derive(Debug, Clone, Copy)]
enum Cost {
    /// Whole values, with all that is in them.
    Deep,
    /// The text, or the items and not what is in them.
    Shallow,
    /// The second one into this number of parts.
    Groups,
    Replace,
    /// The items, and the second one between them.
    Join,
    Indent,
    /// A text with widths in it.
    Format,
}

/// Replaces the filters whose cost is not that of an instruction, and the methods of texts and lists.
pub(super) fn meter(environment: &mut Environment<'static>) {
    filter(environment, "sort", filters::sort, Cost::Deep);
    filter(environment, "dictsort", filters::dictsort, Cost::Deep);
    filter(environment, "unique", filters::unique, Cost::Deep);
    filter(environment, "groupby", filters::groupby, Cost::Deep);
    filter(environment, "min", filters::min, Cost::Deep);
    filter(environment, "max", filters::max, Cost::Deep);
    filter(environment, "sum", filters::sum, Cost::Deep);
    filter(environment, "string", |value: &Value| python::text(value), Cost::Deep);
    filter(environment, "pprint", filters::pprint, Cost::Deep);
    filter(environment, "escape", filters::escape, Cost::Deep);
    filter(environment, "e", filters::escape, Cost::Deep);
    filter(environment, "upper", filters::upper, Cost::Deep);
    filter(environment, "lower", filters::lower, Cost::Deep);
    filter(environment, "title", filters::title, Cost::Deep);
    filter(environment, "capitalize", filters::capitalize, Cost::Deep);
    filter(environment, "trim", filters::trim, Cost::Deep);
    filter(environment, "split", filters::split, Cost::Deep);
    filter(environment, "lines", filters::lines, Cost::Deep);
    filter(environment, "tojson", super::json::filter, Cost::Deep);
    filter(environment, "length", filters::length, Cost::Shallow);
    filter(environment, "count", filters::length, Cost::Shallow);
    filter(environment, "reverse", filters::reverse, Cost::Shallow);
    filter(environment, "list", filters::list, Cost::Shallow);
    filter(environment, "first", filters::first, Cost::Shallow);
    filter(environment, "last", filters::last, Cost::Shallow);
    filter(environment, "items", filters::items, Cost::Shallow);
    filter(environment, "map", filters::map, Cost::Shallow);
    filter(environment, "select", filters::select, Cost::Shallow);
    filter(environment, "reject", filters::reject, Cost::Shallow);
    filter(environment, "selectattr", filters::selectattr, Cost::Shallow);
    filter(environment, "rejectattr", filters::rejectattr, Cost::Shallow);
    filter(environment, "batch", filters::batch, Cost::Groups);
    filter(environment, "slice", filters::slice, Cost::Groups);
    filter(environment, "replace", filters::replace, Cost::Replace);
    filter(environment, "join", filters::join, Cost::Join);
    filter(environment, "indent", filters::indent, Cost::Indent);
    filter(environment, "format", filters::format, Cost::Format);
    environment.set_unknown_method_callback(method);
    environment.add_function(MODULO, modulo);
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that minijinja calls functions in")]
fn modulo(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    if left.kind() == ValueKind::String {
        charge(state, Cost::Format, &python::format_arguments(&left, &right))?;
    }
    let result = python::modulo(state, &left, &right)?;
    spend(state, text(&result).len() as u64)?;
    Ok(result)
}

fn filter<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, plain: F, cost: Cost)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let plain = Value::from_function(plain);
    let metered = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let args = args.into_values();
        charge(state, cost, &args)?;
        let result = plain.call(state, &args)?;
        spend(state, text(&result).len() as u64)?;
        Ok(result)
    };
    environment.add_filter(name, metered);
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let is_text = value.kind() == ValueKind::String;
    let cost = match name {
        // They look at an end of the text, or at an entry of a map.
        "startswith" | "endswith" | "get" | "keys" | "values" | "items" => None,
        "join" if is_text => Some(Cost::Join),
        "replace" if is_text => Some(Cost::Replace),
        "format" if is_text => Some(Cost::Format),
        _ => Some(Cost::Deep),
    };
    if let Some(cost) = cost {
        let mut all = vec![value.clone()];
        all.extend_from_slice(args);
        if matches!(cost, Cost::Join) && all.len() > 1 {
            all.swap(0, 1);
        }
        charge(state, cost, &all)?;
    }
    let result = python::method(state, value, name, args)?;
    spend(state, text(&result).len() as u64)?;
    Ok(result)
}

fn charge(state: &mut State<'_, '_>, cost: Cost, args: &[Value]) -> Result<(), Error> {
    let Some(first) = args.first() else { return Ok(()) };
    let argument = |at: usize| args.get(at).map_or("", text).len() as u64;
    let number = |at: usize| args.get(at).and_then(Value::as_usize).map_or(0, |number| number as u64);
    let left = COST_BYTES.saturating_sub(state.get_or_insert_extension(Spent(0)).0);
    let (itself, more) = match cost {
        Cost::Shallow => (shallow(first, left), 0),
        Cost::Deep => (deep(first, left), argument(1)),
        Cost::Groups => (shallow(first, left), number(1).saturating_mul(VALUE_BYTES)),
        Cost::Join => {
            let items = first.len().map_or(left, |items| items as u64);
            (deep(first, left), items.saturating_mul(argument(1)))
        }
        Cost::Replace => {
            let old = args.get(1).map_or("", text);
            let found = text(first).matches(old).count() as u64;
            (deep(first, left), found.saturating_mul(argument(2)))
        }
        Cost::Indent => {
            let named = args.last().and_then(|named| named.get_attr("width").ok()?.as_usize());
            let width = number(1).max(named.map_or(0, |width| width as u64));
            let lines = text(first).split('\n').count() as u64;
            (deep(first, left), lines.saturating_mul(width))
        }
        Cost::Format => (args.iter().map(|arg| deep(arg, left)).sum(), widths(text(first), &args[1..])),
    };
    spend(state, itself.saturating_add(more))
}

fn spend(state: &mut State<'_, '_>, bytes: u64) -> Result<(), Error> {
    let spent = state.get_or_insert_extension(Spent(0));
    spent.0 = spent.0.saturating_add(bytes);
    match spent.0 > COST_BYTES {
        true => Err(Error::new(ErrorKind::OutOfFuel, "filters and methods have worked on too many bytes")),
        false => Ok(()),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn shallow(value: &Value, most: u64) -> u64 {
    match (value.kind(), value.len()) {
        (ValueKind::String, _) => text(value).len() as u64,
        (_, Some(items)) => (items as u64).saturating_mul(VALUE_BYTES),
        (ValueKind::Iterable, None) => deep(value, most),
        (_, None) => VALUE_BYTES,
    }
}

/// The bytes of a value and of all that is in it, as often as it is in it. Stops counting past `most`.
fn deep(value: &Value, most: u64) -> u64 {
    let mut bytes = 0;
    let mut open: Vec<Box<dyn Iterator<Item = Value>>> = vec![Box::new(std::iter::once(value.clone()))];
    while let Some(values) = open.last_mut() {
        let Some(value) = values.next() else {
            open.pop();
            continue;
        };
        bytes += VALUE_BYTES + text(&value).len() as u64;
        if bytes > most {
            break;
        }
        let Some(object) = value.as_object() else { continue };
        if value.kind() == ValueKind::Map {
            open.extend(object.try_iter_pairs().map(|pairs| -> Box<dyn Iterator<Item = Value>> {
                Box::new(pairs.flat_map(|(key, value)| [key, value]))
            }));
        } else if let Ok(items) = value.try_iter() {
            open.push(Box::new(items));
        }
    }
    bytes
}

/// The numbers in a format, which may be widths, and those that it takes from its arguments.
fn widths(format: &str, args: &[Value]) -> u64 {
    let numbers = format.split(|letter: char| !letter.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let written = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    if !format.contains('*') && !format.contains(":{") {
        return written;
    }
    let given = args.iter().filter_map(Value::as_usize);
    given.fold(written, |sum, width| sum.saturating_add(width as u64))
}
