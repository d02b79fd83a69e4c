//! Processes around what may take all time or memory, or crash: children of this program in another role, which may be killed at any
//! moment.
//!
//! [`spawn`] starts one, and [`control`] is its end of the socket between them. One that has loaded what it needs can fork
//! ([`serve_forks`]): each fork has its own connection, is bounded ([`bound_time`], [`AddressSpace`]) and confined ([`confine`]),
//! ends with its parent, and says in its name what it does ([`say`]), so that whoever finds it dead knows. [`frames`] are the messages.
//! [`give_back_memory`] is for processes that do not fork.
//!
//! **Invariants.** Only a process with a single thread forks. A child ends when its parent does: it reads the end of its socket, and
//! the system kills the forks of one that died.
#![deny(unsafe_code)]

mod confine;
mod fork;
pub mod frames;
mod memory;
mod spawn;

pub use confine::{
    AddressSpace, Confined, bound_time, confine, confine_calls, confine_files, make_expendable, most_memory,
};
pub use fork::{Fate, Forks, NoFork, make_polite, serve_forks};
pub use memory::give_back_memory;
pub use spawn::{control, cpu_time, say, spawn, what_it_did};
