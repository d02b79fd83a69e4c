//! A request's random numbers: a counted stream, whose whole state is two integers.
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Random numbers of one request. Number `n` depends on the seed and `n` alone, so a preempted
/// request continues with the same numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomStream {
    seed: u64,
    drawn: u64,
}

impl RandomStream {
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// A generator that counts as the next number, however much is taken of it.
    pub(super) fn next_generator(&mut self) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.drawn);
        self.drawn += 1;
        rng
    }

    /// The next 64 uniform bits.
    pub fn next_bits(&mut self) -> u64 {
        self.next_generator().next_u64()
    }

    /// The next number, uniform in [0, 1).
    pub fn next_unit(&mut self) -> f64 {
        unit(self.next_bits())
    }
}

/// A number in [0, 1) of 64 uniform bits: the upper 53, which fill the mantissa.
pub(super) fn unit(bits: u64) -> f64 {
    const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
    (bits >> 11) as f64 * SCALE
}
