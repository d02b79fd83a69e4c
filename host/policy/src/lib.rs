//! WebAssembly policies.
#![forbid(unsafe_code)]

mod bindings;
mod error;
mod fault;
mod identity;
mod imports;
mod runtime;
mod sidecar;
mod store;
mod text;
mod wasi;
