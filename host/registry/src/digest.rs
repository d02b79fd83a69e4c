//! SHA-256 digests: what names a file's content.
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Bytes that are read at once.
pub(crate) const CHUNK: usize = 256 << 10;

/// A SHA-256 digest. Written and read as 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Of a model: its file's, or, if there are several, that of a text with a line for the digest of each. (The engine and
    /// `sha256` in the configuration have the same rule.)
    pub fn of_parts(parts: &[Self]) -> Self {
        match parts {
            [one] => *one,
            several => Self::of(several.iter().map(|part| format!("{part}\n")).collect::<String>().as_bytes()),
        }
    }
}

/// What is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 64 hexadecimal digits")]
pub struct NoDigest;

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| NoDigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair.iter().try_fold(0, |sum, digit| {
                let value = char::from(*digit).to_digit(16).ok_or(NoDigest)?;
                Ok(sum << 4 | value as u8)
            })?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Computes a digest piece by piece.
#[derive(Clone, Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }

    /// Takes in everything that `from` has, and tells of each piece. Returns how many bytes there were.
    pub(crate) fn read_all(
        &mut self,
        from: &mut impl Read,
        mut each: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<u64> {
        let (mut buffer, mut bytes) = (vec![0; CHUNK], 0);
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(bytes),
                Ok(n) => {
                    self.update(&buffer[..n]);
                    bytes += n as u64;
                    each(n as u64)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_64_hexadecimal_digits_and_nothing_else() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.to_uppercase().parse(), Ok(Digest::of(b"")));
        let long = "a".repeat(65);
        for bad in ["", &empty[1..], &long, &empty.replace('e', "g"), &empty.replace("e3", "é"), &"a".repeat(2 << 20)]
        {
            assert_eq!(bad.parse::<Digest>(), Err(NoDigest));
        }
    }

    #[test]
    fn the_digest_of_several_parts_is_that_of_their_lines() {
        let (one, other) = (Digest::of(b"1"), Digest::of(b"2"));
        assert_eq!(Digest::of_parts(&[one]), one);
        assert_eq!(Digest::of_parts(&[one, other]), Digest::of(format!("{one}\n{other}\n").as_bytes()));
    }
}
