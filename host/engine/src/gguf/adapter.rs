//! What a file says of itself where it is a LoRA adapter.

/// The keys that llama.cpp reads, without looking at their types.
pub(super) const KEYS: [&[u8]; 4] = [b"general.type", b"general.architecture", b"adapter.type", b"adapter.lora.alpha"];

/// What a file says of itself.
#[derive(Debug, Default)]
pub(crate) struct AdapterKeys {
    /// `general.type`.
    pub(crate) general_type: Option<String>,
    /// `general.architecture`.
    pub(crate) architecture: Option<String>,
    /// `adapter.type`.
    pub(crate) kind: Option<String>,
    /// `adapter.lora.alpha`.
    pub(crate) alpha: Option<f32>,
    /// One of these has a value of another type.
    pub(crate) mistyped: bool,
}
