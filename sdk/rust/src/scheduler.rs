//! The scheduler hook: decides which request runs next, and on which worker.
mod book;
mod capacity;
mod lists;
mod policy;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use book::Book;
pub use capacity::Capacity;
pub use lists::{Arrival, CachedPrefix, Worker};
#[doc(hidden)]
pub use policy::Component;
pub use policy::Policy;

pub use crate::Priority;
pub use crate::bindings::scheduler::exports::camshaft::policy::scheduler::{Actions, Arrivals, Point, Workers};
