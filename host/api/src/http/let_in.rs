//! Whether a connection has brought any request that auth let in.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A listener puts it among the extensions of all requests of a connection, and treats strangers as such.
#[derive(Debug, Clone, Default)]
pub struct LetIn(Arc<AtomicBool>);

impl LetIn {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
