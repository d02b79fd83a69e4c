//! What the fuzz targets call: what reads grammars before the compiler does. The compiler itself may take all time and memory, and
//! runs where that ends a process alone.
use super::{gbnf, lark, schema};

/// Reads the bytes as a JSON schema.
pub fn schema(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = schema::check(text);
    }
}

/// Reads the bytes as a grammar in GBNF, and as one in Lark.
///
/// # Panics
/// If what a grammar in GBNF becomes cannot be read as Lark.
pub fn gbnf(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(translated) = gbnf::to_lark(text) {
        let read = lark::check(&translated, |_| {});
        assert!(read.is_ok(), "{read:?}");
    }
    let _ = lark::check(text, |_| {});
}
