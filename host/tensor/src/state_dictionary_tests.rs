use super::*;
use crate::pickle;
use crate::pickle_made::{Made, ROWS, dictionary, pickle, tensor, text};

/// The names of the tensors.
fn names(value: &[u8]) -> Result<Vec<String>, String> {
    let whole = pickle(value);
    let (values, value) = pickle::read(&whole)?;
    tensors(&values, value).map(|found| found.into_keys().collect())
}

fn check(value: &[u8], words: &str) {
    let error = names(value).unwrap_err();
    assert!(error.contains(words) && error.len() < 400, "{error}");
}

#[test]
fn tensors_are_named_by_the_dictionaries_that_they_are_in() {
    let rows = tensor(&ROWS);
    let parameter = [b"ctorch._utils\n_rebuild_parameter\n(".as_slice(), &rows, b"\x89}tR"].concat();
    let inner = dictionary(&[("fc.weight", &rows), ("fc.bias", &parameter)]);
    let whole =
        dictionary(&[("state_dict", &inner), ("epoch", b"K\x03"), ("list", b"]"), ("dtype", b"ctorch\nfloat32\n")]);
    assert_eq!(names(&whole).unwrap(), ["state_dict.fc.bias", "state_dict.fc.weight"]);
    let numbered = [b"}(K\x05".as_slice(), &inner, b"u"].concat();
    assert_eq!(names(&numbered).unwrap(), ["5.fc.bias", "5.fc.weight"]);
    check(b"]", "is no dictionary");
    check(&rows, "is no dictionary");
    let twice = dictionary(&[("a.b", &rows), ("a", &dictionary(&[("b", &rows)]))]);
    check(&twice, "has two tensors named a.b");
    check(&dictionary(&[("a", &rows), ("a", &rows)]), "has two tensors named a");
}

#[test]
fn regression_a_dictionary_in_itself_or_in_others_many_times_ends() {
    check(&[b"}q\x00".to_vec(), text("a"), b"h\x00s".to_vec()].concat(), "nests values deeper than 64");
    let nested =
        |depth: usize| (1..depth).fold(dictionary(&[("t", &tensor(&ROWS))]), |inner, _| dictionary(&[("k", &inner)]));
    // A tensor's own tuples are nested two deep.
    assert_eq!(names(&nested(62)).unwrap().len(), 1);
    check(&nested(63), "nests values deeper than 64");
    let bomb = (0..40u8).map(|at| {
        let references: Vec<u8> = (0..10).flat_map(|key| [b'K', key, b'h', at]).collect();
        [vec![b'q', at], b"}(".to_vec(), references, b"u".to_vec()].concat()
    });
    let bomb = [b"}".to_vec(), bomb.collect::<Vec<_>>().concat()].concat();
    check(&bomb, &format!("refers to more than {VALUES} entries"));
}

#[test]
fn tensors_names_and_axes_are_bounded() {
    let many = |count: u32| {
        let keys = (0..count).flat_map(|key| [b"J".as_slice(), &key.to_le_bytes(), b"h\x00"].concat());
        [tensor(&ROWS), b"q\x000}(".to_vec(), keys.collect(), b"u".to_vec()].concat()
    };
    assert_eq!(names(&many(65_536)).unwrap().len(), TENSORS);
    check(&many(65_537), "has more than 65536 tensors");
    let named = |length: usize| dictionary(&[("a", &dictionary(&[(&"b".repeat(length - 2), &tensor(&ROWS))]))]);
    assert_eq!(names(&named(1024)).unwrap()[0].len(), NAME_BYTES);
    check(&named(1025), "longer than 1024 bytes");
    check(&named(1_000_000), "longer than 1024 bytes");
    let axes = |count: usize| {
        let ones = vec![1; count];
        dictionary(&[("t", &tensor(&Made { shape: &ones, strides: &ones, ..ROWS }))])
    };
    assert!(names(&axes(64)).is_ok());
    check(&axes(65), "has 65 axes, at most 64");
}

#[test]
fn entries_of_dictionaries_are_counted_up_to_the_bound_as_often_as_they_are_referred_to() {
    let entries = |keys: std::ops::Range<u32>, value: &[u8]| -> Vec<u8> {
        keys.flat_map(|key| [b"J".as_slice(), &key.to_le_bytes(), value].concat()).collect()
    };
    // One dictionary of 2,047 entries, which is in another one 1,024 times: with its own entries, 2,097,152.
    let inner = [b"}(".to_vec(), entries(0..2047, b"N"), b"uq\x00".to_vec()].concat();
    let whole = |more: u32| {
        let others = entries(1..1024, b"h\x00");
        [b"}(K\x00".as_slice(), &inner, &others, &entries(1024..1024 + more, b"N"), b"u"].concat()
    };
    assert_eq!((VALUES, names(&whole(0))), (1024 * 2048, Ok(Vec::new())));
    check(&whole(1), "refers to more than 2097152 entries of dictionaries");
}

#[test]
fn what_torch_save_does_not_write_is_told_with_the_tensor() {
    let one = |made: Made<'_>| dictionary(&[("fc.weight", &tensor(&made))]);
    let told = |made: Made<'_>, words: &str| check(&one(made), &format!("describes fc.weight, {words}"));
    told(Made { key: "../../../etc/passwd", ..ROWS }, "whose storage has the key ../../../etc/passwd, which must be");
    told(Made { key: "", ..ROWS }, "whose storage has the key");
    told(Made { key: "١", ..ROWS }, "whose storage has the key");
    assert!(names(&one(Made { key: &"1".repeat(20), ..ROWS })).is_ok());
    told(Made { key: &"1".repeat(21), ..ROWS }, "whose storage has the key");
    told(Made { offset: -4, ..ROWS }, "which has the offset -4");
    told(Made { len: -1, ..ROWS }, "which has the length of its storage -1");
    told(Made { shape: &[-3, -4], ..ROWS }, "which has the length -3");
    told(Made { strides: &[-4, -1], ..ROWS }, "which has the stride -4");
    told(Made { strides: &[1], ..ROWS }, "which has 2 axes and 1 strides");
    let of = |arguments: &[u8]| {
        let call = [b"ctorch._utils\n_rebuild_tensor_v2\n".as_slice(), arguments, b"R"].concat();
        dictionary(&[("t", &call)])
    };
    check(&of(b")"), "no storage, offset, shape and strides");
    check(&of(b"(NNNNt"), "no storage, offset, shape and strides");
    check(&of(b"()QK\x00))t"), "no type, key and length");
    check(&dictionary(&[("t", b"ctorch._utils\n_rebuild_parameter\n)R")]), "describes t, which is no tensor");
}

fn place(made: &Made<'_>, storage_bytes: u64) -> Result<Place, String> {
    let whole = pickle(&dictionary(&[("t", &tensor(made))]));
    let (values, value) = pickle::read(&whole).unwrap();
    tensors(&values, value).unwrap()["t"].place(storage_bytes)
}

#[test]
fn regression_a_tensor_lies_within_a_storage_that_is_whole() {
    assert_eq!(place(&ROWS, 48), Ok(Place::Bytes(0..48)));
    for storage_bytes in [0, 20, 47, 49, 96, u64::MAX] {
        assert!(place(&ROWS, storage_bytes).unwrap_err().contains("which are not 12 numbers (FloatStorage)"));
    }
    assert!(place(&Made { storage: "DoubleStorage", ..ROWS }, 48).unwrap_err().contains("DoubleStorage"));
    assert!(place(&Made { len: i64::MAX, ..ROWS }, 48).is_err());
    let at = |len, offset| place(&Made { len, offset, ..ROWS }, 4 * len as u64);
    assert_eq!(at(16, 4), Ok(Place::Bytes(16..64)));
    assert_eq!(at(16, 5).unwrap_err(), "reaches from number 5 beyond its storage 0, which has 16 numbers");
    assert!(at(12, i64::MAX).is_err());
    let huge = Made { shape: &[3, 4], strides: &[1 << 62, 1 << 62], ..ROWS };
    assert!(place(&huge, 48).unwrap_err().contains("beyond its storage"));
    let scalar = Made { shape: &[], strides: &[], offset: 11, ..ROWS };
    assert_eq!(place(&scalar, 48), Ok(Place::Bytes(44..48)));
    let empty = Made { shape: &[0, 1 << 40, 1 << 40], strides: &[1 << 40, 1 << 40, 1], offset: 12, ..ROWS };
    assert_eq!(place(&empty, 48), Ok(Place::Bytes(48..48)));
    assert!(place(&Made { offset: 13, ..empty }, 48).is_err());
}

#[test]
fn numbers_in_another_order_are_scattered() {
    let with = |shape: &[i64], strides: &[i64]| place(&Made { shape, strides, ..ROWS }, 48).unwrap();
    assert_eq!(with(&[3, 4], &[1, 3]), Place::Scattered);
    assert_eq!(with(&[3, 2], &[4, 1]), Place::Scattered);
    assert_eq!(with(&[20_000, 20_000], &[0, 0]), Place::Scattered);
    assert_eq!(with(&[i64::MAX, i64::MAX], &[0, 0]), Place::Scattered);
    // The stride of an axis of one number says nothing.
    assert_eq!(with(&[1, 12, 1], &[7, 1, 5]), Place::Bytes(0..48));
}
