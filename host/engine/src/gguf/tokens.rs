//! What a vocabulary must be like, so that llama.cpp aborts on no text and every text is read in bounded time.
use std::collections::HashSet;

/// Bytes of a token's text. Every text is searched for special ones, and others may be looked for from each of its characters on.
pub(super) const TOKEN_MAX_BYTES: usize = 1 << 10;
/// `tokenizer.ggml.model` of SentencePiece's vocabularies. What they do not spell, llama.cpp spells in bytes.
const SENTENCE_PIECE: &str = "llama";

/// `tokenizer.ggml.tokens`.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    texts: HashSet<Vec<u8>>,
    count: usize,
}

impl Tokens {
    /// # Errors
    /// A token that is too long. llama.cpp aborts on a vocabulary that has one twice.
    pub(super) fn add(&mut self, text: Vec<u8>) -> Result<(), String> {
        let text = up_to_nul(text);
        if text.len() > TOKEN_MAX_BYTES {
            return Err(format!("its token {} has {} bytes, more than {TOKEN_MAX_BYTES}", self.count, text.len()));
        }
        let number = self.count;
        self.count += 1;
        // llama.cpp gives each empty one a name of its own.
        if !text.is_empty()
            && let Some(twice) = self.texts.replace(text)
        {
            let text = String::from_utf8_lossy(&twice);
            return Err(format!(
                "its vocabulary has the token {text:?} twice, again as token {number} (a NUL ends a token)"
            ));
        }
        Ok(())
    }

    /// Checks the whole vocabulary of a file whose `tokenizer.ggml.model` is `model`.
    ///
    /// # Errors
    /// A byte without a token, which aborts llama.cpp when it comes up in a text.
    pub(super) fn check(&self, model: &str) -> Result<(), String> {
        if model == SENTENCE_PIECE
            && let Some(byte) = (0..=u8::MAX).find(|&byte| !self.spells(byte))
        {
            return Err(format!("its SentencePiece vocabulary has no token for the byte 0x{byte:02X}"));
        }
        Ok(())
    }

    /// Whether llama.cpp finds a token for a byte: the one named after it, or the byte itself.
    fn spells(&self, byte: u8) -> bool {
        self.texts.contains(format!("<0x{byte:02X}>").as_bytes()) || self.texts.contains(&[byte][..])
    }
}

/// A text as llama.cpp reads it.
pub(super) fn up_to_nul(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}
