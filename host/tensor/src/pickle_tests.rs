use super::*;
use crate::pickle_made::{dictionary, integer, pickle, text};

fn refused(value: &[u8]) -> String {
    read(&pickle(value)).unwrap_err()
}

fn check(value: &[u8], words: &str) {
    let error = refused(value);
    assert!(error.contains(words) && error.len() < 300, "{error}");
}

fn is_read(value: &[u8]) {
    let whole = pickle(value);
    let read = read(&whole);
    assert!(read.is_ok(), "{read:?}");
}

#[test]
fn regression_values_may_be_nested_to_the_bound_and_not_deeper() {
    let tuples = |depth: usize| [b")".to_vec(), vec![0x85; depth - 1]].concat();
    let lists = |depth: usize| [vec![b']'; depth], vec![b'a'; depth - 1]].concat();
    let dictionaries = |depth: usize| (1..depth).fold(b"}".to_vec(), |inner, _| dictionary(&[("k", &inner)]));
    let calls = |depth: usize| {
        let call = b"ctorch._utils\n_rebuild_parameter\n";
        [call.repeat(depth), b")".to_vec(), b"R\x85".repeat(depth - 1), b"R".to_vec()].concat()
    };
    let check = |nested: &dyn Fn(usize) -> Vec<u8>| {
        is_read(&nested(64));
        assert_eq!(refused(&nested(65)), "nests values deeper than 64");
    };
    check(&tuples);
    check(&lists);
    check(&dictionaries);
    check(&calls);
    // The threads of a server have small stacks.
    let small = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        assert_eq!(refused(&tuples(100_000)), "nests values deeper than 64");
        assert_eq!(refused(&lists(100_000)), "nests values deeper than 64");
    });
    small.unwrap().join().unwrap();
}

#[test]
fn values_are_made_up_to_the_bound() {
    is_read(&vec![b'N'; VALUES]);
    assert_eq!(refused(&vec![b'N'; VALUES + 1]), format!("makes more than {VALUES} values"));
    assert_eq!(refused(&vec![b'('; VALUES + 1]), format!("makes more than {VALUES} values"));
    assert_eq!(refused(&[b"(".as_slice(), &b"2".repeat(VALUES)].concat()), "takes a value where there is none");
}

#[test]
fn values_are_remembered_up_to_the_bound() {
    let remembered = |count: usize| {
        let places = (0..count as u32).flat_map(|place| [b"r".as_slice(), &place.to_le_bytes()].concat());
        [b")".to_vec(), places.collect()].concat()
    };
    is_read(&remembered(REMEMBERED));
    assert_eq!(refused(&remembered(REMEMBERED + 1)), format!("remembers more than {REMEMBERED} values"));
    is_read(&[remembered(REMEMBERED), b"q\x00".to_vec()].concat());
    is_read(&[b")".to_vec(), vec![0x94; REMEMBERED]].concat());
    check(&[b")".to_vec(), vec![0x94; REMEMBERED + 1]].concat(), "remembers more than");
}

#[test]
fn regression_references_take_no_copies_of_what_they_refer_to() {
    // Each tuple has a hundred references to the one before.
    let bomb = |depth: u8| {
        let levels =
            (0..depth).flat_map(|at| [b"tq".to_vec(), vec![at], b"(".to_vec(), [b'h', at].repeat(100)].concat());
        [b"(".to_vec(), text("a"), levels.collect(), b"t".to_vec()].concat()
    };
    let whole = pickle(&bomb(63));
    let (values, _) = read(&whole).unwrap();
    assert_eq!(values.elements.len(), 1 + 63 * 100);
    assert_eq!(refused(&bomb(100)), "nests values deeper than 64");
}

#[test]
fn names_and_opcodes_that_no_state_dictionary_needs_are_told() {
    check(b"cos\nsystem\n)R", "refers to os.system, which no state dictionary needs");
    check(&[text("builtins"), text("eval"), b"\x93".to_vec()].concat(), "refers to builtins.eval");
    check(&[b"c".to_vec(), vec![b'a'; 2_000_000], b"\nb\n".to_vec()].concat(), "refers to aaa");
    check(b"ctorch\nQInt8Storage\n", "torch.QInt8Storage");
    check(b"ctorch\nFloatStorage\n)R", "calls what cannot be called");
    check(b"N)R", "calls what cannot be called");
    check(b"ccollections\nOrderedDict\n)\x81", "opcode 0x81");
    check(b"\x82a", "opcode 0x82");
    check(b"\x80\x06", "protocol 6, at most 5");
    check(b"I9999999999999999999\n", "has the integer 9999999999999999999");
    check(b"}(NNu", "neither text nor an integer");
    check(b"}(Nu", "key without a value");
    check(b"}(K\x01u", "key without a value");
    check(b"ccollections\nOrderedDict\n](N]e\x85R", "no list of pairs");
    check(b"NQ", "no tuple");
    check(b"NNb", "attributes");
    check(b"h\x05", "refers to value 5, which it does not remember");
}

#[test]
fn damaged_pickles_are_refused_wherever_they_end() {
    let whole =
        pickle(&dictionary(&[("a", &integer(-1)), ("b", b"ccollections\nOrderedDict\n)R]N\x86q\x00h\x00\x87")]));
    for end in 0..whole.len() {
        assert_eq!(read(&whole[..end]).unwrap_err(), "ends too early");
    }
    assert!(read(&whole).is_ok());
    for cut in
        [&b"X\xff\xff\xff\xffabc"[..], b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", b"\x95\xff", b"\x8b\xff\xff\xff\xffa"]
    {
        assert_eq!(read(cut).unwrap_err(), "ends too early");
    }
    check(b"X\x01\x00\x00\x00\xff", "not UTF-8");
    for opcode in b"0atsueRbQq\x94\x85\x86\x87\x93\x901ld\x91" {
        check(&[*opcode, 0], "where there is none");
    }
    // What is under a mark is not touched.
    for opcode in b"0asR\x85\x86\x87\x93bQq" {
        check(&[b'N', b'N', b'N', b'(', *opcode], "takes a value where there is none");
    }
}

#[test]
fn values_are_those_that_python_writes_in_each_protocol() {
    let one = |bytes: &[u8]| match read(&[bytes, b"."].concat()).unwrap() {
        (_, Value::Integer(integer)) => integer,
        (_, other) => panic!("{other:?}"),
    };
    assert_eq!(one(b"K\xff"), 255);
    assert_eq!(one(b"M\xff\xff"), 65_535);
    assert_eq!(one(b"J\xff\xff\xff\xff"), -1);
    assert_eq!(one(b"I-12\n"), -12);
    assert_eq!(one(b"\x8a\x00"), 0);
    assert_eq!(one(b"\x8a\x01\x80"), -128);
    assert_eq!(one(b"\x8b\x02\x00\x00\x00\xff\x00"), 255);
    assert_eq!(one(&integer(i64::MIN)), i64::MIN);
    let is_other = |bytes: &[u8]| assert_eq!(read(&[bytes, b"."].concat()).unwrap().1, Value::Other);
    for other in [&b"N"[..], b"\x88", b"G12345678", b"I01\n", b"\x8a\x09123456789", b"C\x01a", b"\x8f", b"(N\x91"] {
        is_other(other);
    }
    is_other(b"\x8f(NNN\x90");
    let protocol_4 = [
        b"\x80\x04\x95\x08\x00\x00\x00\x00\x00\x00\x00\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94"
            .as_slice(),
        b")R\x94(\x8c\x01a\x94K\x01K\x02h\x04u}\x8c\x09_metadataNsb.",
    ];
    let entries = |pickle: &[u8], expected: &[Entry<'_>]| {
        let (values, value) = read(pickle).unwrap();
        let Value::Dictionary(at) = value else { panic!("{value:?}") };
        assert_eq!(values.entries(at), expected);
    };
    let (a, b) = (Value::Text("a"), Value::Text("b"));
    entries(&protocol_4.concat(), &[(a, Value::Integer(1)), (Value::Integer(2), a)]);
    // As Python 2 wrote it.
    let pairs = b"ccollections\nOrderedDict\n](U\x01aK\x01\x86](U\x01bK\x02ee\x85R.";
    entries(pairs, &[(a, Value::Integer(1)), (b, Value::Integer(2))]);
    entries(b"(U\x01aK\x01d.", &[(a, Value::Integer(1))]);
}
