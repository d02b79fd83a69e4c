//! What answers the requests of a listener: one router while the server loads, another one from then on.
use std::sync::{Arc, OnceLock};

use axum::Router;

/// Connections that began while the server loaded are answered by the loaded one, too.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    loading: Router,
    loaded: Arc<OnceLock<Router>>,
    overloaded: Router,
}

impl Door {
    /// `overloaded` answers requests that there is no memory for.
    pub(crate) fn new(loading: Router, overloaded: Router) -> Self {
        Self { loading, loaded: Arc::default(), overloaded }
    }

    /// For requests that there is no memory for.
    pub(crate) fn overloaded(&self) -> Router {
        self.overloaded.clone()
    }

    /// Has `loaded` answer all further requests. The first one stays.
    pub(crate) fn open(&self, loaded: Router) {
        let _ = self.loaded.set(loaded);
    }

    pub(crate) fn router(&self) -> Router {
        self.loaded.get().unwrap_or(&self.loading).clone()
    }
}
