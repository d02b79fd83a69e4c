//! The GPU on which Burn computes: found among the adapters of the system, opened once for the process, and watched for errors.
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn_std::config::BurnConfig;
use burn_wgpu::{MemoryConfiguration, RuntimeOptions, WgpuDevice, WgpuSetup, init_device};
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::future::block_on;
use cubecl::stream_id::StreamId;
use wgpu::{Adapter, Backends, DeviceType, Features};

use crate::error::shown;
use crate::quiet::quietly;

/// What WebGPU is computed through. OpenGL has too few buffers for Burn's kernels.
const BACKENDS: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);
/// Kernels that are given to the device at once, as CubeCL has it.
const TASKS: usize = 32;
/// No folder can be made here: what is tuned stays in memory.
const NOWHERE: &str = "/dev/null/camshaft";

/// A device that is open. Models share it, and take turns: it computes one run at a time anyway, and what goes wrong is then known to
/// be of the run that has its turn.
#[derive(Debug)]
pub(crate) struct Gpu {
    device: WgpuDevice,
    /// The adapter's, as its driver says.
    pub(crate) name: String,
    /// It is not made of the processor's own cores.
    is_real: bool,
    /// Bytes of the largest tensor that it takes.
    pub(crate) tensor_bytes: u64,
    /// All threads compute as this one: Burn keeps memory for each.
    stream: StreamId,
    turn: Mutex<()>,
    failure: Arc<OnceLock<String>>,
}

/// Neither the device nor the threads that CubeCL starts for it can be given back, so the process has one.
static OPENED: Mutex<Option<Arc<Gpu>>> = Mutex::new(None);

impl Gpu {
    /// The GPU of this process. `takes_cpu`: also a driver that computes on the processor is taken.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub(crate) fn get(takes_cpu: bool) -> Result<Arc<Self>, NoGpu> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() {
            *opened =
                Some(Arc::new(quietly(|| Self::open(takes_cpu)).unwrap_or_else(|| {
                    Err(NoGpu::Failed("its driver does something that nobody expects".to_owned()))
                })?));
        }
        match &*opened {
            Some(gpu) if gpu.is_real || takes_cpu => match gpu.failure() {
                Some(why) => Err(NoGpu::Failed(why.to_owned())),
                None => Ok(gpu.clone()),
            },
            _ => Err(NoGpu::Absent),
        }
    }

    fn open(takes_cpu: bool) -> Result<Self, NoGpu> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: BACKENDS,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let mut adapters = block_on(instance.enumerate_adapters(BACKENDS));
        adapters.retain(|adapter| takes_cpu || adapter.get_info().device_type != DeviceType::Cpu);
        let best = adapters.into_iter().min_by_key(|adapter| rank(adapter.get_info().device_type));
        Self::of(instance, best.ok_or(NoGpu::Absent)?)
    }

    fn of(instance: wgpu::Instance, adapter: Adapter) -> Result<Self, NoGpu> {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let name = shown(&info.name);
        let tensor_bytes = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let described = wgpu::DeviceDescriptor {
            label: None,
            required_features: adapter
                .features()
                .difference(Features::MAPPABLE_PRIMARY_BUFFERS | Features::all_experimental_mask()),
            required_limits: limits,
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = block_on(adapter.request_device(&described));
        let (device, queue) =
            opened.map_err(|error| NoGpu::Failed(format!("{name} cannot be opened: {}", shown(&error.to_string()))))?;
        let failure = Arc::new(OnceLock::new());
        let (uncaptured, lost) = (failure.clone(), failure.clone());
        // By default, the thread that meets an error panics.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let _ = uncaptured.set(shown(&error.to_string()));
        }));
        device.set_device_lost_callback(move |reason, words| {
            let _ = lost.set(shown(&format!("it is lost ({reason:?}) {words}")));
        });
        settle();
        let backend = info.backend;
        let options = RuntimeOptions { tasks_max: TASKS, memory_config: MemoryConfiguration::default() };
        let device = init_device(WgpuSetup { instance, adapter, device, queue, backend }, options);
        let (stream, turn) = (StreamId::current(), Mutex::new(()));
        Ok(Self { device, name, is_real: info.device_type != DeviceType::Cpu, tensor_bytes, stream, turn, failure })
    }

    pub(crate) fn device(&self) -> WgpuDevice {
        self.device.clone()
    }

    /// Runs `act` when nothing else computes on the device.
    pub(crate) fn in_turn<T>(&self, act: impl FnOnce() -> T) -> T {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.executes(act)
    }

    /// The first thing that went wrong. Nothing that the device computed since then is of use.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// What goes wrong is not said by the device itself.
    pub(crate) fn fail(&self, why: &str) {
        let _ = self.failure.set(why.to_owned());
    }
}

/// Why no GPU computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoGpu {
    Absent,
    Failed(String),
}

/// The fastest first.
fn rank(device: DeviceType) -> u8 {
    match device {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

/// Settings that are read from files in the working directory and all above it otherwise, and what is tuned is written there, too.
fn settle() {
    let mut cubecl = CubeClRuntimeConfig::default();
    cubecl.autotune.cache = CacheConfig::File(PathBuf::from(NOWHERE));
    cubecl.compilation.cache = None;
    // They are set once in a process, and only this function does.
    let _ = quietly(|| CubeClRuntimeConfig::set(cubecl));
    let _ = quietly(|| BurnConfig::set(BurnConfig::default()));
}
