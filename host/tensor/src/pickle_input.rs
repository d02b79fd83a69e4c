//! The bytes of a pickle, and the single values that its opcodes give in them. Nothing is copied.
use crate::error::shown;

/// A value that contains no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar<'a> {
    Text(&'a str),
    Integer(i64),
    /// Any other, which no tensor is made of.
    Other,
}

/// What of a pickle is not read yet.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// # Errors
    /// There are not as many.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<&'a [u8], String> {
        let taken = usize::try_from(bytes).ok().and_then(|bytes| self.rest.split_at_checked(bytes));
        let (taken, rest) = taken.ok_or("ends too early")?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or("ends too early")?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, String> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    pub(crate) fn number(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A line of text, without its end.
    pub(crate) fn line(&mut self) -> Result<&'a str, String> {
        let end = self.rest.iter().position(|&byte| byte == b'\n').ok_or("ends too early")?;
        let line = self.take(end as u64)?;
        self.take(1)?;
        let text = std::str::from_utf8(line).map_err(|_| "has text that is not UTF-8")?;
        Ok(text.strip_suffix('\r').unwrap_or(text))
    }

    /// The value that an opcode gives. `None`: it gives none of these.
    pub(crate) fn scalar(&mut self, opcode: u8) -> Result<Option<Scalar<'a>>, String> {
        // How long texts, bytes and long integers are.
        let bytes = match opcode {
            b'U' | b'C' | 0x8a | 0x8c => self.byte()?.into(),
            b'T' | b'X' | b'B' | 0x8b => self.number()?.into(),
            0x8d | 0x8e | 0x96 => u64::from_le_bytes(self.array()?),
            _ => 0,
        };
        Ok(Some(match opcode {
            b'N' | 0x88 | 0x89 => Scalar::Other,
            b'G' => {
                self.take(8)?;
                Scalar::Other
            }
            b'K' => Scalar::Integer(self.byte()?.into()),
            b'M' => Scalar::Integer(u16::from_le_bytes(self.array()?).into()),
            b'J' => Scalar::Integer(i32::from_le_bytes(self.array()?).into()),
            b'I' => match self.line()? {
                "00" | "01" => Scalar::Other,
                line => Scalar::Integer(line.parse().map_err(|_| format!("has the integer {}", shown(line)))?),
            },
            0x8a | 0x8b => long(self.take(bytes)?),
            b'X' | 0x8c | 0x8d => {
                Scalar::Text(std::str::from_utf8(self.take(bytes)?).map_err(|_| "has text that is not UTF-8")?)
            }
            // Texts of Python 2, which may be any bytes.
            b'U' | b'T' => std::str::from_utf8(self.take(bytes)?).map_or(Scalar::Other, Scalar::Text),
            b'B' | b'C' | 0x8e | 0x96 => {
                self.take(bytes)?;
                Scalar::Other
            }
            _ => return Ok(None),
        }))
    }
}

/// An integer in two's complement, its lowest byte first. No size is longer than eight bytes.
fn long<'a>(bytes: &[u8]) -> Scalar<'a> {
    let is_negative = bytes.last().is_some_and(|&last| last >= 0x80);
    let mut all = [if is_negative { 0xff } else { 0 }; 8];
    let Some(low) = all.get_mut(..bytes.len()) else { return Scalar::Other };
    low.copy_from_slice(bytes);
    Scalar::Integer(i64::from_le_bytes(all))
}
