//! `camshaft:policy/random`: random numbers, seeded where answers must be repeatable.
use rand::Rng as _;

use crate::bindings::host::random::Host;
use crate::fault::invalid;
use crate::store::{GuestState, Randomness};

/// Bytes of one request.
const BYTES: u32 = 4096;

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

impl Host for GuestState {
    fn number(&mut self) -> wasmtime::Result<u64> {
        Ok(self.randomness.number())
    }

    fn bytes(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        if len > BYTES {
            return Err(invalid(format!("{len} random bytes were asked for; at most {BYTES} are given at once")));
        }
        Ok(self.randomness.bytes(len as usize))
    }
}
