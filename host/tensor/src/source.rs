//! The files of a model: its weights, the manifest beside them, and the labels that this names.
use std::path::{Path, PathBuf};

use crate::error::{TensorLoadError, shown};
use crate::manifest::{self, Manifest};

/// Bytes of a manifest, and of a file of labels.
pub const MANIFEST_BYTES: u64 = 4 << 20;
/// Bytes of a file of weights: ONNX itself holds no more.
pub const WEIGHTS_BYTES: u64 = 1 << 31;
/// What a manifest is called that is not named after its weights.
const MANIFEST: &str = "model.toml";

/// What a file of weights is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    Onnx,
    /// A record of Burn, in any precision.
    Mpk,
    /// Burnpack.
    Bpk,
    Safetensors,
    /// A state dictionary of PyTorch.
    Pt,
}

impl FileFormat {
    /// By the name of the file.
    pub fn of(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match ending.as_str() {
            "onnx" => Self::Onnx,
            "mpk" => Self::Mpk,
            "bpk" => Self::Bpk,
            "safetensors" => Self::Safetensors,
            "pt" | "pth" => Self::Pt,
            _ => return None,
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Mpk => "mpk",
            Self::Bpk => "bpk",
            Self::Safetensors => "safetensors",
            Self::Pt => "pt",
        }
    }
}

/// Whether a file is a tensor model's: its weights, or a manifest.
pub fn is_tensor_model(path: &Path) -> bool {
    is_manifest(path) || FileFormat::of(path).is_some()
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
}

/// A file that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub path: &'a Path,
    /// Bound of its bytes.
    pub most: u64,
    /// There need be none.
    pub may_be_missing: bool,
}

/// A model's files, read whole.
#[derive(Debug, Clone)]
pub struct Files {
    pub(crate) format: FileFormat,
    pub(crate) weights: Vec<u8>,
    pub(crate) manifest: Option<(Manifest, Vec<u8>)>,
    pub(crate) labels: Option<Vec<u8>>,
}

impl Files {
    /// The bytes of each file: the weights, the manifest and the labels, as far as there are any.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let manifest = self.manifest.as_ref().map(|(_, text)| text.as_slice());
        [Some(self.weights.as_slice()), manifest, self.labels.as_deref()].into_iter().flatten()
    }
}

/// Why files cannot be had: reading failed with `E`, or they are no model.
#[derive(Debug, PartialEq, Eq)]
pub enum GatherError<E> {
    File(E),
    Model(TensorLoadError),
}

impl<E> From<TensorLoadError> for GatherError<E> {
    fn from(error: TensorLoadError) -> Self {
        Self::Model(error)
    }
}

/// Finds the files of the model at `path`, which names weights or a manifest, and reads them by `read`. That returns `None` only of
/// files that may be missing.
///
/// # Errors
/// A file cannot be read, or is not what it should be.
pub fn gather<E>(
    path: &Path,
    mut read: impl FnMut(Wanted<'_>) -> Result<Option<Vec<u8>>, E>,
) -> Result<Files, GatherError<E>> {
    let mut must = |path: &Path, most| {
        let bytes = read(Wanted { path, most, may_be_missing: false }).map_err(GatherError::File)?;
        bytes.ok_or_else(|| GatherError::Model(TensorLoadError::Nothing("file")))
    };
    if is_manifest(path) {
        let text = must(path, MANIFEST_BYTES)?;
        let manifest = manifest::read(&name_of(path), &text)?;
        let weights = path.with_file_name(&manifest.weights);
        let format = FileFormat::of(&weights).ok_or(TensorLoadError::UnknownFormat)?;
        let weights = must(&weights, WEIGHTS_BYTES)?;
        let labels = labels_of(&manifest).map(|file| must(&path.with_file_name(file), MANIFEST_BYTES)).transpose()?;
        return Ok(Files { format, weights, manifest: Some((manifest, text)), labels });
    }
    let format = FileFormat::of(path).ok_or(TensorLoadError::UnknownFormat)?;
    let weights = must(path, WEIGHTS_BYTES)?;
    let name = name_of(path);
    for candidate in candidates(path) {
        let wanted = Wanted { path: &candidate, most: MANIFEST_BYTES, may_be_missing: true };
        let Some(text) = read(wanted).map_err(GatherError::File)? else { continue };
        if manifest::names_weights(&text, &name) {
            let manifest = manifest::read(&name_of(&candidate), &text)?;
            let labels = labels_of(&manifest).map(|file| {
                let path = path.with_file_name(file);
                let wanted = Wanted { path: &path, most: MANIFEST_BYTES, may_be_missing: false };
                let bytes = read(wanted).map_err(GatherError::File)?;
                bytes.ok_or_else(|| GatherError::Model(TensorLoadError::Nothing("labels")))
            });
            let labels = labels.transpose()?;
            return Ok(Files { format, weights, manifest: Some((manifest, text)), labels });
        }
    }
    if format == FileFormat::Onnx {
        return Ok(Files { format, weights, manifest: None, labels: None });
    }
    let [own, common] = candidates(path).map(|path| name_of(&path));
    let name = shown(&name);
    Err(TensorLoadError::NoManifest(format!("neither {own} nor {common} beside it says weights = \"{name}\"")).into())
}

/// Where the manifest of a file of weights may be.
fn candidates(weights: &Path) -> [PathBuf; 2] {
    [weights.with_extension("toml"), weights.with_file_name(MANIFEST)]
}

fn labels_of(manifest: &Manifest) -> Option<&str> {
    manifest.postprocess.as_ref()?.labels_file.as_deref()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn files(path: &str, there: &[(&str, &str)]) -> Result<Files, String> {
        let there: HashMap<&str, &str> = there.iter().copied().collect();
        let read = |wanted: Wanted<'_>| match there.get(wanted.path.to_str().unwrap()) {
            Some(text) => Ok(Some(text.as_bytes().to_vec())),
            None if wanted.may_be_missing => Ok(None),
            None => Err(format!("{} is not there", wanted.path.display())),
        };
        gather(Path::new(path), read).map_err(|error| match error {
            GatherError::File(error) => error,
            GatherError::Model(error) => error.to_string(),
        })
    }

    #[test]
    fn weights_find_their_manifest_and_a_manifest_its_weights() {
        let manifest = "weights = \"m.pt\"";
        for there in [[("d/m.pt", "w"), ("d/m.toml", manifest)], [("d/m.pt", "w"), ("d/model.toml", manifest)]] {
            let found = files("d/m.pt", &there).unwrap();
            assert_eq!(found.parts().collect::<Vec<_>>(), [b"w".as_slice(), manifest.as_bytes()]);
            assert_eq!(files(there[1].0, &there).unwrap().format, FileFormat::Pt);
        }
    }

    #[test]
    fn what_stands_beside_a_model_by_chance_is_no_manifest() {
        let there =
            [("iris.onnx", "w"), ("iris.toml", "listen = \"127.0.0.1:80\""), ("model.toml", "weights = \"a.pt\"")];
        assert!(files("iris.onnx", &there).unwrap().manifest.is_none());
        let error = files("m.pt", &[("m.pt", "w"), ("m.toml", "weights = \"n.pt\"")]).unwrap_err();
        assert!(error.contains("neither m.toml nor model.toml") && error.contains("m.pt"), "{error}");
    }

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(files("m.pt", &[]).unwrap_err(), "m.pt is not there");
        assert_eq!(files("d/m.toml", &[("d/m.toml", "weights = \"w.pt\"")]).unwrap_err(), "d/w.pt is not there");
        let labels = "weights = \"w.pt\"\n[postprocess]\nlabels-file = \"l.txt\"";
        assert_eq!(files("m.toml", &[("m.toml", labels), ("w.pt", "")]).unwrap_err(), "l.txt is not there");
        assert!(files("m.toml", &[("m.toml", "weights = \"w.gguf\"")]).unwrap_err().contains("must end with .onnx"));
    }
}
