//! Tensors of a record of Burn (`.mpk`), by their paths, whatever the module was that it is of.
use std::collections::BTreeMap;
use std::fmt;

use burn_core::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn_core::tensor::TensorData;
use burn_ndarray::NdArray;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Modules within each other.
const DEPTH: usize = 64;
/// Bytes of a tensor's name.
const NAME_BYTES: usize = 1024;
/// What Burn calls the tensor of a parameter, beside its identity.
const PARAMETER: &str = "param";

/// What a record is: facts about it, and a module.
#[derive(Deserialize)]
struct Saved {
    item: Module,
}

struct Module(BTreeMap<String, TensorData>);

impl<'de> Deserialize<'de> for Module {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut found = BTreeMap::new();
        Part { path: String::new(), depth: 0, found: &mut found }.deserialize(deserializer)?;
        Ok(Self(found))
    }
}

/// Reads a record's bytes.
///
/// # Errors
/// It is no record, or is of a version before 0.14.
pub(crate) fn read(mut bytes: Vec<u8>) -> Result<BTreeMap<String, TensorData>, String> {
    // Tensors say what type their numbers have: it does not matter which precision the recorder is told.
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let saved: Result<Saved, _> = Recorder::<NdArray>::load_item(&recorder, &mut bytes);
    saved.map(|saved| saved.item.0).map_err(|error| format!("is no record of Burn: {error}"))
}

/// A module, a list of them, a parameter, or a setting, which is passed over.
struct Part<'a> {
    path: String,
    depth: usize,
    found: &'a mut BTreeMap<String, TensorData>,
}

impl Part<'_> {
    fn inner(&mut self, name: &str) -> Part<'_> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Part { path, depth: self.depth + 1, found: self.found }
    }

    fn within<E: Error>(&self) -> Result<(), E> {
        if self.depth >= DEPTH {
            return Err(E::custom(format!("its modules are nested deeper than {DEPTH}")));
        }
        if self.path.len() > NAME_BYTES {
            return Err(E::custom(format!("a name in it is longer than {NAME_BYTES} bytes")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a module")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.within()?;
        while let Some(key) = map.next_key::<String>()? {
            if key == PARAMETER {
                let tensor: TensorData = map.next_value()?;
                if self.found.insert(self.path.clone(), tensor).is_some() {
                    return Err(A::Error::custom("a parameter is in it twice"));
                }
            } else {
                map.next_value_seed(self.inner(&key))?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        self.within()?;
        let mut at = 0usize;
        while list.next_element_seed(self.inner(&at.to_string()))?.is_some() {
            at += 1;
        }
        Ok(())
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<(), D::Error> {
        IgnoredAny::deserialize(inner).map(drop)
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<(), D::Error> {
        self.deserialize(inner)
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }
}
