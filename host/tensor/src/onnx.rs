//! Reads ONNX models: what they take and give, and whether all of that can be served within bounds.
use std::collections::{BTreeSet, HashSet};
use std::io::Read;

use camshaft_core::tensor::{Axis, Signature, TensorSpec, volume};
use tract_onnx::Onnx;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{GraphProto, ModelProto, NodeProto, TensorProto};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::Symbol;
use tract_onnx::tract_hir::infer::{DimFact, ShapeFactoid};
use tract_onnx::tract_hir::internal::{Factoid, InferenceModelExt, TDim};

use crate::error::{TensorLoadError, shown};
use crate::facts::{Facts, Joining};
use crate::independence::{self, Dependence};
use crate::quiet::quietly;
use crate::tract::{Plan, to_datatype};

const FORMAT: &str = "onnx";
/// Nodes of a graph: preparing more takes too long.
const NODES: usize = 10_000;
const BACKEND: &str = "tract";
/// The domains of operators that have no prefix, and those of which the runtime implements some.
const STANDARD: [&str; 2] = ["", "ai.onnx"];
const DOMAINS: [&str; 4] = [STANDARD[0], STANDARD[1], "ai.onnx.ml", "com.microsoft"];

/// A model that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) facts: Facts,
    pub(crate) signature: Signature,
    pub(crate) plan: Plan,
}

/// Reads a model and prepares it.
///
/// # Errors
/// Says why it cannot be served.
pub(crate) fn load(file: &mut dyn Read) -> Result<Loaded, TensorLoadError> {
    // A file may be anything. What the runtime does not expect ends some of its functions.
    let loaded = quietly(|| read(file));
    loaded.unwrap_or_else(|| Err(TensorLoadError::NotPrepared("the runtime does not expect what is in it".to_owned())))
}

fn read(file: &mut dyn Read) -> Result<Loaded, TensorLoadError> {
    let onnx = tract_onnx::onnx();
    let proto = onnx.proto_model_for_read(file).map_err(|error| TensorLoadError::NotOnnx(format!("{error:#}")))?;
    let graph = proto.graph.as_ref().ok_or(TensorLoadError::Nothing("graph"))?;
    // Paths in a file name nothing else of this machine.
    if let Some(elsewhere) = graph.initializer.iter().find(|tensor| !tensor.external_data.is_empty()) {
        return Err(TensorLoadError::OtherFile(elsewhere.name.clone()));
    }
    sound(&proto, graph)?;
    let unknown = unsupported(&onnx, graph);
    if !unknown.is_empty() {
        return Err(TensorLoadError::Operators(unknown.into_iter().collect()));
    }
    let mut model = onnx.model_for_proto_model(&proto).map_err(not_prepared)?;
    let symbols = name_axes(&mut model)?;
    let model = model.into_typed().and_then(|model| model.into_decluttered()).map_err(not_prepared)?;
    let plain = model.clone();
    let model = model.into_optimized().map_err(not_prepared)?;
    bounded(&model, &symbols)?;
    let signature = signature(&model)?;
    let facts = facts(graph, joining(&plain, &signature, &symbols));
    let plan = model.into_runnable().map_err(not_prepared)?;
    Ok(Loaded { facts, signature, plan: Plan { plan, symbols } })
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn not_prepared(error: TractError) -> TensorLoadError {
    TensorLoadError::NotPrepared(format!("{error:#}"))
}

/// Refuses what the runtime takes without a word, or takes minutes for.
fn sound(proto: &ModelProto, graph: &GraphProto) -> Result<(), TensorLoadError> {
    let bad = |why: String| Err(TensorLoadError::NotOnnx(why));
    if graph.node.len() > NODES {
        return Err(TensorLoadError::TooMany { what: "nodes", got: graph.node.len() as u64, most: NODES as u64 });
    }
    if let Some(opset) = proto.opset_import.iter().find(|opset| opset.version < 1) {
        return bad(format!("its operator set {} is {}, at least 1", shown(&opset.domain), opset.version));
    }
    if let Some(tensor) = graph.initializer.iter().find(|tensor| tensor.dims.iter().any(|&length| length < 0)) {
        return bad(format!("its weights {} have an axis of negative length", shown(&tensor.name)));
    }
    let mut given: HashSet<&str> = HashSet::new();
    let mut outputs = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
    match outputs.find(|name| !given.insert(name)) {
        Some(twice) => bad(format!("two of its nodes give {}", shown(twice))),
        None => Ok(()),
    }
}

/// The names of operators that the runtime does not know, and of those with graphs of their own: what these take in memory is not
/// known before.
fn unsupported(onnx: &Onnx, graph: &GraphProto) -> BTreeSet<String> {
    let is_supported = |node: &&NodeProto| {
        let has_graphs = node.attribute.iter().any(|attribute| attribute.g.is_some() || !attribute.graphs.is_empty());
        DOMAINS.contains(&node.domain.as_str()) && onnx.op_register.0.contains_key(&node.op_type) && !has_graphs
    };
    let name = |node: &NodeProto| match STANDARD.contains(&node.domain.as_str()) {
        true => node.op_type.clone(),
        false => format!("{}.{}", node.domain, node.op_type),
    };
    graph.node.iter().filter(|node| !is_supported(node)).map(name).collect()
}

/// Gives each axis of the inputs whose length the model leaves open a symbol, if it has none.
fn name_axes(model: &mut InferenceModel) -> Result<Vec<Vec<Option<Symbol>>>, TensorLoadError> {
    let inputs = model.input_outlets().map_err(not_prepared)?.to_vec();
    let mut symbols = Vec::with_capacity(inputs.len());
    for (number, outlet) in inputs.into_iter().enumerate() {
        let name = model.node(outlet.node).name.clone();
        let bad = |why: &str| TensorLoadError::Tensor { what: "input", name: name.clone(), why: why.to_owned() };
        let mut fact = model.outlet_fact(outlet).map_err(not_prepared)?.clone();
        if fact.shape.is_open() {
            return Err(bad("the model does not say how many axes it has"));
        }
        let (mut axes, mut named) = (TVec::new(), Vec::new());
        for (axis, dimension) in fact.shape.dims().enumerate() {
            let dimension = match dimension.concretize() {
                Some(dimension) => dimension,
                None => TDim::from(model.symbols.sym(&format!("input{number}_axis{axis}"))),
            };
            named.push(match &dimension {
                TDim::Val(_) => None,
                TDim::Sym(symbol) => Some(symbol.clone()),
                other => return Err(bad(&format!("the length of axis {axis} is an expression ({other})"))),
            });
            axes.push(DimFact::from(dimension));
        }
        fact.shape = ShapeFactoid::closed(axes);
        model.set_outlet_fact(outlet, fact).map_err(not_prepared)?;
        symbols.push(named);
    }
    Ok(symbols)
}

/// The size of all tensors follows from the shapes of the inputs.
fn bounded(model: &TypedModel, symbols: &[Vec<Option<Symbol>>]) -> Result<(), TensorLoadError> {
    let known: HashSet<&Symbol> = symbols.iter().flatten().flatten().collect();
    for node in model.nodes() {
        for axis in node.outputs.iter().flat_map(|output| output.fact.shape.iter()) {
            if axis.symbols().iter().any(|symbol| !known.contains(symbol)) {
                return Err(TensorLoadError::Unbounded { operation: node.name.clone(), axis: axis.to_string() });
            }
        }
    }
    Ok(())
}

fn signature(model: &TypedModel) -> Result<Signature, TensorLoadError> {
    let specs = |what, outlets: &[OutletId]| {
        let specs: Result<Vec<TensorSpec>, TensorLoadError> =
            outlets.iter().map(|&outlet| spec(model, what, outlet)).collect();
        specs.and_then(|specs| if specs.is_empty() { Err(TensorLoadError::Nothing(what)) } else { Ok(specs) })
    };
    let inputs = specs("input", model.input_outlets().map_err(not_prepared)?)?;
    let outputs = specs("output", model.output_outlets().map_err(not_prepared)?)?;
    if let Some(twice) =
        outputs.iter().enumerate().find(|(at, output)| outputs[..*at].iter().any(|o| o.name == output.name))
    {
        let why = "there are two of this name".to_owned();
        return Err(TensorLoadError::Tensor { what: "output", name: twice.1.name.clone(), why });
    }
    // What clients give many of at once has the same first axis everywhere.
    let first = |spec: &TensorSpec| spec.shape.first().filter(|axis| matches!(axis, Axis::Any(_))).cloned();
    let axis = inputs.first().and_then(first);
    let rows = axis.is_some() && inputs.iter().chain(&outputs).all(|spec| first(spec) == axis);
    Ok(Signature { inputs, outputs, rows, mask: None })
}

fn spec(model: &TypedModel, what: &'static str, outlet: OutletId) -> Result<TensorSpec, TensorLoadError> {
    let name = model.outlet_label(outlet).unwrap_or(&model.node(outlet.node).name).to_owned();
    let fact = model.outlet_fact(outlet).map_err(not_prepared)?;
    let datum = if fact.datum_type == DatumType::TDim { DatumType::I64 } else { fact.datum_type };
    let Some(datatype) = to_datatype(datum) else {
        return Err(TensorLoadError::Tensor {
            what,
            name,
            why: format!("numbers of type {datum:?} are not supported"),
        });
    };
    let axis = |axis: &TDim| match axis.to_i64().ok().and_then(|length| usize::try_from(length).ok()) {
        Some(length) => Axis::Fixed(length),
        None => Axis::Any(axis.to_string()),
    };
    Ok(TensorSpec { name, datatype, shape: fact.shape.iter().map(axis).collect() })
}

/// Whether requests may be computed together, as far as that is certain.
fn joining(model: &TypedModel, signature: &Signature, symbols: &[Vec<Option<Symbol>>]) -> Joining {
    let rows = symbols.first().and_then(|axes| axes.first()).and_then(Option::as_ref).filter(|_| signature.rows);
    let Some(rows) = rows else {
        let why = "its inputs and outputs do not have the same first axis of any length".to_owned();
        return Joining::OneAtATime { why };
    };
    match independence::prove(model, rows) {
        Ok(()) => Joining::Proven,
        Err(Dependence { operator, node }) => {
            let why = format!("rows may depend on each other at operator {operator} (node {node})");
            Joining::OneAtATime { why }
        }
    }
}

fn facts(graph: &GraphProto, joining: Joining) -> Facts {
    let numbers = |dims: &[i64]| {
        let dims: Vec<usize> = dims.iter().map(|&length| usize::try_from(length).unwrap_or(0)).collect();
        volume(&dims).unwrap_or(0) as u64
    };
    // Some exporters keep them in the attributes of nodes.
    let attributes = graph.node.iter().flat_map(|node| &node.attribute).filter_map(|attribute| attribute.t.as_ref());
    let tensors: Vec<&TensorProto> = graph.initializer.iter().chain(attributes).collect();
    let parameters = tensors.iter().map(|tensor| numbers(&tensor.dims)).fold(0, u64::saturating_add);
    let bytes = tensors.iter().map(|tensor| {
        let datum = DataType::try_from(tensor.data_type).ok().and_then(|datatype| DatumType::try_from(datatype).ok());
        numbers(&tensor.dims).saturating_mul(datum.map_or(1, |datum| datum.size_of() as u64))
    });
    let bytes = bytes.fold(0, u64::saturating_add);
    Facts {
        format: FORMAT.into(),
        backend: BACKEND.into(),
        name: graph.name.clone(),
        parameters,
        bytes,
        joining,
        notes: Vec::new(),
    }
}
