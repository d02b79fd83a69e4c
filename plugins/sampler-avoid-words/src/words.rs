//! The words to avoid, and which of them the end of a text has begun.

const MAX_WORDS: usize = 256;
const MAX_BYTES: usize = 64;

/// A proper prefix of a word: `words[word][..length]`.
#[derive(Debug, Clone, Copy)]
struct Beginning {
    word: usize,
    length: usize,
}

/// Validated words, in lower case if case is ignored.
#[derive(Debug)]
pub struct Words {
    words: Vec<Vec<u8>>,
    ignore_case: bool,
    /// All proper, non-empty prefixes, indexed by their last byte: most bytes of a text end none.
    by_last_byte: Vec<Vec<Beginning>>,
}

impl Words {
    /// # Errors
    /// A sentence that names the first word, or the number of words, out of bounds.
    pub fn new(words: &[String], ignore_case: bool) -> Result<Self, String> {
        if words.is_empty() || words.len() > MAX_WORDS {
            return Err(format!("settings.words has {} words, 1 to {MAX_WORDS} are allowed", words.len()));
        }
        let mut checked = Vec::with_capacity(words.len());
        for (index, word) in words.iter().enumerate() {
            let trimmed = word.trim();
            if trimmed.is_empty() {
                return Err(format!("settings.words[{index}] is empty"));
            }
            if trimmed.len() > MAX_BYTES {
                let bytes = trimmed.len();
                return Err(format!("settings.words[{index}] has {bytes} bytes, at most {MAX_BYTES} are allowed"));
            }
            let mut bytes = trimmed.as_bytes().to_vec();
            if ignore_case {
                bytes.make_ascii_lowercase();
            }
            checked.push(bytes);
        }
        let mut by_last_byte = vec![Vec::new(); 256];
        for (word, bytes) in checked.iter().enumerate() {
            for length in 1..bytes.len() {
                by_last_byte[usize::from(bytes[length - 1])].push(Beginning { word, length });
            }
        }
        Ok(Self { words: checked, ignore_case, by_last_byte })
    }

    pub fn ignore_case(&self) -> bool {
        self.ignore_case
    }

    /// The complete words.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.words.iter().map(Vec::as_slice)
    }

    /// Length of the longest word, in bytes.
    pub fn longest(&self) -> usize {
        self.words.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// What would complete a word after `tail`: the remainder of every word that the text has begun.
    pub fn rests<'a>(&'a self, tail: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let fold = |byte: &u8| if self.ignore_case { byte.to_ascii_lowercase() } else { *byte };
        let beginnings = tail.last().map_or(&[][..], |last| &self.by_last_byte[usize::from(fold(last))]);
        beginnings.iter().filter_map(move |beginning| {
            let (begun, rest) = self.words[beginning.word].split_at(beginning.length);
            let end = tail.len().checked_sub(begun.len())?;
            tail[end..].iter().map(fold).eq(begun.iter().copied()).then_some(rest)
        })
    }
}
