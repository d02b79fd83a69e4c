//! Downloads one file: resumed where it was left, within the announced size, its digest computed on the way.
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::address::shown_url;
use crate::client::{Answer, Ask, Client, told};
use crate::digest::{CHUNK, Digest, Hasher};
use crate::error::RegistryError;
use crate::limits::{FILE_BYTES, PROGRESS_BYTES, RESTARTS, STALL_BYTES};
use crate::partial::{Meta, Partial};
use crate::progress::{Event, Meter, Moved, Progress};
use crate::remote::RemoteFile;
use crate::retry::{self, Attempts, Failure};
use crate::settings::Times;

/// What downloads.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) times: &'a Times,
    pub(crate) progress: &'a dyn Progress,
    /// Asked before anything is written: bytes of the file, and those of them that are to come.
    pub(crate) room: &'a dyn Fn(u64, u64) -> Result<(), RegistryError>,
    /// Of the model.
    pub(crate) parts: u32,
    /// Follows a refusal.
    pub(crate) hint: &'static str,
}

/// A file that is here, whole and on the disk, but not yet in its place.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// `None`: it is in the cache already.
    pub(crate) path: Option<PathBuf>,
    pub(crate) sha256: Digest,
    pub(crate) bytes: u64,
    pub(crate) etag: Option<String>,
}

/// Why an attempt did not end with the whole file.
enum Broken {
    Failed(Failure),
    /// The file has to be begun anew.
    Anew(String),
}

impl<E: Into<Failure>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A file's state between attempts.
struct Running<'a> {
    wanted: &'a RemoteFile,
    part: u32,
    partial: Partial,
    hasher: Hasher,
    meter: Meter,
}

impl Transfer<'_> {
    /// Downloads a file into `dir`, as this part of the model.
    ///
    /// # Errors
    /// It cannot be had, or is not what was announced. Then what has arrived is kept if it can be resumed.
    pub(crate) fn run(&self, wanted: &RemoteFile, dir: &Path, part: u32) -> Result<Fetched, RegistryError> {
        let mut running = self.open(wanted, dir, part)?;
        let (mut attempts, mut restarts) = (Attempts::new(), 0);
        loop {
            let before = running.partial.bytes();
            let broken = match self.attempt(&mut running) {
                Ok(()) => break,
                Err(broken) => broken,
            };
            if running.partial.bytes().saturating_sub(before) >= PROGRESS_BYTES {
                attempts = Attempts::new();
            }
            match broken {
                Broken::Failed(Failure::Fatal(error)) => return Err(gone(running, error)),
                Broken::Anew(why) if restarts < RESTARTS => {
                    restarts += 1;
                    self.progress.tell(&Event::Note(&format!("{}: {why}: beginning anew", wanted.name)));
                    running.begin_anew()?;
                }
                Broken::Anew(why) => return Err(gone(running, RegistryError::answer(shown_url(&wanted.url), why))),
                Broken::Failed(Failure::Again { why, after }) => match attempts.next(self.times, after) {
                    Some(pause) => retry::wait(self.progress, &why, pause, attempts.failed + 1)?,
                    None => {
                        let error = running.given_up(why, attempts.failed);
                        return Err(gone(running, error));
                    }
                },
            }
        }
        self.finish(running)
    }

    fn open<'a>(&self, wanted: &'a RemoteFile, dir: &Path, part: u32) -> Result<Running<'a>, RegistryError> {
        let mut partial = Partial::open(dir, part)?;
        if partial.bytes() > 0
            && let Some(why) = partial.meta().and_then(|meta| unlike(meta, wanted))
        {
            self.progress.tell(&Event::Note(&format!("{}: {why}: beginning anew", wanted.name)));
            partial.clear()?;
        }
        let cancel = |_| match self.progress.is_cancelled() {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        };
        let hasher = partial.hash(cancel)?;
        let meter = Meter::new(Instant::now(), partial.bytes());
        Ok(Running { wanted, part, partial, hasher, meter })
    }

    /// One request, and as much of its answer as comes.
    fn attempt(&self, running: &mut Running<'_>) -> Result<(), Broken> {
        if self.progress.is_cancelled() {
            return Err(RegistryError::Cancelled.into());
        }
        let at = running.partial.bytes();
        if at > 0 && running.partial.meta().is_some_and(|meta| meta.bytes == at) {
            return Ok(());
        }
        let mut ask = Ask { secret: running.wanted.secret.as_ref(), ..Ask::get(&running.wanted.url) };
        if at > 0 {
            ask = ask.header("range", format!("bytes={at}-"));
            // A weak tag compares as unequal, and makes the server send everything.
            let meta = running.partial.meta();
            let strong = meta.and_then(|meta| meta.etag.clone()).filter(|tag| tag.starts_with('"'));
            match strong.or_else(|| meta.and_then(|meta| meta.modified.clone())) {
                Some(condition) => ask = ask.header("if-range", condition),
                // Only the digest would notice that the rest is another file's.
                None if running.wanted.sha256.is_none() => return Err(Broken::Anew("it cannot be resumed".to_owned())),
                None => {}
            }
        }
        let mut answer = self.client.ask(&ask)?;
        let meta = self.examine(running, &answer, at)?;
        (self.room)(meta.bytes, meta.bytes.saturating_sub(running.partial.bytes()))?;
        running.partial.describe(meta)?;
        self.receive(running, &mut answer)
    }

    /// What the answer is part of; what is here fits before it.
    fn examine(&self, running: &mut Running<'_>, answer: &Answer, at: u64) -> Result<Meta, Broken> {
        let wanted = running.wanted;
        let url = || shown_url(&wanted.url);
        let known = running.partial.meta().cloned();
        let is_other = |meta: &Meta| answer.etag().is_some_and(|tag| meta.etag.as_ref().is_some_and(|old| *old != tag));
        let total = match answer.status {
            200 => {
                let length = answer.number("content-length").or(wanted.bytes);
                let none = || RegistryError::answer(url(), "the server does not say how large the file is");
                if at > 0 {
                    let changed = known.as_ref().is_some_and(is_other);
                    let why = if changed { "it changed upstream" } else { "the server does not resume" };
                    self.progress.tell(&Event::Note(&format!("{}: {why}: beginning anew", wanted.name)));
                    running.begin_anew()?;
                }
                length.ok_or_else(none)?
            }
            206 if at > 0 => {
                if known.as_ref().is_some_and(is_other) {
                    return Err(Broken::Anew("it changed upstream".to_owned()));
                }
                let range = answer.header("content-range").unwrap_or_default();
                let expected = known.as_ref().map_or(0, |meta| meta.bytes);
                match content_range(range) {
                    Some((first, last, total)) if first == at && total == expected && last + 1 == total => total,
                    _ => {
                        let range = crate::text::shown(range);
                        let asked = format!("bytes {at}-{}/{expected}", expected.saturating_sub(1));
                        return Err(Broken::Anew(format!("wrong Content-Range {range:?}, expected {asked:?}")));
                    }
                }
            }
            206 => return Err(RegistryError::answer(url(), "a part of the file, and all of it was asked for").into()),
            416 if at > 0 => return Err(Broken::Anew("it changed upstream: it is shorter now".to_owned())),
            204 | 205 => return Err(RegistryError::answer(url(), format!("{} has no content", answer.status)).into()),
            _ => return Err(answer.failure(self.hint).into()),
        };
        answer.check_coding()?;
        if total > FILE_BYTES {
            let file = wanted.name.to_string();
            return Err(RegistryError::FileTooLarge { file, bytes: total, max: FILE_BYTES }.into());
        }
        if let Some(expected) = wanted.bytes.filter(|expected| *expected != total) {
            return Err(RegistryError::WrongSize { url: url(), expected, got: total }.into());
        }
        let modified = answer.header("last-modified").map(str::to_owned);
        Ok(Meta {
            url: wanted.url.to_string(),
            bytes: total,
            sha256: wanted.sha256,
            version: wanted.etag.clone(),
            etag: answer.etag(),
            modified,
        })
    }

    fn receive(&self, running: &mut Running<'_>, answer: &mut Answer) -> Result<(), Broken> {
        let total = running.partial.meta().map_or(0, |meta| meta.bytes);
        let mut reader = answer.reader();
        let mut buffer = vec![0; CHUNK];
        let mut window = (Instant::now(), 0u64);
        self.tell(running, total);
        while running.partial.bytes() < total {
            if self.progress.is_cancelled() {
                return Err(RegistryError::Cancelled.into());
            }
            let n = match reader.read(&mut buffer) {
                Ok(0) => return Err(Failure::again("the connection ends early").into()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::again(told(error.into())).into()),
            };
            if n as u64 > total - running.partial.bytes() {
                return Err(RegistryError::Oversize { url: shown_url(&running.wanted.url), announced: total }.into());
            }
            running.partial.append(&buffer[..n])?;
            running.hasher.update(&buffer[..n]);
            self.tell(running, total);
            window.1 += n as u64;
            if window.0.elapsed() >= self.times.stall {
                if window.1 < STALL_BYTES && running.partial.bytes() < total {
                    let (bytes, seconds) = (window.1, self.times.stall.as_secs());
                    return Err(Failure::again(format!("only {bytes} bytes in {seconds} s")).into());
                }
                window = (Instant::now(), 0);
            }
        }
        // A body that is framed otherwise than by its length may go on.
        match reader.read(&mut buffer[..1]) {
            Ok(1..) => Err(RegistryError::Oversize { url: shown_url(&running.wanted.url), announced: total }.into()),
            _ => Ok(()),
        }
    }

    fn tell(&self, running: &mut Running<'_>, total: u64) {
        let bytes = running.partial.bytes();
        let due = running.meter.moved(Instant::now(), bytes);
        if due.is_some() || bytes == total {
            let (file, rate) = (running.wanted.name.as_str(), due.unwrap_or_default());
            let moved = Moved { file, part: running.part, parts: self.parts, bytes, total, rate };
            self.progress.tell(&Event::Moved(moved));
        }
    }

    fn finish(&self, running: Running<'_>) -> Result<Fetched, RegistryError> {
        let Running { wanted, partial, hasher, .. } = running;
        let (got, bytes) = (hasher.finish(), partial.bytes());
        if let Some(expected) = wanted.sha256.filter(|expected| *expected != got) {
            partial.discard();
            let hint = " (it was damaged on the way, or changed upstream)";
            return Err(RegistryError::WrongDigest { file: wanted.name.to_string(), expected, got, hint });
        }
        partial.finish()?;
        let etag = wanted.etag.clone().or_else(|| partial.meta().and_then(|meta| meta.etag.clone()));
        Ok(Fetched { path: Some(partial.path().to_owned()), sha256: got, bytes, etag })
    }
}

impl Running<'_> {
    fn begin_anew(&mut self) -> Result<(), RegistryError> {
        self.partial.clear()?;
        self.hasher = Hasher::default();
        self.meter = Meter::new(Instant::now(), 0);
        Ok(())
    }

    fn given_up(&self, why: String, attempts: u32) -> RegistryError {
        let (url, got) = (shown_url(&self.wanted.url), self.partial.bytes());
        match self.partial.meta() {
            Some(meta) if got > 0 => RegistryError::Torn { url, got, total: meta.bytes, why, attempts },
            _ => RegistryError::Unreachable { url, why, attempts },
        }
    }
}

/// Nothing is left of a file of which nothing has arrived, or nothing that is worth anything.
fn gone(running: Running<'_>, error: RegistryError) -> RegistryError {
    let is_worthless = matches!(error, RegistryError::Oversize { .. } | RegistryError::WrongSize { .. });
    if is_worthless || running.partial.bytes() == 0 {
        running.partial.discard();
    }
    error
}

/// Why bytes that are here are not the beginning of what is wanted.
fn unlike(meta: &Meta, wanted: &RemoteFile) -> Option<&'static str> {
    let differs = meta.sha256 != wanted.sha256 || wanted.bytes.is_some_and(|bytes| bytes != meta.bytes);
    if meta.version != wanted.etag || differs {
        return Some("it changed upstream");
    }
    // Nothing would notice that a crash tore it.
    wanted.sha256.is_none().then_some("its digest is not known, so that what is here cannot be trusted")
}

/// `bytes 3-9/10`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (first, last, total): (u64, u64, u64) = (number(first)?, number(last)?, number(total)?);
    (first <= last && last < total).then_some((first, last, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_and_nothing_that_resembles_one() {
        assert_eq!(content_range("bytes 3-9/10"), Some((3, 9, 10)));
        for bad in [
            "",
            "bytes 3-9/*",
            "bytes */10",
            "bytes 9-3/10",
            "bytes 3-10/10",
            "bytes -3/10",
            "items 3-9/10",
            "bytes +3-9/10",
            "bytes 3-9/99999999999999999999",
            "bytes 18446744073709551615-18446744073709551615/18446744073709551615",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
