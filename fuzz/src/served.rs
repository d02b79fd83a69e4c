//! What clients send: bytes of connections, and bodies of requests.
use std::sync::{LazyLock, Mutex, PoisonError};

use camshaft_api::fuzz::Parsers;
use tokio::runtime::{Builder, Runtime};

#[expect(clippy::expect_used, reason = "a test of the API fails first")]
static PARSERS: LazyLock<Parsers> = LazyLock::new(|| Parsers::new().expect("an API over a model of bytes"));
/// Its time passes at once when nothing else happens.
#[expect(clippy::expect_used, reason = "a process that cannot start it cannot fuzz")]
static RUNTIME: LazyLock<Mutex<Runtime>> = LazyLock::new(|| {
    Mutex::new(Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime"))
});

/// Bodies of chat and completion requests.
pub(crate) fn request(bytes: &[u8]) {
    PARSERS.request(bytes);
}

/// The bytes of a connection to the public listener.
pub(crate) fn connection(bytes: &[u8]) {
    let runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    runtime.block_on(camshaft::fuzz::connection(PARSERS.router(), bytes));
}
