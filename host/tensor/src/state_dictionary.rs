//! Finds the tensors of a state dictionary among the values of a pickle, and checks that each lies within its storage.
use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::shown;
use crate::globals::{Global, Numbers};
use crate::pickle::{NESTING, Pickle, Tuple, VALUES, Value};

/// Tensors of a state dictionary, or of another file of weights.
pub(crate) const TENSORS: usize = 65_536;
/// Bytes of a tensor's name.
pub(crate) const NAME_BYTES: usize = 1024;
/// Axes of a tensor, as PyTorch has them at most.
pub(crate) const AXES: usize = 64;
/// Digits of a storage's key: PyTorch counts them, or takes an address.
const KEY_BYTES: usize = 20;

/// A tensor, as a pickle describes it.
#[derive(Debug, PartialEq)]
pub(crate) struct Described<'a> {
    /// The key of its storage: digits.
    pub(crate) storage: &'a str,
    pub(crate) numbers: &'static Numbers,
    /// Numbers of the storage.
    len: u64,
    /// Of the tensor's first number in the storage.
    offset: u64,
    pub(crate) shape: Vec<usize>,
    /// How far apart in the storage the numbers along each axis are.
    strides: Vec<u64>,
}

/// Where a tensor's numbers are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In these bytes of its storage, in their order.
    Bytes(Range<usize>),
    /// In the storage, in another order.
    Scattered,
}

/// All tensors by their names: the keys of the dictionaries that they are in, joined by dots.
///
/// # Errors
/// The value is no dictionary, a tensor is not what `torch.save` writes, or there are too many.
pub(crate) fn tensors<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Result<BTreeMap<String, Described<'a>>, String> {
    let Value::Dictionary(root) = value else {
        return Err("is no dictionary: save the model's state_dict()".to_owned());
    };
    let (mut found, mut path, mut seen) = (BTreeMap::new(), String::new(), 0usize);
    // Dictionaries within each other: the next entry of each, and how long its own path is.
    let mut open = vec![(root, 0usize, 0usize)];
    while let Some((dictionary, next, own)) = open.last_mut() {
        let Some(&(key, value)) = pickle.entries(*dictionary).get(*next) else {
            open.pop();
            continue;
        };
        *next += 1;
        path.truncate(*own);
        // One dictionary may be in others more than once.
        seen += 1;
        if seen > VALUES {
            return Err(format!("refers to more than {VALUES} entries of dictionaries"));
        }
        if !matches!(value, Value::Dictionary(_) | Value::Call(..)) {
            continue;
        }
        if open.len() > 1 {
            path.push('.');
        }
        match key {
            Value::Text(text) if text.len() <= NAME_BYTES => path.push_str(text),
            Value::Integer(integer) => path.push_str(&integer.to_string()),
            _ => return Err(format!("has a name that is longer than {NAME_BYTES} bytes")),
        }
        if path.len() > NAME_BYTES {
            return Err(format!("has a name that is longer than {NAME_BYTES} bytes"));
        }
        if let Value::Dictionary(inner) = value {
            if open.len() >= usize::from(NESTING) {
                return Err(format!("nests values deeper than {NESTING}"));
            }
            open.push((inner, 0, path.len()));
            continue;
        }
        let tensor = described(pickle, value).map_err(|why| format!("describes {}, {why}", shown(&path)))?;
        if found.len() >= TENSORS {
            return Err(format!("has more than {TENSORS} tensors"));
        }
        if found.insert(path.clone(), tensor).is_some() {
            return Err(format!("has two tensors named {}", shown(&path)));
        }
    }
    Ok(found)
}

fn described<'a>(pickle: &Pickle<'a>, mut value: Value<'a>) -> Result<Described<'a>, String> {
    // A parameter is a tensor, or another parameter's; each is nested in the one before.
    while let Value::Call(Global::Parameter, arguments) = value {
        value = pickle.elements(arguments).first().copied().unwrap_or(Value::Other);
    }
    let Value::Call(Global::Tensor, arguments) = value else {
        return Err("which is no tensor".to_owned());
    };
    let [Value::Persistent(storage), offset, Value::Tuple(shape), Value::Tuple(strides), ..] =
        *pickle.elements(arguments)
    else {
        return Err("which has no storage, offset, shape and strides".to_owned());
    };
    let [Value::Text("storage"), Value::Global(Global::Storage(numbers)), Value::Text(key), _, len, ..] =
        *pickle.elements(storage)
    else {
        return Err("whose storage has no type, key and length".to_owned());
    };
    if key.is_empty() || key.len() > KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("whose storage has the key {}, which must be 1 to {KEY_BYTES} digits", shown(key)));
    }
    let (shape, strides) = (sizes(pickle, shape, "length")?, sizes(pickle, strides, "stride")?);
    if shape.len() != strides.len() {
        return Err(format!("which has {} axes and {} strides", shape.len(), strides.len()));
    }
    let shape = shape.into_iter().map(|length| usize::try_from(length).map_err(|_| "which is too large".to_owned()));
    Ok(Described {
        storage: key,
        numbers,
        len: size(len, "length of its storage")?,
        offset: size(offset, "offset")?,
        shape: shape.collect::<Result<_, _>>()?,
        strides,
    })
}

fn sizes(pickle: &Pickle<'_>, tuple: Tuple, what: &str) -> Result<Vec<u64>, String> {
    let values = pickle.elements(tuple);
    if values.len() > AXES {
        return Err(format!("which has {} axes, at most {AXES}", values.len()));
    }
    values.iter().map(|&value| size(value, what)).collect()
}

fn size(value: Value<'_>, what: &str) -> Result<u64, String> {
    match value {
        Value::Integer(integer) => u64::try_from(integer).map_err(|_| format!("which has the {what} {integer}")),
        _ => Err(format!("whose {what} is no integer of 64 bits")),
    }
}

impl Described<'_> {
    /// Where its numbers are in its storage, which has these bytes.
    ///
    /// # Errors
    /// The storage is not as long as it should be, or the tensor is not within it.
    pub(crate) fn place(&self, storage_bytes: u64) -> Result<Place, String> {
        let Numbers { storage, bytes: number_bytes, .. } = *self.numbers;
        if self.len.checked_mul(number_bytes) != Some(storage_bytes) {
            let Self { storage: key, len, .. } = self;
            return Err(format!(
                "its storage {key} has {storage_bytes} bytes, which are not {len} numbers ({storage})"
            ));
        }
        let outside = || {
            let Self { storage: key, len, offset, .. } = self;
            format!("reaches from number {offset} beyond its storage {key}, which has {len} numbers")
        };
        let end = self.extent().and_then(|extent| self.offset.checked_add(extent));
        let end = end.filter(|&end| end <= self.len).ok_or_else(outside)?;
        if !self.is_contiguous() {
            return Ok(Place::Scattered);
        }
        let byte = |number: u64| number.checked_mul(number_bytes).and_then(|byte| usize::try_from(byte).ok());
        Ok(Place::Bytes(byte(self.offset).ok_or_else(outside)?..byte(end).ok_or_else(outside)?))
    }

    /// Numbers of the storage from its first one to its last.
    fn extent(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let mut axes = self.shape.iter().zip(&self.strides);
        axes.try_fold(1u64, |all, (&length, stride)| all.checked_add((length as u64 - 1).checked_mul(*stride)?))
    }

    /// Whether its numbers lie one after the other, those of the last axis first.
    fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut apart = Some(1u64);
        self.shape.iter().zip(&self.strides).rev().all(|(&length, &stride)| {
            let fits = length == 1 || apart == Some(stride);
            apart = apart.and_then(|apart| apart.checked_mul(length as u64));
            fits
        })
    }
}

#[cfg(test)]
#[path = "state_dictionary_tests.rs"]
mod tests;
