//! A model that llama.cpp has loaded: its metadata, its vocabulary, its adapters.
use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::vocab::Vocab;

/// Most values of metadata are no longer, in bytes.
const VALUE_BYTES: usize = 256;

/// Why llama.cpp did not load a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotLoaded {
    #[error("its path is not UTF-8, or has a zero in it")]
    Path,
    #[error("llama.cpp's log says why")]
    Refused,
}

/// Owns the model, and is freed with it.
#[derive(Debug)]
pub(crate) struct Model {
    raw: NonNull<sys::llama_model>,
    /// Held while its list of adapters is changed, or read.
    adapters: Mutex<()>,
}

// SAFETY: llama.cpp lets any thread use and free a model.
unsafe impl Send for Model {}
// SAFETY: what takes `&self` only reads. Making a context writes to the model: that is done by one at a time, see
// `backend::CONTEXT_CREATION`, and to nothing that is read here.
unsafe impl Sync for Model {}

/// An adapter of a model, which frees it, if nobody did before: it must not be used longer than that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lora(NonNull<sys::llama_adapter_lora>);

// SAFETY: any thread may use it.
unsafe impl Send for Lora {}
// SAFETY: once it is loaded, llama.cpp only reads it.
unsafe impl Sync for Lora {}

impl Model {
    /// Loads a file.
    ///
    /// # Errors
    /// llama.cpp refuses it, or cannot be told its path.
    ///
    /// # Safety
    /// llama.cpp is started, and everything that the parameters point to lives until this returns.
    pub(crate) unsafe fn load(path: &Path, params: sys::llama_model_params) -> Result<Self, NotLoaded> {
        let path = text_of(path)?;
        // SAFETY: the path ends with a zero; the rest by the caller's word. llama.cpp returns null where it throws.
        let raw = unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) };
        let raw = NonNull::new(raw).ok_or(NotLoaded::Refused)?;
        Ok(Self { raw, adapters: Mutex::new(()) })
    }

    /// Keeps the list of its adapters as it is: llama.cpp reads it when it makes a context, and when it plans a context's graphs.
    pub(crate) fn hold_adapters(&self) -> MutexGuard<'_, ()> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads an adapter of this model.
    ///
    /// # Errors
    /// llama.cpp refuses it, or cannot be told its path.
    pub(crate) fn load_lora(&self, path: &Path) -> Result<Lora, NotLoaded> {
        let path = text_of(path)?;
        let _held = self.hold_adapters();
        // SAFETY: the model notes the adapter in its list, which nobody else reads meanwhile, and else reads its own tensors. The
        // path ends with a zero. llama.cpp returns null where it throws.
        let raw = unsafe { sys::llama_adapter_lora_init(self.raw(), path.as_ptr()) };
        NonNull::new(raw).map(Lora).ok_or(NotLoaded::Refused)
    }

    /// Frees an adapter.
    ///
    /// # Safety
    /// It is one of this model, and nobody uses it any more.
    pub(crate) unsafe fn free_lora(&self, lora: Lora) {
        let _held = self.hold_adapters();
        // SAFETY: the model's list, which is changed, is not read meanwhile; the rest by the caller's word.
        unsafe { sys::llama_adapter_lora_free(lora.raw()) };
    }

    pub(crate) fn raw(&self) -> *mut sys::llama_model {
        self.raw.as_ptr()
    }

    pub(crate) fn vocab(&self) -> Vocab<'_> {
        // SAFETY: a model has a vocabulary, which lives as long as the model, and nothing changes it.
        unsafe { Vocab::new(sys::llama_model_get_vocab(self.raw())) }
    }

    /// A value of the metadata that is no list. `None` if there is none, or it is not UTF-8.
    pub(crate) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let read = |length: usize| {
            let mut room = vec![0_u8; length];
            // SAFETY: the key ends with a zero. llama.cpp writes no more than the length, with a zero at the end, and returns the
            // length of the value, whether there is room for it or not.
            let value = unsafe {
                sys::llama_model_meta_val_str(self.raw(), key.as_ptr(), room.as_mut_ptr().cast(), room.len())
            };
            // Negative if there is none.
            usize::try_from(value).ok().map(|value| (room, value))
        };
        let (mut room, mut value) = read(VALUE_BYTES)?;
        if value >= room.len() {
            (room, value) = read(value + 1)?;
        }
        room.truncate(value);
        String::from_utf8(room).ok()
    }

    /// The template of this name, or the default one. `None` if there is none, or it is not UTF-8.
    pub(crate) fn chat_template(&self, name: Option<&CStr>) -> Option<String> {
        // SAFETY: a name ends with a zero; without one it is the default template.
        let template =
            unsafe { sys::llama_model_chat_template(self.raw(), name.map_or(std::ptr::null(), CStr::as_ptr)) };
        if template.is_null() {
            return None;
        }
        // SAFETY: it ends with a zero, and lives as long as the model.
        unsafe { CStr::from_ptr(template) }.to_str().ok().map(str::to_owned)
    }

    /// How the file says that most weights are stored.
    pub(crate) fn quantization(&self) -> Option<String> {
        self.metadata("general.file_type")?;
        // SAFETY: the model is whole, and any type has a name, which ends with a zero and is never freed.
        let name = unsafe { CStr::from_ptr(sys::llama_ftype_name(sys::llama_model_ftype(self.raw()))) };
        name.to_str().ok().map(str::to_owned)
    }

    /// Tokens of the context that it was trained with.
    pub(crate) fn context_tokens(&self) -> u32 {
        // SAFETY: the model is whole.
        number(unsafe { sys::llama_model_n_ctx_train(self.raw()) })
    }

    pub(crate) fn layers(&self) -> u32 {
        // SAFETY: the model is whole.
        number(unsafe { sys::llama_model_n_layer(self.raw()) })
    }

    pub(crate) fn heads(&self) -> u32 {
        // SAFETY: the model is whole.
        number(unsafe { sys::llama_model_n_head(self.raw()) })
    }

    /// Numbers that stand for a token between layers.
    pub(crate) fn width(&self) -> u32 {
        // SAFETY: the model is whole.
        number(unsafe { sys::llama_model_n_embd(self.raw()) })
    }

    /// Numbers of a vector that it gives for a text.
    pub(crate) fn dimensions(&self) -> u32 {
        // SAFETY: the model is whole.
        number(unsafe { sys::llama_model_n_embd_out(self.raw()) })
    }

    pub(crate) fn parameters(&self) -> u64 {
        // SAFETY: the model is whole.
        unsafe { sys::llama_model_n_params(self.raw()) }
    }

    /// Bytes of its weights.
    pub(crate) fn bytes(&self) -> u64 {
        // SAFETY: the model is whole.
        unsafe { sys::llama_model_size(self.raw()) }
    }

    /// Tokens that layers with a sliding window attend to, whether the metadata says so or the architecture; 0: there are none.
    pub(crate) fn window_tokens(&self) -> u32 {
        // SAFETY: the model is whole.
        number(unsafe { sys::llama_model_n_swa(self.raw()) })
    }

    /// Whether it writes a text about another one that an encoder has read first, or is only a part that drafts for another model.
    pub(crate) fn translates(&self) -> bool {
        // SAFETY: the model is whole.
        unsafe { sys::llama_model_has_encoder(self.raw()) && sys::llama_model_has_decoder(self.raw()) }
    }

    /// Whether it fills in a text all at once instead of continuing it.
    pub(crate) fn diffuses(&self) -> bool {
        // SAFETY: the model is whole.
        unsafe { sys::llama_model_is_diffusion(self.raw()) }
    }

    /// Whether some of its layers, or all, keep one state for all positions.
    pub(crate) fn is_recurrent(&self) -> bool {
        // SAFETY: the model is whole.
        unsafe { sys::llama_model_is_recurrent(self.raw()) || sys::llama_model_is_hybrid(self.raw()) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this: contexts keep what holds it. Its adapters are freed with it.
        unsafe { sys::llama_model_free(self.raw()) };
    }
}

impl Lora {
    pub(crate) fn raw(self) -> *mut sys::llama_adapter_lora {
        self.0.as_ptr()
    }

    /// Whether it is meant to change only what follows certain tokens.
    pub(crate) fn is_activated(self) -> bool {
        // SAFETY: the adapter lives as long as its model.
        unsafe { sys::llama_adapter_get_alora_n_invocation_tokens(self.raw()) > 0 }
    }
}

/// A path as C wants it.
fn text_of(path: &Path) -> Result<CString, NotLoaded> {
    path.to_str().and_then(|path| CString::new(path).ok()).ok_or(NotLoaded::Path)
}

/// llama.cpp counts in signed numbers, none of which is negative.
fn number(count: i32) -> u32 {
    u32::try_from(count).unwrap_or_default()
}
