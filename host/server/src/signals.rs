//! What signals ask of the server, and how they reach it whatever started it.
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::ServerError;

/// Undoes what a process inherits from the one that started it: blocked signals, and a SIGCHLD that is ignored, with which
/// the system forgets how a child ended. To be called before there are threads, which inherit it in turn.
///
/// # Errors
/// The system does not do it.
pub(crate) fn receive_all() -> Result<(), ServerError> {
    let failed = |error: std::io::Error| ServerError::internal("receive signals", error);
    SigSet::empty().thread_set_mask().map_err(|error| failed(error.into()))?;
    // A handler is as good as the default, which nobody can set without `unsafe`; children begin with the default. A write
    // to who is gone is an error, also after an `exec` that failed, which has undone that SIGPIPE is ignored.
    [SIGCHLD, SIGPIPE]
        .into_iter()
        .try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
        .map_err(failed)
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// SIGTERM: whoever runs the server takes it out of service.
    Terminate,
    /// SIGINT: somebody at a terminal waits for the end.
    Interrupt,
    /// SIGHUP.
    Reload,
}

/// SIGTERM and SIGINT, and SIGHUP.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Listens from now on. The second SIGTERM or SIGINT ends the process from within the signal handler, so that it does
    /// not matter which thread hangs.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub(crate) fn new() -> Result<Self, ServerError> {
        let failed = |error: std::io::Error| ServerError::internal("listen for signals", error);
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // Handlers run in this order: the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, 0, signalled.clone()).map_err(failed)?;
            flag::register(signal, signalled.clone()).map_err(failed)?;
        }
        // A file that may not grow (RLIMIT_FSIZE) is an error of the write, and no end of the process.
        // What other servers are told to open their logs anew by means nothing here, and must not end this one.
        for signal in [SIGXFSZ, SIGUSR1, SIGUSR2] {
            flag::register(signal, Arc::default()).map_err(failed)?;
        }
        let listen = |kind| signal(kind).map_err(failed);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::Terminate,
            _ = self.interrupt.recv() => Wish::Interrupt,
            _ = self.hangup.recv() => Wish::Reload,
        }
    }

    /// Waits for one that ends the process. A SIGHUP that comes meanwhile is there for [`Signals::next`].
    pub(crate) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn regression_a_file_that_may_not_grow_and_signals_for_other_servers_end_nothing() {
        let _signals = Signals::new().unwrap();
        for signal in [SIGXFSZ, SIGUSR1, SIGUSR2] {
            // Without a handler it would end this process.
            assert!(signal_hook::low_level::raise(signal).is_ok());
        }
    }
}
