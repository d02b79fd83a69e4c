//! Loops over many numbers, compiled for several instruction sets. The widest one of the processor runs, whatever the program was
//! built for. All of them round alike: a step is the same operation on each lane, and lanes are added in a fixed order.

/// Compiles a function, with what is inlined into it, for each level of x86-64. Other architectures have one level.
///
/// The levels are roughly those of the psABI: 2 has SSE4.2, 3 AVX2 and FMA, 4 AVX-512. Callers need the crate `multiversion`.
#[macro_export]
macro_rules! vectorized {
    ($function:item) => {
        #[multiversion::multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+avx2+bmi1+bmi2+fma+lzcnt+popcnt",
            "x86_64+avx2+bmi1+bmi2+fma+lzcnt+popcnt",
            "x86_64+sse4.2+popcnt"
        ))]
        $function
    };
}

/// e^x for x <= 0, within 2 units in the last place; 0 below -87. The compiler vectorises it, unlike the library's.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, the first exact in products with small integers (Cody and Waite 1980).
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    // Taylor's series with its last coefficients fitted to |r| <= ln 2 / 2 (as in Cephes' expf).
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    // Multiply by 2^n: add n to the exponent.
    let scaled = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x > -87.0 { scaled } else { 0.0 }
}
