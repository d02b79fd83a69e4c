//! What travels with a request for the policies that may ask about it.
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attributes::Attributes;

/// What samplers and filters may ask about the request that a generation belongs to. Its choices share it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestContext {
    pub attributes: Arc<Attributes>,
    /// The client's request as one JSON object, with all amendments; `None` if no policy reads it.
    pub body: Option<Arc<str>>,
}
