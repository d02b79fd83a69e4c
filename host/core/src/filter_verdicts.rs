//! Which verdicts the filter hook allows, whether they are carried out or only counted.
use crate::filter::{FilterVerdict, TextWindow};

/// Bytes that a filter may hold.
pub const HELD_BYTES: usize = 64 << 10;
/// Bytes of a replacement's text.
pub const REPLACEMENT_BYTES: usize = 1024;
/// Bytes that are kept of what is decided, for filters to look at.
pub const KEPT_BYTES: usize = 4 << 10;
/// Verdicts of a filter in one step.
pub const VERDICTS: usize = 1024;

/// What a filter says about text of which the bytes before `decided` have their verdict. `last`: nothing follows.
///
/// # Errors
/// Why the hook does not allow it.
pub(crate) fn check(verdict: &FilterVerdict, decided: usize, window: &TextWindow, last: bool) -> Result<(), String> {
    let len = window.end();
    match verdict {
        FilterVerdict::Pass(at) => {
            check_at("pass", *at, decided..=len, window)?;
            if last && *at < len {
                return Err(format!("holds {} bytes at the end of the text", len - at));
            }
            if len - at > HELD_BYTES {
                return Err(format!("holds {} bytes, at most {HELD_BYTES}", len - at));
            }
            Ok(())
        }
        FilterVerdict::Replace(replaced) => {
            check_at("replace", replaced.start, decided..=len, window)?;
            check_at("replace", replaced.end, replaced.start.saturating_add(1)..=len, window)?;
            if replaced.text.len() > REPLACEMENT_BYTES {
                return Err(format!("replaces by {} bytes, at most {REPLACEMENT_BYTES}", replaced.text.len()));
            }
            Ok(())
        }
        FilterVerdict::Finish { at, .. } => check_at("finish", *at, decided..=len, window),
        FilterVerdict::Rewind(at) => check_at("rewind", *at, decided..=len.saturating_sub(1), window),
        FilterVerdict::Refuse(_) => Ok(()),
    }
}

fn check_at(
    what: &str,
    at: usize,
    allowed: std::ops::RangeInclusive<usize>,
    window: &TextWindow,
) -> Result<(), String> {
    if !allowed.contains(&at) {
        let (from, to) = allowed.into_inner();
        return Err(format!("{what} names byte {at}, outside of {from} to {to}"));
    }
    if !window.is_boundary(at) {
        return Err(format!("{what} names byte {at}, inside a character"));
    }
    Ok(())
}
