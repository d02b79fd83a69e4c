//! `camshaft:validator/context`: the request that a validator checks, in detail.
use std::sync::Arc;

use camshaft_core::policy::ValidateRequest;
use serde_json::Value;
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::validator_context::{self, Host, HostDraft};
use crate::fault::invalid;

/// The request in question.
#[derive(Debug)]
pub(crate) struct Draft {
    request: Arc<ValidateRequest>,
    /// The body, once somebody has asked for a value of it.
    parsed: Option<Value>,
}

impl Draft {
    pub(crate) fn new(request: Arc<ValidateRequest>) -> Self {
        Self { request, parsed: None }
    }

    /// One value of the body as JSON text.
    fn field(&mut self, pointer: &str) -> Option<String> {
        // The host wrote the body itself.
        let parsed = self.parsed.get_or_insert_with(|| serde_json::from_str(&self.request.body).unwrap_or_default());
        parsed.pointer(pointer).map(Value::to_string)
    }
}

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
        Ok(self.get()?.request.tenant.to_string())
    }

    fn body(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.request.body.clone())
    }

    fn field(&mut self, _: Resource<Borrowed>, pointer: String) -> wasmtime::Result<Option<String>> {
        Ok(self.get()?.field(&pointer))
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
