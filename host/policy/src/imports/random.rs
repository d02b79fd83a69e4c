//! `camshaft:host/random`: random numbers, seeded if answers must be repeatable.
use camshaft_core::sampling::RandomStream;
use rand::Rng as _;
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::random::{self, Host};
use crate::fault::invalid;

/// Maximum bytes per call.
const BYTES: u32 = 4096;

/// The source of an instance's random numbers.
#[derive(Debug)]
pub(crate) enum Randomness {
    /// The operating system.
    Secure,
    /// A seed, so that a replay draws the same numbers.
    Seeded(RandomStream),
}

impl Randomness {
    pub(crate) fn number(&mut self) -> u64 {
        match self {
            Randomness::Secure => rand::rng().next_u64(),
            Randomness::Seeded(draws) => draws.next_bits(),
        }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match self {
            Randomness::Secure => rand::rng().fill_bytes(&mut bytes),
            Randomness::Seeded(draws) => {
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&draws.next_bits().to_le_bytes()[..chunk.len()]);
                }
            }
        }
        bytes
    }
}

/// The part of a guest's state that random numbers need.
pub(crate) trait RandomView: 'static {
    fn randomness(&mut self) -> &mut Randomness;
}

struct Random;

impl HasData for Random {
    type Data<'a> = &'a mut Randomness;
}

pub(crate) fn add_to_linker<T: RandomView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    random::add_to_linker::<_, Random>(linker, T::randomness)
}

impl Host for Randomness {
    fn number(&mut self) -> wasmtime::Result<u64> {
        Ok(Randomness::number(self))
    }

    fn bytes(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        if len > BYTES {
            return Err(invalid(format!("{len} random bytes were asked for; at most {BYTES} are given at once")));
        }
        Ok(Randomness::bytes(self, len as usize))
    }
}
