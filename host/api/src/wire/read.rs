//! Reads a body into its type: one JSON object, whose fields have the types and the bounds that the type declares.
//!
//! A request's type is made by [`request!`]; that gives its parsing, its bounds (which the JSON Schema shows, too) and the names of its
//! fields. Errors name the field's path, its value and the bound.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::wire::echo::{self, Shown};
use crate::wire::error::RequestError;
use crate::wire::merge_patch;

/// What a value of a body takes in memory, at most, besides its text; and what an object and a list take besides their members, of
/// which there is room for some from the first one on.
pub(crate) const VALUE_BYTES: usize = 112;
pub(crate) const OBJECT_BYTES: usize = 512;
pub(crate) const LIST_BYTES: usize = 320;
/// Characters of serde's account of a wrong value: of what it is, and of the value.
const WRONG_CHARS: usize = 160;

/// The fields of a request, all of which a body may leave out.
pub(crate) trait Fields: Default + Serialize {
    /// Reads the value that follows if the request has a field of this name. False: it has none.
    ///
    /// # Errors
    /// The value is of another type.
    fn read<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;

    /// The field of this name, if it has one.
    fn known(name: &str) -> Option<&'static str>;

    /// # Errors
    /// What is out of its bounds.
    fn check(&self) -> Result<(), garde::Report>;
}

/// Defines a request: its fields, each with its bounds; those that are the server's own; those whose values have no effect, and those
/// that are refused unless they ask for nothing, with what they look like to others and why; and behind `with` those that it has in
/// common with others. Where both have a field of one name, it is the request's own.
macro_rules! request {
    (
        $(#[$of_type:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }
        $(own { $($(#[$of_own:meta])* $own:ident: $Own:ty,)* })?
        $(ignored { $($(#[$of_ignored:meta])* $ignored:ident: $takes:tt,)* })?
        $(refused { $($refused:ident: $looks:tt, $why:tt;)* })?
        $(with $common:ident: $Common:ty)?
    ) => {
        $(#[$of_type])*
        #[serde_with::skip_serializing_none]
        #[derive(Debug, Clone, Default, serde::Serialize, schemars::JsonSchema, garde::Validate)]
        #[garde(allow_unvalidated)]
        pub(crate) struct $name {
            // First, so that the request's own ones have precedence in its schema, too.
            $(#[serde(flatten)] #[garde(skip)] pub(crate) $common: $Common,)?
            $(
                $(#[$of_field])*
                pub(crate) $field: Option<$type>,
            )*
            $($(
                $(#[$of_own])*
                #[schemars(extend("x-own" = true))]
                pub(crate) $own: Option<$Own>,
            )*)?
            $($(
                $(#[$of_ignored])*
                #[schemars(with = $takes, extend("x-support" = "ignored"))]
                pub(crate) $ignored: Option<serde_json::Value>,
            )*)?
            $($(
                #[garde(custom($crate::wire::read::rules::refused($why)))]
                #[schemars(with = $looks, extend("x-support" = "refused"))]
                pub(crate) $refused: Option<serde_json::Value>,
            )*)?
        }

        impl $crate::wire::read::Fields for $name {
            fn read<'de, A: serde::de::MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
                match name {
                    $(stringify!($field) => self.$field = map.next_value()?,)*
                    $($(stringify!($own) => self.$own = map.next_value()?,)*)?
                    $($(stringify!($ignored) => self.$ignored = map.next_value()?,)*)?
                    $($(stringify!($refused) => self.$refused = map.next_value()?,)*)?
                    $(_ => return self.$common.read(name, map),)?
                    #[allow(unreachable_patterns, reason = "where there are no common fields")]
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn known(name: &str) -> Option<&'static str> {
                let own = [
                    $(stringify!($field),)*
                    $($(stringify!($own),)*)?
                    $($(stringify!($ignored),)*)?
                    $($(stringify!($refused),)*)?
                ];
                let found = own.into_iter().find(|own| *own == name);
                $(let found = found.or_else(|| <$Common as $crate::wire::read::Fields>::known(name));)?
                found
            }

            fn check(&self) -> Result<(), garde::Report> {
                garde::Validate::validate(self)?;
                $(self.$common.check()?;)?
                Ok(())
            }
        }
    };
}
pub(crate) use request;

/// A body, read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body<T> {
    pub(crate) request: T,
    /// Fields that the request does not have. Policies see them.
    pub(crate) unknown: Map<String, Value>,
}

/// Reads a body.
///
/// # Errors
/// 400: it is no JSON, no object, or a field is of another type or out of its bounds.
pub(crate) fn read<T: Fields>(text: &str) -> Result<Body<T>, RequestError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let body: Body<T> = deserialize(text)?;
    body.request.check().map_err(|report| out_of_bounds(&report, text))?;
    Ok(body)
}

/// Reads JSON of any type.
///
/// # Errors
/// 400: it is none, or something in it is of another type.
pub(crate) fn deserialize<T: DeserializeOwned>(text: &str) -> Result<T, RequestError> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut parser).map_err(|error| of_another_type(error, text))?;
    parser.end().map_err(RequestError::Json)?;
    Ok(value)
}

/// Upper bound of what reading `text` takes in memory.
pub(crate) fn read_bytes(text: &str) -> usize {
    let count = |begins: &[u8]| text.bytes().filter(|byte| begins.contains(byte)).count();
    (count(b",[{") + 1) * VALUE_BYTES + count(b"{") * OBJECT_BYTES + count(b"[") * LIST_BYTES + text.len()
}

impl<T: Fields> Body<T> {
    /// The body as policies read it.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The body after a JSON merge patch.
    ///
    /// # Errors
    /// 400: the patch is no JSON object, or what it makes of the body cannot be read.
    pub(crate) fn patched(&self, patch: &str) -> Result<Self, RequestError> {
        let mut map = deserialize::<Map<String, Value>>(&self.to_json())?;
        merge_patch::apply(&mut map, &deserialize(patch)?);
        read(&Value::Object(map).to_string())
    }

    /// Checks one that no text was read into.
    ///
    /// # Errors
    /// 400: something is out of its bounds.
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        self.request.check().map_err(|report| out_of_bounds(&report, &self.to_json()))
    }

    /// The value of a field.
    pub(crate) fn member(&self, name: &str) -> Option<Value> {
        serde_json::to_value(self).ok()?.get_mut(name).map(Value::take)
    }

    /// The names of fields that nobody knows.
    pub(crate) fn unknown_names(&self) -> impl Iterator<Item = &str> {
        self.unknown.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }
}

impl<T: Serialize> Serialize for Body<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a, T> {
            #[serde(flatten)]
            request: &'a T,
            #[serde(flatten)]
            unknown: &'a Map<String, Value>,
        }
        Whole { request: &self.request, unknown: &self.unknown }.serialize(serializer)
    }
}

impl<'de, T: Fields> Deserialize<'de> for Body<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(Body<T>);

        impl<'de, T: Fields> Visitor<'de> for Members<T> {
            type Value = Body<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body<T>, A::Error> {
                let (Self(mut body), mut names) = (self, BTreeSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !body.request.read(&name, &mut map)? {
                        body.unknown.insert(name.clone(), map.next_value()?);
                    }
                    if names.contains(&name) {
                        return Err(A::Error::custom(format!("{DUPLICATE}{name}`")));
                    }
                    names.insert(name);
                }
                Ok(body)
            }
        }

        deserializer.deserialize_map(Members(Body { request: T::default(), unknown: Map::new() }))
    }
}

/// How `serde_json` begins what it says where no value begins.
const NO_VALUE: &str = "expected value at ";
/// How serde begins its messages about a field that is missing, and about one that comes twice.
const MISSING: &str = "missing field `";
const DUPLICATE: &str = "duplicate field `";

fn of_another_type(error: serde_path_to_error::Error<serde_json::Error>, text: &str) -> RequestError {
    let path = match error.path().iter().next() {
        None => String::new(),
        Some(_) => error.path().to_string(),
    };
    let error = error.into_inner();
    if !error.is_data() {
        // What serde_json says of a value that is no text where an enum's name is expected, too.
        let is_json = error.to_string().starts_with(NO_VALUE) && serde_json::from_str::<IgnoredAny>(text).is_ok();
        return match is_json && !path.is_empty() {
            true => RequestError::field(path.clone(), format!("{path} must be a string")),
            false => RequestError::Json(error),
        };
    }
    let text = error.to_string();
    // Where in the text it is says less than the path.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let member = |name: &str| {
        let name = name.strip_suffix('`').unwrap_or(name);
        if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
    };
    let (path, why) = match (text.strip_prefix(MISSING), text.strip_prefix(DUPLICATE)) {
        (Some(name), _) => (member(name), "is required".to_owned()),
        (_, Some(name)) => (member(name), "comes twice".to_owned()),
        _ if path.is_empty() => return RequestError::NotAnObject,
        _ => (path, in_jsons_words(text)),
    };
    let path = Shown(&path).to_string();
    RequestError::field(path.clone(), format!("{path} {why}"))
}

/// serde names the types of Rust.
fn in_jsons_words(text: &str) -> String {
    let Some((what, expected)) = text.rsplit_once(", expected ") else {
        return echo::cut(text, WRONG_CHARS).into_owned();
    };
    let expected = match expected {
        "f64" | "f32" => "a number",
        "u32" | "u64" | "i64" | "usize" => "a whole number",
        "a sequence" => "a list",
        "a map" => "an object",
        tagged if tagged.contains("tagged enum ") => "an object with a type",
        structure if structure.starts_with("struct ") => "an object",
        other => other,
    };
    let got =
        ["invalid type: ", "invalid value: ", "unknown variant "].iter().find_map(|begin| what.strip_prefix(begin));
    format!("must be {expected}, got {}", echo::cut(got.unwrap_or(what), WRONG_CHARS))
}

/// The first field that is out of its bounds, with its value.
fn out_of_bounds(report: &garde::Report, text: &str) -> RequestError {
    let Some((path, error)) = report.iter().next() else { return RequestError::NotAnObject };
    let path = Shown(&path.to_string()).to_string();
    let pointer = format!("/{}", path.replace("[", "/").replace(']', "").replace('.', "/"));
    let value = serde_json::from_str::<Value>(text).ok();
    let got = match value.as_ref().and_then(|value| value.pointer(&pointer)) {
        None | Some(Value::Null) => String::new(),
        Some(Value::Array(list)) => format!(", got {} of them", list.len()),
        Some(Value::Object(map)) => format!(", got {} members", map.len()),
        Some(value) => format!(", got {}", Shown(&value.to_string())),
    };
    RequestError::field(path.clone(), format!("{path} {}{got}", in_our_words(error.message())))
}

/// What is said of a field whose value garde finds out of its bounds.
fn in_our_words(said: &str) -> Cow<'_, str> {
    if said == "not set" {
        return "is required".into();
    }
    let bounds = [
        ("greater than ", "must be at most "),
        ("lower than ", "must be at least "),
        ("length is greater than ", "must have at most "),
        ("length is lower than ", "must have at least "),
    ];
    let bound = |(begin, must): (&str, &str)| said.strip_prefix(begin).map(|bound| format!("{must}{bound}"));
    bounds.into_iter().find_map(bound).map_or(said.into(), Cow::Owned)
}

/// Rules of fields, for `garde`.
pub(crate) mod rules {
    use serde_json::Value;

    /// A field that asks for what is not served here, which `why` says behind its name. One that asks for nothing is taken.
    pub(crate) fn refused(why: &'static str) -> impl FnOnce(&Option<Value>, &()) -> garde::Result {
        move |value, &()| match value.as_ref().is_none_or(asks_for_nothing) {
            true => Ok(()),
            false => Err(garde::Error::new(why)),
        }
    }

    pub(crate) fn asks_for_nothing(value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(text) => text.is_empty(),
            Value::Bool(true) | Value::Number(_) => false,
        }
    }

    /// Visible ASCII.
    pub(crate) fn is_visible(text: &str) -> bool {
        text.bytes().all(|byte| byte.is_ascii_graphic())
    }
}
