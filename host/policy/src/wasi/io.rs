//! `wasi:io` and the standard streams: writes go to the debug log, reads return the end, waiting traps.
//!
//! Handles are plain numbers without state, so streams and pollables need no memory and cannot be exhausted.
use camshaft_core::policy::FaultKind;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sync::io::{poll, streams};
use wasmtime_wasi::p2::bindings::{cli, clocks};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable, IoError, StreamError, StreamResult};

use super::view::Wasi;
use crate::bindings::host::log::Level;
use crate::fault::{GuestError, forbidden};

/// Maximum bytes of one write.
const WRITE_BYTES: u64 = 4096;
const STDIN: u32 = 0;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
/// A pollable that is ready, and one that is not.
const READY: u32 = 0;
const AHEAD: u32 = 1;

fn waits() -> wasmtime::Error {
    forbidden("guests may not wait")
}

/// The interface of errors. This host makes none.
pub(super) fn add_error_to_linker<T: 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    let mut error = linker.instance("wasi:io/error@0.2.0")?;
    error.resource("error", ResourceType::host::<IoError>(), |_, _| Ok(()))?;
    error.func_wrap("[method]error.to-debug-string", |_, (_,): (Resource<IoError>,)| Ok((String::new(),)))
}

impl poll::Host for Wasi<'_> {
    fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        let ready: Vec<u32> = (0..).zip(&pollables).filter(|(_, p)| p.rep() == READY).map(|(i, _)| i).collect();
        if ready.is_empty() { Err(waits()) } else { Ok(ready) }
    }
}

impl poll::HostPollable for Wasi<'_> {
    fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        Ok(pollable.rep() == READY)
    }

    fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        if pollable.rep() == READY { Ok(()) } else { Err(waits()) }
    }

    fn drop(&mut self, _: Resource<DynPollable>) -> wasmtime::Result<()> {
        self.given.handles = self.given.handles.saturating_sub(1);
        Ok(())
    }
}

impl streams::Host for Wasi<'_> {
    fn convert_stream_error(&mut self, error: StreamError) -> wasmtime::Result<streams::StreamError> {
        match error {
            StreamError::Closed => Ok(streams::StreamError::Closed),
            StreamError::LastOperationFailed(error) | StreamError::Trap(error) => Err(error),
        }
    }
}

impl streams::HostInputStream for Wasi<'_> {
    fn read(&mut self, _: Resource<DynInputStream>, _: u64) -> StreamResult<Vec<u8>> {
        Err(StreamError::Closed)
    }

    fn blocking_read(&mut self, _: Resource<DynInputStream>, _: u64) -> StreamResult<Vec<u8>> {
        Err(StreamError::Closed)
    }

    fn skip(&mut self, _: Resource<DynInputStream>, _: u64) -> StreamResult<u64> {
        Err(StreamError::Closed)
    }

    fn blocking_skip(&mut self, _: Resource<DynInputStream>, _: u64) -> StreamResult<u64> {
        Err(StreamError::Closed)
    }

    fn subscribe(&mut self, _: Resource<DynInputStream>) -> wasmtime::Result<Resource<DynPollable>> {
        Ok(self.hand_out(READY))
    }

    fn drop(&mut self, _: Resource<DynInputStream>) -> wasmtime::Result<()> {
        self.given.handles = self.given.handles.saturating_sub(1);
        Ok(())
    }
}

impl Wasi<'_> {
    /// A handle for the guest. The host keeps nothing for it but the number of those that it has.
    fn hand_out<T: 'static>(&mut self, rep: u32) -> Resource<T> {
        self.given.handles = self.given.handles.saturating_add(1);
        Resource::new_own(rep)
    }

    fn put(&mut self, stream: &Resource<DynOutputStream>, bytes: &[u8]) {
        if stream.rep() == STDERR {
            self.last_words.note(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end();
        if !text.is_empty() && tracing::enabled!(tracing::Level::DEBUG) {
            self.log.write_line(Level::Debug, text, &[]);
        }
    }
}

impl streams::HostOutputStream for Wasi<'_> {
    fn check_write(&mut self, _: Resource<DynOutputStream>) -> StreamResult<u64> {
        Ok(WRITE_BYTES)
    }

    fn write(&mut self, stream: Resource<DynOutputStream>, bytes: Vec<u8>) -> StreamResult<()> {
        if bytes.len() as u64 > WRITE_BYTES {
            let detail = format!("a write of {} bytes is over the {WRITE_BYTES} granted", bytes.len());
            return Err(StreamError::Trap(wasmtime::Error::new(GuestError { kind: FaultKind::Trap, detail })));
        }
        self.put(&stream, &bytes);
        Ok(())
    }

    fn blocking_write_and_flush(&mut self, stream: Resource<DynOutputStream>, bytes: Vec<u8>) -> StreamResult<()> {
        self.write(stream, bytes)
    }

    fn flush(&mut self, _: Resource<DynOutputStream>) -> StreamResult<()> {
        Ok(())
    }

    fn blocking_flush(&mut self, _: Resource<DynOutputStream>) -> StreamResult<()> {
        Ok(())
    }

    fn subscribe(&mut self, _: Resource<DynOutputStream>) -> wasmtime::Result<Resource<DynPollable>> {
        Ok(self.hand_out(READY))
    }

    fn write_zeroes(&mut self, _: Resource<DynOutputStream>, _: u64) -> StreamResult<()> {
        Ok(())
    }

    fn blocking_write_zeroes_and_flush(&mut self, _: Resource<DynOutputStream>, _: u64) -> StreamResult<()> {
        Ok(())
    }

    fn splice(&mut self, _: Resource<DynOutputStream>, _: Resource<DynInputStream>, _: u64) -> StreamResult<u64> {
        Err(StreamError::Closed)
    }

    fn blocking_splice(
        &mut self,
        _: Resource<DynOutputStream>,
        _: Resource<DynInputStream>,
        _: u64,
    ) -> StreamResult<u64> {
        Err(StreamError::Closed)
    }

    fn drop(&mut self, _: Resource<DynOutputStream>) -> wasmtime::Result<()> {
        self.given.handles = self.given.handles.saturating_sub(1);
        Ok(())
    }
}

impl cli::stdin::Host for Wasi<'_> {
    fn get_stdin(&mut self) -> wasmtime::Result<Resource<DynInputStream>> {
        Ok(self.hand_out(STDIN))
    }
}

impl cli::stdout::Host for Wasi<'_> {
    fn get_stdout(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        Ok(self.hand_out(STDOUT))
    }
}

impl cli::stderr::Host for Wasi<'_> {
    fn get_stderr(&mut self) -> wasmtime::Result<Resource<DynOutputStream>> {
        Ok(self.hand_out(STDERR))
    }
}

impl clocks::wall_clock::Host for Wasi<'_> {
    fn now(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        let now = self.wall().unix_time();
        Ok(clocks::wall_clock::Datetime { seconds: now.as_secs(), nanoseconds: now.subsec_nanos() })
    }

    fn resolution(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        Ok(clocks::wall_clock::Datetime { seconds: 0, nanoseconds: 1_000_000 })
    }
}

impl clocks::monotonic_clock::Host for Wasi<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.time.monotonic_ns())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(1)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let passed = when <= self.time.monotonic_ns();
        Ok(self.hand_out(if passed { READY } else { AHEAD }))
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        Ok(self.hand_out(if duration == 0 { READY } else { AHEAD }))
    }
}
