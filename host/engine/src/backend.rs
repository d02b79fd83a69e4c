//! llama.cpp's process-wide state: its initialisation, its log and its build.
use std::ffi::CStr;
use std::sync::{Arc, Mutex, OnceLock};

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::{LlamaCppError, LogOptions, send_logs_to_tracing};

use crate::error::EngineLoadError;
use crate::kernels;

/// Held while a context is made. Making one writes to the model, so two must not be made at once.
pub(crate) static CONTEXT_CREATION: Mutex<()> = Mutex::new(());

/// Initialises llama.cpp at the first call. From then on its log goes to `tracing`.
pub(crate) fn backend() -> Result<&'static LlamaBackend, EngineLoadError> {
    static BACKEND: OnceLock<Result<LlamaBackend, Arc<LlamaCppError>>> = OnceLock::new();
    loaded()?;
    let started = BACKEND.get_or_init(|| {
        let backend = LlamaBackend::init().map_err(Arc::new);
        tracing::info!(kernels = kernels::kernels(), "llama.cpp started");
        tracing::debug!(system_info = system_info(), "llama.cpp started");
        backend
    });
    started.as_ref().map_err(|error| EngineLoadError::Backend(error.clone()))
}

/// Loads kernels at the first call.
fn loaded() -> Result<(), EngineLoadError> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        send_logs_to_tracing(LogOptions::default());
        kernels::load()
    });
    loaded.clone().map_err(|why| EngineLoadError::NoKernels { why })
}

/// llama.cpp's own line about the instruction sets that it was built for.
pub fn system_info() -> String {
    static LOCK: Mutex<()> = Mutex::new(());
    // Without kernels the line is empty.
    let _ = loaded();
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: the function takes no argument and returns a pointer to a static, NUL-terminated buffer. Only another
    // call writes to the buffer, and the lock excludes that.
    let line = unsafe { CStr::from_ptr(llama_cpp_sys_2::llama_print_system_info()) };
    line.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn is_built_for_wide_vectors_and_never_for_amx() {
        let line = super::system_info();
        if cfg!(target_feature = "avx2") {
            assert!(line.contains("AVX2 = 1"), "{line}");
        }
        assert!(!line.contains("AMX_INT8 = 1"), "{line}");
    }
}
