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
