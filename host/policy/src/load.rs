//! Loading policies: what lies in the directory is compiled, examined and published.
#[cfg(test)]
mod ahead_tests;
mod arrivals;
#[cfg(test)]
pub(crate) mod bench;
#[cfg(test)]
mod bound_tests;
mod builder;
mod compile;
mod directory;
mod granted;
mod granting;
mod loader;
#[cfg(test)]
mod log_tests;
mod missing;
#[cfg(test)]
mod missing_tests;
mod mode;
mod order;
mod policy;
mod relocate;
#[cfg(test)]
mod retry_tests;
mod rollback;
#[cfg(test)]
mod rollback_tests;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;
mod trial;
#[cfg(test)]
mod trial_tests;
mod versions;

pub(crate) use self::directory::{Patience, SETTLE, Scan};
pub(crate) use self::loader::Loader;
pub(crate) use self::mode::ModeChange;
pub use self::relocate::Demands;
pub(crate) use self::relocate::{Claim, Relocation};
pub(crate) use self::trial::TRIAL_TICK;
