//! Texts as one byte for each character, as llama.cpp's `unicode_regex_split` sees them: ASCII as it is, other
//! characters by what they are. So a pattern over categories is a pattern over bytes, and offsets count characters.
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Class, ClassUnicode, HirKind};

/// The Unicode version of llama.cpp's tables. Characters of later versions are in no category there.
pub(super) const AGE: &str = r"\p{Age=15.1}";
/// A category's name in patterns, its byte, and its ASCII characters.
const CATEGORIES: [(&str, u8, &str); 5] = [
    ("N", 0xd1, "0-9"),
    ("L", 0xd2, "A-Za-z"),
    ("P", 0xd3, r"!-#%-*,-/:-;?-@\[-\]_\{\}"),
    ("M", 0xd4, ""),
    ("S", 0xd5, r"\$\+<->^`\|\~"),
];
const OTHER: u8 = 0xd0;
/// Characters of the first set of a pattern; those of the next sets follow.
const FIRST_SET: u8 = 0x80;
/// Every white space beyond ASCII.
const BLANK: u8 = 0x0b;

/// Whether `\s` matches the byte.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

/// Whether the byte stands for a number.
pub(super) fn is_number(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == CATEGORIES[0].1
}

/// The text by Unicode category.
pub(super) fn by_category(text: &str) -> Vec<u8> {
    let classes: &[u8] = &CLASSES;
    text.chars().map(|c| classes[c as usize]).collect()
}

/// The text by membership in `sets`. The first set that has a character counts.
pub(super) fn by_set(text: &str, sets: &[Set]) -> Vec<u8> {
    let class = |c: char| match c {
        '\0'..='\u{7f}' => c as u8,
        _ if CLASSES[c as usize] == BLANK => BLANK,
        _ => {
            let set = sets.iter().position(|set| set.has(c));
            set.map_or(OTHER, |set| FIRST_SET + set as u8)
        }
    };
    text.chars().map(class).collect()
}

/// A set of characters: ranges in ascending order.
#[derive(Debug)]
pub(super) struct Set(Vec<(char, char)>);

impl Set {
    /// A class as a regular expression spells it.
    pub(super) fn new(class: &str) -> Self {
        Self(class_of(class).iter().map(|range| (range.start(), range.end())).collect())
    }

    fn has(&self, c: char) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= c);
        after > 0 && c <= self.0[after - 1].1
    }
}

/// Compiles a pattern of [`super::kinds`] for a text by category or by set.
pub(super) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    let mut bytes = String::with_capacity(pattern.len());
    let (mut rest, mut in_class) = (pattern, false);
    while let Some(c) = rest.chars().next() {
        let (taken, text) = match c {
            '\\' => match rest.strip_prefix(r"\p{").and_then(|name| name.split_once('}')) {
                Some((name, _)) => (r"\p{}".len() + name.len(), named(name, in_class)),
                None => (2, rest[..2].to_owned()),
            },
            c => {
                in_class = c == '[' || (in_class && c != ']');
                (c.len_utf8(), c.to_string())
            }
        };
        bytes.push_str(&text);
        rest = &rest[taken..];
    }
    RegexBuilder::new(&bytes).unicode(false).build()
}

/// The bytes of a category or of a numbered set.
fn named(name: &str, in_class: bool) -> String {
    let bytes = match CATEGORIES.iter().find(|category| category.0 == name) {
        Some((_, byte, ascii)) => format!(r"\x{byte:02x}{ascii}"),
        None => format!(r"\x{:02x}", FIRST_SET + name.parse::<u8>().unwrap_or_default()),
    };
    if in_class { bytes } else { format!("[{bytes}]") }
}

/// The byte of every character in a text by category.
static CLASSES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut classes = vec![OTHER; char::MAX as usize + 1];
    let mut set = |class: &str, byte: u8| {
        for range in class_of(class).iter() {
            classes[range.start() as usize..=range.end() as usize].fill(byte);
        }
    };
    for (name, byte, _) in CATEGORIES {
        set(&format!(r"[\p{{{name}}}&&{AGE}]"), byte);
    }
    set(r"\p{White_Space}", BLANK);
    for (i, class) in classes.iter_mut().enumerate().take(128) {
        *class = i as u8;
    }
    classes
});

/// The characters of a class as a regular expression spells it.
pub(super) fn class_of(class: &str) -> ClassUnicode {
    match regex_syntax::parse(class).map(regex_syntax::hir::Hir::into_kind) {
        Ok(HirKind::Class(Class::Unicode(class))) => class,
        _ => ClassUnicode::empty(),
    }
}
