//! `camshaft:scheduler/context`: the queue that a scheduler works for.
use std::sync::Arc;

use camshaft_core::ids::TenantId;
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::scheduler_context::{self, Host, HostPool};
use crate::fault::invalid;
use crate::tenants::Tenants;

/// The part of a guest's state that tells of its pool.
pub(crate) trait PoolView: 'static {
    /// `None` outside of a call.
    fn pool(&mut self) -> Option<&mut Pool>;
}

/// What a scheduler may ask of its pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) model: Arc<str>,
    pub(crate) tenants: Tenants,
}

pub(crate) struct CurrentPool<'a>(Option<&'a mut Pool>);

struct Pools;

impl HasData for Pools {
    type Data<'a> = CurrentPool<'a>;
}

pub(crate) fn add_to_linker<T: PoolView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    scheduler_context::add_to_linker::<_, Pools>(linker, |state| CurrentPool(state.pool()))
}

impl CurrentPool<'_> {
    fn get(&mut self) -> wasmtime::Result<&mut Pool> {
        self.0.as_deref_mut().ok_or_else(|| invalid("there is no pool now"))
    }
}

impl Host for CurrentPool<'_> {}

impl HostPool for CurrentPool<'_> {
    fn model(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.model.to_string())
    }

    fn tenant(&mut self, _: Resource<Borrowed>, number: u32) -> wasmtime::Result<String> {
        let unknown = || invalid(format!("no tenant has the number {number}"));
        self.get()?.tenants.name(number).map(TenantId::to_string).ok_or_else(unknown)
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
