//! Weights by their names, whatever file they come from, through Burn's own stores and records.
use std::collections::{BTreeMap, BTreeSet};

use burn_core::tensor::{Bytes, DType, TensorData};
use burn_store::{BurnpackStore, ModuleStore, SafetensorsStore, TensorSnapshot};
use camshaft_core::tensor::volume;

use crate::error::{TensorLoadError, shown};
use crate::pickled::{self, Part};
use crate::quiet::quietly;
use crate::record;
use crate::source::{FileFormat, WEIGHTS_BYTES};
use crate::state_dictionary::TENSORS;

/// Bytes of what the layers of a network take as FP32, a tensor as often as it is taken: all of a file in half precision.
pub(crate) const TAKEN_BYTES: u64 = 2 * WEIGHTS_BYTES;

/// The tensors of a file.
pub(crate) struct Weights {
    tensors: BTreeMap<String, Stored>,
    used: BTreeSet<String>,
    /// What parts are of.
    file: Vec<u8>,
    /// Numbers that layers took, each counted once.
    pub(crate) parameters: u64,
    /// Bytes that the layers of one network hold: each has a copy of its own, also of a tensor that others take.
    pub(crate) bytes: u64,
    most_bytes: u64,
}

/// One that is read when a layer wants it, is there, or is a part of the file.
enum Stored {
    Lazy(TensorSnapshot),
    Read(TensorData),
    Part(Part),
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

/// Why a parameter cannot be had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// There is none of this name.
    Name,
    /// It is there, and is not what is wanted.
    Other(String),
}

impl Weights {
    /// Reads names, shapes and types of the tensors in a file's bytes.
    ///
    /// # Errors
    /// It is no such file, or holds too many tensors.
    pub(crate) fn read(format: FileFormat, bytes: Vec<u8>) -> Result<Self, TensorLoadError> {
        // Files come from anywhere, and readers panic at some.
        let read = quietly(|| stored(format, bytes));
        let tensors = read.unwrap_or_else(|| Err("the reader does not expect what is in it".to_owned()));
        let (tensors, file) = tensors.map_err(|why| TensorLoadError::Weights(shown_words(&why)))?;
        if tensors.len() > TENSORS {
            let (got, most) = (tensors.len() as u64, TENSORS as u64);
            return Err(TensorLoadError::TooMany { what: "tensors", got, most });
        }
        Ok(Self { tensors, used: BTreeSet::new(), file, parameters: 0, bytes: 0, most_bytes: TAKEN_BYTES })
    }

    /// Begins to count the bytes of another network of the same layers.
    pub(crate) fn begin(&mut self) {
        self.bytes = 0;
    }

    /// The numbers of a tensor that has this shape.
    pub(crate) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Missing> {
        let stored = self.tensors.get(name).ok_or(Missing::Name)?;
        let (got, dtype) = match stored {
            Stored::Lazy(snapshot) => (snapshot.shape.to_vec(), snapshot.dtype),
            Stored::Read(data) => (data.shape.to_vec(), data.dtype),
            Stored::Part(part) => (part.shape.clone(), part.dtype),
        };
        if got != shape {
            let got = &got[..got.len().min(16)];
            return Err(Missing::Other(format!("({}) must have the shape {shape:?}, got {got:?}", shown(name))));
        }
        let number_bytes = match dtype {
            DType::F64 => 8,
            DType::F32 | DType::Flex32 => 4,
            DType::F16 | DType::BF16 => 2,
            other => {
                let other = shown(&format!("{other:?}"));
                return Err(Missing::Other(format!("({}) must hold floating-point numbers, got {other}", shown(name))));
            }
        };
        if let Stored::Part(Part { bytes: None, .. }) = stored {
            let name = shown(name);
            return Err(Missing::Other(format!("({name}) is not contiguous: save it with .contiguous()")));
        }
        // Before anything is as large as that: thousands of layers may take the same tensor.
        let taken = volume(shape).and_then(|numbers| (numbers as u64).checked_mul(4));
        let all = taken.and_then(|taken| self.bytes.checked_add(taken)).filter(|&all| all <= self.most_bytes);
        let Some(all) = all else {
            let (name, held, most) = (shown(name), self.bytes, self.most_bytes);
            let taken =
                taken.map_or_else(|| "more bytes than can be counted".to_owned(), |bytes| format!("{bytes} bytes"));
            return Err(Missing::Other(format!(
                "({name}) takes {taken} beside the {held} of other parameters, at most {most} in all"
            )));
        };
        let expected = volume(shape).and_then(|numbers| numbers.checked_mul(number_bytes));
        let data = quietly(|| match stored {
            Stored::Lazy(snapshot) => snapshot.to_data().map_err(|error| error.to_string()),
            Stored::Read(data) => Ok(data.clone()),
            Stored::Part(part) => {
                let bytes = part.bytes.clone().and_then(|range| self.file.get(range)).unwrap_or_default();
                Ok(TensorData::from_bytes_vec(bytes.to_vec(), part.shape.clone(), part.dtype))
            }
        });
        let data = data.unwrap_or_else(|| Err("the reader does not expect what is in it".to_owned()));
        let data = data.map_err(|why| Missing::Other(format!("cannot be read: {}", shown_words(&why))))?;
        if Some(data.bytes.len()) != expected {
            let got = data.bytes.len();
            return Err(Missing::Other(format!("({}) has {got} bytes, which is not what its shape says", shown(name))));
        }
        let numbers = quietly(|| data.convert::<f32>().into_vec::<f32>().ok()).flatten();
        let numbers = numbers.ok_or_else(|| Missing::Other("cannot be converted to FP32".to_owned()))?;
        self.bytes = all;
        if self.used.insert(name.to_owned()) {
            self.parameters += numbers.len() as u64;
        }
        Ok(numbers)
    }

    /// Notes that nobody misses what is not used, such as counters of a training.
    pub(crate) fn pass(&mut self, name: &str) {
        if self.tensors.contains_key(name) {
            self.used.insert(name.to_owned());
        }
    }

    /// Those that no layer took.
    pub(crate) fn unused(&self) -> Vec<&str> {
        self.tensors.keys().filter(|name| !self.used.contains(*name)).map(String::as_str).collect()
    }

    /// Names that are there, a few of them, for an error.
    pub(crate) fn some_names(&self) -> String {
        let some: Vec<String> = self.tensors.keys().take(16).map(|name| shown(name)).collect();
        let more = if self.tensors.len() > some.len() { ", …" } else { "" };
        format!("{}{more}", some.join(", "))
    }
}

/// The tensors, and the file that some are parts of.
type Found = (BTreeMap<String, Stored>, Vec<u8>);

fn stored(format: FileFormat, bytes: Vec<u8>) -> Result<Found, String> {
    let lazy = |tensors: &BTreeMap<String, TensorSnapshot>| {
        tensors.iter().map(|(name, snapshot)| (name.clone(), Stored::Lazy(snapshot.clone()))).collect()
    };
    match format {
        FileFormat::Safetensors => {
            let mut store = SafetensorsStore::from_bytes(Some(bytes));
            let tensors = store.get_all_snapshots().map_err(|error| format!("is no safetensors file: {error}"))?;
            Ok((lazy(tensors), Vec::new()))
        }
        FileFormat::Bpk => {
            let mut store = BurnpackStore::from_bytes(Some(Bytes::from_bytes_vec(bytes)));
            let tensors = store.get_all_snapshots().map_err(|error| format!("is no Burnpack file: {error}"))?;
            Ok((lazy(tensors), Vec::new()))
        }
        FileFormat::Pt => {
            let parts = pickled::read(&bytes)?.into_iter();
            Ok((parts.map(|(name, part)| (name, Stored::Part(part))).collect(), bytes))
        }
        FileFormat::Mpk => {
            let tensors = record::read(bytes)?;
            Ok((tensors.into_iter().map(|(name, data)| (name, Stored::Read(data))).collect(), Vec::new()))
        }
        FileFormat::Onnx => Err("is an ONNX model, which has layers of its own".to_owned()),
    }
}

/// What a reader says, cut.
fn shown_words(words: &str) -> String {
    let end = words.char_indices().nth(512).map_or(words.len(), |(end, _)| end);
    camshaft_core::shown::on_one_line(&words[..end])
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
