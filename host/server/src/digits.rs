//! The bundled classifier of digits, so that the server predicts from any directory without any file.
use std::path::Path;

static MANIFEST: &[u8] = include_bytes!("../../../config/digits/digits.toml");
static WEIGHTS: &[u8] = include_bytes!("../../../config/digits/digits.safetensors");

/// What names it on a command line.
pub(crate) const NAME: &str = "digits";
/// What its manifest is called.
pub(crate) const FILE: &str = "digits.toml";

/// The bytes of one of its files.
pub(crate) fn file(path: &Path) -> Option<&'static [u8]> {
    match path.to_str()? {
        FILE => Some(MANIFEST),
        "digits.safetensors" => Some(WEIGHTS),
        _ => None,
    }
}
