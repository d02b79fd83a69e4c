//! `camshaft:host/context`: what a plugin can ask while it is configured.
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::context::{self, Host, HostSetup};
use crate::identity::Identity;

/// The part of a guest's state that tells which plugin it is.
pub(crate) trait SetupView: 'static {
    fn plugin(&mut self) -> &Identity;
}

struct Setup;

impl HasData for Setup {
    type Data<'a> = &'a Identity;
}

pub(crate) fn add_to_linker<T: SetupView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    context::add_to_linker::<_, Setup>(linker, T::plugin)
}

impl Host for &Identity {}

impl HostSetup for &Identity {
    fn hook(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.hook.as_str().to_owned())
    }

    fn name(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.plugin.to_string())
    }

    fn host_version(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
