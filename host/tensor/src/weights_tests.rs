use super::*;
use crate::pickle_made::{Made, ROWS, dictionary, file, pickle, tensor};

/// A matrix of three rows with the numbers 0 to 11 and a bias of three, in storages 0 and 1.
fn read(weight: &Made<'_>, files: &[(&str, &[u8])]) -> Result<Weights, String> {
    let bias = Made { key: "1", len: 3, shape: &[3], strides: &[1], ..ROWS };
    let pickle = pickle(&dictionary(&[("fc.weight", &tensor(weight)), ("fc.bias", &tensor(&bias))]));
    Weights::read(FileFormat::Pt, file(&pickle, files)).map_err(|error| error.to_string())
}

fn numbers(count: u8) -> Vec<u8> {
    (0..count).flat_map(|number| f32::from(number).to_le_bytes()).collect()
}

fn check(weight: &Made<'_>, files: &[(&str, &[u8])], words: &str) {
    let error = read(weight, files).unwrap_err();
    assert!(error.contains(words), "{error}");
}

#[test]
fn a_file_of_pytorch_gives_the_numbers_of_each_tensor() {
    let (weight, bias) = (numbers(16), numbers(3));
    let files: [(&str, &[u8]); 4] =
        [("data/0", &weight), ("data/1", &bias), ("byteorder", b"little"), ("version", b"3\n")];
    let mut weights = read(&Made { offset: 4, len: 16, ..ROWS }, &files).unwrap();
    let expected: Vec<f32> = (4..16).map(|number| number as f32).collect();
    assert_eq!(weights.take("fc.weight", &[3, 4]).unwrap(), expected);
    assert_eq!(weights.take("fc.bias", &[3]).unwrap(), [0.0, 1.0, 2.0]);
    assert_eq!((weights.parameters, weights.bytes), (15, 60));
    // In half precision, and integers.
    let half = Made { storage: "BFloat16Storage", offset: 0, len: 24, ..ROWS };
    let mut weights = read(&half, &[("data/0", &numbers(12)), ("data/1", &bias)]).unwrap();
    assert_eq!(weights.take("fc.weight", &[3, 4]).unwrap()[3], 1.0);
    let integers = Made { storage: "LongStorage", len: 12, ..ROWS };
    let mut weights = read(&integers, &[("data/0", &[0; 96]), ("data/1", &bias)]).unwrap();
    let error = weights.take("fc.weight", &[3, 4]).unwrap_err();
    assert!(matches!(&error, Missing::Other(why) if why.contains("floating-point")), "{error:?}");
}

#[test]
fn regression_a_tensor_that_many_layers_take_counts_for_each_up_to_the_bound() {
    let (weight, bias) = (numbers(12), numbers(3));
    let mut weights = read(&ROWS, &[("data/0", &weight), ("data/1", &bias)]).unwrap();
    assert_eq!(weights.most_bytes, 4 << 30, "no test has the memory for that");
    weights.most_bytes = 108;
    for bytes in [48, 96] {
        assert!(weights.take("fc.weight", &[3, 4]).is_ok());
        assert_eq!((weights.parameters, weights.bytes), (12, bytes));
    }
    let error = weights.take("fc.weight", &[3, 4]).unwrap_err();
    let expected = "(fc.weight) takes 48 bytes beside the 96 of other parameters, at most 108 in all";
    assert_eq!(error, Missing::Other(expected.to_owned()));
    weights.most_bytes = 107;
    assert!(weights.take("fc.bias", &[3]).is_err(), "one byte too many");
    weights.most_bytes = 108;
    assert!(weights.take("fc.bias", &[3]).is_ok());
    assert_eq!((weights.parameters, weights.bytes), (15, 108));
    // The same network on a device.
    weights.begin();
    assert!(weights.take("fc.weight", &[3, 4]).is_ok());
    assert_eq!((weights.parameters, weights.bytes), (15, 48));
}

#[test]
fn a_file_has_tensors_up_to_the_bound_and_not_one_more() {
    let read = |count: usize| {
        let tensor = |at: usize| format!(r#""t{at}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
        let head = format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","));
        let file = [&(head.len() as u64).to_le_bytes(), head.as_bytes()].concat();
        Weights::read(FileFormat::Safetensors, file).map(|weights| weights.tensors.len())
    };
    assert_eq!(read(TENSORS), Ok(65_536));
    assert_eq!(read(TENSORS + 1).unwrap_err().to_string(), "has 65537 tensors, at most 65536");
}

#[test]
fn regression_damaged_storages_are_no_zeros() {
    let (weight, bias) = (numbers(12), numbers(3));
    let whole: [(&str, &[u8]); 2] = [("data/0", &weight), ("data/1", &bias)];
    assert!(read(&ROWS, &whole).is_ok());
    check(&ROWS, &whole[1..], "its tensor fc.weight: its storage 0 is not in the file");
    check(&ROWS, &[("data/0", &weight[..8]), whole[1]], "its tensor fc.weight: its storage 0 has 8 bytes");
    check(&Made { offset: 1000, ..ROWS }, &whole, "reaches from number 1000 beyond its storage 0");
    check(&Made { offset: i64::MAX, ..ROWS }, &whole, "beyond its storage 0");
    check(&Made { offset: i64::from(i32::MAX), ..ROWS }, &whole, "beyond its storage 0");
    check(&Made { offset: -4, ..ROWS }, &whole, "the offset -4");
    check(&Made { key: "../../../etc/passwd", ..ROWS }, &whole, "the key ../../../etc/passwd");
    check(&Made { storage: "DoubleStorage", ..ROWS }, &whole, "DoubleStorage");
    check(&ROWS, &[whole[0], whole[1], ("byteorder", b"big")], "highest bytes first");
    let error = Weights::read(FileFormat::Pt, file(b"\x80\x02}.", &[("x/data.pkl", b"\x80\x02}.")])).unwrap_err();
    assert!(error.to_string().contains("must have one file data.pkl, has 2"), "{error}");
}

#[test]
fn regression_altered_bytes_are_noticed() {
    let (weight, bias) = (numbers(12), numbers(3));
    let pickle = pickle(&dictionary(&[("fc.weight", &tensor(&ROWS))]));
    let whole = file(&pickle, &[("data/0", &weight), ("data/1", &bias)]);
    for part in [&weight[..], &bias, &pickle] {
        let mut altered = whole.clone();
        let at = altered.windows(part.len()).position(|bytes| bytes == part).unwrap();
        altered[at + part.len() - 1] ^= 1;
        let error = Weights::read(FileFormat::Pt, altered).unwrap_err().to_string();
        assert!(error.contains("cannot be read") && error.contains("checksum"), "{error}");
    }
}

#[test]
fn regression_a_transposed_tensor_is_not_read_in_the_wrong_order() {
    let (weight, bias) = (numbers(12), numbers(3));
    let transposed = Made { strides: &[1, 3], ..ROWS };
    let mut weights = read(&transposed, &[("data/0", &weight), ("data/1", &bias)]).unwrap();
    let error = weights.take("fc.weight", &[3, 4]).unwrap_err();
    let expected = "(fc.weight) is not contiguous: save it with .contiguous()";
    assert_eq!(error, Missing::Other(expected.to_owned()));
    // Nobody needs to save again what no layer takes.
    assert!(weights.take("fc.bias", &[3]).is_ok());
}

#[test]
fn regression_a_deep_pickle_overflows_no_stack() {
    let weight = numbers(12);
    let small = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
        let nested = [b")".to_vec(), vec![0x85; 100_000]].concat();
        let pickle = pickle(&dictionary(&[("fc.weight", &tensor(&ROWS)), ("z", &nested)]));
        let error = Weights::read(FileFormat::Pt, file(&pickle, &[("data/0", &weight)])).unwrap_err().to_string();
        assert_eq!(error, "its weights cannot be read: its pickle nests values deeper than 64");
    });
    small.unwrap().join().unwrap();
}
