//! Keys of a model that are one of several words.
use camshaft_core::engine::ModelKind;
use camshaft_core::sizes::KvLayout;
use camshaft_engine::{FlashAttention, KvType, Numa};
use camshaft_tensor::BackendChoice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum LoadKey {
    #[default]
    Start,
    OnDemand,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum IsolationKey {
    #[default]
    Process,
    Thread,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum SwapKey {
    #[default]
    Beside,
    Replace,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum KindKey {
    #[default]
    Auto,
    Generate,
    Embed,
    Predict,
}

impl KindKey {
    /// `None`: what the model's file says it was made for.
    pub fn wanted(self) -> Option<ModelKind> {
        match self {
            Self::Auto => None,
            Self::Generate => Some(ModelKind::Generate),
            Self::Embed => Some(ModelKind::Embed),
            Self::Predict => Some(ModelKind::Predict),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum BackendKey {
    #[default]
    Auto,
    Cpu,
    Wgpu,
}

impl BackendKey {
    pub fn choice(self) -> BackendChoice {
        match self {
            Self::Auto => BackendChoice::Auto,
            Self::Cpu => BackendChoice::Cpu,
            Self::Wgpu => BackendChoice::Wgpu,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ReserveKey {
    None,
    #[default]
    Expected,
    Full,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum KvLayoutKey {
    #[default]
    Pooled,
    PerSequence,
}

impl KvLayoutKey {
    pub(crate) fn layout(self) -> KvLayout {
        match self {
            Self::Pooled => KvLayout::Pooled,
            Self::PerSequence => KvLayout::PerSequence,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum KvTypeKey {
    #[default]
    #[serde(rename = "f16")]
    F16,
    #[serde(rename = "q8_0")]
    Q8_0,
    #[serde(rename = "q4_0")]
    Q4_0,
}

impl KvTypeKey {
    pub fn kv_type(self) -> KvType {
        match self {
            Self::F16 => KvType::F16,
            Self::Q8_0 => KvType::Q8_0,
            Self::Q4_0 => KvType::Q4_0,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum FlashKey {
    #[default]
    Auto,
    On,
    Off,
}

impl FlashKey {
    pub fn wanted(self) -> FlashAttention {
        match self {
            Self::Auto => FlashAttention::Auto,
            Self::On => FlashAttention::On,
            Self::Off => FlashAttention::Off,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum NumaKey {
    #[default]
    Off,
    Distribute,
    Isolate,
    Numactl,
}

impl NumaKey {
    pub fn wanted(self) -> Numa {
        match self {
            Self::Off => Numa::Off,
            Self::Distribute => Numa::Distribute,
            Self::Isolate => Numa::Isolate,
            Self::Numactl => Numa::Numactl,
        }
    }
}
