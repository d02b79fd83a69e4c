use super::*;

fn tensor(shape: &[usize]) -> Tensor {
    let numbers = volume(shape).unwrap();
    let bytes = (0..numbers).flat_map(|number| (number as f32).to_le_bytes()).collect();
    Tensor::new(Datatype::Fp32, shape.to_vec(), bytes).unwrap()
}

fn spec(name: &str, shape: &[i64]) -> TensorSpec {
    let axis = |&length: &i64| match usize::try_from(length) {
        Ok(length) => Axis::Fixed(length),
        Err(_) => Axis::Any(format!("n{}", -length)),
    };
    TensorSpec { name: name.to_owned(), datatype: Datatype::Fp32, shape: shape.iter().map(axis).collect() }
}

#[test]
fn names_of_types_are_read_as_they_are_written() {
    for datatype in Datatype::ALL {
        assert_eq!(Datatype::from_name(datatype.as_str()), Some(datatype));
        assert_eq!(serde_json::to_value(datatype).unwrap(), datatype.as_str());
    }
    assert_eq!(Datatype::from_name("float32"), None);
}

#[test]
fn bytes_that_are_not_as_many_as_the_shape_says_are_refused() {
    let new = |shape: &[usize], bytes: usize| Tensor::new(Datatype::Fp32, shape.to_vec(), vec![0; bytes]);
    assert!(new(&[2, 3], 24).is_ok() && new(&[], 4).is_ok() && new(&[2, 0], 0).is_ok());
    for bytes in [23, 25] {
        let error = new(&[2, 3], bytes).unwrap_err();
        assert_eq!(error.to_string(), format!("a shape of [2, 3] takes 24 bytes of FP32, got {bytes}"));
    }
    let huge = vec![usize::MAX, 2];
    assert_eq!(new(&huge, 8), Err(BadTensor::Uncountable { shape: huge.clone() }));
    assert!(Tensor::zero(Datatype::Fp32, vec![usize::MAX / 2, 1]).is_err(), "its bytes cannot be counted");
    assert!(Tensor::zero(Datatype::Fp32, huge).is_err());
    let bools = |byte| Tensor::new(Datatype::Bool, vec![2], vec![0, byte]);
    assert!(bools(1).is_ok());
    assert_eq!(bools(2), Err(BadTensor::NotABool(2)));
}

#[test]
fn tells_finite_numbers_from_others() {
    let check = |datatype, bytes: &[u8], finite| {
        let one = bytes.len() / Datatype::bytes(datatype);
        assert_eq!(
            Tensor::new(datatype, vec![one], bytes.to_vec()).unwrap().is_finite(),
            finite,
            "{datatype} {bytes:?}"
        );
    };
    for number in [0.0, -1.5, f64::MAX, f64::MIN_POSITIVE] {
        check(Datatype::Fp64, &number.to_le_bytes(), true);
    }
    for number in [0.0, -1.5, f32::MAX, f32::MIN_POSITIVE] {
        check(Datatype::Fp32, &number.to_le_bytes(), true);
    }
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        check(Datatype::Fp64, &[1f64.to_le_bytes(), number.to_le_bytes()].concat(), false);
        check(Datatype::Fp32, &[1f32.to_le_bytes(), (number as f32).to_le_bytes()].concat(), false);
    }
    check(Datatype::Fp16, &0x7bffu16.to_le_bytes(), true);
    check(Datatype::Fp16, &0xfc00u16.to_le_bytes(), false);
    check(Datatype::Int64, &[0xff; 8], true);
}

#[test]
fn numbers_are_written_only_where_their_type_has_them() {
    let check = |datatype: Datatype, number, expected: Option<Number>| {
        let mut bytes = Vec::new();
        let written = datatype.write(number, &mut bytes);
        assert_eq!(bytes.len(), if written { datatype.bytes() } else { 0 }, "{datatype} {number:?}");
        let one = written.then(|| Tensor::new(datatype, vec![], bytes).unwrap().numbers().next().unwrap());
        assert_eq!(one, expected, "{datatype} {number:?}");
    };
    use Number::{Bool, Double, Signed, Single, Unsigned};
    for (datatype, least, most) in [
        (Datatype::Int8, i64::from(i8::MIN), i64::from(i8::MAX)),
        (Datatype::Int16, i16::MIN.into(), i16::MAX.into()),
        (Datatype::Int32, i32::MIN.into(), i32::MAX.into()),
    ] {
        for number in [least, -1, 0, most] {
            check(datatype, Signed(number), Some(Signed(number)));
        }
        check(datatype, Signed(least - 1), None);
        check(datatype, Signed(most + 1), None);
    }
    for (datatype, most) in [
        (Datatype::Uint8, u8::MAX.into()),
        (Datatype::Uint16, u16::MAX.into()),
        (Datatype::Uint32, u64::from(u32::MAX)),
    ] {
        check(datatype, Signed(most as i64), Some(Unsigned(most)));
        check(datatype, Unsigned(most + 1), None);
        check(datatype, Signed(-1), None);
    }
    check(Datatype::Int64, Signed(i64::MIN), Some(Signed(i64::MIN)));
    check(Datatype::Int64, Unsigned(1 << 63), None);
    check(Datatype::Uint64, Unsigned(u64::MAX), Some(Unsigned(u64::MAX)));
    check(Datatype::Fp32, Signed(-3), Some(Single(-3.0)));
    check(Datatype::Fp32, Double(0.1), Some(Single(0.1)));
    check(Datatype::Fp32, Double(1e39), None);
    check(Datatype::Fp32, Double(f64::INFINITY), Some(Single(f32::INFINITY)));
    check(Datatype::Fp64, Double(1e39), Some(Double(1e39)));
    check(Datatype::Fp16, Double(65504.0), Some(Single(65504.0)));
    check(Datatype::Fp16, Double(70000.0), None);
    check(Datatype::Bool, Bool(true), Some(Bool(true)));
    for datatype in Datatype::ALL {
        check(datatype, if datatype == Datatype::Bool { Signed(1) } else { Bool(true) }, None);
    }
    check(Datatype::Int32, Double(1.0), None);
}

#[test]
fn a_mask_that_is_left_out_is_ones_for_each_number_of_another_input_and_never_takes_more() {
    let (mut ids, mut mask) = (spec("ids", &[-1, -2, 4]), spec("mask", &[-1, -2]));
    (ids.datatype, mask.datatype) = (Datatype::Uint8, Datatype::Fp32);
    let mask_input = Some(MaskInput { input: 1, like: 0 });
    let signature = Signature { inputs: vec![ids, mask], outputs: Vec::new(), rows: true, mask: mask_input };
    let of = |shape: &[usize]| signature.mask_of(&Tensor::zero(Datatype::Uint8, shape.to_vec()).unwrap());
    let made = of(&[2, 3, 4]).unwrap();
    assert_eq!((made.datatype(), made.shape()), (Datatype::Fp32, &[2, 3][..]));
    assert!(made.numbers().all(|number| number == Number::Single(1.0)));
    assert_eq!(of(&[2, 3, 3]), None, "a fixed axis that is too short");
    assert_eq!(of(&[2, 3]), None, "an axis too few");
    assert_eq!(signature.mask_of(&tensor(&[2, 3, 4])), None, "other numbers");
    for datatype in Datatype::ALL {
        let ones = Tensor::ones(datatype, vec![2]).unwrap();
        assert!(ones.numbers().all(|number| number.to_f64() == 1.0) && ones.len() == 2, "{datatype}");
    }
}

#[test]
fn a_mismatch_names_the_input_the_axis_and_both_lengths() {
    let signature = Signature {
        inputs: vec![spec("a", &[-1, 3]), spec("b", &[-1, -2])],
        outputs: vec![spec("y", &[-1])],
        rows: true,
        mask: None,
    };
    let check = |a: &[usize], b: &[usize], expected: Result<u32, &str>| {
        let got = signature.check(&[tensor(a), tensor(b)]).map_err(|error| error.to_string());
        assert_eq!(got, expected.map_err(str::to_owned), "{a:?} {b:?}");
    };
    check(&[2, 3], &[2, 7], Ok(2));
    check(&[1, 3], &[1, 1], Ok(1));
    check(&[2, 4], &[2, 7], Err("axis 1 of input a must be 3, got 4"));
    check(&[2, 3, 1], &[2, 7], Err("input a must have 2 axes ([-1, 3], -1: any length), got 3"));
    check(&[2, 3], &[3, 7], Err("axis 0 of input b must be 2, as the axis n1 of another input, got 3"));
    check(&[2, 3], &[2, 0], Err("axis 1 of input b must be 1 or more, got 0"));
    let ints = Tensor::zero(Datatype::Int64, vec![2, 3]).unwrap();
    let error = signature.check(&[ints, tensor(&[2, 1])]).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.input()), ("input a must be FP32, got INT64", "a"));
    let single = Signature { rows: false, ..signature };
    assert_eq!(single.check(&[tensor(&[2, 3]), tensor(&[2, 7])]), Ok(1), "what has no rows is one");
}
