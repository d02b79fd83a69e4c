//! Addresses that guests' memories reserve. Reserved addresses take no memory, but some processes have few of them.
use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, getrlimit};

/// Maximum linear memory of a guest.
pub(crate) const MEMORY_MAX_BYTES: usize = 64 << 20;
/// More than all guests together reserve where each of them reserves all that 32 bits can address.
pub(crate) const PLENTY_BYTES: u64 = 32 << 40;

/// How many addresses this process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// No check of an access costs anything: what lies outside a guest's memory is reserved, too.
    Plenty,
    /// A guest reserves what it may use, and its accesses are compared with that: those that read much take a tenth longer.
    Few,
}

/// Bytes that the process may reserve, where that is limited.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

impl Addresses {
    pub const ALL: [Self; 2] = [Self::Plenty, Self::Few];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plenty => "plenty",
            Self::Few => "few",
        }
    }

    /// Those of this process. An emulator of another processor keeps a note of each page, reserved or not.
    pub(crate) fn here() -> Self {
        let few = limit().is_some_and(|limit| limit < PLENTY_BYTES);
        if few || is_emulated() { Self::Few } else { Self::Plenty }
    }

    /// Bytes that are reserved for one memory.
    pub(crate) fn reserved_bytes(self) -> u64 {
        match self {
            Self::Plenty => 4 << 30,
            Self::Few => MEMORY_MAX_BYTES as u64,
        }
    }

    /// Bytes after one memory that are reserved to catch accesses.
    pub(crate) fn guard_bytes(self) -> u64 {
        match self {
            Self::Plenty => 32 << 20,
            Self::Few => 64 << 10,
        }
    }
}

/// Whether an emulator in user space, such as `qemu-x86_64`, runs this program: the system then runs another one than the path
/// names that it tells this one.
pub fn is_emulated() -> bool {
    const RUNNING: &str = "/proc/self/exe";
    let file = |path: &std::path::Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let named = fs::read_link(RUNNING).ok().and_then(|path| file(&path));
    named.is_some() && named != file(RUNNING.as_ref())
}
