//! The part of a guest's state that the host's WASI needs.
use wasmtime::component::HasData;
use wasmtime_wasi::filesystem::WasiFilesystemCtxView;
use wasmtime_wasi::sockets::WasiSocketsCtxView;

use crate::given::Given;
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
    /// To be noted when the guest reads a wall clock that runs, if that matters now.
    pub(crate) dated: Option<&'a mut bool>,
    pub(crate) randomness: &'a mut Randomness,
    /// To be noted when the guest draws random numbers, or is handed something.
    pub(crate) given: &'a mut Given,
    pub(crate) last_words: &'a mut LastWords,
}

impl HasData for Wasi<'static> {
    type Data<'a> = Wasi<'a>;
}

impl Wasi<'_> {
    /// The wall clock, which the guest reads. Reading the monotonic clock is not noted: interpreters do so for their own ends
    /// whenever they are called, and what is measured by it may begin at any time.
    pub(super) fn wall(&mut self) -> Time {
        if let (Time::Real, Some(dated)) = (self.time, self.dated.as_deref_mut()) {
            *dated = true;
        }
        self.time
    }

    /// The random numbers, which the guest draws.
    pub(super) fn draws(&mut self) -> &mut Randomness {
        self.given.random = true;
        self.randomness
    }
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
