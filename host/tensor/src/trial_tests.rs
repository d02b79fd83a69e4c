use std::cell::RefCell;
use std::collections::BTreeSet;

use camshaft_core::tensor::{Axis, TensorSpec};

use super::*;
use crate::made::{self, Graph};

fn error(graph: &Graph, ragged: &str) -> String {
    made::load_with(graph, &format!("[ragged]\n{ragged}")).unwrap_err().to_string()
}

const MASKED: &str = "axis = \"sequence\"\nmask = \"attention_mask\"";

#[test]
fn a_model_that_masks_its_padding_is_padded() {
    for graph in [made::encoder(), made::signals(false)] {
        let model = made::load_with(&graph, &format!("[ragged]\n{MASKED}\n[ragged.fill]\nattention_mask = 0")).unwrap();
        assert_eq!(model.outline().requests, "in batches, padded along sequence");
        assert!(model.signature.mask.is_some_and(|mask| (mask.input, mask.like) == (1, 0)));
    }
    let model = made::load_with(&made::encoder(), "[ragged]\naxis = \"sequence\"").unwrap();
    assert_eq!((model.signature.mask, model.ragged.is_some()), (None, true), "clients send it");
}

#[test]
fn padding_that_shows_is_refused_with_both_numbers() {
    // Attention without a mask, a mask that has no effect, and one of ones.
    let unmasked = error(&made::attention(), "axis = \"words\"");
    assert!(
        unmasked.contains("m.toml") && unmasked.contains("ragged.axis") && unmasked.contains("output y"),
        "{unmasked}"
    );
    let number = |part: &str| part.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    let (before, after) = unmasked.split_once(" alone and ").unwrap();
    assert_ne!(number(before.rsplit(' ').next().unwrap()), number(after), "{unmasked}");
    let forgets = error(&made::signals(true), MASKED);
    assert!(forgets.contains("padding shows in output states"), "{forgets}");
    let ones = error(&made::encoder(), &format!("{MASKED}\nfill.attention_mask = 1"));
    assert!(ones.contains("padding shows in output states"), "{ones}");
}

#[test]
fn a_model_with_fewer_outputs_when_padded_is_refused_with_both_counts() {
    let spec = |name: &str| TensorSpec {
        name: name.to_owned(),
        datatype: Datatype::Fp32,
        shape: vec![Axis::Any("batch".to_owned()), Axis::Any("n".to_owned())],
    };
    let outputs = vec![spec("y"), spec("z")];
    let signature = Signature { inputs: vec![spec("x")], outputs, rows: true, mask: None };
    let alone = |request: &[Tensor]| Ok([request, request].concat());
    let together = |requests: &[&[Tensor]]| Ok(requests.iter().map(|request| request.to_vec()).collect());
    let model =
        Model { signature: &signature, axis: "n", mask: None, bytes: &|_| Some(1), alone: &alone, together: &together };
    assert_eq!(examine(&model), Err("padding shows: 2 outputs alone, 1 when padded".to_owned()));
}

#[test]
fn models_without_such_an_axis_or_without_batches_are_refused() {
    assert!(error(&made::linear(), "axis = \"batch\"").contains("batch is the first axis"));
    assert!(error(&made::linear(), "axis = \"sequence\"").contains("there are batch"));
    assert!(error(&made::softmax(0), "axis = \"width\"").contains("one at a time"));
    let failing = error(&made::lookup_of_rows(1), "axis = \"n\"");
    assert!(failing.contains("padding along n cannot be tried with all lengths from 1 to 16"), "{failing}");
    assert!(failing.contains("with integers up to 1 "), "{failing}");
}

/// Of ten pairs of requests with indices up to 1000, two have none beyond a table of 900: not the one with the most padding.
#[test]
fn regression_a_model_that_computes_some_of_the_tried_requests_is_tried_with_all_lengths() {
    let short = made::load_with(&made::lookup_of_rows(900), "[ragged]\naxis = \"n\"").unwrap();
    assert!(short.ragged.is_some());
    // Padding shows where it is twelve places away, which only a request that is padded from 8 to 16 has.
    let far = error(&made::far_sighted(900), "axis = \"n\"");
    assert!(far.contains("padding shows in output y"), "{far}");
}

/// A model of indices into a table of this many entries, which counts the pairs of requests that it computes.
fn pairs_of(entries: f64) -> (Result<(), String>, BTreeSet<(usize, usize)>) {
    let spec = |name: &str, datatype| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: vec![Axis::Any("batch".to_owned()), Axis::Any("n".to_owned())],
    };
    let (inputs, outputs) = (vec![spec("ids", Datatype::Int64)], vec![spec("y", Datatype::Int64)]);
    let signature = Signature { inputs, outputs, rows: true, mask: None };
    let pairs = RefCell::<BTreeSet<(usize, usize)>>::default();
    let alone = |request: &[Tensor]| match request[0].numbers().all(|id| id.to_f64() < entries) {
        true => Ok(request.to_vec()),
        false => Err("an index is out of range".to_owned()),
    };
    let together = |requests: &[&[Tensor]]| {
        let length = |request: &[Tensor]| request[0].shape()[1];
        pairs.borrow_mut().insert((length(requests[0]), length(requests[1])));
        Ok(requests.iter().map(|request| request.to_vec()).collect())
    };
    let model =
        Model { signature: &signature, axis: "n", mask: None, bytes: &|_| Some(1), alone: &alone, together: &together };
    let found = examine(&model);
    (found, pairs.into_inner())
}

#[test]
fn regression_every_pair_of_lengths_is_computed_or_the_model_is_refused() {
    for entries in [2.0, 3.0, 50.0, 900.0, 1001.0] {
        assert_eq!(pairs_of(entries), (Ok(()), PAIRS.into()), "{entries}");
    }
    let (found, pairs) = pairs_of(1.0);
    assert!(found.unwrap_err().contains("an index is out of range") && pairs.is_empty());
}
