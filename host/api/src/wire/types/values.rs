//! Values that JSON writes in several ways.
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use garde::rules::length::simple::HasSimpleLength;
use garde::rules::range::{Bounds, OutOfBounds};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

/// A whole number, which may be written with a fraction of 0. One beyond 64 bits is out of any bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Serialize)]
pub(crate) struct Whole(pub(crate) i64);

impl Whole {
    /// The number, of which its bounds have left a non-negative one; the nearest that there is.
    pub(crate) fn get(self) -> u32 {
        u32::try_from(self.0.max(0)).unwrap_or(u32::MAX)
    }
}

impl Bounds for Whole {
    type Size = f64;

    const MIN: f64 = f64::MIN;
    const MAX: f64 = f64::MAX;

    fn validate_bounds(&self, lower_bound: f64, upper_bound: f64) -> Result<(), OutOfBounds> {
        (self.0 as f64).validate_bounds(lower_bound, upper_bound)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        integer(deserializer).map(|number| Self(number.clamp(i64::MIN.into(), i64::MAX.into()) as i64))
    }
}

/// The seed of a random stream: any integer of 64 bits, signed or not. `None`: -1, which asks for a random one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Seed(pub(crate) Option<u64>);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = integer(deserializer)?;
        let seed =
            match number {
                -1 => None,
                _ => Some(u64::try_from(number).or_else(|_| i64::try_from(number).map(i64::cast_unsigned)).map_err(
                    |_| D::Error::invalid_value(Unexpected::Float(number as f64), &"an integer of 64 bits"),
                )?),
            };
        Ok(Self(seed))
    }
}

/// A whole number; one that no integer holds is beyond all 64 bits.
fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i128, D::Error> {
    struct Integer;

    impl Visitor<'_> for Integer {
        type Value = i128;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<i128, E> {
            match number.fract() == 0.0 {
                true => Ok(number as i128),
                false => Err(E::invalid_type(Unexpected::Float(number), &self)),
            }
        }
    }

    deserializer.deserialize_any(Integer)
}

macro_rules! inline_integer {
    ($($type:ty),*) => {
        $(impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "integer"})
            }
        })*
    };
}

inline_integer!(Whole, Seed);

/// A text, or a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum TextOrList<T> {
    Text(String),
    List(Vec<T>),
}

/// A text, or an object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum TextOrObject<T> {
    Text(String),
    Object(T),
}

impl<T> HasSimpleLength for TextOrList<T> {
    /// A text counts as one.
    fn length(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::List(list) => list.len(),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = TextOrList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOrList::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(access)).map(TextOrList::List)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOrObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = TextOrObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOrObject::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(access)).map(TextOrObject::Object)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for TextOrList<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("TextOrListOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<Vec<T>>()]})
    }
}

impl<T: JsonSchema> JsonSchema for TextOrObject<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("TextOr{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<T>()]})
    }
}

/// Texts or token ids: one, or a list of either.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl HasSimpleLength for Input {
    /// Texts, or lists of ids.
    fn length(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }
}

impl Input {
    /// Whether it has token ids, which mean something to one model alone.
    pub(crate) fn has_ids(&self) -> bool {
        matches!(self, Self::Tokens(_) | Self::TokenLists(_))
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        impl<'de> Visitor<'de> for Kinds {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings, a list of token ids, or a list of such lists")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Input, E> {
                Ok(Input::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Input, A::Error> {
                // The first one tells what the others are.
                match access.next_element()? {
                    None => Ok(Input::Texts(Vec::new())),
                    Some(First::Text(text)) => rest(text, access).map(Input::Texts),
                    Some(First::Id(id)) => rest(id, access).map(Input::Tokens),
                    Some(First::Ids(ids)) => rest(ids, access).map(Input::TokenLists),
                }
            }
        }

        deserializer.deserialize_any(Kinds)
    }
}

fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut access: A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = access.next_element()? {
        all.push(next);
    }
    Ok(all)
}

/// The first element of an input's list.
enum First {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        impl<'de> Visitor<'de> for Kinds {
            type Value = First;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<First, E> {
                Ok(First::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<First, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(id), &"a token id");
                u32::try_from(id).map(First::Id).map_err(wrong)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<First, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(access)).map(First::Ids)
            }
        }

        deserializer.deserialize_any(Kinds)
    }
}
