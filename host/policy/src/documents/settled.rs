//! Reads a file that others may be writing.
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::files::Stamp;
use crate::whole_file::read_whole;

/// A file that was written to less than this ago may still be written to.
const SETTLE: Duration = Duration::from_millis(200);
/// How often a file that changes is read again.
const TRIES: u32 = 10;

/// The whole file, once it has not changed for a while.
///
/// # Errors
/// It cannot be read, is too large, or keeps changing.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, String> {
    let stamp = || fs::metadata(path).map(|meta| Stamp::of(&meta));
    // A time in the future is none: such a file has settled when it was seen unchanged for as long.
    let mut seen: Option<(Stamp, Instant)> = None;
    for _ in 0..TRIES {
        let before = stamp().map_err(|error| format!("{}: {error}", path.display()))?;
        let bytes = read_whole(path, max_bytes).map_err(|error| error.to_string())?;
        let since = seen.take().filter(|(stamp, _)| *stamp == before).map_or_else(Instant::now, |(_, since)| since);
        let is_settled = before.age(SystemTime::now()) >= SETTLE || since.elapsed() >= SETTLE;
        if is_settled && stamp().is_ok_and(|after| after == before) {
            return Ok(bytes);
        }
        seen = Some((before, since));
        std::thread::sleep(SETTLE / 2);
    }
    Err(format!("{}: is being written", path.display()))
}
