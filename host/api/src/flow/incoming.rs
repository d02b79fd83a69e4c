//! A request as the HTTP layer passes it on, with its body read but not parsed.
use std::sync::Arc;

use axum::http::HeaderMap;

use crate::flow::api::Api;
use crate::flow::budget::Share;
use crate::flow::caller::Caller;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) api: Arc<Api>,
    pub(crate) caller: Caller,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// What the request takes of the memory for all.
    pub(crate) share: Share,
}

impl Incoming {
    pub(crate) fn context(&self) -> ParseContext<'_> {
        ParseContext { api: &self.api, caller: &self.caller }
    }

    /// Runs `read` on the body's text, on a thread that may block, so that a long body does not delay other
    /// connections.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) async fn read_aside<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(ParseContext<'_>, &str) -> Result<T, FlowError> + Send + 'static,
    ) -> Result<T, FlowError> {
        let (api, caller, text) = (self.api.clone(), self.caller.clone(), std::mem::take(&mut self.text));
        let reading = tokio::task::spawn_blocking(move || read(ParseContext { api: &api, caller: &caller }, &text));
        reading.await.map_err(|source| FlowError::Task { task: "reading a request", source })?
    }
}
