//! `camshaft:filter/context`: the text that a filter decides on.
use camshaft_core::filter::{TextWindow, WindowToken};
use camshaft_core::filter_verdicts::KEPT_BYTES;
use camshaft_core::ids::TenantId;
use camshaft_core::policy::RequestContext;
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::filter_context::{self, Host, HostStream};
use crate::fault::invalid;
use crate::pointer;

/// The part of a guest's state that tells of its text.
pub(crate) trait StreamView: 'static {
    /// `None` before the text begins.
    fn stream(&mut self) -> Option<&mut Stream>;
}

/// What a filter may ask of its text.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) model: String,
    pub(crate) tenant: TenantId,
    pub(crate) choice: u32,
    pub(crate) context: RequestContext,
    /// Whether the policy may read the request.
    pub(crate) shows_body: bool,
    pub(crate) rewinds: u32,
    /// During a call; otherwise empty.
    pub(crate) text: TextWindow,
    /// Where the piece begins.
    pub(crate) start: usize,
}

impl Stream {
    fn range(&self, start: u64, len: u32) -> impl Iterator<Item = &WindowToken> {
        // What does not fit lies outside of every text.
        self.text.tokens(usize::try_from(start).unwrap_or(usize::MAX), len as usize)
    }
}

pub(crate) struct CurrentStream<'a>(Option<&'a mut Stream>);

struct Streams;

impl HasData for Streams {
    type Data<'a> = CurrentStream<'a>;
}

pub(crate) fn add_to_linker<T: StreamView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    filter_context::add_to_linker::<_, Streams>(linker, |state| CurrentStream(state.stream()))
}

impl CurrentStream<'_> {
    fn get(&mut self) -> wasmtime::Result<&mut Stream> {
        self.0.as_deref_mut().ok_or_else(|| invalid("there is no text now"))
    }
}

impl Host for CurrentStream<'_> {}

impl HostStream for CurrentStream<'_> {
    fn model(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.model.clone())
    }

    fn tenant(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.tenant.to_string())
    }

    fn choice(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<u32> {
        Ok(self.get()?.choice)
    }

    fn before(&mut self, _: Resource<Borrowed>, max: u32) -> wasmtime::Result<String> {
        let Stream { text, start, .. } = self.get()?;
        Ok(text.before(*start, (max as usize).min(KEPT_BYTES)).to_owned())
    }

    fn rewinds(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<u32> {
        Ok(self.get()?.rewinds)
    }

    fn attribute(&mut self, _: Resource<Borrowed>, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.get()?.context.attributes.get(&name).map(str::to_owned))
    }

    fn field(&mut self, _: Resource<Borrowed>, pointer: String) -> wasmtime::Result<Option<String>> {
        let Stream { context, shows_body, .. } = self.get()?;
        if !*shows_body {
            return Err(invalid("the configuration does not grant it the body"));
        }
        let Some(body) = &context.body else { return Ok(None) };
        let found = pointer::find(body, &pointer);
        Ok(found.map_err(|error| invalid(format!("the request cannot be read: {error}")))?.map(str::to_owned))
    }

    fn tokens(&mut self, _: Resource<Borrowed>, start: u64, len: u32) -> wasmtime::Result<Vec<u32>> {
        Ok(self.get()?.range(start, len).map(|token| token.token.0).collect())
    }

    fn logprobs(&mut self, _: Resource<Borrowed>, start: u64, len: u32) -> wasmtime::Result<Vec<f32>> {
        // All have one where a filter imports this function.
        Ok(self.get()?.range(start, len).map(|token| token.logprob.unwrap_or(f32::NAN)).collect())
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
