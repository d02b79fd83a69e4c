//! The layers that a manifest may name, and their settings.
use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use crate::error::{TensorLoadError, shown};

/// Inputs that a layer may join.
const JOINED: usize = 64;

/// A layer of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerEntry {
    pub(crate) name: String,
    pub(crate) layer: Layer,
    /// Layers and inputs of the model whose tensors it takes. `None`: the layer before.
    pub(crate) inputs: Option<Vec<String>>,
    /// What the names of its parameters begin with. `None`: its own name.
    pub(crate) prefix: Option<String>,
    /// Whole names in the weights, by the parameters' own names.
    pub(crate) parameters: BTreeMap<String, String>,
}

/// One number for all axes, or one for each.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Sizes {
    All(usize),
    Each(Vec<usize>),
}

/// What a layer computes. The first axis of its input counts rows; channels are on the second axis of images and signals, features
/// on the last.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::enum_variant_names, reason = "a layer norm is called that")]
pub(crate) enum Layer {
    Conv1d(Conv),
    Conv2d(Conv),
    BatchNorm(Norm),
    LayerNorm(Norm),
    Linear(Linear),
    Lstm(Recurrent),
    Gru(Recurrent),
    Attention(Attention),
    Embedding(Embedding),
    Relu(Plain),
    Gelu(Gelu),
    Silu(Plain),
    Sigmoid(Plain),
    Tanh(Plain),
    LeakyRelu(LeakyRelu),
    Softmax(Along),
    LogSoftmax(Along),
    #[serde(rename = "max-pool1d")]
    MaxPool1d(Pool),
    #[serde(rename = "max-pool2d")]
    MaxPool2d(Pool),
    #[serde(rename = "avg-pool1d")]
    AvgPool1d(Pool),
    #[serde(rename = "avg-pool2d")]
    AvgPool2d(Pool),
    #[serde(rename = "adaptive-avg-pool1d")]
    AdaptiveAvgPool1d(Adaptive),
    #[serde(rename = "adaptive-avg-pool2d")]
    AdaptiveAvgPool2d(Adaptive),
    GlobalAvgPool(Plain),
    GlobalMaxPool(Plain),
    Dropout(Dropout),
    Flatten(Plain),
    Reshape(Reshape),
    Transpose(Transpose),
    Select(Select),
    Add(Plain),
    Multiply(Plain),
    Concat(Along),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plain {}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Conv {
    pub(crate) out_channels: usize,
    pub(crate) kernel: Sizes,
    #[serde(default = "one")]
    pub(crate) stride: Sizes,
    #[serde(default = "zero")]
    pub(crate) padding: Sizes,
    #[serde(default = "one")]
    pub(crate) dilation: Sizes,
    #[serde(default = "single")]
    pub(crate) groups: usize,
    #[serde(default = "yes")]
    pub(crate) bias: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Norm {
    #[serde(default = "epsilon")]
    pub(crate) epsilon: f32,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Linear {
    pub(crate) out_features: usize,
    #[serde(default = "yes")]
    pub(crate) bias: bool,
}

/// What a recurrent layer gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Given {
    /// The state of each step: `[rows, steps, features]`.
    #[default]
    Sequence,
    /// Of each direction, the state that it ends with: `[rows, features]`.
    Last,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Recurrent {
    pub(crate) hidden: usize,
    /// Stacked on each other.
    #[serde(default = "single")]
    pub(crate) layers: usize,
    #[serde(default)]
    pub(crate) bidirectional: bool,
    /// From the last step to the first.
    #[serde(default)]
    pub(crate) reverse: bool,
    #[serde(default = "yes")]
    pub(crate) bias: bool,
    /// Of an LSTM: layer norms of gates, cell and state, as Burn's example `modern-lstm` has them.
    #[serde(default)]
    pub(crate) normalized: bool,
    /// Of a GRU: whether the reset gate acts after the product with the weights.
    #[serde(default = "yes")]
    pub(crate) reset_after: bool,
    #[serde(default = "epsilon")]
    pub(crate) epsilon: f32,
    #[serde(default)]
    pub(crate) output: Given,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Attention {
    pub(crate) heads: usize,
    /// No step attends to a later one.
    #[serde(default)]
    pub(crate) causal: bool,
    #[serde(default = "yes")]
    pub(crate) bias: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Embedding {
    /// Rows of the table.
    pub(crate) entries: usize,
    pub(crate) features: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Gelu {
    /// By a hyperbolic tangent instead of the error function.
    #[serde(default)]
    pub(crate) approximate: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct LeakyRelu {
    #[serde(default = "slope")]
    pub(crate) slope: f32,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Along {
    /// Negative: from the last one.
    #[serde(default = "last")]
    pub(crate) axis: isize,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Pool {
    pub(crate) kernel: Sizes,
    /// `None`: the kernel's size.
    pub(crate) stride: Option<Sizes>,
    #[serde(default = "zero")]
    pub(crate) padding: Sizes,
    /// Of an average: zeros of the padding count.
    #[serde(default = "yes")]
    pub(crate) count_padding: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Adaptive {
    pub(crate) size: Sizes,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Dropout {
    /// Of training; nothing is dropped here.
    #[serde(default, rename = "probability")]
    _probability: Option<f32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Reshape {
    /// Without the axis of rows.
    pub(crate) shape: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Transpose {
    /// Which axis comes to each place.
    pub(crate) axes: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Select {
    pub(crate) axis: isize,
    /// Negative: from the last one.
    pub(crate) index: isize,
}

fn one() -> Sizes {
    Sizes::All(1)
}

fn zero() -> Sizes {
    Sizes::All(0)
}

fn single() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn epsilon() -> f32 {
    1e-5
}

fn slope() -> f32 {
    0.01
}

fn last() -> isize {
    -1
}

/// Reads a table `[[layer]]`, the one at `place`.
///
/// # Errors
/// Names the layer and what is wrong in it.
pub(crate) fn read(place: usize, mut table: Table) -> Result<LayerEntry, TensorLoadError> {
    let bad = |name: &str, why: String| TensorLoadError::layer(name, why);
    let number = format!("number {place}");
    let name = match table.remove("name") {
        Some(Value::String(name)) if !name.is_empty() => Some(name),
        None => None,
        Some(_) => return Err(bad(&number, "name must be a text that is not empty".to_owned())),
    };
    let shown_name = name.clone().unwrap_or_else(|| number.clone());
    let kind = match table.remove("type") {
        Some(Value::String(kind)) => kind,
        _ => return Err(bad(&shown_name, "type is required, a text such as \"linear\"".to_owned())),
    };
    let inputs: Option<Vec<String>> = take(&mut table, "inputs", &shown_name)?;
    let prefix = take(&mut table, "prefix", &shown_name)?;
    let parameters: Option<BTreeMap<String, String>> = take(&mut table, "parameters", &shown_name)?;
    if let Some(inputs) = &inputs
        && (inputs.is_empty() || inputs.len() > JOINED)
    {
        return Err(bad(&shown_name, format!("inputs has {} names, 1 to {JOINED} are allowed", inputs.len())));
    }
    let whole = Table::from_iter([(kind, Value::Table(table))]);
    let layer = Layer::deserialize(Value::Table(whole)).map_err(|error| bad(&shown_name, told(&error)))?;
    Ok(LayerEntry { name: name.unwrap_or(number), layer, inputs, prefix, parameters: parameters.unwrap_or_default() })
}

fn take<'de, T: Deserialize<'de>>(
    table: &mut Table,
    key: &'static str,
    layer: &str,
) -> Result<Option<T>, TensorLoadError> {
    let value = table.remove(key);
    let read = value.map(|value| T::deserialize(value)).transpose();
    read.map_err(|error| TensorLoadError::layer(layer, format!("{key}: {}", told(&error))))
}

/// What the reader says, on one line.
fn told(error: &toml::de::Error) -> String {
    shown_words(error.message())
}

/// Longer than a name: it lists what is known.
fn shown_words(words: &str) -> String {
    match words.len() {
        ..1024 => camshaft_core::shown::on_one_line(words),
        _ => shown(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Result<LayerEntry, String> {
        read(3, text.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_layer_is_read_with_its_defaults() {
        let read = entry("name = \"c\"\ntype = \"conv2d\"\nout-channels = 8\nkernel = [3, 5]").unwrap();
        let Layer::Conv2d(conv) = &read.layer else { panic!("{read:?}") };
        assert_eq!((conv.out_channels, &conv.kernel, conv.groups, conv.bias), (8, &Sizes::Each(vec![3, 5]), 1, true));
        assert_eq!(entry("type = \"relu\"").unwrap().name, "number 3");
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let check = |text: &str, words: &[&str]| {
            let error = entry(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        check("name = \"c\"\ntype = \"conv2d\"\nout-channels = 8\nkernal = 3", &["layer c", "kernal", "kernel"]);
        check("name = \"c\"\ntype = \"conv4d\"", &["layer c", "conv4d", "conv2d"]);
        check("name = \"c\"", &["layer c", "type is required"]);
        check("name = \"\"\ntype = \"relu\"", &["number 3", "name"]);
        check("type = \"relu\"\ninputs = []", &["inputs has 0 names"]);
        check("type = \"linear\"\nout-features = -1", &["number 3", "-1"]);
        let most = format!("type = \"add\"\ninputs = {:?}", vec!["a"; JOINED]);
        assert!(entry(&most).is_ok());
        check(&format!("type = \"add\"\ninputs = {:?}", vec!["a"; JOINED + 1]), &["inputs has 65 names, 1 to 64"]);
        let long = entry(&format!("name = \"{}\"\ntype = \"x\"", "a".repeat(2_000_000))).unwrap_err();
        assert!(long.len() < 2000, "{}", long.len());
    }
}
