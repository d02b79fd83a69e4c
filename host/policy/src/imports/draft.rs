//! `camshaft:validator/context`: the request that a validator checks, in detail.
use std::sync::Arc;

use camshaft_core::policy::ValidateRequest;
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::validator_context::{self, Host, HostDraft};
use crate::fault::invalid;
use crate::pointer;

/// The request in question.
#[derive(Debug)]
pub(crate) struct Draft(pub(crate) Arc<ValidateRequest>);

/// The part of a guest's state that holds the request.
pub(crate) trait DraftView: 'static {
    /// `None` outside of a call.
    fn draft(&mut self) -> Option<&mut Draft>;
}

pub(crate) struct CurrentDraft<'a>(Option<&'a mut Draft>);

struct Drafts;

impl HasData for Drafts {
    type Data<'a> = CurrentDraft<'a>;
}

pub(crate) fn add_to_linker<T: DraftView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    validator_context::add_to_linker::<_, Drafts>(linker, |state| CurrentDraft(state.draft()))
}

impl CurrentDraft<'_> {
    fn get(&mut self) -> wasmtime::Result<&mut Draft> {
        self.0.as_deref_mut().ok_or_else(|| invalid("there is no request now"))
    }
}

impl Host for CurrentDraft<'_> {}

impl HostDraft for CurrentDraft<'_> {
    fn tenant(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.0.tenant.to_string())
    }

    fn body(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.0.body.clone())
    }

    fn field(&mut self, _: Resource<Borrowed>, pointer: String) -> wasmtime::Result<Option<String>> {
        let found = pointer::find(&self.get()?.0.body, &pointer);
        Ok(found.map_err(|error| invalid(format!("the body cannot be read: {error}")))?.map(str::to_owned))
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
