//! Passes the counters to the next instance through the plugin's state store. In native unit tests, the store is a
//! thread-local map.
#[cfg(target_family = "wasm")]
use camshaft_plugin::state;

/// The tenant's last counter; `None` if it is unknown.
#[cfg(target_family = "wasm")]
pub(crate) fn load(tenant: &str) -> Option<f64> {
    let bytes = state::get(&key(tenant)).ok()??.value;
    Some(f64::from_le_bytes(bytes.try_into().ok()?)).filter(|counter| counter.is_finite())
}

/// Saves a counter. If the store is full, the tenant starts over after a swap.
#[cfg(target_family = "wasm")]
pub(crate) fn save(tenant: &str, counter: f64) {
    /// Time to live of a counter: longer than any swap takes.
    const KEPT_MS: u64 = 600_000;
    let _ = state::set(&key(tenant), &counter.to_le_bytes(), Some(KEPT_MS));
}

#[cfg(target_family = "wasm")]
fn key(tenant: &str) -> String {
    format!("counter/{tenant}")
}

#[cfg(not(target_family = "wasm"))]
mod native {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    thread_local! {
        static KEPT: RefCell<BTreeMap<String, f64>> = const { RefCell::new(BTreeMap::new()) };
    }

    pub(crate) fn load(tenant: &str) -> Option<f64> {
        KEPT.with_borrow(|kept| kept.get(tenant).copied())
    }

    pub(crate) fn save(tenant: &str, counter: f64) {
        KEPT.with_borrow_mut(|kept| kept.insert(tenant.to_owned(), counter));
    }
}

#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{load, save};
