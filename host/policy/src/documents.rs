//! Documents for guests: files and URLs that the host reads and refreshes, the last good version of each.
mod document;
mod fetch;
mod judge;
mod library;
mod metrics;
mod settled;
mod spec;
#[cfg(test)]
mod tests;
mod version;

pub(crate) use self::document::Document;
pub(crate) use self::judge::Judge;
pub(crate) use self::library::{Library, Missing, Opened, Reader};
pub(crate) use self::metrics::DocumentMetrics;
pub(crate) use self::spec::{DocumentSpec, Source};
pub(crate) use self::version::Version;
