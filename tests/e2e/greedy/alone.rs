//! llama.cpp without Camshaft around it: one prompt, one sequence, its greedy sampler.
#![expect(unsafe_code, reason = "llama.cpp speaks C, and the reference uses nothing of this project")]
use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Once;

use llama_cpp_sys_2 as sys;

/// Bytes of the longest piece of a token.
const PIECE_BYTES: usize = 256;

/// A model that llama.cpp has loaded.
pub(super) struct Model(NonNull<sys::llama_model>);

/// The result of a generation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Generated {
    pub(super) prompt: Vec<i32>,
    pub(super) text: String,
    /// Drawn tokens, without the end token.
    pub(super) tokens: Vec<i32>,
    /// Length of the text in bytes after each token.
    pub(super) ends: Vec<usize>,
    /// The gap between the best and second-best logit at each token, including the end token.
    pub(super) margins: Vec<f32>,
}

/// A context with its greedy sampler.
struct Context<'a> {
    raw: NonNull<sys::llama_context>,
    sampler: NonNull<sys::llama_sampler>,
    model: &'a Model,
}

impl Model {
    pub(super) fn load(path: &Path) -> Self {
        unsafe extern "C" fn drop_line(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}
        // The backend can be started once per process.
        static STARTED: Once = Once::new();
        // SAFETY: nothing else is asked of llama.cpp yet.
        STARTED.call_once(|| unsafe {
            sys::llama_log_set(Some(drop_line), std::ptr::null_mut());
            sys::llama_backend_init();
        });
        let path = CString::new(path.to_str().expect("a path in UTF-8")).expect("a path without a zero");
        // SAFETY: llama.cpp is started, the path ends with a zero, and the parameters point to nothing.
        let raw = unsafe { sys::llama_model_load_from_file(path.as_ptr(), sys::llama_model_default_params()) };
        Self(NonNull::new(raw).expect("the model loads"))
    }

    /// At most `most` tokens.
    pub(super) fn generate(&self, prompt: &str, most: usize) -> Generated {
        let prompt = self.tokenize(prompt);
        let mut context = Context::new(self);
        let mut batch = prompt.clone();
        let (mut tokens, mut bytes, mut ends, mut margins) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        while tokens.len() < most {
            let token = context.next(&mut batch);
            margins.push(margin(context.logits(), token));
            // SAFETY: the token is in the vocabulary.
            if unsafe { sys::llama_vocab_is_eog(self.vocab(), token) } {
                break;
            }
            bytes.extend(self.piece(token));
            tokens.push(token);
            ends.push(bytes.len());
            batch = vec![token];
        }
        let text = String::from_utf8(bytes).expect("whole characters");
        Generated { prompt, text, tokens, ends, margins }
    }

    fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is whole.
        unsafe { sys::llama_model_get_vocab(self.0.as_ptr()) }
    }

    fn tokenize(&self, text: &str) -> Vec<i32> {
        // No text has more tokens than bytes, but for those before and after it.
        let mut tokens = vec![0; text.len() + 8];
        let (bytes, room) = (text.len() as i32, tokens.len() as i32);
        let (text, to) = (text.as_ptr().cast(), tokens.as_mut_ptr());
        // SAFETY: both lengths are those of what is pointed to.
        let count = unsafe { sys::llama_tokenize(self.vocab(), text, bytes, to, room, true, true) };
        tokens.truncate(usize::try_from(count).expect("room for the tokens"));
        tokens
    }

    fn piece(&self, token: i32) -> Vec<u8> {
        let mut piece = vec![0_u8; PIECE_BYTES];
        let (to, room) = (piece.as_mut_ptr().cast(), piece.len() as i32);
        // SAFETY: the token is in the vocabulary, and the length is that of the room.
        let count = unsafe { sys::llama_token_to_piece(self.vocab(), token, to, room, 0, false) };
        piece.truncate(usize::try_from(count).expect("room for the piece"));
        piece
    }
}

impl<'a> Context<'a> {
    fn new(model: &'a Model) -> Self {
        // SAFETY: the model is whole, and outlives the context. The parameters point to nothing.
        let (raw, sampler) = unsafe {
            let params = sys::llama_context_params {
                n_ctx: sys::llama_model_n_ctx_train(model.0.as_ptr()) as u32,
                // One thread, like the server: several would spin while they wait for each other, and slow other tests.
                n_threads: 1,
                n_threads_batch: 1,
                ..sys::llama_context_default_params()
            };
            (sys::llama_init_from_model(model.0.as_ptr(), params), sys::llama_sampler_init_greedy())
        };
        Self { raw: NonNull::new(raw).expect("a context"), sampler: NonNull::new(sampler).expect("a sampler"), model }
    }

    /// Computes tokens that follow those before, and draws the next one.
    fn next(&mut self, tokens: &mut [i32]) -> i32 {
        // SAFETY: the batch points to so many tokens, only while it is computed. Its last row has logits.
        unsafe {
            let batch = sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
            assert_eq!(sys::llama_decode(self.raw.as_ptr(), batch), 0, "a decode");
            sys::llama_sampler_sample(self.sampler.as_ptr(), self.raw.as_ptr(), -1)
        }
    }

    /// Of the last row.
    fn logits(&self) -> &[f32] {
        // SAFETY: the row has a number for each token of the vocabulary, and stays until the next batch, which takes `&mut self`.
        unsafe {
            let logits = sys::llama_get_logits_ith(self.raw.as_ptr(), -1);
            assert!(!logits.is_null(), "the last row has logits");
            std::slice::from_raw_parts(logits, sys::llama_vocab_n_tokens(self.model.vocab()) as usize)
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        unsafe { sys::llama_model_free(self.0.as_ptr()) };
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody uses them after this.
        unsafe {
            sys::llama_sampler_free(self.sampler.as_ptr());
            sys::llama_free(self.raw.as_ptr());
        }
    }
}

/// The gap between `best` and the second-best logit.
fn margin(logits: &[f32], best: i32) -> f32 {
    let others = (0..).zip(logits).filter(|(token, _)| *token != best).map(|(_, logit)| *logit);
    logits[best as usize] - others.fold(f32::MIN, f32::max)
}
