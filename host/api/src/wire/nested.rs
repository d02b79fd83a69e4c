//! Nested lists of numbers, read as numbers: in a JSON tree each would take many times its bytes.
use std::fmt;

use camshaft_core::tensor::Number;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

/// Lists within lists, which is as many axes as a tensor may have.
pub(crate) const AXES: usize = 16;

/// Numbers in lists of equal lengths.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Nested {
    pub(crate) shape: Vec<usize>,
    pub(crate) numbers: Numbers,
}

/// Numbers of one type where they have one: a list of integers stays exact.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Numbers {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    /// What is none of these: large integers, or a mixture.
    Any(Vec<Number>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::Integers(Vec::new())
    }
}

impl Numbers {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Integers(numbers) => numbers.len(),
            Self::Floats(numbers) => numbers.len(),
            Self::Bools(numbers) => numbers.len(),
            Self::Any(numbers) => numbers.len(),
        }
    }

    /// Calls `visit` with each number and its place, until it returns false.
    pub(crate) fn all(&self, mut visit: impl FnMut(usize, Number) -> bool) -> bool {
        let mut each = |(place, number)| visit(place, number);
        match self {
            Self::Integers(numbers) => numbers.iter().map(|&number| Number::Signed(number)).enumerate().all(&mut each),
            Self::Floats(numbers) => numbers.iter().map(|&number| Number::Double(number)).enumerate().all(&mut each),
            Self::Bools(numbers) => numbers.iter().map(|&number| Number::Bool(number)).enumerate().all(&mut each),
            Self::Any(numbers) => numbers.iter().copied().enumerate().all(&mut each),
        }
    }

    fn push(&mut self, number: Number) {
        match (&mut *self, number) {
            (Self::Integers(numbers), Number::Signed(number)) => numbers.push(number),
            (Self::Floats(numbers), Number::Double(number)) => numbers.push(number),
            (Self::Bools(numbers), Number::Bool(number)) => numbers.push(number),
            (Self::Any(numbers), number) => numbers.push(number),
            (Self::Integers(numbers), Number::Double(number)) => {
                // JSON writes 1.0 as 1 in many languages. What a float cannot hold exactly stays an integer.
                let exact = |number: &i64| number.unsigned_abs() <= 1 << 53;
                if numbers.iter().all(exact) {
                    let mut floats: Vec<f64> = numbers.iter().map(|&number| number as f64).collect();
                    floats.push(number);
                    *self = Self::Floats(floats);
                } else {
                    self.mix(Number::Double(number));
                }
            }
            (Self::Floats(numbers), Number::Signed(number)) if number.unsigned_abs() <= 1 << 53 => {
                numbers.push(number as f64);
            }
            (Self::Integers(numbers), Number::Bool(number)) if numbers.is_empty() => *self = Self::Bools(vec![number]),
            (_, number) => self.mix(number),
        }
    }

    fn mix(&mut self, number: Number) {
        let mut all = Vec::with_capacity(self.len() + 1);
        self.all(|_, number| {
            all.push(number);
            true
        });
        all.push(number);
        *self = Self::Any(all);
    }
}

/// Reads nested lists, or a single number.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Of the lists at each depth, once one of them has ended.
    lengths: Vec<Option<usize>>,
    /// The depth of the numbers.
    rank: Option<usize>,
    numbers: Numbers,
    /// What is wrong with them.
    pub(crate) error: Option<String>,
}

impl Reader {
    pub(crate) fn finish(self) -> Nested {
        let rank = self.rank.unwrap_or(0);
        let lengths = self.lengths.into_iter().take(rank);
        Nested { shape: lengths.map(|length| length.unwrap_or(0)).collect(), numbers: self.numbers }
    }

    fn fail<E: Error>(&mut self, why: impl Into<String>) -> E {
        self.error.get_or_insert(why.into());
        E::custom("not a tensor")
    }

    fn number<E: Error>(&mut self, number: Number, depth: usize) -> Result<(), E> {
        self.at(depth)?;
        self.numbers.push(number);
        Ok(())
    }

    /// Numbers, or lists without any, have this depth.
    fn at<E: Error>(&mut self, depth: usize) -> Result<(), E> {
        match *self.rank.get_or_insert(depth) {
            rank if rank == depth => Ok(()),
            _ => Err(self.fail("its lists are not nested equally deep everywhere")),
        }
    }
}

/// Reads what is at a depth.
pub(crate) struct Element<'r> {
    pub(crate) reader: &'r mut Reader,
    pub(crate) depth: usize,
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a list of numbers")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.reader.number(Number::Bool(value), self.depth)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.reader.number(Number::Signed(value), self.depth)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        let number = i64::try_from(value).map_or(Number::Unsigned(value), Number::Signed);
        self.reader.number(number, self.depth)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.reader.number(Number::Double(value), self.depth)
    }

    /// Numbers that JSON has no way to write, as protocol buffers write them in JSON.
    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        let number = match value {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => return Err(self.reader.fail("it holds a string")),
        };
        self.reader.number(Number::Double(number), self.depth)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.reader.fail("it holds null"))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(self.reader.fail("it holds an object"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let Self { reader, depth } = self;
        if depth >= AXES {
            return Err(reader.fail(format!("its lists are nested deeper than {AXES}")));
        }
        let mut length = 0;
        while access.next_element_seed(Element { reader: &mut *reader, depth: depth + 1 })?.is_some() {
            length += 1;
        }
        if length == 0 {
            reader.at(depth + 1)?;
        }
        if reader.lengths.len() <= depth {
            reader.lengths.resize(depth + 1, None);
        }
        match *reader.lengths[depth].get_or_insert(length) {
            expected if expected == length => Ok(()),
            expected => Err(reader.fail(format!("lists along its axis {depth} have {expected} and {length} entries"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Nested, String> {
        let mut reader = Reader::default();
        let mut parser = serde_json::Deserializer::from_str(text);
        let done = Element { reader: &mut reader, depth: 0 }.deserialize(&mut parser);
        match (done, reader.error.take()) {
            (Ok(()), None) => Ok(reader.finish()),
            (Err(_), Some(why)) => Err(why),
            (done, why) => panic!("{done:?} {why:?}"),
        }
    }

    fn numbers(nested: &Nested) -> Vec<Number> {
        let mut all = Vec::new();
        nested.numbers.all(|_, number| {
            all.push(number);
            true
        });
        all
    }

    #[test]
    fn lists_give_their_shape_and_their_numbers_in_order() {
        let nested = read("[[1,2,3],[4,5,6]]").unwrap();
        assert_eq!((nested.shape, nested.numbers), (vec![2, 3], Numbers::Integers(vec![1, 2, 3, 4, 5, 6])));
        assert_eq!(read("7").unwrap(), Nested { shape: vec![], numbers: Numbers::Integers(vec![7]) });
        assert_eq!(read("[1, 0.5]").unwrap().numbers, Numbers::Floats(vec![1.0, 0.5]));
        assert_eq!(read("[0.5, 1]").unwrap().numbers, Numbers::Floats(vec![0.5, 1.0]));
        assert_eq!(read("[true,false]").unwrap().numbers, Numbers::Bools(vec![true, false]));
        assert_eq!((read("[]").unwrap().shape, read("[[],[]]").unwrap().shape), (vec![0], vec![2, 0]));
        assert_eq!(read("[\"-Infinity\"]").unwrap().numbers, Numbers::Floats(vec![f64::NEG_INFINITY]));
    }

    #[test]
    fn integers_that_no_float_holds_stay_exact() {
        let large = (1i64 << 53) + 1;
        for text in [format!("[{large}, 0.5]"), format!("[0.5, {large}]")] {
            assert!(numbers(&read(&text).unwrap()).contains(&Number::Signed(large)), "{text}");
        }
        let most = u64::MAX;
        assert_eq!(numbers(&read(&format!("[1, {most}]")).unwrap()), [Number::Signed(1), Number::Unsigned(most)]);
        assert_eq!(numbers(&read("[1, true]").unwrap()), [Number::Signed(1), Number::Bool(true)]);
    }

    #[test]
    fn says_what_is_no_tensor() {
        let check = |text: &str, why: &str| assert_eq!(read(text).unwrap_err(), why, "{text}");
        check("[[1,2],[3]]", "lists along its axis 1 have 2 and 1 entries");
        check("[[1],2]", "its lists are not nested equally deep everywhere");
        check("[1,[2]]", "its lists are not nested equally deep everywhere");
        check("[[],[1]]", "lists along its axis 1 have 0 and 1 entries");
        check("[[],[[1]]]", "its lists are not nested equally deep everywhere");
        check("[null]", "it holds null");
        check("[\"a\"]", "it holds a string");
        check("[{}]", "it holds an object");
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(read(&nested(AXES)).unwrap().shape.len(), AXES);
        check(&nested(AXES + 1), "its lists are nested deeper than 16");
    }
}
