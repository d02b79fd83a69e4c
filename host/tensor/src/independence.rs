//! Proves of a graph that no row of a batch has an influence on another one: that requests of several clients may be computed
//! together.
//!
//! Each value of the graph is followed with the axis that counts rows. An operator passes if it surely keeps the rows of its inputs
//! apart, whatever the numbers are: `NaN` and infinity, too. Operators that this file does not know do not pass. The rows are
//! those of tract's typed graph before it is translated for a processor; that the translation computes the same is tract's business.
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{AxisOp, InOut, Symbol, TDim, TypedFact};
use tract_onnx::tract_core::ops::array::{
    CumSum, Gather, GatherElements, MultiBroadcastTo, OneHot, Pad, Slice, Tile, Topk, Trilu, TypedConcat,
};
use tract_onnx::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_core::ops::cast::Cast;
use tract_onnx::tract_core::ops::cnn::{Conv, Deconv, MaxPool, PoolSpec, SumPool};
use tract_onnx::tract_core::ops::einsum::EinSum;
use tract_onnx::tract_core::ops::element_wise::ElementWiseOp;
use tract_onnx::tract_core::ops::identity::Identity;
use tract_onnx::tract_core::ops::konst::Const;
use tract_onnx::tract_core::ops::logic::Iff;
use tract_onnx::tract_core::ops::nn::{Reduce, RmsNorm, Softmax};
use tract_onnx::tract_core::ops::quant::DequantizeLinearF32;
use tract_onnx::tract_core::ops::scan::{InputMapping, Scan};

/// Where the rows of a value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// It is the same whatever the rows are, and however many.
    None,
    Along(usize),
}

/// An operator that may let rows depend on each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependence {
    pub(crate) operator: String,
    pub(crate) node: String,
}

/// Proves that the rows along the first axes of all inputs and outputs, of which there are `rows`, are computed each by itself.
///
/// # Errors
/// The first operator of which that is not certain.
pub(crate) fn prove(model: &TypedModel, rows: &Symbol) -> Result<(), Dependence> {
    let inputs: Vec<Rows> = model.inputs.iter().map(|_| Rows::Along(0)).collect();
    let outputs = follow(model, &inputs, rows)?;
    match outputs.iter().position(|&output| output != Rows::Along(0)) {
        None => Ok(()),
        Some(output) => Err(dependence(model, model.outputs.get(output).map_or(0, |outlet| outlet.node))),
    }
}

fn dependence(model: &TypedModel, node: usize) -> Dependence {
    let node = model.nodes.get(node);
    let operator = node.map_or(String::new(), |node| node.op.name().to_string());
    Dependence { operator, node: node.map_or(String::new(), |node| node.name.clone()) }
}

/// Where the rows of the outputs are, given those of the inputs.
fn follow(model: &TypedModel, inputs: &[Rows], rows: &Symbol) -> Result<Vec<Rows>, Dependence> {
    let mut known: Vec<Vec<Rows>> = vec![Vec::new(); model.nodes.len()];
    let unsure = |node| move || dependence(model, node);
    for node in model.eval_order().map_err(|_| dependence(model, 0))? {
        let Some(Node { inputs: outlets, op, outputs, .. }) = model.nodes.get(node) else { continue };
        let input = model.inputs.iter().position(|outlet| outlet.node == node);
        let values = match input.and_then(|input| inputs.get(input)) {
            Some(&given) => vec![given],
            None => {
                let value = |outlet: &OutletId| {
                    let at = *known.get(outlet.node)?.get(outlet.slot)?;
                    Some(Value { rows: at, fact: model.outlet_fact(*outlet).ok()? })
                };
                let values: Option<Vec<Value<'_>>> = outlets.iter().map(value).collect();
                let kept = values.and_then(|values| keeps(op.as_ref(), &values, outputs.len(), rows));
                kept.ok_or_else(unsure(node))?
            }
        };
        let fits = outputs.len() == values.len()
            && outputs.iter().zip(&values).all(|(output, &value)| is_along(&output.fact, value, rows));
        if !fits {
            return Err(dependence(model, node));
        }
        known[node] = values;
    }
    let output = |outlet: &OutletId| {
        let value = known.get(outlet.node).and_then(|values| values.get(outlet.slot)).copied();
        value.ok_or_else(unsure(outlet.node))
    };
    model.outputs.iter().map(output).collect()
}

/// The number of rows is the length of this axis, and of no other.
fn is_along(fact: &TypedFact, at: Rows, rows: &Symbol) -> bool {
    fact.shape.iter().enumerate().all(|(axis, length)| match at {
        Rows::Along(at) if at == axis => *length == TDim::Sym(rows.clone()),
        _ => !has(length, rows),
    })
}

fn has(length: &TDim, rows: &Symbol) -> bool {
    length.symbols().contains(rows)
}

/// An input of an operator.
#[derive(Debug, Clone, Copy)]
struct Value<'a> {
    rows: Rows,
    fact: &'a TypedFact,
}

/// Where the rows of an operator's outputs are. `None`: perhaps they depend on each other.
fn keeps(op: &dyn TypedOp, inputs: &[Value<'_>], outputs: usize, rows: &Symbol) -> Option<Vec<Rows>> {
    if let Some(scan) = op.downcast_ref::<Scan>() {
        return scanned(scan, inputs, outputs, rows);
    }
    let kept = keeps_one(op, inputs, rows)?;
    Some(vec![kept; outputs])
}

/// The same of an operator whose outputs have their rows along the same axis.
fn keeps_one(op: &dyn TypedOp, inputs: &[Value<'_>], rows: &Symbol) -> Option<Rows> {
    if let Some(constant) = op.downcast_ref::<Const>() {
        let value = constant.val();
        // A number of rows that is computed with is a number of all clients' rows.
        return (value.datum_type() != DatumType::TDim || !counts(value, rows)).then_some(Rows::None);
    }
    // From here on the first input is the one that is computed; it may be the only one.
    let (first, others) = inputs.split_first()?;
    let at = first.rows;
    let alone = |kept: Option<Rows>| kept.filter(|_| others.iter().all(|other| other.rows == Rows::None));
    if op.is::<ElementWiseOp>() || op.is::<Identity>() || op.is::<DequantizeLinearF32>() {
        return alone(Some(at));
    }
    if let Some(cast) = op.downcast_ref::<Cast>() {
        return alone(Some(at).filter(|_| cast.to != DatumType::TDim));
    }
    if op.is::<TypedBinOp>() || op.is::<Iff>() {
        return element_wise(inputs);
    }
    if let Some(op) = op.downcast_ref::<AxisOp>() {
        return alone(moved(op, at, rows));
    }
    if let Some(op) = op.downcast_ref::<EinSum>() {
        return product(op, inputs);
    }
    if let Some(op) = op.downcast_ref::<TypedConcat>() {
        return (beside(at, op.axis) && others.iter().all(|other| other.rows == at)).then_some(at);
    }
    if let Some(op) = op.downcast_ref::<Gather>() {
        return gathered(op, first, others.first()?);
    }
    if let Some(op) = op.downcast_ref::<GatherElements>() {
        return (beside(at, op.axis) && others.iter().all(|other| other.rows == at)).then_some(at);
    }
    let across = |spec: &PoolSpec| match at {
        Rows::Along(axis) => axis == 0 && spec.data_format.has_n(),
        Rows::None => true,
    };
    let pool = |spec: &PoolSpec| alone(across(spec).then_some(at));
    if let Some(op) = op.downcast_ref::<Conv>() {
        return pool(&op.pool_spec);
    }
    if let Some(op) = op.downcast_ref::<Deconv>() {
        return pool(&op.pool_spec);
    }
    if let Some(op) = op.downcast_ref::<MaxPool>() {
        // Indices count through a whole batch, perhaps.
        return pool(&op.pool_spec).filter(|_| op.with_index_outputs.is_none());
    }
    if let Some(op) = op.downcast_ref::<SumPool>() {
        return pool(&op.pool_spec);
    }
    alone(keeps_axes(op, first, rows))
}

/// Of operators that compute along some axes of their one input, and leave the others alone.
fn keeps_axes(op: &dyn TypedOp, &Value { rows: at, fact }: &Value<'_>, rows: &Symbol) -> Option<Rows> {
    let apart = |axes: &[usize]| axes.iter().all(|&axis| beside(at, axis)).then_some(at);
    if let Some(op) = op.downcast_ref::<Softmax>() {
        return apart(&op.axes);
    }
    if let Some(op) = op.downcast_ref::<Reduce>() {
        return apart(&op.axes);
    }
    if let Some(op) = op.downcast_ref::<RmsNorm>() {
        return apart(&[op.axis]);
    }
    if let Some(op) = op.downcast_ref::<CumSum>() {
        return apart(&[op.axis]);
    }
    if let Some(op) = op.downcast_ref::<Topk>() {
        return apart(&[op.axis]).filter(|_| !has(&op.fallback_k, rows));
    }
    if let Some(op) = op.downcast_ref::<Slice>() {
        return apart(&[op.axis]).filter(|_| !has(&op.start, rows) && !has(&op.end, rows));
    }
    if op.is::<Trilu>() {
        let rank = fact.rank();
        return apart(&[rank.checked_sub(2)?, rank - 1]);
    }
    if let Some(op) = op.downcast_ref::<Pad>() {
        let padded = op.pads.iter().enumerate().filter(|(_, pads)| **pads != (0, 0)).map(|(axis, _)| axis);
        return apart(&padded.collect::<Vec<_>>());
    }
    if let Some(op) = op.downcast_ref::<Tile>() {
        let one = TDim::Val(1);
        let repeated = op.multipliers.iter().enumerate().filter(|(_, times)| **times != one).map(|(axis, _)| axis);
        return apart(&repeated.collect::<Vec<_>>()).filter(|_| !op.multipliers.iter().any(|times| has(times, rows)));
    }
    if let Some(op) = op.downcast_ref::<OneHot>() {
        return Some(match at {
            Rows::Along(axis) => Rows::Along(axis + usize::from(op.axis <= axis)),
            Rows::None => Rows::None,
        });
    }
    if let Some(op) = op.downcast_ref::<MultiBroadcastTo>() {
        let shift = op.shape.rank().checked_sub(fact.rank())?;
        return match at {
            Rows::Along(axis) => Some(Rows::Along(axis + shift)),
            // The same for each row.
            Rows::None => Some(op.shape.iter().position(|length| has(length, rows)).map_or(Rows::None, Rows::Along)),
        };
    }
    None
}

/// Whether computing along an axis leaves rows apart.
fn beside(at: Rows, axis: usize) -> bool {
    at != Rows::Along(axis)
}

/// Whether a tensor of sizes has the number of rows.
fn counts(value: &tract_onnx::prelude::Tensor, rows: &Symbol) -> bool {
    match value.try_as_plain_ram().and_then(|plain| plain.as_slice::<TDim>().map(<[TDim]>::to_vec)) {
        Ok(sizes) => sizes.iter().any(|size| has(size, rows)),
        Err(_) => true,
    }
}

/// Number by number, with what has one number along an axis repeated.
fn element_wise(inputs: &[Value<'_>]) -> Option<Rows> {
    let along = |value: &Value<'_>| match value.rows {
        Rows::Along(axis) => Some(axis),
        Rows::None => None,
    };
    let Some(axis) = inputs.iter().find_map(along) else { return Some(Rows::None) };
    let rank = inputs.first()?.fact.rank();
    let fits = |value: &Value<'_>| {
        let one = || value.fact.shape.get(axis).is_some_and(|length| *length == TDim::Val(1));
        value.fact.rank() == rank && along(value).map_or_else(one, |other| other == axis)
    };
    inputs.iter().all(fits).then_some(Rows::Along(axis))
}

/// Axes are added, removed, moved, or taken apart and joined.
fn moved(op: &AxisOp, at: Rows, rows: &Symbol) -> Option<Rows> {
    let Rows::Along(axis) = at else {
        let counts = |lengths: &[TDim]| lengths.iter().any(|length| has(length, rows));
        return match op {
            AxisOp::Reshape(_, from, to) if counts(from) || counts(to) => None,
            _ => Some(Rows::None),
        };
    };
    match op {
        // Lengths in the order of rows: the first one stays where it is.
        AxisOp::Reshape(begin, from, to)
            if *begin == axis && from.first() == to.first() && from.first() == Some(&TDim::Sym(rows.clone())) =>
        {
            Some(Rows::Along(axis))
        }
        _ => op.transform_axis(axis).map(Rows::Along),
    }
}

/// A sum of products. The rows are multiplied each by itself if their axis is in the output, and in the inputs with rows.
fn product(op: &EinSum, inputs: &[Value<'_>]) -> Option<Rows> {
    let mut found = None;
    for (input, value) in inputs.iter().enumerate() {
        let Rows::Along(axis) = value.rows else { continue };
        let axis = op.axes.axis((InOut::In(input), axis)).ok()?;
        if *found.get_or_insert(axis) != axis {
            return None;
        }
    }
    let Some(axis) = found else { return Some(Rows::None) };
    let stays = inputs.iter().enumerate().all(|(input, value)| {
        let places = axis.inputs.get(input).map_or(&[][..], |places| &places[..]);
        match value.rows {
            Rows::Along(at) => places == [at],
            // One that is repeated for each row.
            Rows::None => {
                places.iter().all(|&at| value.fact.shape.get(at).is_some_and(|length| *length == TDim::Val(1)))
            }
        }
    });
    match axis.outputs.first().map(|places| &places[..]) {
        Some(&[at]) if stays => Some(Rows::Along(at)),
        _ => None,
    }
}

/// Rows of a table by their indices, or the same ones of each row.
fn gathered(op: &Gather, table: &Value<'_>, indices: &Value<'_>) -> Option<Rows> {
    match (table.rows, indices.rows) {
        (Rows::None, Rows::None) => Some(Rows::None),
        (Rows::None, Rows::Along(axis)) => Some(Rows::Along(op.axis + axis)),
        (Rows::Along(axis), Rows::None) if axis < op.axis => Some(Rows::Along(axis)),
        (Rows::Along(axis), Rows::None) if axis > op.axis => {
            Some(Rows::Along((axis + indices.fact.rank()).checked_sub(1)?))
        }
        _ => None,
    }
}

/// A graph that is computed for each step along another axis.
fn scanned(op: &Scan, inputs: &[Value<'_>], outputs: usize, rows: &Symbol) -> Option<Vec<Rows>> {
    let inner = |(mapping, value): (&InputMapping, &Value<'_>)| match mapping {
        InputMapping::Scan(step) => beside(value.rows, step.axis).then_some(value.rows),
        InputMapping::Full | InputMapping::State => Some(value.rows),
    };
    if op.input_mapping.len() != inputs.len() {
        return None;
    }
    let given: Vec<Rows> = op.input_mapping.iter().zip(inputs).map(inner).collect::<Option<_>>()?;
    let states = op.input_mapping.iter().zip(&given).filter(|(mapping, _)| mapping.is_state()).map(|(_, &at)| at);
    let states: Vec<Rows> = states.collect();
    let gives = follow(&op.body, &given, rows).ok()?;
    // What a step leaves to the next one is as what the first one begins with.
    let left = op.output_mapping.iter().zip(&gives).filter(|(mapping, _)| mapping.state).map(|(_, &at)| at);
    if left.collect::<Vec<_>>() != states || op.output_mapping.len() != gives.len() {
        return None;
    }
    let mut all = vec![None; outputs];
    for (mapping, &at) in op.output_mapping.iter().zip(&gives) {
        if let Some((slot, step)) = &mapping.scan {
            *all.get_mut(*slot)? = beside(at, step.axis).then_some(at);
        }
        if let Some(slot) = mapping.last_value_slot {
            *all.get_mut(slot)? = Some(at);
        }
    }
    all.into_iter().collect()
}

#[cfg(test)]
#[path = "independence_tests.rs"]
mod tests;
