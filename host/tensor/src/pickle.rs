//! Reads the values of a pickle, as `torch.save` writes it in protocols 2 to 5. Nothing in it is run, and nothing recurses: values lie
//! flat, each beside the others, so that what refers to one a thousand times costs a thousand references.
//!
//! The opcodes are those of Python's `pickletools`.
use std::collections::HashMap;

use crate::error::shown;
use crate::globals::Global;
use crate::pickle_input::{Input, Scalar};

/// Containers within each other.
pub(crate) const NESTING: u8 = 64;
/// Values and marks that a pickle makes: 32 for each of 65,536 tensors.
pub(crate) const VALUES: usize = 1 << 21;
/// Values that it remembers to refer to later: 16 for each of 65,536 tensors.
pub(crate) const REMEMBERED: usize = 1 << 20;
/// The newest protocol.
const PROTOCOL: u8 = 5;

/// What a pickle has made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    /// What no tensor is made of: nothing, truth values, floating-point and very large numbers, bytes, sets.
    Other,
    Integer(i64),
    Text(&'a str),
    Global(Global),
    Tuple(Tuple),
    List(usize),
    Dictionary(usize),
    /// What a file beside the pickle holds, described by a tuple.
    Persistent(Tuple),
    /// What calling a global with these arguments would give.
    Call(Global, Tuple),
}

/// A part of all elements of tuples. Their number is below [`VALUES`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tuple {
    start: u32,
    len: u32,
    /// Containers within each other, with this one.
    depth: u8,
}

/// A list, or the entries of a dictionary.
#[derive(Debug)]
struct Container<T> {
    items: Vec<T>,
    depth: u8,
}

impl<T> Default for Container<T> {
    fn default() -> Self {
        Self { items: Vec::new(), depth: 1 }
    }
}

/// A key and its value.
pub(crate) type Entry<'a> = (Value<'a>, Value<'a>);

/// The values of a pickle.
#[derive(Debug, Default)]
pub(crate) struct Pickle<'a> {
    elements: Vec<Value<'a>>,
    lists: Vec<Container<Value<'a>>>,
    dictionaries: Vec<Container<Entry<'a>>>,
}

impl<'a> Pickle<'a> {
    pub(crate) fn elements(&self, tuple: Tuple) -> &[Value<'a>] {
        let start = tuple.start as usize;
        self.elements.get(start..start + tuple.len as usize).unwrap_or_default()
    }

    /// The entries of a dictionary, in the order in which they were set.
    pub(crate) fn entries(&self, dictionary: usize) -> &[Entry<'a>] {
        self.dictionaries.get(dictionary).map_or(&[], |found| &found.items)
    }

    fn depth(&self, value: &Value<'a>) -> u8 {
        match *value {
            Value::Tuple(tuple) | Value::Persistent(tuple) | Value::Call(_, tuple) => tuple.depth,
            Value::List(at) => self.lists.get(at).map_or(1, |list| list.depth),
            Value::Dictionary(at) => self.dictionaries.get(at).map_or(1, |dictionary| dictionary.depth),
            _ => 0,
        }
    }

    /// Depth of what contains these.
    fn around(&self, values: &[Value<'a>]) -> Result<u8, String> {
        let depth = 1 + values.iter().map(|value| self.depth(value)).max().unwrap_or(0);
        if depth > NESTING { Err(format!("nests values deeper than {NESTING}")) } else { Ok(depth) }
    }
}

/// Reads a pickle. Returns all of its values, and the one that it is.
///
/// # Errors
/// It is damaged, passes a bound, or has or refers to what no state dictionary needs. The error follows the words "its pickle".
pub(crate) fn read(bytes: &[u8]) -> Result<(Pickle<'_>, Value<'_>), String> {
    let mut machine = Machine {
        input: Input::new(bytes),
        pickle: Pickle::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        made: 0,
    };
    let mut opcode = machine.input.byte()?;
    while opcode != b'.' {
        machine.step(opcode)?;
        opcode = machine.input.byte()?;
    }
    let value = machine.pop()?;
    Ok((machine.pickle, value))
}

/// The stack machine that a pickle is a program for.
struct Machine<'a> {
    input: Input<'a>,
    pickle: Pickle<'a>,
    stack: Vec<Value<'a>>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    /// Values and marks.
    made: usize,
}

impl<'a> Machine<'a> {
    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            0x80 => {
                let protocol = self.input.byte()?;
                if protocol > PROTOCOL {
                    return Err(format!("has the protocol {protocol}, at most {PROTOCOL}"));
                }
            }
            // The length of a frame.
            0x95 => {
                self.input.take(8)?;
            }
            b'(' => {
                self.count()?;
                self.marks.push(self.stack.len());
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
            }
            b'2' => {
                let value = self.top()?;
                self.push(value)?;
            }
            b'q' => self.remember(|input, _| Ok(input.byte()?.into()))?,
            b'r' => self.remember(|input, _| input.number())?,
            0x94 => self.remember(|_, known| u32::try_from(known).map_err(|_| "remembers too much".to_owned()))?,
            b'h' => self.recall(|input| Ok(input.byte()?.into()))?,
            b'j' => self.recall(Input::number)?,
            b')' | b't' | 0x85..=0x87 | b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 => self.container(opcode)?,
            b'a' | b'e' | b's' | b'u' | 0x90 => self.add(opcode)?,
            b'c' | 0x93 => self.global(opcode)?,
            b'R' | b'b' | b'Q' => self.call(opcode)?,
            _ => {
                let scalar = self.input.scalar(opcode)?;
                let needless = || format!("has the opcode {opcode:#04x}, which no state dictionary needs");
                self.push(match scalar.ok_or_else(needless)? {
                    Scalar::Text(text) => Value::Text(text),
                    Scalar::Integer(integer) => Value::Integer(integer),
                    Scalar::Other => Value::Other,
                })?;
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), String> {
        self.made += 1;
        if self.made > VALUES { Err(format!("makes more than {VALUES} values")) } else { Ok(()) }
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        self.count()?;
        self.stack.push(value);
        Ok(())
    }

    /// The value on top of the stack, above the last mark.
    fn top(&self) -> Result<Value<'a>, String> {
        let least = self.marks.last().copied().unwrap_or(0);
        let value = self.stack.last().filter(|_| self.stack.len() > least);
        value.copied().ok_or_else(|| "takes a value where there is none".to_owned())
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// Takes the last mark away. Returns where it was.
    fn mark(&mut self) -> Result<usize, String> {
        self.marks.pop().ok_or_else(|| "takes a mark where there is none".to_owned())
    }

    fn remember(&mut self, place: impl Fn(&mut Input<'a>, usize) -> Result<u32, String>) -> Result<(), String> {
        let place = place(&mut self.input, self.memo.len())?;
        let value = self.top()?;
        if self.memo.len() >= REMEMBERED && !self.memo.contains_key(&place) {
            return Err(format!("remembers more than {REMEMBERED} values"));
        }
        self.memo.insert(place, value);
        Ok(())
    }

    fn recall(&mut self, place: impl Fn(&mut Input<'a>) -> Result<u32, String>) -> Result<(), String> {
        let place = place(&mut self.input)?;
        let value = self.memo.get(&place).copied();
        self.push(value.ok_or_else(|| format!("refers to value {place}, which it does not remember"))?)
    }

    /// Makes a container of what is on the stack.
    fn container(&mut self, opcode: u8) -> Result<(), String> {
        let value = match opcode {
            b')' => Value::Tuple(self.tuple(self.stack.len())?),
            b't' => {
                let mark = self.mark()?;
                Value::Tuple(self.tuple(mark)?)
            }
            0x85..=0x87 => {
                let least = self.marks.last().copied().unwrap_or(0);
                let start = self.stack.len().checked_sub(usize::from(opcode - 0x84)).filter(|&start| start >= least);
                Value::Tuple(self.tuple(start.ok_or("takes a value where there is none")?)?)
            }
            b']' | b'l' => {
                self.pickle.lists.push(Container::default());
                Value::List(self.pickle.lists.len() - 1)
            }
            b'}' | b'd' => {
                self.pickle.dictionaries.push(Container::default());
                Value::Dictionary(self.pickle.dictionaries.len() - 1)
            }
            // Sets hold no tensors.
            0x91 => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
                Value::Other
            }
            _ => Value::Other,
        };
        if matches!(opcode, b'l' | b'd') {
            let mark = self.mark()?;
            self.fill(value, mark)?;
        }
        self.push(value)
    }

    /// A tuple of what is on the stack from there on.
    fn tuple(&mut self, start: usize) -> Result<Tuple, String> {
        let taken = self.stack.get(start..).unwrap_or_default();
        let depth = self.pickle.around(taken)?;
        let place = |at: usize| u32::try_from(at).map_err(|_| format!("makes more than {VALUES} values"));
        let tuple = Tuple { start: place(self.pickle.elements.len())?, len: place(taken.len())?, depth };
        self.pickle.elements.extend(self.stack.drain(start.min(self.stack.len())..));
        Ok(tuple)
    }

    /// Adds what is on the stack to the container under it.
    fn add(&mut self, opcode: u8) -> Result<(), String> {
        let start = match opcode {
            b'a' | b's' => {
                let least = self.marks.last().copied().unwrap_or(0);
                let start = self.stack.len().checked_sub(if opcode == b'a' { 1 } else { 2 });
                start.filter(|&start| start >= least).ok_or("takes a value where there is none")?
            }
            _ => self.mark()?,
        };
        let least = self.marks.last().copied().unwrap_or(0);
        let under = start.checked_sub(1).filter(|&under| under >= least).and_then(|under| self.stack.get(under));
        let under = *under.ok_or("takes a value where there is none")?;
        match (opcode, under) {
            (b'a' | b'e', Value::List(_)) | (b's' | b'u', Value::Dictionary(_)) => self.fill(under, start),
            (0x90, Value::Other) => {
                self.stack.truncate(start);
                Ok(())
            }
            _ => Err("adds values to what holds none".to_owned()),
        }
    }

    /// Moves what is on the stack from there on into a list or a dictionary.
    fn fill(&mut self, container: Value<'a>, start: usize) -> Result<(), String> {
        let taken = self.stack.get(start..).unwrap_or_default();
        let around = self.pickle.around(taken)?;
        match container {
            Value::List(at) => {
                let list = self.pickle.lists.get_mut(at).ok_or("has lost a list")?;
                list.depth = list.depth.max(around);
                list.items.extend_from_slice(taken);
            }
            Value::Dictionary(at) => {
                let dictionary = self.pickle.dictionaries.get_mut(at).ok_or("has lost a dictionary")?;
                dictionary.depth = dictionary.depth.max(around);
                let (pairs, rest) = taken.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("has a key without a value".to_owned());
                }
                for &[key, value] in pairs {
                    if !matches!(key, Value::Text(_) | Value::Integer(_)) {
                        return Err("has a dictionary with a key that is neither text nor an integer".to_owned());
                    }
                    dictionary.items.push((key, value));
                }
            }
            _ => return Err("adds values to what holds none".to_owned()),
        }
        self.stack.truncate(start);
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<(), String> {
        let (module, name) = if opcode == b'c' {
            (self.input.line()?, self.input.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            let (Value::Text(module), Value::Text(name)) = (module, name) else {
                return Err("refers to a name that is no text".to_owned());
            };
            (module, name)
        };
        let global = Global::of(module, name).ok_or_else(|| {
            format!("refers to {}, which no state dictionary needs", shown(&format!("{module}.{name}")))
        })?;
        self.push(Value::Global(global))
    }

    fn call(&mut self, opcode: u8) -> Result<(), String> {
        let argument = self.pop()?;
        match opcode {
            b'Q' => match argument {
                Value::Tuple(described) => self.push(Value::Persistent(described)),
                _ => Err("describes a storage by what is no tuple".to_owned()),
            },
            // Attributes beside the entries, such as `_metadata`.
            b'b' => match self.top()? {
                Value::Dictionary(_) | Value::Call(..) => Ok(()),
                _ => Err("gives attributes to what has none".to_owned()),
            },
            _ => {
                let (Value::Global(global), Value::Tuple(arguments)) = (self.pop()?, argument) else {
                    return Err("calls what cannot be called".to_owned());
                };
                match global {
                    Global::OrderedDict => self.ordered_dictionary(arguments),
                    Global::Tensor | Global::Parameter => self.push(Value::Call(global, arguments)),
                    Global::Storage(_) | Global::Datatype => Err("calls what cannot be called".to_owned()),
                }
            }
        }
    }

    /// An empty one, or as Python 2 wrote it, of a list of pairs.
    fn ordered_dictionary(&mut self, arguments: Tuple) -> Result<(), String> {
        let wrong = || "makes an OrderedDict of what is no list of pairs".to_owned();
        let pairs = match *self.pickle.elements(arguments) {
            [] => Vec::new(),
            [Value::List(at)] => self.pickle.lists.get(at).map(|list| list.items.clone()).unwrap_or_default(),
            _ => return Err(wrong()),
        };
        let start = self.stack.len();
        for pair in pairs {
            let (key, value) = match pair {
                Value::Tuple(tuple) => match *self.pickle.elements(tuple) {
                    [key, value] => (key, value),
                    _ => return Err(wrong()),
                },
                Value::List(at) => match self.pickle.lists.get(at).map(|list| list.items.as_slice()) {
                    Some(&[key, value]) => (key, value),
                    _ => return Err(wrong()),
                },
                _ => return Err(wrong()),
            };
            self.push(key)?;
            self.push(value)?;
        }
        self.pickle.dictionaries.push(Container::default());
        let made = Value::Dictionary(self.pickle.dictionaries.len() - 1);
        self.fill(made, start)?;
        self.push(made)
    }
}

#[cfg(test)]
#[path = "pickle_tests.rs"]
mod tests;
