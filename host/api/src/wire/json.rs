//! Parses a body: one JSON object, in memory that its bounds allow.
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Number, Value};

use crate::wire::error::RequestError;
use crate::wire::fields::Fields;
use crate::wire::lists::{FIELDS, IdLists, Lists, tree};
use crate::wire::merge_patch;

/// Values of a body, lists of token ids aside.
pub(crate) const VALUES: usize = 65_536;
/// What a value takes in memory, at most, besides its text; and what an object and a list take besides their members, of
/// which there is room for some from the first one on.
pub(crate) const VALUE_BYTES: usize = 112;
pub(crate) const OBJECT_BYTES: usize = 512;
pub(crate) const LIST_BYTES: usize = 320;
/// What an id takes while it is read and checked.
const ID_BYTES: usize = 8;

/// A body.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Body {
    map: Map<String, Value>,
    lists: Lists,
}

impl Body {
    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields::with_lists(&self.map, &self.lists)
    }

    /// Its fields, and the lists of token ids among them, in whose places the map has empty ones.
    pub(crate) fn into_parts(self) -> (Map<String, Value>, Lists) {
        (self.map, self.lists)
    }

    /// A body of these fields, of which `lists` are not in the map.
    pub(crate) fn of_parts(map: Map<String, Value>, lists: Lists) -> Self {
        Self { map, lists }
    }

    /// Sets a field of which no list is kept apart.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    /// Applies a JSON merge patch.
    pub(crate) fn patch(&mut self, patch: &Self) {
        merge_patch::apply(&mut self.map, &patch.map);
        for field in patch.map.keys() {
            self.lists.set(field, patch.lists.get(field).cloned());
        }
    }
}

impl From<Map<String, Value>> for Body {
    fn from(map: Map<String, Value>) -> Self {
        Self { map, lists: Lists::default() }
    }
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.map.len()))?;
        for (name, value) in &self.map {
            match self.lists.get(name) {
                Some(lists) => map.serialize_entry(name, lists)?,
                None => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// Parses an object. The parser bounds its nesting (128 levels), and the number of values outside lists of token ids.
///
/// # Errors
/// 400 that says where the text is not JSON, or that it has too many values.
pub(crate) fn parse(text: &str) -> Result<Body, RequestError> {
    let mut lists = Lists::default();
    let map = parse_with(text, &mut lists)?;
    Ok(Body { map, lists })
}

/// As [`parse`], but `apart` reads the fields of the body that are not to be in its tree.
///
/// # Errors
/// As [`parse`], and what `apart` says.
pub(crate) fn parse_with(text: &str, apart: &mut impl ReadApart) -> Result<Map<String, Value>, RequestError> {
    let left = Cell::new(VALUES + 1);
    let mut parser = serde_json::Deserializer::from_str(text);
    let root = Root { tree: Tree(&left), apart };
    let parsed = (&mut parser).deserialize_any(root).and_then(|parsed| parser.end().map(|()| parsed));
    match (parsed, apart.error()) {
        (_, Some(error)) => Err(error),
        (Ok(body), None) => body.ok_or(RequestError::NotAnObject),
        (Err(_), None) if left.get() == 0 => Err(RequestError::TooManyValues { max: VALUES }),
        (Err(error), None) => Err(RequestError::Json(error)),
    }
}

/// Reads fields of a body that take less memory than they would in a tree.
pub(crate) trait ReadApart {
    /// Whether it reads this field.
    fn takes(&self, name: &str) -> bool;
    /// Reads such a field. Returns what stands for it in the tree.
    ///
    /// # Errors
    /// The text is not JSON, or [`ReadApart::error`] says what is wrong with the field.
    fn read<'de, D: Deserializer<'de>>(
        &mut self,
        name: &str,
        tree: Tree<'_>,
        deserializer: D,
    ) -> Result<Value, D::Error>;
    /// What is wrong with a field, once that is known.
    fn error(&mut self) -> Option<RequestError> {
        None
    }
}

impl ReadApart for Lists {
    fn takes(&self, name: &str) -> bool {
        FIELDS.contains(&name)
    }

    fn read<'de, D: Deserializer<'de>>(
        &mut self,
        name: &str,
        tree: Tree<'_>,
        deserializer: D,
    ) -> Result<Value, D::Error> {
        let (value, lists) = match Ids(tree).deserialize(deserializer)? {
            Read::Lists(lists) => (Value::Array(Vec::new()), Some(lists)),
            Read::Value(value) => (value, None),
        };
        self.set(name, lists);
        Ok(value)
    }
}

/// Upper bound of what parsing `text` takes in memory.
pub(crate) fn parsed_bytes(text: &str) -> usize {
    let values = text.bytes().filter(|byte| b",[{".contains(byte)).count() + 1;
    let in_tree = values.min(VALUES);
    let count = |begin: u8| text.bytes().filter(|&byte| byte == begin).count();
    let objects = count(b'{').min(VALUES);
    let lists = count(b'[').min(VALUES - objects);
    objects * OBJECT_BYTES + lists * LIST_BYTES + in_tree * VALUE_BYTES + (values - in_tree) * ID_BYTES + text.len()
}

/// Reads a value as a tree, as long as there is room for its values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree<'c>(&'c Cell<usize>);

impl<'c> Tree<'c> {
    /// Counts values, of which there may be only so many.
    pub(crate) fn take<E: Error>(self, values: usize) -> Result<(), E> {
        let left = self.0.get().saturating_sub(values);
        self.0.set(left);
        if left == 0 { Err(E::custom("too many values")) } else { Ok(()) }
    }

    fn members<'de, A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            map.insert(name, access.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }

    fn elements<'de, A: SeqAccess<'de>>(self, mut list: Vec<Value>, mut access: A) -> Result<Value, A::Error> {
        while let Some(value) = access.next_element_seed(self)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// The visits of scalars, which are values of their own.
macro_rules! scalars {
    ($of:expr) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any JSON value")
        }
        fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
            $of(self, Value::Bool(value))
        }
        fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
            $of(self, Value::from(value))
        }
        fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
            $of(self, Number::from_f64(value).map_or(Value::Null, Value::Number))
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
            $of(self, Value::from(value))
        }
        fn visit_string<E: Error>(self, value: String) -> Result<Self::Value, E> {
            $of(self, Value::String(value))
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            $of(self, Value::Null)
        }
    };
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    scalars!(|tree: Self, value| tree.take(1).map(|()| value));

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.take(1).map(|()| Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        self.take(1)?;
        self.elements(Vec::new(), access)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        self.take(1)?;
        self.members(access)
    }
}

/// The whole text. `None`: it is not an object.
struct Root<'c, A> {
    tree: Tree<'c>,
    apart: &'c mut A,
}

impl<'de, A: ReadApart> Visitor<'de> for Root<'_, A> {
    type Value = Option<Map<String, Value>>;

    scalars!(|_: Self, _| Ok(None));

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, access: S) -> Result<Self::Value, S::Error> {
        self.tree.elements(Vec::new(), access).map(|_| None)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut access: M) -> Result<Self::Value, M::Error> {
        let (tree, mut map) = (self.tree, Map::new());
        while let Some(name) = access.next_key::<String>()? {
            let value = match self.apart.takes(&name) {
                true => access.next_value_seed(Apart { name: &name, tree, apart: &mut *self.apart })?,
                false => access.next_value_seed(tree)?,
            };
            map.insert(name, value);
        }
        Ok(Some(map))
    }
}

/// A field that is not for the tree.
struct Apart<'c, A> {
    name: &'c str,
    tree: Tree<'c>,
    apart: &'c mut A,
}

impl<'de, A: ReadApart> DeserializeSeed<'de> for Apart<'_, A> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.apart.read(self.name, self.tree, deserializer)
    }
}

/// Reads a value that may be a list of token ids, or a list of such lists.
#[derive(Clone, Copy)]
struct Ids<'c>(Tree<'c>);

enum Read {
    Lists(IdLists),
    Value(Value),
}

impl<'de> DeserializeSeed<'de> for Ids<'_> {
    type Value = Read;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Read, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Ids<'_> {
    type Value = Read;

    scalars!(|ids: Self, value| ids.0.take(1).map(|()| Read::Value(value)));

    fn visit_u64<E: Error>(self, value: u64) -> Result<Read, E> {
        self.0.take(1).map(|()| Read::Value(Value::from(value)))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Read, A::Error> {
        self.0.visit_map(access).map(Read::Value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Read, A::Error> {
        self.0.take(1)?;
        let (mut ids, mut lists) = (Vec::new(), Vec::new());
        let other = loop {
            match access.next_element_seed(Element(self.0))? {
                Some(One::Id(id)) if lists.is_empty() => ids.push(id),
                Some(One::Ids(list)) if ids.is_empty() => lists.push(list),
                // The values of a mixture count one by one.
                Some(One::Id(id)) => break Value::from(id),
                Some(One::Ids(list)) => break tree(list),
                Some(One::Other(value)) => break value,
                None if !lists.is_empty() => return Ok(Read::Lists(IdLists::Several(lists))),
                None if !ids.is_empty() => return Ok(Read::Lists(IdLists::One(ids))),
                None => return Ok(Read::Value(Value::Array(Vec::new()))),
            }
        };
        let before = ids.len() + lists.iter().map(|list| list.len() + 1).sum::<usize>();
        self.0.take(before + 1)?;
        let mut all: Vec<Value> = ids.into_iter().map(Value::from).chain(lists.into_iter().map(tree)).collect();
        all.push(other);
        self.0.elements(all, access).map(Read::Value)
    }
}

/// Reads an element of such a list.
struct Element<'c>(Tree<'c>);

enum One {
    Id(u32),
    Ids(Vec<u32>),
    Other(Value),
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = One;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<One, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = One;

    scalars!(|element: Self, value| element.0.take(1).map(|()| One::Other(value)));

    fn visit_u64<E: Error>(self, value: u64) -> Result<One, E> {
        match u32::try_from(value) {
            Ok(id) => Ok(One::Id(id)),
            Err(_) => self.0.take(1).map(|()| One::Other(Value::from(value))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<One, A::Error> {
        self.0.visit_map(access).map(One::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<One, A::Error> {
        // A list counts as a value, its ids do not.
        self.0.take(1)?;
        let mut ids = Vec::new();
        let other = loop {
            match access.next_element_seed(Scalar(self.0))? {
                Some(Ok(id)) => ids.push(id),
                Some(Err(value)) => break value,
                None => return Ok(One::Ids(ids)),
            }
        };
        self.0.take(ids.len() + 1)?;
        let mut all: Vec<Value> = ids.into_iter().map(Value::from).collect();
        all.push(other);
        self.0.elements(all, access).map(One::Other)
    }
}

/// Reads an id, or any other value.
struct Scalar<'c>(Tree<'c>);

impl<'de> DeserializeSeed<'de> for Scalar<'_> {
    type Value = Result<u32, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scalar<'_> {
    type Value = Result<u32, Value>;

    scalars!(|scalar: Self, value| scalar.0.take(1).map(|()| Err(value)));

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        match u32::try_from(value) {
            Ok(id) => Ok(Ok(id)),
            Err(_) => self.0.take(1).map(|()| Err(Value::from(value))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        self.0.visit_map(access).map(Err)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        self.0.visit_seq(access).map(Err)
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
