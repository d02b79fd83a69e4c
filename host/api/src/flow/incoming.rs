//! A request as HTTP hands it over: its body is read and nothing is parsed yet.
use std::sync::Arc;

use axum::http::HeaderMap;

use crate::flow::api::Api;
use crate::flow::caller::Caller;
use crate::flow::context::Context;
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) api: Arc<Api>,
    pub(crate) caller: Caller,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Incoming {
    pub(crate) fn context(&self) -> Context<'_> {
        Context { api: &self.api, caller: &self.caller }
    }

    /// Runs `read` on the body's text where it may take long: on a thread that may block, so that other connections are
    /// not delayed.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) async fn read_aside<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(Context<'_>, &str) -> Result<T, FlowError> + Send + 'static,
    ) -> Result<T, FlowError> {
        let (api, caller, text) = (self.api.clone(), self.caller.clone(), std::mem::take(&mut self.text));
        let reading = tokio::task::spawn_blocking(move || read(Context { api: &api, caller: &caller }, &text));
        reading.await.map_err(|source| FlowError::Task { task: "reading a request", source })?
    }
}
