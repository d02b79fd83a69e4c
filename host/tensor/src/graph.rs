//! The layers of a manifest as a graph without circles, whose shapes are known before anything is computed.
use std::collections::HashMap;

use camshaft_core::tensor::{Axis, Datatype, Signature, TensorSpec, volume};

use crate::error::{TensorLoadError, shown};
use crate::facts::Joining;
use crate::layers::{Layer, LayerEntry};
use crate::manifest::{Dimension, Manifest};
use crate::shapes;

/// Bytes of a number.
const NUMBER_BYTES: u64 = 4;
/// The name of the output of a manifest that names none.
const OUTPUT: &str = "output";

/// A layer in its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) entry: LayerEntry,
    /// Places of the tensors that it takes: those of the model's inputs come first, then one for each layer.
    pub(crate) inputs: Vec<usize>,
    pub(crate) shape: Vec<Axis>,
}

/// Layers in the order in which they are computed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Graph {
    pub(crate) inputs: Vec<TensorSpec>,
    pub(crate) nodes: Vec<Node>,
    /// Names and places of the tensors that the model gives.
    pub(crate) outputs: Vec<(String, usize)>,
    /// For each place, the layer that takes its tensor last.
    pub(crate) last_use: Vec<usize>,
}

impl Graph {
    /// # Errors
    /// Names the layer or the input at fault.
    pub(crate) fn of(manifest: &Manifest) -> Result<Self, TensorLoadError> {
        let bad = |why: String| TensorLoadError::manifest(&manifest.file, why);
        if manifest.inputs.is_empty() {
            return Err(bad("has no [[input]]".to_owned()));
        }
        if manifest.layers.is_empty() {
            return Err(bad("has no [[layer]]".to_owned()));
        }
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut inputs = Vec::with_capacity(manifest.inputs.len());
        for (place, input) in manifest.inputs.iter().enumerate() {
            if places.insert(&input.name, place).is_some() {
                return Err(bad(format!("there are two inputs named {}", shown(&input.name))));
            }
            let axis = |dimension: &Dimension| match dimension {
                Dimension::Length(length) => Axis::Fixed(*length),
                Dimension::Name(name) => Axis::Any(name.clone()),
            };
            let shape = input.shape.iter().map(axis).collect();
            inputs.push(TensorSpec { name: input.name.clone(), datatype: input.datatype, shape });
        }
        let later: HashMap<&str, usize> =
            manifest.layers.iter().enumerate().map(|(at, layer)| (layer.name.as_str(), at)).collect();
        let mut graph = Self { inputs, nodes: Vec::new(), outputs: Vec::new(), last_use: Vec::new() };
        for entry in &manifest.layers {
            let place = graph.inputs.len() + graph.nodes.len();
            let taken = match &entry.inputs {
                // The layer before, or the model's first input.
                None => vec![if graph.nodes.is_empty() { 0 } else { place - 1 }],
                Some(names) => names
                    .iter()
                    .map(|name| {
                        places
                            .get(name.as_str())
                            .copied()
                            .ok_or_else(|| unknown(entry, name, later.contains_key(name.as_str())))
                    })
                    .collect::<Result<_, _>>()?,
            };
            if entry.inputs.is_none() && graph.nodes.is_empty() && graph.inputs.len() > 1 {
                let why = "the model has several inputs, so its first layer must name those that it takes";
                return Err(TensorLoadError::layer(&entry.name, why));
            }
            let node = graph.node(entry, taken)?;
            graph.nodes.push(node);
            if places.insert(&entry.name, place).is_some() {
                return Err(TensorLoadError::layer(&entry.name, "there is another layer or input of this name"));
            }
        }
        graph.name_outputs(manifest, &places)?;
        graph.uses(manifest)?;
        Ok(graph)
    }

    fn node(&self, entry: &LayerEntry, taken: Vec<usize>) -> Result<Node, TensorLoadError> {
        let layer = |why: String| TensorLoadError::layer(&entry.name, why);
        let indexes = matches!(entry.layer, Layer::Embedding(_));
        for &place in &taken {
            if let Some(input) = self.inputs.get(place)
                && is_float(input.datatype) == indexes
            {
                let wanted = if indexes { "integers" } else { "floating-point numbers" };
                return Err(layer(format!("takes {wanted}, the input {} has {}", shown(&input.name), input.datatype)));
            }
            if indexes && place >= self.inputs.len() {
                return Err(layer("takes integers, so its input must be one of the model's".to_owned()));
            }
        }
        let given: Vec<&[Axis]> = taken.iter().map(|&place| self.shape(place)).collect();
        let shape = shapes::output(&entry.layer, &given).map_err(layer)?;
        Ok(Node { entry: entry.clone(), inputs: taken, shape })
    }

    fn name_outputs(&mut self, manifest: &Manifest, places: &HashMap<&str, usize>) -> Result<(), TensorLoadError> {
        let bad = |why: String| TensorLoadError::manifest(&manifest.file, why);
        if manifest.outputs.is_empty() {
            self.outputs = vec![(OUTPUT.to_owned(), self.inputs.len() + self.nodes.len() - 1)];
        }
        for output in &manifest.outputs {
            let place = places.get(output.layer.as_str()).copied().filter(|&place| place >= self.inputs.len());
            let (name, layer) = (shown(&output.name), shown(&output.layer));
            let place = place.ok_or_else(|| bad(format!("output {name} is of layer {layer}, which there is not")))?;
            if output.name.is_empty() || self.outputs.iter().any(|(known, _)| *known == output.name) {
                return Err(bad(format!("output {name}: names of outputs are not empty and different")));
            }
            self.outputs.push((output.name.clone(), place));
        }
        Ok(())
    }

    /// Notes when tensors are taken last. What nobody takes is a mistake.
    fn uses(&mut self, manifest: &Manifest) -> Result<(), TensorLoadError> {
        let (inputs, nodes) = (self.inputs.len(), self.nodes.len());
        let mut last_use = vec![None; inputs + nodes];
        for (at, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|&place| last_use[place] = Some(at));
        }
        self.outputs.iter().for_each(|&(_, place)| last_use[place] = Some(nodes));
        if let Some(place) = last_use.iter().position(Option::is_none) {
            return Err(match self.inputs.get(place) {
                Some(input) => TensorLoadError::manifest(
                    &manifest.file,
                    format!("no layer takes the input {}", shown(&input.name)),
                ),
                None => TensorLoadError::layer(
                    &self.nodes[place - inputs].entry.name,
                    "no layer and no output takes what it gives",
                ),
            });
        }
        self.last_use = last_use.into_iter().map(|last| last.unwrap_or(nodes)).collect();
        Ok(())
    }

    /// The shape of the tensor in a place.
    pub(crate) fn shape(&self, place: usize) -> &[Axis] {
        match self.inputs.get(place) {
            Some(input) => &input.shape,
            None => &self.nodes[place - self.inputs.len()].shape,
        }
    }

    pub(crate) fn signature(&self) -> Signature {
        let output = |(name, place): &(String, usize)| TensorSpec {
            name: name.clone(),
            datatype: Datatype::Fp32,
            shape: self.shape(*place).to_vec(),
        };
        let outputs: Vec<TensorSpec> = self.outputs.iter().map(output).collect();
        let inputs = self.inputs.clone();
        let first = |spec: &TensorSpec| spec.shape.first().filter(|axis| matches!(axis, Axis::Any(_))).cloned();
        let axis = inputs.first().and_then(first);
        let rows = axis.is_some() && inputs.iter().chain(&outputs).all(|spec| first(spec) == axis);
        Signature { inputs, outputs, rows, mask: None }
    }

    /// Whether requests may be computed together: no layer mixes rows (see [`shapes::output`]), so that all depends on where rows are.
    pub(crate) fn joining(&self, signature: &Signature) -> Joining {
        let one_at_a_time = |why: String| Joining::OneAtATime { why };
        let rows = self.inputs.first().and_then(|input| input.shape.first()).filter(|_| signature.rows);
        let Some(rows) = rows else {
            return one_at_a_time("its inputs and outputs do not have the same first axis of any length".to_owned());
        };
        // A layer that takes the number of rows for the length of something else would see those of others.
        let are_first = |shape: &[Axis]| shape.first() == Some(rows) && !shape[1..].contains(rows);
        let places = 0..self.inputs.len() + self.nodes.len();
        match places.map(|place| (place, self.shape(place))).find(|(_, shape)| !are_first(shape)) {
            None => Joining::Proven,
            Some((place, shape)) => {
                let name = self.inputs.get(place).map(|input| &input.name);
                let name = name.unwrap_or_else(|| &self.nodes[place - self.inputs.len()].entry.name);
                one_at_a_time(format!("rows are not the first axis alone of {} {}", shown(name), shapes::told(shape)))
            }
        }
    }

    /// Lengths of the tensors in all places, from those of the inputs.
    fn lengths(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        let mut named: HashMap<&str, usize> = HashMap::new();
        for (spec, shape) in self.inputs.iter().zip(shapes) {
            for (axis, &length) in spec.shape.iter().zip(*shape) {
                if let Axis::Any(name) = axis {
                    named.insert(name, length);
                }
            }
        }
        let length = |axis: &Axis| match axis {
            Axis::Fixed(length) => Some(*length),
            Axis::Any(name) => named.get(name.as_str()).copied(),
        };
        let places = 0..self.inputs.len() + self.nodes.len();
        places.map(|place| self.shape(place).iter().map(length).collect()).collect()
    }

    /// Upper bound of the bytes of all tensors that computing inputs of these shapes makes. `None`: they cannot be counted.
    pub(crate) fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
        let lengths = self.lengths(shapes)?;
        let numbers = |shape: &Vec<usize>| Some(volume(shape)? as u64);
        // Inputs may be integers of eight bytes.
        let inputs = lengths.iter().take(self.inputs.len());
        let inputs = inputs.map(numbers).try_fold(0u64, |all, one| all.checked_add(one?.checked_mul(2)?))?;
        let all = self.nodes.iter().enumerate().try_fold(inputs, |all, (at, node)| {
            let given = &lengths[self.inputs.len() + at];
            let taken: Vec<&[usize]> = node.inputs.iter().map(|&place| lengths[place].as_slice()).collect();
            let scratch = shapes::scratch(&node.entry.layer, &taken, given)?;
            all.checked_add(numbers(given)?)?.checked_add(scratch)
        })?;
        all.checked_mul(NUMBER_BYTES)
    }

    /// Whether no tensor that computing inputs of these shapes makes has more than `most` bytes, four for each number.
    #[cfg(any(test, feature = "wgpu"))]
    pub(crate) fn tensors_fit(&self, shapes: &[&[usize]], most: u64) -> bool {
        let bytes = |shape: &Vec<usize>| (volume(shape)? as u64).checked_mul(NUMBER_BYTES);
        let fits = |shape: &Vec<usize>| bytes(shape).is_some_and(|bytes| bytes <= most);
        self.lengths(shapes).is_some_and(|lengths| lengths.iter().all(fits))
    }

    pub(crate) fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        let lengths = self.lengths(shapes)?;
        Some(self.outputs.iter().map(|&(_, place)| lengths[place].clone()).collect())
    }
}

fn unknown(entry: &LayerEntry, name: &str, comes_later: bool) -> TensorLoadError {
    let name = shown(name);
    let why = match comes_later {
        true => format!("takes the layer {name}, which does not stand before it"),
        false => format!("takes {name}, which is no input of the model and no layer before it"),
    };
    TensorLoadError::layer(&entry.name, why)
}

fn is_float(datatype: Datatype) -> bool {
    matches!(datatype, Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64)
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
