//! A graph with its weights on a device, computed by Burn.
use burn_core::tensor::backend::Backend;
use burn_core::tensor::ops::{FloatTensor, IntTensor};
use burn_core::tensor::{Element, Shape, Tensor as BurnTensor, TensorData, TensorPrimitive};
use camshaft_core::tensor::{Datatype, Number, Tensor, volume};

use crate::error::TensorLoadError;
use crate::graph::Graph;
use crate::joined::{self, Requests};
use crate::manifest::Layout;
use crate::operation::{Operation, Taken};
use crate::quiet::{OUT_OF_RANGE, quietly};
use crate::weights::Weights;

/// A model that is ready to be computed. Workers share it.
#[derive(Debug)]
pub(crate) struct Network<B: Backend> {
    graph: Graph,
    operations: Vec<Operation<B>>,
    device: B::Device,
}

/// A tensor in a place of the graph.
#[derive(Debug, Clone)]
enum Value<B: Backend> {
    Float(FloatTensor<B>),
    /// With the least and the greatest of its numbers.
    Integers(IntTensor<B>, i64, i64),
}

impl<B: Backend> Network<B> {
    /// Takes the weights of all layers.
    ///
    /// # Errors
    /// Names the layer and the parameter that the weights do not have as the layer has it.
    pub(crate) fn new(
        graph: Graph,
        layout: Layout,
        weights: &mut Weights,
        device: B::Device,
    ) -> Result<Self, TensorLoadError> {
        weights.begin();
        let mut operations = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let taken: Vec<_> = node.inputs.iter().map(|&place| graph.shape(place)).collect();
            let made = quietly(|| Operation::new(&node.entry, &taken, layout, weights, &device));
            let failed = || {
                TensorLoadError::NotPrepared(format!(
                    "its layer {} cannot be made",
                    crate::error::shown(&node.entry.name)
                ))
            };
            operations.push(made.unwrap_or_else(|| Err(failed()))?);
        }
        Ok(Self { graph, operations, device })
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Computes one tensor for each input, of the shapes that the model takes.
    ///
    /// # Errors
    /// An index is out of range, or Burn cannot compute these numbers.
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let inputs: Vec<Vec<&Tensor>> = inputs.iter().map(|input| vec![input]).collect();
        self.compute(&inputs)
    }

    /// Computes several requests at once. Returns what each of them gets.
    ///
    /// # Errors
    /// As [`Network::run`]; one of them is at fault, perhaps.
    pub(crate) fn run_together(&self, requests: &Requests<'_>) -> Result<Vec<Vec<Tensor>>, String> {
        let outputs = self.compute(&requests.inputs()?)?;
        requests.answers(outputs.iter().map(|output| requests.split(output.datatype(), output.shape(), output.bytes())))
    }

    /// `inputs`: each of the parts that make it up.
    fn compute(&self, inputs: &[Vec<&Tensor>]) -> Result<Vec<Tensor>, String> {
        quietly(|| self.layers(inputs)).unwrap_or_else(|| Err(OUT_OF_RANGE.to_owned()))
    }

    fn layers(&self, inputs: &[Vec<&Tensor>]) -> Result<Vec<Tensor>, String> {
        let values = inputs.iter().map(|parts| self.value(parts).map(Some));
        let mut values = values.collect::<Result<Vec<Option<Value<B>>>, String>>()?;
        for (at, (node, operation)) in self.graph.nodes.iter().zip(&self.operations).enumerate() {
            let mut taken = Vec::with_capacity(node.inputs.len());
            for (number, &place) in node.inputs.iter().enumerate() {
                // The last to take it keeps no copy of it alive.
                let is_last = self.graph.last_use[place] == at && !node.inputs[number + 1..].contains(&place);
                let value = if is_last { values[place].take() } else { values[place].clone() };
                taken.push(match value.ok_or_else(|| "a tensor is missing".to_owned())? {
                    Value::Float(tensor) => Taken::Float(tensor),
                    Value::Integers(tensor, least, most) => Taken::Integers(tensor, least, most),
                });
            }
            values.push(Some(Value::Float(operation.run(taken, &self.device)?)));
        }
        let output = |&(_, place): &(String, usize)| match &values[place] {
            Some(Value::Float(tensor)) => read::<B>(tensor.clone()),
            _ => Err("an output is missing".to_owned()),
        };
        self.graph.outputs.iter().map(output).collect()
    }

    /// One tensor of several, one after the other along their first axes.
    fn value(&self, parts: &[&Tensor]) -> Result<Value<B>, String> {
        let (datatype, shape) = joined::stacked(parts)?;
        let (shape, numbers) = (Shape::from(shape), parts.iter().flat_map(|part| part.numbers()));
        Ok(match datatype {
            Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 => {
                let numbers: Vec<f32> = numbers.map(|number| number.to_f64() as f32).collect();
                Value::Float(B::float_from_data(TensorData::new(numbers, shape), &self.device))
            }
            _ => {
                let numbers: Vec<i64> = numbers.map(integer).collect();
                let (least, most) = (numbers.iter().min().copied(), numbers.iter().max().copied());
                let data = TensorData::new(numbers, shape).convert_dtype(B::IntElem::dtype());
                Value::Integers(B::int_from_data(data, &self.device), least.unwrap_or(0), most.unwrap_or(0))
            }
        })
    }
}

fn integer(number: Number) -> i64 {
    match number {
        Number::Bool(number) => number.into(),
        Number::Signed(number) => number,
        Number::Unsigned(number) => i64::try_from(number).unwrap_or(i64::MAX),
        Number::Single(_) | Number::Double(_) => 0,
    }
}

fn read<B: Backend>(tensor: FloatTensor<B>) -> Result<Tensor, String> {
    let shape = crate::pieces::lengths::<B>(&tensor);
    let numbers = volume(&shape).ok_or("an output is too large")?;
    let flat = B::float_reshape(tensor, Shape::new([numbers]));
    let data = BurnTensor::<B, 1>::from_primitive(TensorPrimitive::Float(flat)).try_into_data();
    let data = data.map_err(|error| format!("the device does not give what it computed: {error:?}"))?;
    let numbers = data.convert::<f32>().into_vec::<f32>().map_err(|error| format!("{error:?}"))?;
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(Datatype::Fp32, shape, bytes).map_err(|error| error.to_string())
}
