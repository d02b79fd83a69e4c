//! `camshaft cache`: what lies on disk, without a server.
use std::fmt::Write as _;
use std::path::Path;

use camshaft_engine::disk::{self, DiskError};

use crate::check::print;
use crate::error::ServerError;

fn from_disk(error: DiskError) -> ServerError {
    match error {
        DiskError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            ServerError::NoDiskDirectory { source: error }
        }
        DiskError::InUse(_) => ServerError::DiskInUse { source: error },
        error => ServerError::internal("read the prefix cache", error),
    }
}

/// `camshaft cache stats` and, with the states read too, `camshaft cache verify`.
pub(crate) fn report(dir: &Path, verify: bool) -> Result<(), ServerError> {
    let mut out = String::new();
    let mut bad = 0;
    for one in disk::report(dir, verify).map_err(from_disk)? {
        let _ = writeln!(
            out,
            "{}: {} segments, {} tokens, {} bytes in {} data files",
            one.path.display(),
            one.segments,
            one.tokens,
            one.bytes,
            one.data_files
        );
        bad += one.damage.len();
        for damage in one.damage {
            let _ = writeln!(out, "  {damage}");
        }
    }
    if out.is_empty() {
        let _ = writeln!(out, "{}: nothing is kept here", dir.display());
    }
    print(&out)?;
    match bad {
        0 => Ok(()),
        count if verify => Err(ServerError::DamagedCache { count }),
        _ => Ok(()),
    }
}

/// `camshaft cache clear`.
pub(crate) fn clear(dir: &Path) -> Result<(), ServerError> {
    let count = disk::clear(dir).map_err(from_disk)?;
    print(&format!("removed {count} caches below {}\n", dir.display()))
}
