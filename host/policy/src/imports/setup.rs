//! `camshaft:host/context`: what a plugin can ask while it is configured.
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::context::{self, Host, HostSetup};
use crate::given::Given;
use crate::imports::identity::Identity;
use crate::supplies::Supplies;

/// The part of a guest's state that tells which plugin it is.
pub(crate) trait SetupView: 'static {
    fn place(&mut self) -> Place<'_>;
}

/// Which plugin it is, what it was given, and what it has allowed.
pub(crate) struct Place<'a> {
    pub(crate) plugin: &'a Identity,
    pub(crate) supplies: &'a Supplies,
    /// Whether its instance may serve several requests.
    pub(crate) reusable: &'a mut bool,
    /// To be noted when it is given a secret.
    pub(crate) given: &'a mut Given,
}

struct Setup;

impl HasData for Setup {
    type Data<'a> = Place<'a>;
}

pub(crate) fn add_to_linker<T: SetupView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    context::add_to_linker::<_, Setup>(linker, T::place)
}

impl Host for Place<'_> {}

impl HostSetup for Place<'_> {
    fn hook(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.plugin.hook.as_str().to_owned())
    }

    fn name(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.plugin.plugin.to_string())
    }

    fn host_version(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn reuse(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        *self.reusable = true;
        Ok(())
    }

    fn secret(&mut self, _: Resource<Borrowed>, name: String) -> wasmtime::Result<Option<Vec<u8>>> {
        self.given.secret = true;
        Ok(self.supplies.secrets.get(&name).map(<[u8]>::to_vec))
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
