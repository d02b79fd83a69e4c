//! Pointers of llama.cpp in the types of `llama-cpp-2`, which keeps them to itself.
use std::ptr::NonNull;

use llama_cpp_2::model::{LlamaLoraAdapter, LlamaModel};
use llama_cpp_sys_2 as sys;

/// llama.cpp's pointer to a model.
pub(crate) fn raw_model(model: &LlamaModel) -> *mut sys::llama_model {
    const { assert!(size_of::<LlamaModel>() == size_of::<*mut sys::llama_model>()) };
    // SAFETY: `LlamaModel` of the pinned version is a transparent wrapper of this pointer.
    unsafe { *std::ptr::from_ref(model).cast::<*mut sys::llama_model>() }
}

/// The model of a pointer that llama.cpp gave, which is not null.
///
/// # Safety
/// Nobody else frees it.
pub(crate) unsafe fn model_of(raw: NonNull<sys::llama_model>) -> LlamaModel {
    // SAFETY: as in `raw_model`.
    unsafe { std::mem::transmute::<NonNull<sys::llama_model>, LlamaModel>(raw) }
}

pub(crate) fn raw_adapter(adapter: &LlamaLoraAdapter) -> *mut sys::llama_adapter_lora {
    const { assert!(size_of::<LlamaLoraAdapter>() == size_of::<*mut sys::llama_adapter_lora>()) };
    // SAFETY: as in `raw_model`.
    unsafe { *std::ptr::from_ref(adapter).cast::<*mut sys::llama_adapter_lora>() }
}
