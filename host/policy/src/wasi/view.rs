//! The part of a guest's state that the host's WASI needs.
use wasmtime::component::HasData;
use wasmtime_wasi::filesystem::WasiFilesystemCtxView;
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use crate::imports::clock::Time;
use crate::imports::log::PluginLog;
use crate::imports::random::Randomness;

/// Bytes of a guest's standard error that the host keeps to explain a trap.
const LAST_WORDS_BYTES: usize = 512;

/// The part of a guest's state that WASI needs.
pub(crate) trait WasiView: 'static {
    fn wasi(&mut self) -> Wasi<'_>;
    fn filesystem(&mut self) -> WasiFilesystemCtxView<'_>;
    fn sockets(&mut self) -> WasiSocketsCtxView<'_>;
}

/// The data of the host's own WASI implementation.
pub(crate) struct Wasi<'a> {
    pub(crate) log: &'a PluginLog,
    pub(crate) time: Time,
    pub(crate) randomness: &'a mut Randomness,
    pub(crate) last_words: &'a mut LastWords,
}

impl HasData for Wasi<'static> {
    type Data<'a> = Wasi<'a>;
}

/// The last bytes that a guest wrote to standard error.
#[derive(Debug, Default)]
pub(crate) struct LastWords(Vec<u8>);

impl LastWords {
    pub(crate) fn note(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(LAST_WORDS_BYTES)..];
        self.0.extend_from_slice(tail);
        let over = self.0.len().saturating_sub(LAST_WORDS_BYTES);
        self.0.drain(..over);
    }

    /// The text on one line.
    pub(crate) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
