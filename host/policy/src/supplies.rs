//! What the host supplies to one load of a policy beside its settings: documents and secrets.
use std::sync::Arc;

use crate::documents::{Document, Version};
use crate::secrets::Secrets;

/// Held by every instance of the load.
#[derive(Debug, Default)]
pub(crate) struct Supplies {
    pub(crate) documents: Vec<Arc<Document>>,
    pub(crate) secrets: Secrets,
}

impl Supplies {
    /// The same with another version of the document of this name.
    pub(crate) fn with(&self, name: &str, version: &Arc<Version>) -> Self {
        let replaced = |document: &Arc<Document>| {
            if document.name() == name { document.with(version.clone()) } else { document.clone() }
        };
        Self { documents: self.documents.iter().map(replaced).collect(), secrets: self.secrets.clone() }
    }

    pub(crate) fn document(&self, name: &str) -> Option<&Document> {
        self.documents.iter().find(|document| document.name() == name).map(AsRef::as_ref)
    }
}
