//! llama.cpp's process-wide state: its initialisation and its build.
use std::ffi::CStr;
use std::sync::{Mutex, OnceLock};

use llama_cpp_sys_2 as sys;

use crate::error::EngineLoadError;
use crate::{buffers, kernels, log, matmul};

/// Held while a context is made. Making one writes to the model, so two must not be made at once.
pub(crate) static CONTEXT_CREATION: Mutex<()> = Mutex::new(());

/// How llama.cpp's threads and memory are spread over the nodes of a machine that has several, each with memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Numa {
    /// As the system does it.
    #[default]
    Off,
    /// Evenly over all nodes.
    Distribute,
    /// Only on the node on which the process was started.
    Isolate,
    /// As `numactl` was told, which started the process.
    Numactl,
}

static NUMA: OnceLock<Numa> = OnceLock::new();

/// Says what to do about NUMA. To be called before a model is loaded; only the first call counts.
pub fn use_numa(numa: Numa) {
    // Whoever comes later finds it decided.
    let _ = NUMA.set(numa);
}

/// Initialises llama.cpp at the first call, for as long as the process lives. From then on its log goes to `tracing`.
pub(crate) fn backend() -> Result<(), EngineLoadError> {
    static STARTED: OnceLock<()> = OnceLock::new();
    loaded()?;
    STARTED.get_or_init(|| {
        let numa = match NUMA.get_or_init(Numa::default) {
            Numa::Off => sys::GGML_NUMA_STRATEGY_DISABLED,
            Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
            Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
            Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
        };
        // SAFETY: this happens once, before anything else is asked of llama.cpp but to load kernels, which the second call needs.
        unsafe {
            sys::llama_backend_init();
            sys::llama_numa_init(numa);
            buffers::replace();
        }
        tracing::info!(kernels = kernels::kernels(), products = matmul::products(), "llama.cpp started");
        tracing::debug!(system_info = system_info(), "llama.cpp started");
    });
    Ok(())
}

/// Loads kernels at the first call.
fn loaded() -> Result<(), EngineLoadError> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        log::forward();
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
    let line = unsafe { CStr::from_ptr(sys::llama_print_system_info()) };
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
