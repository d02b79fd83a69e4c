//! The policy host with real components: faults, swaps, rejections.
#![allow(clippy::unwrap_used)]

mod directory;
mod faults;
mod forged;
mod hooks;
mod operators;
mod rejections;
mod rig;
mod swaps;
mod watching;
