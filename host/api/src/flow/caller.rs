//! Who calls.
use std::sync::Arc;

use camshaft_core::policy::{PolicySet, Principal};

/// A principal, and the policies that its request keeps to its end.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Arc<Principal>,
    pub(crate) policies: Arc<dyn PolicySet>,
}
