//! `camshaft:host/types`: types without functions. Components import them as an interface, so it must be linked.
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::types::{self, Host};

/// Needs no part of a guest's state.
struct Types;

impl HasData for Types {
    type Data<'a> = Types;
}

impl Host for Types {}

pub(crate) fn add_to_linker<T: 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    types::add_to_linker::<_, Types>(linker, |_| Types)
}
