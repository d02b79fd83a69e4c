//! Bounds of a regular expression.
use super::error::GrammarError;
use crate::limits;

/// # Errors
/// The pattern is too long, or repeats something too often. (Its groups are bounded by `regex-syntax`, to 250 within each other.)
pub(super) fn check_pattern(pattern: &str) -> Result<(), GrammarError> {
    let (bytes, max) = (pattern.len(), limits::PATTERN_BYTES);
    if bytes > max {
        return Err(GrammarError::too_large(format!("a pattern of {bytes} bytes, at most {max}")));
    }
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '{' => {
                let mut count = 0u64;
                // `{1,2}`, and with the flag `x` also `{ 1, 2 }`.
                while let Some(c) = chars.next_if(|c| c.is_ascii_digit() || *c == ',' || c.is_whitespace()) {
                    count = match c.to_digit(10) {
                        Some(digit) => count.saturating_mul(10).saturating_add(u64::from(digit)),
                        None if c == ',' => 0,
                        None => count,
                    };
                    check_count(count)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// # Errors
/// The count is over the bound of all counts.
pub(super) fn check_count(count: u64) -> Result<(), GrammarError> {
    let max = limits::GRAMMAR_REPETITIONS;
    if count > max { Err(GrammarError::too_large(format!("{count} repetitions, at most {max}"))) } else { Ok(()) }
}
