//! What errors repeat of texts that anybody may have written.
use std::fmt;

use camshaft_core::shown::on_one_line;

/// Characters of a value that errors repeat.
const SHOWN_CHARS: usize = 128;

/// The text on one line, at most 128 characters of it.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", on_one_line(&text[..end])),
        None => on_one_line(text),
    }
}

/// Bytes in the largest binary unit of which there is at least one.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["TiB", "GiB", "MiB", "KiB"];
        let shifts = [40, 30, 20, 10];
        match shifts.iter().zip(UNITS).find(|(shift, _)| self.0 >= 1 << **shift) {
            Some((shift, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_128_characters_of_a_value_on_one_line() {
        assert_eq!(shown(&"é".repeat(128)), "é".repeat(128));
        assert_eq!(shown(&"é".repeat(129)), format!("{}…", "é".repeat(128)));
        assert_eq!(shown("a\nb\u{1b}"), "a\\nb\\u{1b}");
        assert_eq!(shown(&"x".repeat(2 << 20)).chars().count(), 129);
    }

    #[test]
    fn sizes_are_told_in_the_unit_that_people_read() {
        let check = |bytes, text: &str| assert_eq!(Bytes(bytes).to_string(), text);
        check(0, "0 bytes");
        check(1023, "1023 bytes");
        check(1 << 20, "1.0 MiB");
        check(5_476_083_302, "5.1 GiB");
        check(u64::MAX, "16777216.0 TiB");
    }
}
