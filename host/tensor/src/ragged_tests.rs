use super::*;

fn spec(name: &str, datatype: Datatype, axes: &[&str]) -> TensorSpec {
    let axis = |axis: &&str| axis.parse().map_or_else(|_| Axis::Any((*axis).to_owned()), Axis::Fixed);
    TensorSpec { name: name.to_owned(), datatype, shape: axes.iter().map(axis).collect() }
}

fn signature(inputs: Vec<TensorSpec>) -> Signature {
    Signature { inputs, outputs: Vec::new(), rows: true, mask: None }
}

/// As text encoders have them.
fn encoder() -> Signature {
    let axes = ["batch", "sequence"];
    signature(vec![spec("ids", Datatype::Int64, &axes), spec("mask", Datatype::Int64, &axes)])
}

fn entry(text: &str) -> RaggedEntry {
    toml::from_str(text).unwrap()
}

fn ragged(text: &str, signature: &Signature) -> Result<Ragged, String> {
    Ragged::new(&entry(text), signature, &vec![false; signature.inputs.len()])
}

fn ints(shape: &[usize], numbers: &[i64]) -> Tensor {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(Datatype::Int64, shape.to_vec(), bytes).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.numbers().map(Number::to_f64).collect()
}

/// A request of one row for [`encoder`].
fn request(length: usize) -> Vec<Tensor> {
    vec![ints(&[1, length], &vec![3; length]), ints(&[1, length], &vec![1; length])]
}

#[test]
fn a_declaration_that_does_not_fit_says_which_key_and_why() {
    let check = |text: &str, words: &[&str]| {
        let error = ragged(text, &encoder()).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    check("axis = \"words\"", &["axis", "words", "batch, sequence"]);
    check("axis = \"batch\"", &["axis", "batch", "counts rows"]);
    check("axis = \"sequence\"\nfill.x = 1", &["fill.x", "sequence"]);
    check("axis = \"sequence\"\nfill.ids = 0.5", &["fill.ids", "INT64", "0.5"]);
    check("axis = \"sequence\"\nfill.ids = true", &["fill.ids", "INT64", "true"]);
    check("axis = \"sequence\"\nmask = \"x\"", &["mask", "x", "no input"]);
    check(&format!("axis = \"{}\"", "a".repeat(2 << 20)), &["…"]);
    let wide = |datatype| {
        signature(vec![
            spec("x", Datatype::Uint8, &["batch", "sequence", "4"]),
            spec("mask", datatype, &["batch", "sequence"]),
        ])
    };
    let masked = "axis = \"sequence\"\nmask = \"mask\"";
    assert_eq!(ragged(masked, &wide(Datatype::Fp32)).unwrap().mask, Some(MaskInput { input: 1, like: 0 }));
    assert!(ragged(masked, &wide(Datatype::Int64)).unwrap_err().contains("cannot be left out"));
    let elsewhere =
        signature(vec![spec("x", Datatype::Fp32, &["batch", "sequence"]), spec("mask", Datatype::Fp32, &["batch"])]);
    assert!(ragged(masked, &elsewhere).unwrap_err().contains("does not have the axis sequence"));
    let preprocessed = Ragged::new(&entry("axis = \"sequence\""), &encoder(), &[true, false]).unwrap_err();
    assert!(preprocessed.contains("preprocessed"), "{preprocessed}");
    for bad in ["axis = \"sequence\"\nfil = {}", "axis = 1", "", "axis = \"s\"\nfill.x = \"a\""] {
        assert!(toml::from_str::<RaggedEntry>(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_request_is_padded_to_twice_its_own_numbers_and_not_to_one_more() {
    let ragged = ragged("axis = \"sequence\"\nmask = \"mask\"", &encoder()).unwrap();
    let check = |lengths: &[usize], expected: &[&[usize]]| {
        let requests: Vec<Vec<Tensor>> = lengths.iter().map(|&length| request(length)).collect();
        let runs = ragged.runs(&requests.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let runs: Vec<Vec<usize>> =
            runs.into_iter().map(|run| run.into_iter().map(|at| lengths[at]).collect()).collect();
        assert_eq!(runs, expected, "{lengths:?}");
    };
    check(&[4, 8], &[&[8, 4]]);
    check(&[4, 9], &[&[9], &[4]]);
    check(&[1, 7, 3, 8, 2, 4], &[&[8, 7, 4], &[3, 2], &[1]]);
    check(&[5, 5], &[&[5, 5]]);
    check(&[], &[]);
    // An axis that is there twice has four times as many numbers.
    let square = signature(vec![spec("x", Datatype::Fp32, &["batch", "sequence", "sequence"])]);
    let square = Ragged::new(&entry("axis = \"sequence\""), &square, &[false]).unwrap();
    let of = |length: usize| vec![Tensor::zero(Datatype::Fp32, vec![1, length, length]).unwrap()];
    let fits = |own: usize, longest: usize| square.runs(&[&of(own), &of(longest)]).len() == 1;
    assert!(fits(10, 14) && !fits(10, 15));
}

#[test]
fn what_padding_was_not_tried_with_is_not_padded() {
    let ragged = ragged("axis = \"sequence\"\nmask = \"mask\"", &encoder()).unwrap();
    let pads = |mask: &[i64]| ragged.key(&[ints(&[2, 2], &[7; 4]), ints(&[2, 2], mask)]);
    assert_eq!(pads(&[1, 0, 1, 1]), (true, vec![vec![0], vec![0]]));
    for mask in [[1, 0, 0, 0], [1, 1, 2, 1], [1, 1, -1, 1]] {
        assert_eq!(pads(&mask), (false, vec![vec![2], vec![2]]), "{mask:?}");
    }
    let floats =
        signature(vec![spec("x", Datatype::Fp32, &["batch", "sequence"]), spec("y", Datatype::Fp32, &["batch"])]);
    let floats = Ragged::new(&entry("axis = \"sequence\""), &floats, &[false; 2]).unwrap();
    let one = |number: f32, shape: &[usize]| {
        Tensor::new(Datatype::Fp32, shape.to_vec(), number.to_le_bytes().to_vec()).unwrap()
    };
    let pads = |number: f32| floats.key(&[one(number, &[1, 1]), one(1e30, &[1])]).0;
    assert!(pads(10.0) && pads(-10.0), "what is not ragged may be anything");
    for number in [10.001, -11.0, f32::NAN, f32::INFINITY] {
        assert!(!pads(number), "{number}");
    }
}

#[test]
fn requests_are_padded_with_the_declared_numbers_and_cut_back_to_their_own() {
    let ragged = ragged("axis = \"sequence\"\nfill.ids = 9", &encoder()).unwrap();
    let (short, long) = (request(2), [ints(&[2, 3], &[4; 6]), ints(&[2, 3], &[1; 6])]);
    let shapes = joined_shapes(&[&short, &long]).unwrap();
    assert_eq!(shapes, [[3, 3], [3, 3]]);
    let padded = ragged.padded(&short, &shapes).unwrap();
    assert_eq!(padded, [ints(&[1, 3], &[3, 3, 9]), ints(&[1, 3], &[1, 1, 0])]);
    assert_eq!(cut(padded, vec![vec![1, 2], vec![1, 2]]).unwrap(), short);
    assert!(cut(request(2), vec![vec![1, 2], vec![1, 3]]).unwrap_err().contains("[1, 3]"));
    assert_eq!(joined_shapes(&[&[ints(&[1], &[1])], &[]]), Some(vec![vec![1]]));
}

#[test]
fn a_tensor_keeps_each_number_at_its_place_in_another_shape() {
    let from = ints(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let to = |shape: &[usize]| resized(&from, shape.to_vec(), &5i64.to_le_bytes()).map(|tensor| numbers(&tensor));
    assert_eq!(to(&[2, 3, 2]).unwrap(), [1., 2., 3., 4., 5., 5., 5., 6., 7., 8., 5., 5.]);
    assert_eq!(to(&[2, 2, 3]).unwrap(), [1., 2., 5., 3., 4., 5., 5., 6., 5., 7., 8., 5.]);
    assert_eq!(to(&[1, 1, 3]).unwrap(), [1., 2., 5.]);
    assert_eq!(to(&[2, 2, 1]).unwrap(), [1., 3., 5., 7.]);
    assert!(to(&[2, 0, 2]).unwrap().is_empty());
    for bad in [&[2, 2][..], &[usize::MAX, 2, 2]] {
        assert!(to(bad).is_err(), "{bad:?}");
    }
}
