//! `camshaft:validator/context`: the request that a validator checks, in detail.
use std::sync::Arc;

use camshaft_core::policy::{Marks, Priority, ValidateRequest};
use wasmtime::component::{HasData, Linker, Resource};

use crate::bindings::Borrowed;
use crate::bindings::host::validator_context::{self, Host, HostDraft};
use crate::fault::invalid;
use crate::pointer;

/// The request in question.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) request: Arc<ValidateRequest>,
    /// Whether the policy may read the body.
    shows_body: bool,
    /// As the validator has left them so far.
    pub(crate) marks: Marks,
}

impl Draft {
    pub(crate) fn new(request: Arc<ValidateRequest>, shows_body: bool) -> Self {
        Self { marks: request.marks.clone(), request, shows_body }
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

    /// A guard that cannot see what it is to check does not answer.
    fn body(&mut self) -> wasmtime::Result<&str> {
        let draft = self.get()?;
        if draft.shows_body {
            Ok(&draft.request.body)
        } else {
            Err(invalid("the configuration does not grant it the body"))
        }
    }
}

impl Host for CurrentDraft<'_> {}

impl HostDraft for CurrentDraft<'_> {
    fn tenant(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.request.tenant.to_string())
    }

    fn principal(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(self.get()?.request.principal.clone())
    }

    fn body(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<String> {
        Ok(CurrentDraft::body(self)?.to_owned())
    }

    fn field(&mut self, _: Resource<Borrowed>, pointer: String) -> wasmtime::Result<Option<String>> {
        let found = pointer::find(CurrentDraft::body(self)?, &pointer);
        Ok(found.map_err(|error| invalid(format!("the body cannot be read: {error}")))?.map(str::to_owned))
    }

    fn attribute(&mut self, _: Resource<Borrowed>, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.get()?.marks.attributes.get(&name).map(str::to_owned))
    }

    fn set_attribute(
        &mut self,
        _: Resource<Borrowed>,
        name: String,
        value: String,
    ) -> wasmtime::Result<Result<(), String>> {
        let attributes = Arc::make_mut(&mut self.get()?.marks.attributes);
        Ok(attributes.set(&name, value).map_err(|error| error.to_string()))
    }

    fn estimated_cost(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<u64> {
        Ok(self.get()?.request.estimated_cost)
    }

    fn priority(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<u8> {
        Ok(self.get()?.marks.priority.number())
    }

    fn set_priority(&mut self, _: Resource<Borrowed>, priority: u8) -> wasmtime::Result<()> {
        self.get()?.marks.priority = Priority::of_number(priority);
        Ok(())
    }

    fn drop(&mut self, _: Resource<Borrowed>) -> wasmtime::Result<()> {
        // Guests only borrow it.
        Ok(())
    }
}
