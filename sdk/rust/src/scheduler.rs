//! The scheduler hook: decides which request runs next, and on which worker.
mod book;
mod capacity;
mod checkpoint;
mod classes;
mod lists;
mod point;
mod policy;
#[cfg(not(target_family = "wasm"))]
mod rehearsal;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use book::Book;
pub use capacity::Capacity;
pub use checkpoint::Checkpoint;
#[doc(hidden)]
pub use checkpoint::hands_over;
pub use classes::Classes;
pub use lists::{Arrival, CachedPrefix, Worker};
pub use point::Point;
#[doc(hidden)]
pub use policy::Component;
pub use policy::Policy;

pub use crate::Priority;
pub use crate::bindings::scheduler::{Actions, Arrivals, Point as Facts, Workers};
