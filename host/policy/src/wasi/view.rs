//! What the host's WASI sees of a guest's state.
use wasmtime::component::HasData;
use wasmtime_wasi::filesystem::WasiFilesystemCtxView;
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use crate::imports::clock::Time;
use crate::imports::log::PluginLog;
use crate::imports::random::Randomness;

/// Bytes of a guest's standard error that are kept to explain a trap.
const LAST_WORDS_BYTES: usize = 512;

/// A guest's state, as WASI sees it.
pub(crate) trait WasiView: 'static {
    fn wasi(&mut self) -> Wasi<'_>;
    fn filesystem(&mut self) -> WasiFilesystemCtxView<'_>;
    fn sockets(&mut self) -> WasiSocketsCtxView<'_>;
}

/// What the host's own implementation of WASI interfaces needs.
pub(crate) struct Wasi<'a> {
    pub(crate) log: &'a PluginLog,
    pub(crate) time: Time,
    pub(crate) randomness: &'a mut Randomness,
    pub(crate) last_words: &'a mut LastWords,
}

impl HasData for Wasi<'static> {
    type Data<'a> = Wasi<'a>;
}

/// The end of what a guest wrote to standard error.
#[derive(Debug, Default)]
pub(crate) struct LastWords(Vec<u8>);

impl LastWords {
    pub(crate) fn note(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(LAST_WORDS_BYTES)..];
        self.0.extend_from_slice(tail);
        let over = self.0.len().saturating_sub(LAST_WORDS_BYTES);
        self.0.drain(..over);
    }

    /// On one line.
    pub(crate) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
