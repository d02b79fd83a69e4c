//! What the host supplies to one load of a policy beside its settings: documents and secrets.
use std::sync::Arc;

use crate::documents::Document;
use crate::secrets::Secrets;

/// Held by every instance of the load.
#[derive(Debug, Default)]
pub(crate) struct Supplies {
    pub(crate) documents: Vec<Arc<Document>>,
    pub(crate) secrets: Secrets,
}

impl Supplies {
    pub(crate) fn document(&self, name: &str) -> Option<&Document> {
        self.documents.iter().find(|document| document.name() == name).map(AsRef::as_ref)
    }
}
