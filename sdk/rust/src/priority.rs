//! Priorities as numbers.

/// The priority of a request: the smaller, the more urgent. The host knows three classes today, and takes a number between two for
/// the less urgent of them.
#[derive(Debug)]
pub enum Priority {}

impl Priority {
    pub const HIGH: u8 = 0;
    /// The usual one.
    pub const NORMAL: u8 = 64;
    pub const LOW: u8 = 128;
}
