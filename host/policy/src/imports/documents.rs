//! `camshaft:host/documents`: what the host reads and refreshes for the plugin.
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::documents::{self, Host};
use crate::supplies::Supplies;

/// The part of a guest's state that holds its documents.
pub(crate) trait DocumentsView: 'static {
    fn supplies(&mut self) -> &Supplies;
}

struct Documents;

impl HasData for Documents {
    type Data<'a> = &'a Supplies;
}

pub(crate) fn add_to_linker<T: DocumentsView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    documents::add_to_linker::<_, Documents>(linker, T::supplies)
}

impl Host for &Supplies {
    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.documents.iter().map(|document| document.name().to_owned()).collect())
    }

    fn version(&mut self, name: String) -> wasmtime::Result<Option<u64>> {
        Ok(self.document(&name).and_then(|document| document.current()).map(|version| version.number))
    }

    fn read(&mut self, name: String) -> wasmtime::Result<Option<(u64, Vec<u8>)>> {
        let current = self.document(&name).and_then(|document| document.current());
        Ok(current.map(|version| (version.number, version.bytes.clone())))
    }
}
