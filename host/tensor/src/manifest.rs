//! A model's manifest: its weights, what it takes, its layers, and what is done before and after them.
use std::collections::BTreeMap;

use camshaft_core::tensor::Datatype;
use serde::Deserialize;
use toml::Table;

use crate::error::{TensorLoadError, shown};
use crate::layers::{self, LayerEntry};

/// Bounds of what a manifest names.
const INPUTS: usize = 64;
const LAYERS: usize = 4096;
const AXES: usize = 8;
/// Length of an axis, and any other size that a manifest gives.
pub(crate) const LENGTH: usize = 1 << 31;

/// How frameworks keep parameters: their names, and which way matrices lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    Torch,
    Burn,
}

/// What stands in a manifest.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    name: String,
    weights: String,
    layout: Option<Layout>,
    #[serde(default, rename = "input")]
    inputs: Vec<InputEntry>,
    #[serde(default, rename = "layer")]
    layers: Vec<Table>,
    #[serde(default, rename = "output")]
    outputs: Vec<OutputEntry>,
    #[serde(default)]
    preprocess: BTreeMap<String, PreprocessEntry>,
    postprocess: Option<PostprocessEntry>,
    ragged: Option<RaggedEntry>,
}

/// A checked manifest, as far as it can be without the weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    /// Of its file.
    pub(crate) file: String,
    pub(crate) name: String,
    /// A file beside it.
    pub(crate) weights: String,
    pub(crate) layout: Option<Layout>,
    pub(crate) inputs: Vec<InputEntry>,
    pub(crate) layers: Vec<LayerEntry>,
    pub(crate) outputs: Vec<OutputEntry>,
    pub(crate) preprocess: BTreeMap<String, PreprocessEntry>,
    pub(crate) postprocess: Option<PostprocessEntry>,
    pub(crate) ragged: Option<RaggedEntry>,
}

/// The length of an axis, or the name of one of any length.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Dimension {
    Length(usize),
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct InputEntry {
    pub(crate) name: String,
    pub(crate) shape: Vec<Dimension>,
    #[serde(default = "float")]
    pub(crate) datatype: Datatype,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct OutputEntry {
    pub(crate) name: String,
    /// The layer that gives it.
    pub(crate) layer: String,
}

/// How an image lies in what clients send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ImageLayout {
    /// Channels, height, width: as models take it.
    #[default]
    Chw,
    Hwc,
    /// Without an axis for its only channel.
    Hw,
}

/// What is done with an input of clients.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PreprocessEntry {
    /// What clients send. `None`: what the model takes.
    pub(crate) datatype: Option<Datatype>,
    #[serde(default)]
    pub(crate) layout: ImageLayout,
    #[serde(default = "unscaled")]
    pub(crate) scale: f64,
    #[serde(default)]
    pub(crate) mean: Vec<f64>,
    #[serde(default)]
    pub(crate) deviation: Vec<f64>,
}

/// What is made of an output.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PostprocessEntry {
    /// `None`: the model gives one.
    pub(crate) output: Option<String>,
    #[serde(default)]
    pub(crate) softmax: bool,
    #[serde(default = "best")]
    pub(crate) top_k: usize,
    pub(crate) labels: Option<Vec<String>>,
    /// A file beside the manifest with a label on each line.
    pub(crate) labels_file: Option<String>,
}

/// The axis along which requests of different lengths are padded.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct RaggedEntry {
    pub(crate) axis: String,
    /// By the input's name; 0 if left out.
    #[serde(default)]
    pub(crate) fill: BTreeMap<String, FillValue>,
    /// The input that says with 1 what is real. Clients may leave it out.
    pub(crate) mask: Option<String>,
}

/// The number that padding has.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum FillValue {
    Flag(bool),
    Integer(i64),
    Float(f64),
}

fn float() -> Datatype {
    Datatype::Fp32
}

fn unscaled() -> f64 {
    1.0
}

fn best() -> usize {
    1
}

/// The weights that a text names, if it may be a manifest.
pub(crate) fn names_weights(text: &[u8], file: &str) -> bool {
    let table = std::str::from_utf8(text).ok().and_then(|text| text.parse::<Table>().ok());
    table.is_some_and(|table| table.get("weights").and_then(toml::Value::as_str) == Some(file))
}

/// Reads the text of the manifest in `file`.
///
/// # Errors
/// Says what is wrong in it, and where.
pub(crate) fn read(file: &str, text: &[u8]) -> Result<Manifest, TensorLoadError> {
    let bad = |why: String| TensorLoadError::manifest(file, why);
    let text = std::str::from_utf8(text).map_err(|_| bad("is no UTF-8 text".to_owned()))?;
    let raw: Raw = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        bad(format!("line {line}: {}", words(error.message())))
    })?;
    let beside = |key: &str, name: &str| match name.is_empty() || name.contains(['/', '\\', '\0']) || name == ".." {
        true => Err(bad(format!("{key} must be the name of a file beside it, got {}", shown(name)))),
        false => Ok(()),
    };
    beside("weights", &raw.weights)?;
    raw.postprocess.as_ref().and_then(|post| post.labels_file.as_ref()).map_or(Ok(()), |f| beside("labels-file", f))?;
    at_most(file, "input", raw.inputs.len(), INPUTS)?;
    at_most(file, "output", raw.outputs.len(), INPUTS)?;
    at_most(file, "layer", raw.layers.len(), LAYERS)?;
    for input in &raw.inputs {
        at_most(file, &format!("shape of input {}", shown(&input.name)), input.shape.len(), AXES)?;
        if input.name.is_empty() || input.shape.is_empty() {
            return Err(bad("an input has a name and a shape, neither is empty".to_owned()));
        }
        for dimension in &input.shape {
            let fits = match dimension {
                Dimension::Length(length) => (1..=LENGTH).contains(length),
                Dimension::Name(name) => !name.is_empty(),
            };
            if !fits {
                let got = format!("{dimension:?}");
                let name = shown(&input.name);
                return Err(bad(format!(
                    "shape of input {name}: a length is 1 to {LENGTH}, or a name, got {}",
                    shown(&got)
                )));
            }
        }
    }
    let layers = raw.layers.into_iter().enumerate().map(|(at, table)| layers::read(at + 1, table));
    Ok(Manifest {
        file: file.to_owned(),
        name: raw.name,
        weights: raw.weights,
        layout: raw.layout,
        inputs: raw.inputs,
        layers: layers.collect::<Result<_, _>>()?,
        outputs: raw.outputs,
        preprocess: raw.preprocess,
        postprocess: raw.postprocess,
        ragged: raw.ragged,
    })
}

fn at_most(file: &str, what: &str, got: usize, most: usize) -> Result<(), TensorLoadError> {
    match got > most {
        true => Err(TensorLoadError::manifest(file, format!("{what} has {got} entries, at most {most}"))),
        false => Ok(()),
    }
}

/// What the reader says, which lists what is known, on one line.
fn words(message: &str) -> String {
    let end = message.char_indices().nth(1024).map_or(message.len(), |(end, _)| end);
    camshaft_core::shown::on_one_line(&message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        read("m.toml", text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_manifest_says_which_key_is_wrong() {
        let check = |text: &str, words: &[&str]| {
            let error = error(text);
            assert!(error.contains("m.toml") && words.iter().all(|word| error.contains(word)), "{error}");
        };
        check("weigths = \"a\"", &["line 1", "weigths", "weights"]);
        check("", &["weights"]);
        check("weights = \"a.pt\"\nlayout = \"jax\"", &["line 2", "jax", "torch"]);
        for name in ["", "../a.pt", "/etc/passwd", "a/b.pt", ".."] {
            check(&format!("weights = \"{name}\""), &["weights must be the name of a file beside it"]);
        }
        check("weights = \"a.pt\"\n[postprocess]\nlabels-file = \"../x\"", &["labels-file"]);
        check("weights = \"a.pt\"\n[[input]]\nname = \"x\"\nshape = [0]", &["input x", "1 to 2147483648"]);
        check("weights = \"a.pt\"\n[[input]]\nname = \"x\"\nshape = [2147483649]", &["input x", "2147483649"]);
        check("weights = \"a.pt\"\n[[input]]\nname = \"x\"\nshape = []", &["shape"]);
        check("weights = \"a.pt\"\n[[input]]\nname = \"x\"\nshape = [1]\ndatatype = \"FLOAT\"", &["line 5", "FLOAT"]);
        assert!(read("m.toml", b"weights = \"\xff\"").is_err());
        assert!(error(&format!("weights = {}", "[".repeat(1 << 20))).len() < 4096);
        assert!(error(&"a".repeat(2 << 20)).len() < 4096);
    }

    #[test]
    fn what_a_manifest_names_is_bounded() {
        let axes = |count: usize| format!("weights = \"a\"\n[[input]]\nname = \"x\"\nshape = {:?}", vec![1; count]);
        assert!(read("m", axes(AXES).as_bytes()).is_ok());
        assert!(error(&axes(AXES + 1)).contains("9 entries, at most 8"));
        let layers = |count: usize| format!("weights = \"a\"\n{}", "[[layer]]\ntype = \"relu\"\n".repeat(count));
        assert_eq!(read("m", layers(LAYERS).as_bytes()).unwrap().layers.len(), LAYERS);
        assert!(error(&layers(LAYERS + 1)).contains("4097 entries, at most 4096"));
        let inputs =
            |count: usize| format!("weights = \"a\"\n{}", "[[input]]\nname = \"x\"\nshape = [1]\n".repeat(count));
        assert!(read("m", inputs(INPUTS).as_bytes()).is_ok());
        assert!(error(&inputs(INPUTS + 1)).contains("65 entries, at most 64"));
    }

    #[test]
    fn a_manifest_is_known_by_the_weights_that_it_names() {
        assert!(names_weights(b"weights = \"a.pt\"", "a.pt"));
        assert!(!names_weights(b"weights = \"b.pt\"", "a.pt"));
        assert!(!names_weights(b"listen = \"127.0.0.1:80\"", "a.pt"));
        assert!(!names_weights(b"\xff", "a.pt"));
    }
}
