//! The policy host with real components: faults, swaps, rejections.
#![allow(clippy::unwrap_used)]

mod canaries;
mod checkpoints;
mod cluster;
mod context;
mod contexts;
mod desk;
mod directory;
mod documents;
mod faults;
mod forged;
mod grants;
mod hooks;
mod load;
mod matching;
mod native;
mod node;
mod operators;
mod plans;
mod rejections;
mod rig;
mod scheduling;
mod slow;
mod swaps;
mod watched;
mod watching;
