//! The phrases, and where a text has one or begins one.

const MAX_PHRASES: usize = 256;
const MAX_BYTES: usize = 256;

/// Validated phrases, in lower case if case is ignored.
#[derive(Debug)]
pub struct Phrases {
    /// By their first byte.
    by_first_byte: Vec<Vec<Vec<u8>>>,
    ignore_case: bool,
    longest: u32,
}

/// What a text has of phrases. Positions are bytes of the new text; one before it counts as its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A whole phrase begins here.
    Phrase(usize),
    /// The text may go on to become a phrase, which begins here.
    Beginning(usize),
    Nothing,
}

impl Phrases {
    /// # Errors
    /// A sentence that names the first phrase, or the number of phrases, out of bounds.
    pub fn new(phrases: &[String], ignore_case: bool) -> Result<Self, String> {
        if phrases.is_empty() || phrases.len() > MAX_PHRASES {
            return Err(format!("settings.phrases has {} phrases, 1 to {MAX_PHRASES} are allowed", phrases.len()));
        }
        let (mut by_first_byte, mut longest) = (vec![Vec::new(); 256], 0);
        for (index, phrase) in phrases.iter().enumerate() {
            let mut bytes = phrase.as_bytes().to_vec();
            if bytes.len() > MAX_BYTES {
                let len = bytes.len();
                return Err(format!("settings.phrases[{index}] has {len} bytes, at most {MAX_BYTES} are allowed"));
            }
            if ignore_case {
                bytes.make_ascii_lowercase();
            }
            let Some(&first) = bytes.first() else { return Err(format!("settings.phrases[{index}] is empty")) };
            longest = longest.max(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            by_first_byte[usize::from(first)].push(bytes);
        }
        Ok(Self { by_first_byte, ignore_case, longest })
    }

    /// Length of the longest phrase, in bytes; at least 1.
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// Looks for the first phrase, and else the first beginning of one, that ends in the new text. `before`: what precedes it.
    pub fn find(&self, before: &[u8], text: &[u8]) -> Found {
        let fold = |byte: &u8| if self.ignore_case { byte.to_ascii_lowercase() } else { *byte };
        let all: Vec<u8> = before.iter().chain(text).map(fold).collect();
        let mut begun = None;
        for at in 0..all.len() {
            let rest = &all[at..];
            for phrase in &self.by_first_byte[usize::from(all[at])] {
                let begins = at.saturating_sub(before.len());
                if rest.starts_with(phrase) {
                    // One that lies in what precedes was looked at before.
                    if at + phrase.len() > before.len() {
                        return Found::Phrase(begins);
                    }
                } else if rest.len() < phrase.len() && phrase.starts_with(rest) {
                    begun.get_or_insert(begins);
                }
            }
        }
        begun.map_or(Found::Nothing, Found::Beginning)
    }
}
