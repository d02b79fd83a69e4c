//! Walks a schema along its keywords and references.
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::exclusive;
use super::keywords::{FORMATS, Keyword, TYPES, is_annotation, keyword, visit};
use super::path::{Path, decoded};
use crate::grammar::error::{GrammarError, GrammarFault, shown};
use crate::limits;
use crate::shown::did_you_mean;

/// A schema that the compiler may have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checked {
    /// With all that it refers to under `$defs`.
    pub(crate) schema: Value,
    /// Some of the schemas in it, innermost first, with their paths and without `$defs`: to find out which one the compiler refuses.
    pub(crate) parts: Vec<(String, Value)>,
}

/// Reads a schema from its text.
///
/// # Errors
/// It is too long, no JSON, no schema, over a bound, or not supported.
pub(crate) fn check(text: &str) -> Result<Checked, GrammarError> {
    if text.len() > limits::GRAMMAR_BYTES {
        let max = limits::GRAMMAR_BYTES;
        return Err(GrammarError::too_large(format!("a schema of {} bytes, at most {max}", text.len())));
    }
    let root: Value =
        serde_json::from_str(text).map_err(|error| GrammarError::invalid(format!("the schema is no JSON: {error}")))?;
    check_value(&root)
}

/// The same, of a schema that was read.
///
/// # Errors
/// It is no schema, over a bound, or not supported.
pub(crate) fn check_value(root: &Value) -> Result<Checked, GrammarError> {
    walk(root, false)
}

/// A schema of which what is not supported is left out: it takes all that the whole one takes, and more. `None`: it is no schema, or
/// over a bound.
pub(crate) fn loosened(root: &Value) -> Option<Value> {
    walk(root, true).ok().map(|checked| checked.schema)
}

fn walk(root: &Value, leaves_out: bool) -> Result<Checked, GrammarError> {
    let mut walk = Walk {
        root,
        leaves_out,
        nodes: 0,
        names: HashMap::new(),
        defs: Map::new(),
        one_ofs: 0,
        has_one_of: false,
        parts: Vec::new(),
    };
    let mut schema = walk.schema(root, &Path::default())?;
    let Walk { mut defs, mut parts, has_one_of, .. } = walk;
    if has_one_of {
        let known = defs.clone();
        let parts = parts.iter_mut().map(|(_, part)| part);
        exclusive::relax([&mut schema].into_iter().chain(defs.values_mut()).chain(parts), &known);
    }
    if let (Value::Object(map), false) = (&mut schema, defs.is_empty()) {
        map.insert("$defs".to_owned(), Value::Object(defs));
    }
    Ok(Checked { schema, parts })
}

/// Multiples are told apart to a millionth.
const MULTIPLE_SCALE: f64 = 1e6;

/// Digits that any double gives back.
const NUMBER_DIGITS: usize = 15;

/// Parts that are kept, and the schemas and values up to which they are: each is a copy.
const PARTS: usize = 64;
const PARTS_NODES: usize = 1024;

struct Walk<'a> {
    root: &'a Value,
    /// What is not supported is left out instead of refused.
    leaves_out: bool,
    /// Schemas and values so far.
    nodes: usize,
    /// What references were called, by their pointers.
    names: HashMap<String, String>,
    defs: Map<String, Value>,
    /// Of `oneOf` it is inside so many.
    one_ofs: usize,
    has_one_of: bool,
    parts: Vec<(String, Value)>,
}

impl Walk<'_> {
    fn schema(&mut self, value: &Value, path: &Path) -> Result<Value, GrammarError> {
        self.count(1, path)?;
        if path.depth() >= limits::SCHEMA_DEPTH {
            let max = limits::SCHEMA_DEPTH;
            return Err(GrammarError::too_large(format!("over {max} schemas within each other")).at(path.as_str()));
        }
        let map = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(map) => map,
            _ => return Err(GrammarError::invalid("a schema is an object, true or false").at(path.as_str())),
        };
        let mut out = Map::new();
        // Keywords between two that apply in their own places, which the compiler visits together.
        let mut together: Vec<(&String, &Value)> = Vec::new();
        for (name, value) in map {
            let place = path.name(name);
            let known = keyword(name).ok_or_else(|| unknown(name, &place));
            let says = known.and_then(|known| Ok((known, says_nothing(known, name, map, &place)?)));
            let known = match says {
                Err(error) if self.leaves_out && error.fault == GrammarFault::Unsupported => continue,
                says => match says? {
                    (_, true) => continue,
                    (known, false) => known,
                },
            };
            if visit(name).is_some() {
                together.push((name, value));
                continue;
            }
            self.take_together(&mut together, &mut out, path)?;
            self.put(known, (name, value), &mut out, path)?;
        }
        self.take_together(&mut together, &mut out, path)?;
        let schema = Value::Object(out);
        if self.parts.len() < PARTS && self.nodes <= PARTS_NODES {
            self.parts.push((path.as_str().to_owned(), schema.clone()));
        }
        Ok(schema)
    }

    fn take_together(
        &mut self,
        together: &mut Vec<(&String, &Value)>,
        out: &mut Map<String, Value>,
        path: &Path,
    ) -> Result<(), GrammarError> {
        together.sort_by_key(|(name, _)| visit(name));
        for (name, value) in together.drain(..) {
            let known = keyword(name).ok_or_else(|| unknown(name, &path.name(name)))?;
            self.put(known, (name, value), out, path)?;
        }
        Ok(())
    }

    /// Checks a keyword's value, and puts it into the schema.
    fn put(
        &mut self,
        known: Keyword,
        (name, value): (&str, &Value),
        out: &mut Map<String, Value>,
        path: &Path,
    ) -> Result<(), GrammarError> {
        match self.keyword(known, value, &path.name(name)) {
            Err(error) if self.leaves_out && error.fault == GrammarFault::Unsupported => {}
            checked => _ = out.insert(name.to_owned(), checked?),
        }
        Ok(())
    }

    fn keyword(&mut self, known: Keyword, value: &Value, place: &Path) -> Result<Value, GrammarError> {
        let invalid = |why: &str| Err(GrammarError::invalid(why).at(place.as_str()));
        let same = Ok(value.clone());
        match (known, value) {
            (Keyword::Schema, _) => self.schema(value, &place.inner()),
            (Keyword::SchemaOrSchemas, Value::Array(list)) => self.schemas(list, place),
            (Keyword::SchemaOrSchemas, _) => self.schema(value, &place.inner()),
            (Keyword::Schemas, Value::Array(list)) if !list.is_empty() => self.schemas(list, place),
            (Keyword::Schemas, _) => invalid("must be a list of at least one schema"),
            (Keyword::Named, Value::Object(named)) => self.named(named, place),
            (Keyword::Named, _) => invalid("must be an object whose values are schemas"),
            (Keyword::Reference, Value::String(to)) => self.reference(to, place),
            (Keyword::Reference, _) => invalid("must be a string"),
            (Keyword::Type, _) => types(value, place),
            (Keyword::Values, Value::Array(list)) if !list.is_empty() => {
                self.values(value, place)?;
                same
            }
            (Keyword::Values, _) => invalid("must be a list of at least one value"),
            (Keyword::Value, _) => {
                self.values(value, place)?;
                same
            }
            (Keyword::Required, Value::Array(list)) if list.iter().all(Value::is_string) => {
                self.count(list.len(), place)?;
                same
            }
            (Keyword::Required, _) => invalid("must be a list of strings"),
            (Keyword::Count, _) => counted(value, place),
            (Keyword::Number | Keyword::Exclusive, Value::Number(number)) => self.bound_of_numbers(number, place),
            (Keyword::Exclusive, Value::Bool(_)) => same,
            (Keyword::Number | Keyword::Exclusive, _) => invalid("must be a number"),
            (Keyword::Multiple, _) => multiple(value, place),
            (Keyword::Pattern | Keyword::Format, Value::String(_)) => same,
            (Keyword::Pattern | Keyword::Format, _) => invalid("must be a string"),
            (Keyword::Annotation | Keyword::FalseOnly | Keyword::Identity | Keyword::Unsupported, _) => same,
        }
    }

    /// The compiler writes out all digits that a bound has, on both sides of its point. A looser one is cut to the largest size, which
    /// is stricter. Not within `oneOf`, where a value is to match no other schema.
    fn bound_of_numbers(&self, number: &serde_json::Number, place: &Path) -> Result<Value, GrammarError> {
        let value = number.as_f64().unwrap_or_default();
        let (smallest, largest) = (limits::SCHEMA_NUMBER.min, limits::SCHEMA_NUMBER.max);
        let outward = if place.as_str().ends_with("inimum") { -1.0 } else { 1.0 };
        if value * outward > largest && self.one_ofs == 0 {
            return Ok(Value::from((largest * outward) as i64));
        }
        if !number.is_f64() {
            is_exact(number, place)?;
        }
        // What was read from JSON may be off by its last bit.
        if value == 0.0 || (value.abs() >= smallest * (1.0 - 1e-12) && value.abs() <= largest) {
            return Ok(Value::Number(number.clone()));
        }
        let why = format!("{number}, in size from {smallest:e} to {largest:e}");
        Err(GrammarError::too_large(why).at(place.as_str()))
    }

    fn schemas(&mut self, list: &[Value], place: &Path) -> Result<Value, GrammarError> {
        let one_of = usize::from(place.as_str().ends_with("oneOf"));
        self.one_ofs += one_of;
        self.has_one_of |= one_of > 0;
        let checked = list.iter().enumerate().map(|(at, schema)| self.schema(schema, &place.index(at).inner()));
        let checked = checked.collect::<Result<Vec<_>, _>>().map(Value::Array);
        self.one_ofs -= one_of;
        checked
    }

    fn named(&mut self, named: &Map<String, Value>, place: &Path) -> Result<Value, GrammarError> {
        let one =
            |(name, schema): (&String, &Value)| Ok((name.clone(), self.schema(schema, &place.name(name).inner())?));
        named.iter().map(one).collect::<Result<_, _>>().map(Value::Object)
    }

    fn reference(&mut self, to: &str, place: &Path) -> Result<Value, GrammarError> {
        let Some(pointer) = to.strip_prefix('#').map(decoded).filter(|to| to.is_empty() || to.starts_with('/')) else {
            let why = format!("\"{}\" does not lie in this schema (#/...)", shown(to));
            return Err(GrammarError::unsupported(why).at(place.as_str()));
        };
        let pointer = if pointer == "/" { String::new() } else { pointer };
        let name = match self.names.get(&pointer) {
            Some(name) => name.clone(),
            None => self.referenced(&pointer, to, place)?,
        };
        Ok(Value::String(format!("#/$defs/{name}")))
    }

    /// Walks what is referred to for the first time, as the compiler does.
    fn referenced(&mut self, pointer: &str, to: &str, place: &Path) -> Result<String, GrammarError> {
        let Some(target) = self.root.pointer(pointer) else {
            return Err(
                GrammarError::invalid(format!("\"{}\" refers to nothing in this schema", shown(to))).at(place.as_str())
            );
        };
        let name = format!("r{}", self.names.len());
        self.names.insert(pointer.to_owned(), name.clone());
        let named = pointer.split('/').skip(1).fold(place.root(), |path, part| path.name(part));
        let schema = self.schema(target, &named.inner())?;
        self.defs.insert(name.clone(), schema);
        Ok(name)
    }

    /// Counts a value with all that it is made of.
    fn values(&mut self, value: &Value, place: &Path) -> Result<(), GrammarError> {
        self.count(1, place)?;
        match value {
            Value::Array(list) => list.iter().try_for_each(|value| self.values(value, place)),
            Value::Object(map) => map.values().try_for_each(|value| self.values(value, place)),
            Value::Number(number) => is_exact(number, place),
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize, place: &Path) -> Result<(), GrammarError> {
        self.nodes += more;
        if self.nodes > limits::SCHEMA_NODES {
            let max = limits::SCHEMA_NODES;
            return Err(GrammarError::too_large(format!("over {max} schemas and values in all")).at(place.as_str()));
        }
        Ok(())
    }
}

/// Whether the keyword can be left out of this schema.
fn says_nothing(known: Keyword, name: &str, schema: &Map<String, Value>, place: &Path) -> Result<bool, GrammarError> {
    let refused = |why: &str| Err(GrammarError::unsupported(why).at(place.as_str()));
    let value = &schema[name];
    match (known, value) {
        (Keyword::Unsupported, _) if allows_all(name, schema) => Ok(true),
        (Keyword::Annotation, _) | (Keyword::FalseOnly, Value::Bool(false)) => Ok(true),
        (Keyword::FalseOnly, Value::Bool(true)) if name == "nullable" => {
            refused("keyword not supported; add \"null\" to the schema's types")
        }
        (Keyword::Unsupported, _) | (Keyword::FalseOnly, Value::Bool(true)) => refused("keyword not supported"),
        (Keyword::FalseOnly, _) => Err(GrammarError::invalid("must be true or false").at(place.as_str())),
        // What generators write of a double that has no bound.
        (Keyword::Number | Keyword::Exclusive, Value::Number(number)) => Ok(match (name, number.as_f64()) {
            ("minimum" | "exclusiveMinimum", Some(number)) => number <= -f64::MAX,
            (_, Some(number)) => number >= f64::MAX,
            (_, None) => false,
        }),
        // Of a format that is not known, as of one of numbers, nothing is checked.
        (Keyword::Format, Value::String(format)) => Ok(!FORMATS.contains(&format.as_str())),
        // What old generators write at every schema.
        (Keyword::Identity, Value::String(id)) if place.depth() == 0 || id.starts_with('#') => Ok(true),
        (Keyword::Identity, _) => refused("keyword not supported below the root"),
        _ => Ok(false),
    }
}

/// Whether a keyword that is not supported forbids nothing here.
fn allows_all(name: &str, schema: &Map<String, Value>) -> bool {
    // A schema that any value follows.
    let any = |value: &Value| {
        *value == Value::Bool(true) || value.as_object().is_some_and(|map| map.keys().all(|name| is_annotation(name)))
    };
    let value = &schema[name];
    match name {
        // Names are strings.
        "propertyNames" => {
            let is_plain =
                |(name, value): (&String, &Value)| is_annotation(name) || (name == "type" && value == "string");
            any(value) || value.as_object().is_some_and(|map| map.iter().all(is_plain))
        }
        // Whatever is not named may be forbidden already.
        "unevaluatedProperties" => any(value) || schema.get("additionalProperties") == Some(&Value::Bool(false)),
        "unevaluatedItems" => any(value),
        "not" => *value == Value::Bool(false),
        "if" => ["then", "else"].iter().all(|name| schema.get(*name).is_none_or(any)),
        "then" | "else" => !schema.contains_key("if") || any(value),
        "minContains" | "maxContains" => !schema.contains_key("contains"),
        "dependencies" | "dependentRequired" | "dependentSchemas" => value.as_object().is_some_and(Map::is_empty),
        "$recursiveAnchor" => *value == Value::Bool(false),
        _ => false,
    }
}

fn unknown(name: &str, place: &Path) -> GrammarError {
    let supported = super::keywords::KEYWORDS.iter().filter(|(_, kind)| *kind != Keyword::Unsupported);
    let hint = did_you_mean(name, "", supported.map(|(name, _)| *name));
    let hint = if hint.starts_with("; did") { hint } else { String::new() };
    GrammarError::unsupported(format!("keyword not supported{hint}")).at(place.as_str())
}

/// In the order in which the compiler takes them where a schema names none: the values are the same in any order.
fn types(value: &Value, place: &Path) -> Result<Value, GrammarError> {
    let known = |value: &Value| value.as_str().and_then(|name| TYPES.iter().position(|known| *known == name));
    let list = match value {
        Value::Array(list) if !list.is_empty() => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut found = Vec::new();
    for one in list {
        let Some(at) = known(one) else {
            let why = format!("\"{}\" is none of {}", shown(one.as_str().unwrap_or("?")), TYPES.join(", "));
            return Err(GrammarError::invalid(why).at(place.as_str()));
        };
        found.push(at);
    }
    found.sort_unstable();
    found.dedup();
    let name = |at: usize| Value::from(TYPES.get(at).copied().unwrap_or_default());
    Ok(match found.as_slice() {
        [one] => name(*one),
        all => all.iter().map(|at| name(*at)).collect(),
    })
}

/// Multiples are told apart to a millionth.
fn multiple(value: &Value, place: &Path) -> Result<Value, GrammarError> {
    let Some(number) = value.as_f64().filter(|number| *number > 0.0) else {
        return Err(GrammarError::invalid("must be a number above 0").at(place.as_str()));
    };
    let scaled = number * MULTIPLE_SCALE;
    if (scaled - scaled.round()).abs() <= scaled * 1e-12 && scaled >= 0.5 {
        return Ok(value.clone());
    }
    Err(GrammarError::unsupported("at most 6 digits behind its decimal point are supported").at(place.as_str()))
}

fn counted(value: &Value, place: &Path) -> Result<Value, GrammarError> {
    let max = limits::GRAMMAR_REPETITIONS;
    // 3.0 is a whole number, too.
    let whole = value.as_u64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64));
    match whole {
        Some(count) if count <= max => Ok(Value::from(count)),
        Some(count) => Err(GrammarError::too_large(format!("{count}, at most {max}")).at(place.as_str())),
        None => Err(GrammarError::invalid(format!("must be a whole number from 0 to {max}")).at(place.as_str())),
    }
}

/// The compiler has numbers as doubles, and what is read from JSON may be off by the last bit of one: it would write another number.
fn is_exact(number: &serde_json::Number, place: &Path) -> Result<(), GrammarError> {
    let exact = match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(whole), ..) => (whole as f64) as i128 == i128::from(whole),
        (_, Some(whole), _) => (whole as f64) as i128 == i128::from(whole),
        (.., Some(double)) => {
            format!("{double:e}").bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit).count()
                <= NUMBER_DIGITS
        }
        _ => false,
    };
    let why = || {
        format!(
            "{number}: only whole numbers that a double holds, and others of at most {NUMBER_DIGITS} digits, are supported"
        )
    };
    if exact { Ok(()) } else { Err(GrammarError::unsupported(why()).at(place.as_str())) }
}
