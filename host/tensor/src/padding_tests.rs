//! Requests of different lengths together give what each of them gives alone.
use std::sync::Arc;

use camshaft_core::jobs::BatchModel;
use camshaft_core::limits::BATCH_ROWS;
use camshaft_core::tensor::{Datatype, Number, Predicted, Rows, Tensor};
use proptest::prelude::*;

use crate::made;
use crate::{Predictor, TensorModel};

/// Of the largest number of an output: a sum over more numbers, some of them zero, rounds in another way.
const ROUNDING: f64 = 1e-5;

fn loaded(graph: &made::Graph) -> Arc<TensorModel> {
    Arc::new(made::load_with(graph, "[ragged]\naxis = \"sequence\"\nmask = \"attention_mask\"").unwrap())
}

fn tensor(datatype: Datatype, shape: &[usize], numbers: &[f64]) -> Tensor {
    let mut bytes = Vec::new();
    for &number in numbers {
        let number = if datatype == Datatype::Int64 { Number::Signed(number as i64) } else { Number::Double(number) };
        assert!(datatype.write(number, &mut bytes));
    }
    Tensor::new(datatype, shape.to_vec(), bytes).unwrap()
}

/// Up to 3 rows of up to 40 tokens; masks are mostly ones, some have holes, and some rows of them are all zero.
fn text() -> impl Strategy<Value = Rows> {
    (1usize..4, 1usize..40).prop_flat_map(|(rows, length)| {
        let ids = prop::collection::vec(0..made::ENTRIES as u32, rows * length);
        let holes = prop::collection::vec(prop::bool::weighted(0.1), rows * length);
        (ids, holes, 0u8..4).prop_map(move |(ids, holes, kind)| {
            let is_real = |&hole: &bool| match kind {
                0 | 1 => 1.0,
                2 => f64::from(u8::from(!hole)),
                _ => f64::from(u8::from(hole)),
            };
            let ids = ids.into_iter().map(f64::from).collect::<Vec<_>>();
            let mask = holes.iter().map(is_real).collect::<Vec<_>>();
            let of = |numbers: &[f64]| tensor(Datatype::Int64, &[rows, length], numbers);
            Rows { tensors: [of(&ids), of(&mask)].into(), rows: rows as u32 }
        })
    })
}

/// Numbers, some of them far beyond those with which padding is tried.
fn signal() -> impl Strategy<Value = Rows> {
    (1usize..3, 1usize..20, prop::sample::select(vec![1.0, 10.0, 200.0, f64::NAN])).prop_flat_map(
        |(rows, length, scale)| {
            prop::collection::vec(-1.0f64..1.0, rows * length * 8).prop_map(move |numbers| {
                let numbers: Vec<f64> = numbers.iter().map(|number| number * scale).collect();
                let x = tensor(Datatype::Fp32, &[rows, length, 8], &numbers);
                let mask = Tensor::ones(Datatype::Fp32, vec![rows, length]).unwrap();
                Rows { tensors: [x, mask].into(), rows: rows as u32 }
            })
        },
    )
}

/// The first difference.
fn differ(alone: &[Tensor], together: &[Tensor]) -> Option<String> {
    alone.iter().zip(together).find_map(|(alone, together)| {
        if alone.shape() != together.shape() {
            return Some(format!("{:?} {:?}", alone.shape(), together.shape()));
        }
        let largest = alone.numbers().map(|number| number.to_f64().abs()).fold(0.0, f64::max);
        let pairs = alone.numbers().map(Number::to_f64).zip(together.numbers().map(Number::to_f64));
        let is_same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= ROUNDING * largest;
        pairs.into_iter().find(|&(a, b)| !is_same(a, b)).map(|(a, b)| format!("{a} {b}"))
    })
}

fn check(model: &Arc<TensorModel>, requests: &[Rows]) {
    let together = Predictor::new(model.clone()).compute(requests).unwrap();
    for (request, output) in requests.iter().zip(together) {
        let Predicted { tensors, .. } = output.unwrap();
        assert_eq!(
            differ(&model.run(&request.tensors).unwrap(), &tensors),
            None,
            "of {:?}",
            request.tensors[0].shape()
        );
    }
}

/// The places of each run, and whether it is padded.
fn runs(predictor: &Predictor, requests: &[Rows]) -> Vec<(Vec<usize>, bool)> {
    predictor.runs(requests).into_iter().map(|run| (run.places, run.is_padded)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn texts_of_different_lengths_get_together_what_each_gets_alone(requests in prop::collection::vec(text(), 1..12)) {
        check(&loaded(&made::encoder()), &requests);
    }

    #[test]
    fn signals_of_different_lengths_get_together_what_each_gets_alone(requests in prop::collection::vec(signal(), 1..8)) {
        check(&loaded(&made::signals(false)), &requests);
    }

    #[test]
    fn several_workers_of_one_model_pad_for_themselves(batches in prop::collection::vec(prop::collection::vec(text(), 1..8), 3)) {
        let model = loaded(&made::encoder());
        std::thread::scope(|scope| {
            for batch in &batches {
                let model = &model;
                scope.spawn(move || check(model, batch));
            }
        });
    }
}

#[test]
fn requests_of_different_lengths_share_a_run_and_those_of_too_different_ones_do_not() {
    let text = |length: usize| {
        let of = |number: f64| tensor(Datatype::Int64, &[1, length], &vec![number; length]);
        Rows { tensors: [of(7.0), of(1.0)].into(), rows: 1 }
    };
    let model = loaded(&made::encoder());
    let mut predictor = Predictor::new(model);
    assert_eq!(predictor.batch().size, BATCH_ROWS);
    let outputs = predictor.compute(&[text(6), text(8), text(3), text(5)]).unwrap();
    let outputs: Vec<Predicted> = outputs.into_iter().map(Result::unwrap).collect();
    let lengths: Vec<usize> = outputs.iter().map(|output| output.tensors[0].shape()[1]).collect();
    assert_eq!(lengths, [6, 8, 3, 5], "each is cut back to its own");
    assert_eq!(runs(&predictor, &[text(6), text(8), text(3), text(5)]), [(vec![1, 0, 3], true), (vec![2], false)]);
}

#[test]
fn regression_requests_of_one_length_share_a_run_whatever_their_numbers_are() {
    let signal = |rows: usize, length: usize, number: f64| {
        let x = tensor(Datatype::Fp32, &[rows, length, 8], &vec![number; rows * length * 8]);
        let mask = Tensor::ones(Datatype::Fp32, vec![rows, length]).unwrap();
        Rows { tensors: [x, mask].into(), rows: rows as u32 }
    };
    let model = loaded(&made::signals(false));
    let predictor = Predictor::new(model.clone());
    // Padding was not tried with 200, which matters only where something is padded.
    let alike = [signal(1, 5, 1.0), signal(3, 5, 200.0), signal(2, 5, 1.0)];
    assert_eq!(runs(&predictor, &alike), [(vec![0, 1, 2], false)]);
    check(&model, &alike);
    let mixed = [signal(1, 5, 1.0), signal(1, 5, 200.0), signal(1, 6, 1.0)];
    assert_eq!(runs(&predictor, &mixed), [(vec![1], false), (vec![2, 0], true)]);
    check(&model, &mixed);
    assert_eq!((runs(&predictor, &alike[1..2]), runs(&predictor, &[])), (vec![(vec![0], false)], Vec::new()));
}

#[test]
fn those_of_one_length_in_a_batch_of_several_share_a_run_without_padding() {
    let text = |length: usize| {
        let of = |number: f64| tensor(Datatype::Int64, &[1, length], &vec![number; length]);
        Rows { tensors: [of(7.0), of(1.0)].into(), rows: 1 }
    };
    let model = loaded(&made::encoder());
    let requests = [text(3), text(16), text(3), text(16), text(3)];
    let predictor = Predictor::new(model.clone());
    assert_eq!(runs(&predictor, &requests), [(vec![1, 3], false), (vec![0, 2, 4], false)]);
    check(&model, &requests);
}

/// What one client sends never shows in what another one gets, however long it is.
#[test]
fn a_request_that_cannot_be_computed_fails_alone_beside_padded_ones() {
    let text = |length: usize, id: f64| {
        let of = |number: f64| tensor(Datatype::Int64, &[1, length], &vec![number; length]);
        Rows { tensors: [of(id), of(1.0)].into(), rows: 1 }
    };
    let model = loaded(&made::encoder());
    let requests = [text(4, 3.0), text(6, 1e9), text(5, 2.0)];
    let outputs = Predictor::new(model.clone()).compute(&requests).unwrap();
    assert!(outputs[1].is_err());
    for place in [0, 2] {
        let alone = model.run(&requests[place].tensors).unwrap();
        assert_eq!(outputs[place].as_ref().unwrap().tensors, alone);
    }
}
