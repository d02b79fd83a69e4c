//! What an instance of a scheduler leaves to the next one.
use super::policy::{Component, Policy};
use crate::instance::{self, Package};

/// A policy whose instances hand over what a replay does not tell. Export it with `export_scheduler!(Name, checkpoint)`.
///
/// The host asks for it when another version of the plugin (of the same [`Policy::NAME`]) comes into force, and gives it to a
/// new instance before its first point. After a fault nothing is handed over.
pub trait Checkpoint: Policy {
    /// At most 1 MiB; more is nothing. May take as long as a call.
    fn save(&mut self) -> Vec<u8>;

    /// Begins with what another version of the plugin saved, perhaps long ago and in another form.
    ///
    /// # Errors
    /// It is of no use; says why for the log. Another new instance then begins without it.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), String>;
}

impl<P: Checkpoint, V: Package> crate::bindings::checkpoint::Guest for Component<P, V> {
    fn save() -> Vec<u8> {
        instance::with(|policy: &mut P| policy.save())
    }

    fn restore(bytes: Vec<u8>) -> Result<(), String> {
        instance::with(|policy: &mut P| policy.restore(&bytes))
    }
}

/// Fails to compile for a policy without checkpoints.
#[doc(hidden)]
pub fn hands_over<P: Checkpoint>() {}
