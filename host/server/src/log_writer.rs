//! Writes log lines without ever waiting for whoever reads them: what does not fit the queue is dropped and counted.
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use prometheus::IntCounter;

/// Lines that may wait for the reader, and bytes of them.
const LINES_MAX: usize = 8192;
const BYTES_MAX: usize = 8 << 20;
/// At the end: how long the reader has to take what waits.
const FLUSH: Duration = Duration::from_secs(1);

/// Takes lines in for a thread that writes them.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter {
    queue: Sender<Entry>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Everything before it was written.
    Flushed(Sender<()>),
}

#[derive(Debug)]
struct Shared {
    waiting_bytes: AtomicUsize,
    /// Since the last line that says so.
    dropped: AtomicU64,
    dropped_total: IntCounter,
}

impl LogWriter {
    /// Starts the thread that writes to `out`. It ends when `out` does, or with the process.
    ///
    /// # Errors
    /// There can be no such thread.
    pub(crate) fn start(out: impl Write + Send + 'static) -> Result<Self, anyhow::Error> {
        let (queue, entries) = bounded(LINES_MAX);
        let help = "Log lines that were dropped because standard error did not take them";
        let dropped_total = IntCounter::new("camshaft_log_lines_dropped_total", help)?;
        let shared = Shared { waiting_bytes: AtomicUsize::new(0), dropped: AtomicU64::new(0), dropped_total };
        let shared = Arc::new(shared);
        let of = shared.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write_all(out, &entries, &of))?;
        Ok(Self { queue, shared })
    }

    /// Lines dropped so far.
    pub(crate) fn dropped(&self) -> IntCounter {
        self.shared.dropped_total.clone()
    }

    /// Waits until what was taken in is written, but not for a reader who does not read.
    pub(crate) fn flush(&self) {
        let (done, flushed) = bounded(1);
        if self.queue.send_timeout(Entry::Flushed(done), FLUSH).is_ok() {
            // Nobody reads: there is no more to do.
            let _ = flushed.recv_timeout(FLUSH);
        }
    }
}

fn write_all(mut out: impl Write, entries: &Receiver<Entry>, shared: &Shared) {
    for entry in entries {
        match entry {
            Entry::Line(line) => {
                // A reader who is gone or a file that may not grow is no reason to stop: a later line may be taken, and the
                // queue must empty. A line that says so would not be taken, either.
                if out.write_all(&line).is_err() {
                    shared.dropped_total.inc();
                }
                shared.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            Entry::Flushed(done) => drop(out.flush().map(|()| done.send(()))),
        }
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            // It waits its turn like any other line.
            tracing::warn!(dropped, "log lines were dropped: nobody read standard error");
        }
    }
}

/// Each event is written with one call.
impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = self.shared.waiting_bytes.fetch_add(line.len(), Ordering::Relaxed);
        let fits = waiting + line.len() <= BYTES_MAX;
        if !fits || self.queue.try_send(Entry::Line(line.to_vec())).is_err() {
            self.shared.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            self.shared.dropped_total.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Blocks until the test lets go, then keeps what it is given.
    struct Stuck(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stuck() -> (LogWriter, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let ((go_on, held), written) = (bounded(0), Arc::new(Mutex::new(Vec::new())));
        (LogWriter::start(Stuck(held, written.clone())).unwrap(), go_on, written)
    }

    #[test]
    fn regression_a_reader_who_stops_costs_lines_and_nothing_else() {
        let (log, go_on, written) = stuck();
        // One may be with the thread that writes.
        for _ in 0..LINES_MAX {
            (&log).write_all(b"x").unwrap();
        }
        assert_eq!(log.dropped().get(), 0);
        for _ in 0..3 {
            (&log).write_all(b"y").unwrap();
        }
        assert!((2..=3).contains(&log.dropped().get()), "{}", log.dropped().get());
        drop(go_on);
        log.flush();
        let written = written.lock().unwrap();
        assert!(written.len() >= LINES_MAX && written.iter().filter(|byte| **byte == b'x').count() == LINES_MAX);
        assert_eq!(log.shared.waiting_bytes.load(Ordering::Relaxed), 0);
    }

    /// Takes every other line.
    struct Full(u32);

    impl Write for Full {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0.is_multiple_of(2) { Ok(line.len()) } else { Err(io::ErrorKind::FileTooLarge.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn regression_lines_that_cannot_be_written_are_counted() {
        let log = LogWriter::start(Full(0)).unwrap();
        for _ in 0..5 {
            (&log).write_all(b"x").unwrap();
        }
        log.flush();
        assert_eq!(log.dropped().get(), 3);
    }

    #[test]
    fn drops_at_the_bound_of_bytes() {
        let (log, go_on, _) = stuck();
        let line = vec![b'x'; BYTES_MAX / 2];
        (&log).write_all(&line).unwrap();
        (&log).write_all(&line).unwrap();
        assert_eq!(log.dropped().get(), 0, "at the bound");
        (&log).write_all(b"x").unwrap();
        assert_eq!(log.dropped().get(), 1, "one past it");
        drop(go_on);
        log.flush();
        (&log).write_all(b"x").unwrap();
        assert_eq!(log.dropped().get(), 1);
    }
}
