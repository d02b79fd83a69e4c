//! Devices with memory of their own that layers can be given to, such as GPUs. There are some only in programs that were built with
//! a feature for them, see `Cargo.toml`.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_cpp_2::{LlamaBackendDevice, LlamaBackendDeviceType, list_llama_ggml_backend_devices};
use llama_cpp_sys_2 as sys;

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
#[derive(Debug, Clone, Default, PartialEq)]
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
    let takes_layers = |device: &LlamaBackendDevice| {
        matches!(device.device_type, LlamaBackendDeviceType::Gpu | LlamaBackendDeviceType::IntegratedGpu)
    };
    let devices = list_llama_ggml_backend_devices().into_iter().filter(takes_layers);
    Ok(devices.map(Device::of).collect())
}

impl Device {
    fn of(found: LlamaBackendDevice) -> Self {
        Self {
            name: found.name,
            description: found.description,
            backend: found.backend,
            total: found.memory_total as u64,
            free: found.memory_free as u64,
            is_integrated: found.device_type == LlamaBackendDeviceType::IntegratedGpu,
            index: found.index,
        }
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
        split.resize(llama_cpp_2::max_devices(), 0.0);
        split
    }
}
