//! A model's vocabulary, as llama.cpp has it.
use std::ffi::CStr;
use std::marker::PhantomData;

use camshaft_core::ids::Token;
use llama_cpp_sys_2 as sys;

/// Most pieces are no longer, in bytes.
const PIECE_BYTES: usize = 32;

/// Lives as long as its model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vocab<'a> {
    raw: *const sys::llama_vocab,
    size: u32,
    model: PhantomData<&'a ()>,
}

impl<'a> Vocab<'a> {
    /// # Safety
    /// The pointer is to a vocabulary that lives as long as `'a`, and that nobody changes.
    pub(crate) unsafe fn new(raw: *const sys::llama_vocab) -> Self {
        // SAFETY: by the caller's word.
        let (kind, size) = unsafe { (sys::llama_vocab_type(raw), sys::llama_vocab_n_tokens(raw)) };
        // A file may say how many tokens there are, and name none. llama.cpp ends the process if it is asked for one of those.
        let has_tokens = kind != sys::LLAMA_VOCAB_TYPE_NONE;
        let size = if has_tokens { u32::try_from(size).unwrap_or_default() } else { 0 };
        Self { raw, size, model: PhantomData }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// All tokens, in the order of their ids.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token> + use<> {
        (0..self.size).map(Token)
    }

    /// How the file spells a token. Nothing outside of the vocabulary.
    pub(crate) fn text(&self, token: Token) -> &'a [u8] {
        let Some(id) = self.id(token) else { return &[] };
        // SAFETY: the token is in the vocabulary.
        let text = unsafe { sys::llama_vocab_get_text(self.raw, id) };
        // SAFETY: the text ends with a zero, and stays as long as the vocabulary.
        if text.is_null() { &[] } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
    }

    /// What a token adds to a text: nothing, if it is a control token or outside of the vocabulary.
    pub(crate) fn piece(&self, token: Token) -> Vec<u8> {
        let Some(id) = self.id(token) else { return Vec::new() };
        fill(PIECE_BYTES, |room: &mut [u8], length| {
            // SAFETY: the token is in the vocabulary, and llama.cpp writes no more than the length, which is that of the room.
            unsafe { sys::llama_token_to_piece(self.raw, id, room.as_mut_ptr().cast(), length, 0, false) }
        })
    }

    /// Zero outside of the vocabulary.
    pub(crate) fn score(&self, token: Token) -> f32 {
        // SAFETY: the token is in the vocabulary.
        self.id(token).map_or(0.0, |id| unsafe { sys::llama_vocab_get_score(self.raw, id) })
    }

    /// Bits `LLAMA_TOKEN_ATTR_…`. None outside of the vocabulary.
    pub(crate) fn attributes(&self, token: Token) -> sys::llama_token_attr {
        let id = self.id(token);
        // SAFETY: the token is in the vocabulary.
        id.map_or(sys::LLAMA_TOKEN_ATTR_UNDEFINED, |id| unsafe { sys::llama_vocab_get_attr(self.raw, id) })
    }

    /// Whether a token ends what is generated.
    pub(crate) fn is_end(&self, token: Token) -> bool {
        // SAFETY: the token is in the vocabulary.
        self.id(token).is_some_and(|id| unsafe { sys::llama_vocab_is_eog(self.raw, id) })
    }

    /// The token that begins a text, if there is one.
    pub(crate) fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is whole.
        self.token(unsafe { sys::llama_vocab_bos(self.raw) })
    }

    /// The token that ends a text, if there is one.
    pub(crate) fn eos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is whole.
        self.token(unsafe { sys::llama_vocab_eos(self.raw) })
    }

    /// The tokens before what comes first and what comes last of a text with a gap, and behind both, as far as there are such.
    pub(crate) fn infill(&self) -> [Option<Token>; 3] {
        // SAFETY: the vocabulary is whole.
        let ids = unsafe {
            [sys::llama_vocab_fim_pre(self.raw), sys::llama_vocab_fim_suf(self.raw), sys::llama_vocab_fim_mid(self.raw)]
        };
        ids.map(|id| self.token(id))
    }

    /// The tokens of a text. None if it has 2 GiB: limits refuse that long before.
    pub(crate) fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let Ok(bytes) = i32::try_from(text.len()) else { return Vec::new() };
        let most_have = text.len() / 2 + 8;
        let ids = fill(most_have, |room: &mut [i32], length| {
            let (text, room) = (text.as_ptr().cast(), room.as_mut_ptr());
            // SAFETY: the text has so many bytes, and llama.cpp writes no more than the length, which is that of the room.
            unsafe { sys::llama_tokenize(self.raw, text, bytes, room, length, add_special, parse_special) }
        });
        ids.into_iter().filter_map(|id| self.token(id)).collect()
    }

    /// llama.cpp's number for a token of the vocabulary.
    fn id(&self, token: Token) -> Option<i32> {
        i32::try_from(token.0).ok().filter(|_| token.0 < self.size)
    }

    fn token(&self, id: i32) -> Option<Token> {
        u32::try_from(id).ok().filter(|&id| id < self.size).map(Token)
    }
}

/// What `write` writes into room of the length that it is given. It returns how much it wrote, or, if there was no room for it,
/// the length that it needs as a negative number.
fn fill<T: Copy + Default>(length: usize, write: impl Fn(&mut [T], i32) -> i32) -> Vec<T> {
    let attempt = |length: usize| {
        let mut room = vec![T::default(); length];
        let written = write(&mut room, i32::try_from(length).unwrap_or(i32::MAX));
        (room, written)
    };
    let (mut room, mut written) = attempt(length);
    // The smallest number stands for more than can be counted.
    if written < 0 && written != i32::MIN {
        (room, written) = attempt(written.unsigned_abs() as usize);
    }
    room.truncate(usize::try_from(written).unwrap_or_default());
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_thought_gets_the_room_that_it_needs() {
        let check = |length: usize, needed: i32, expected: usize| {
            let write = |room: &mut [u8], length: i32| {
                assert_eq!(room.len(), length as usize);
                if needed > length {
                    return -needed;
                }
                room[..needed as usize].fill(1);
                needed
            };
            assert_eq!(fill(length, write), vec![1; expected]);
        };
        for (length, needed) in [(0, 0), (4, 0), (4, 3), (4, 4), (4, 5), (0, 1), (4, 1000)] {
            check(length, needed, needed as usize);
        }
        // Neither counted nor written.
        assert!(fill(4, |_: &mut [u8], _| i32::MIN).is_empty());
        assert!(fill(4, |_: &mut [u8], _| -5).is_empty());
    }
}
