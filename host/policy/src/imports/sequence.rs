//! `camshaft:sampler/context`: the generation that a sampler works for.
use camshaft_core::ids::TenantId;
use camshaft_core::policy::RequestContext;
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::sampler_context::{self, Host, HostSequence};
use crate::fault::invalid;
use crate::pointer;

/// The part of a guest's state that tells of its sequence.
pub(crate) trait SequenceView: 'static {
    /// `None` before the sequence starts.
    fn sequence(&mut self) -> Option<&mut Sequence>;
}

/// What a sampler may ask of its sequence.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) model: String,
    pub(crate) tenant: TenantId,
    pub(crate) context: RequestContext,
    /// Whether the policy may read the request.
    pub(crate) shows_body: bool,
}

pub(crate) struct CurrentSequence<'a>(Option<&'a mut Sequence>);

struct Sequences;

impl HasData for Sequences {
    type Data<'a> = CurrentSequence<'a>;
}

pub(crate) fn add_to_linker<T: SequenceView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    sampler_context::add_to_linker::<_, Sequences>(linker, |state| CurrentSequence(state.sequence()))
}

impl CurrentSequence<'_> {
    fn get(&mut self) -> wasmtime::Result<&mut Sequence> {
        self.0.as_deref_mut().ok_or_else(|| invalid("there is no sequence now"))
    }
}

impl Host for CurrentSequence<'_> {}

impl HostSequence for CurrentSequence<'_> {
    fn model(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.model.clone())
    }

    fn tenant(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.tenant.to_string())
    }

    fn attribute(&mut self, _: Resource<Borrowed>, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.get()?.context.attributes.get(&name).map(str::to_owned))
    }

    fn field(&mut self, _: Resource<Borrowed>, pointer: String) -> wasmtime::Result<Option<String>> {
        let Sequence { context, shows_body, .. } = self.get()?;
        if !*shows_body {
            return Err(invalid("the configuration does not grant it the body"));
        }
        let Some(body) = &context.body else { return Ok(None) };
        let found = pointer::find(body, &pointer);
        Ok(found.map_err(|error| invalid(format!("the request cannot be read: {error}")))?.map(str::to_owned))
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
