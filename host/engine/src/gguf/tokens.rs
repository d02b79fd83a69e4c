//! What a vocabulary must be like, so that llama.cpp aborts on no text and every text is read in bounded time.
use std::collections::HashSet;

/// Bytes of a special token's text. Every text is searched for it.
pub(super) const SPECIAL_MAX_BYTES: usize = 1 << 10;
/// Values of `tokenizer.ggml.token_type` for tokens that are found in a text by their spelling: unknown, control,
/// user-defined.
const SPECIAL_KINDS: [u32; 3] = [2, 3, 4];
/// `tokenizer.ggml.model` of SentencePiece's vocabularies. What they do not spell, llama.cpp spells in bytes.
const SENTENCE_PIECE: &str = "llama";

/// `tokenizer.ggml.tokens` and `tokenizer.ggml.token_type`, which may come in either order.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    texts: HashSet<Vec<u8>>,
    lengths: Vec<usize>,
    kinds: Vec<u32>,
}

impl Tokens {
    /// # Errors
    /// llama.cpp aborts on a vocabulary that has a token twice.
    pub(super) fn add(&mut self, text: Vec<u8>) -> Result<(), String> {
        let text = up_to_nul(text);
        self.lengths.push(text.len());
        // llama.cpp gives each empty one a name of its own.
        if !text.is_empty()
            && let Some(twice) = self.texts.replace(text)
        {
            return Err(format!("its vocabulary has the token {:?} twice", String::from_utf8_lossy(&twice)));
        }
        Ok(())
    }

    pub(super) fn add_kind(&mut self, kind: u32) {
        self.kinds.push(kind);
    }

    /// Checks the whole vocabulary of a file whose `tokenizer.ggml.model` is `model`.
    ///
    /// # Errors
    /// A byte without a token, which aborts llama.cpp when it comes up in a text; a special token that is too long.
    pub(super) fn check(&self, model: &str) -> Result<(), String> {
        if model == SENTENCE_PIECE
            && let Some(byte) = (0..=u8::MAX).find(|&byte| !self.spells(byte))
        {
            return Err(format!("its SentencePiece vocabulary has no token for the byte 0x{byte:02X}"));
        }
        let special = |kind: &u32| SPECIAL_KINDS.contains(kind);
        let too_long = |&(_, (&length, kind)): &(usize, (&usize, &u32))| special(kind) && length > SPECIAL_MAX_BYTES;
        match self.lengths.iter().zip(&self.kinds).enumerate().find(too_long) {
            None => Ok(()),
            Some((token, (length, _))) => {
                Err(format!("its special token {token} has {length} bytes, more than {SPECIAL_MAX_BYTES}"))
            }
        }
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
