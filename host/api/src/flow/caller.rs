//! The caller of a request.
use std::sync::Arc;

use camshaft_core::policy::{PolicySet, Principal};

/// A principal, with the policies that apply to its request until the end.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Arc<Principal>,
    pub(crate) policies: Arc<dyn PolicySet>,
    /// Whether it may see what concerns other tenants.
    pub(crate) operator: bool,
}
