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

    /// The next 64 uniform bits.
    pub fn next_bits(&mut self) -> u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.drawn);
        self.drawn += 1;
        rng.next_u64()
    }

    /// The next number, uniform in [0, 1).
    pub fn next_unit(&mut self) -> f64 {
        /// 53 bits fill the mantissa.
        const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next_bits() >> 11) as f64 * SCALE
    }
}
