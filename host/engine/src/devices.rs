//! Devices with memory of their own that layers can be given to, such as GPUs. There are some only in programs that were built with
//! a feature for them, see `Cargo.toml`.
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_sys_2 as sys;
use serde::{Deserialize, Serialize};

use crate::backend::backend;
use crate::error::EngineLoadError;

/// A device that layers can be given to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// By which the configuration names it, such as `Vulkan0`.
    pub name: String,
    pub description: String,
    /// llama.cpp's backend that drives it, such as `CUDA`.
    pub backend: String,
    /// Its memory, in bytes.
    pub total: u64,
    /// What of it nobody uses now.
    pub free: u64,
    /// Its memory is the host's.
    pub is_integrated: bool,
    /// In llama.cpp's list.
    index: usize,
}

/// The layers of a model that lie on devices, and how they divide them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Offload {
    /// The output layer, and as many others, from the last on.
    pub layers: u32,
    /// Names of devices, in the order in which they get layers. None: all.
    pub devices: Vec<String>,
    /// A number for each device: its part of the layers. None: by their free memory.
    pub split: Vec<f32>,
}

/// Whether a device of a model has failed: then nothing on it may be touched, not even to free it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lost(Arc<AtomicBool>);

impl Lost {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All devices that layers can be given to.
///
/// # Errors
/// llama.cpp cannot be started.
pub fn devices() -> Result<Vec<Device>, EngineLoadError> {
    // It knows of none before.
    backend()?;
    // SAFETY: llama.cpp is started.
    let count = unsafe { sys::ggml_backend_dev_count() };
    Ok((0..count).filter_map(Device::at).collect())
}

impl Device {
    /// A device of llama.cpp's list. `None` if it takes no layers.
    fn at(index: usize) -> Option<Self> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the index is of llama.cpp's list, which only grows.
        let device = unsafe { sys::ggml_backend_dev_get(index) };
        // SAFETY: the device is whole.
        let kind = unsafe { sys::ggml_backend_dev_type(device) };
        let is_integrated = kind == sys::GGML_BACKEND_DEVICE_TYPE_IGPU;
        if kind != sys::GGML_BACKEND_DEVICE_TYPE_GPU && !is_integrated {
            return None;
        }
        // SAFETY: the device is whole, and so is the backend that lists it. Their texts end with a zero, and live as long as they
        // do. Both numbers are there to be written.
        let (name, description, backend) = unsafe {
            sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total);
            let backend = sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(device));
            (text(sys::ggml_backend_dev_name(device)), text(sys::ggml_backend_dev_description(device)), text(backend))
        };
        Some(Self { name, description, backend, total: total as u64, free: free as u64, is_integrated, index })
    }

    fn raw(&self) -> sys::ggml_backend_dev_t {
        // SAFETY: the index is of llama.cpp's list, which only grows.
        unsafe { sys::ggml_backend_dev_get(self.index) }
    }
}

impl Offload {
    /// What llama.cpp reads: the devices, and a null at their end.
    ///
    /// # Errors
    /// There is no device of a name.
    pub(crate) fn raw_devices(&self) -> Result<Vec<sys::ggml_backend_dev_t>, EngineLoadError> {
        let all = devices()?;
        let of_name = |name: &String| {
            let device = all.iter().find(|device| device.name == *name);
            device.ok_or_else(|| EngineLoadError::NoDevice { name: name.clone() })
        };
        let chosen = match &self.devices[..] {
            [] => all.iter().collect(),
            names => names.iter().map(of_name).collect::<Result<Vec<_>, _>>()?,
        };
        Ok(chosen.into_iter().map(Device::raw).chain([std::ptr::null_mut()]).collect())
    }

    /// A number for each device that llama.cpp may know of.
    pub(crate) fn raw_split(&self) -> Vec<f32> {
        let mut split = self.split.clone();
        // SAFETY: the function takes and touches nothing.
        split.resize(unsafe { sys::llama_max_devices() }, 0.0);
        split
    }
}

/// # Safety
/// The text is null, or ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the caller's word.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
