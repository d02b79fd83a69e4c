//! Whether a connection has brought any request that auth let in, and whose it was.
use std::sync::{Arc, OnceLock};

use camshaft_core::ids::TenantId;

/// A listener puts it among the extensions of all requests of a connection, and treats strangers as such.
#[derive(Debug, Clone, Default)]
pub struct LetIn(Arc<OnceLock<TenantId>>);

impl LetIn {
    /// A request of the tenant was let in. The connection counts as that of the first one.
    pub fn set(&self, tenant: &TenantId) {
        self.0.get_or_init(|| tenant.clone());
    }

    pub fn tenant(&self) -> Option<&TenantId> {
        self.0.get()
    }
}
