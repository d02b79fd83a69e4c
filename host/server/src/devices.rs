//! The devices of this machine that layers can be given to, and which of them a model may use.
use std::fmt::Write as _;

use camshaft_core::sizes::DeviceNeeds;
use camshaft_engine::{Device, Offload};

use crate::config::{Auto, ModelConfig};
use crate::error::ServerError;

/// The devices as they were at the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Devices(Vec<Device>);

/// Features of this program that bring devices.
const FEATURES: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "metal")]
    "metal",
    #[cfg(feature = "rocm")]
    "rocm",
    #[cfg(feature = "vulkan")]
    "vulkan",
];

impl Devices {
    /// Looks at the machine.
    ///
    /// # Errors
    /// llama.cpp cannot be started.
    pub(crate) fn look() -> Result<Self, ServerError> {
        let devices = camshaft_engine::devices();
        devices.map(Self).map_err(|error| ServerError::internal("look for devices", error))
    }

    /// What is free on each.
    pub(crate) fn free(&self) -> Vec<u64> {
        self.0.iter().map(|device| device.free).collect()
    }

    /// Whether the model is to have layers on a device that is there.
    pub(crate) fn are_wanted(&self, config: &ModelConfig) -> bool {
        config.gpu_layers != Auto::Set(0) && !self.chosen(config).is_empty()
    }

    /// What the model may use, which has so many layers. `most`: more did not work. `None`: it uses none.
    pub(crate) fn needs(&self, config: &ModelConfig, layers: u32, most: Option<u32>) -> Option<DeviceNeeds> {
        let wished = config.gpu_layers.set();
        // Where layers were asked for and there is no device, it is said how many could not be given to one.
        let wanted = self.are_wanted(config) || wished.is_some_and(|layers| layers > 0);
        let holds_kv = config.kv_on_gpu;
        wanted.then(|| DeviceNeeds { devices: self.chosen(config), layers, wished, most, holds_kv })
    }

    /// How llama.cpp is to divide the layers.
    pub(crate) fn offload(&self, config: &ModelConfig, layers: u32) -> Offload {
        let devices: Vec<String> = self.chosen(config).into_iter().map(|index| self.0[index].name.clone()).collect();
        let mut split = config.tensor_split.clone();
        if !config.devices.is_empty() {
            // The numbers of devices that are not there go with them.
            let there = config.devices.iter().map(|name| devices.contains(name));
            split = split.into_iter().zip(there).filter_map(|(part, is_there)| is_there.then_some(part)).collect();
        }
        Offload { layers, devices, split }
    }

    /// Names in the configuration of which there is no device.
    pub(crate) fn missing<'a>(&self, config: &'a ModelConfig) -> Vec<&'a str> {
        let is_missing = |name: &&String| self.0.iter().all(|device| device.name != **name);
        config.devices.iter().chain(&config.main_device).filter(is_missing).map(String::as_str).collect()
    }

    /// Their numbers.
    fn chosen(&self, config: &ModelConfig) -> Vec<usize> {
        let named = |name: &String| self.0.iter().position(|device| device.name == *name);
        match (&config.main_device, &config.devices[..]) {
            (Some(main), _) => named(main).into_iter().collect(),
            (None, []) => (0..self.0.len()).filter(|&index| !self.0[index].is_integrated).collect(),
            (None, names) => names.iter().filter_map(named).collect(),
        }
    }

    /// Why there are none, if there are none.
    pub(crate) fn absence(&self) -> Option<String> {
        self.0.is_empty().then(|| match FEATURES {
            [] => "this program was built without cuda, metal, rocm and vulkan".to_owned(),
            features => format!("this program was built with {}, and found none", features.join(", ")),
        })
    }

    /// A line for each, or why there is none.
    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        if let Some(why) = self.absence() {
            let _ = writeln!(table, "no devices: {why}");
            return table;
        }
        let _ = writeln!(table, "{:<12} {:<10} {:>12} {:>12}  description", "name", "backend", "memory", "free");
        for Device { name, description, backend, total, free, is_integrated, .. } in &self.0 {
            let note = if *is_integrated { " (shares the host's memory: used where `devices` names it)" } else { "" };
            let (total, free) = (mib(*total), mib(*free));
            let _ = writeln!(table, "{name:<12} {backend:<10} {total:>12} {free:>12}  {description}{note}");
        }
        table
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
