//! Turns rows into columns, eight by eight.
use std::arch::x86_64::*;

/// The first four bytes of 8 rows, then the next four.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    let (ef, gh) = (_mm256_unpacklo_epi32(e, f), _mm256_unpacklo_epi32(g, h));
    let (ef_high, gh_high) = (_mm256_unpackhi_epi32(e, f), _mm256_unpackhi_epi32(g, h));
    let first = [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ];
    let second = [
        _mm256_unpacklo_epi64(ef, gh),
        _mm256_unpackhi_epi64(ef, gh),
        _mm256_unpacklo_epi64(ef_high, gh_high),
        _mm256_unpackhi_epi64(ef_high, gh_high),
    ];
    let low = |at: usize| _mm256_permute2x128_si256::<0x20>(first[at], second[at]);
    let high = |at: usize| _mm256_permute2x128_si256::<0x31>(first[at], second[at]);
    [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
}
