//! Finds markers in text that comes in pieces.

/// What a text has of some markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The first marker: where it begins and which it is.
    Marker { at: usize, which: usize },
    /// No marker, but the text from here on may be the beginning of one. Its end, if nothing there may be.
    Rest { at: usize },
}

/// Markers to look for. None is empty, or the beginning of another.
#[derive(Debug, Clone)]
pub(crate) struct Markers {
    texts: Vec<String>,
    longest: usize,
}

impl Markers {
    pub(crate) fn new(texts: Vec<String>) -> Self {
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Self { texts, longest }
    }

    /// The bytes of one of the markers.
    pub(crate) fn len(&self, which: usize) -> usize {
        self.texts[which].len()
    }

    /// One pass over the text, whatever it has of the beginnings of markers.
    pub(crate) fn find(&self, text: &str) -> Found {
        let mut firsts = [false; 256];
        self.texts
            .iter()
            .filter_map(|marker| marker.as_bytes().first())
            .for_each(|&first| firsts[usize::from(first)] = true);
        let candidates = text.bytes().enumerate().filter(|(_, byte)| firsts[usize::from(*byte)]).map(|(at, _)| at);
        for at in candidates {
            let rest = &text.as_bytes()[at..];
            if let Some(which) = self.texts.iter().position(|marker| rest.starts_with(marker.as_bytes())) {
                return Found::Marker { at, which };
            }
            if rest.len() < self.longest && self.texts.iter().any(|marker| marker.as_bytes().starts_with(rest)) {
                return Found::Rest { at };
            }
        }
        Found::Rest { at: text.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(markers: &[&str], text: &str, expected: Found) {
        let markers = Markers::new(markers.iter().map(|marker| (*marker).to_owned()).collect());
        assert_eq!(markers.find(text), expected, "{text:?}");
    }

    #[test]
    fn finds_the_first_marker_or_where_one_may_begin() {
        let tags = ["<think>", "<tool>", "\n<tool>"];
        check(&tags, "a<tool><think>", Found::Marker { at: 1, which: 1 });
        check(&tags, "a\n<tool>", Found::Marker { at: 1, which: 2 });
        check(&tags, "a<<<thin", Found::Rest { at: 3 });
        check(&tags, "a<thinx", Found::Rest { at: 7 });
        check(&tags, "a\n", Found::Rest { at: 1 });
        check(&tags, "", Found::Rest { at: 0 });
        check(&["aab"], "aaaa", Found::Rest { at: 2 });
        check(&["<｜call｜>"], "é<｜ca", Found::Rest { at: 2 });
        check(&["<｜call｜>"], "é<｝ca", Found::Rest { at: 8 });
        check(&[], "abc", Found::Rest { at: 3 });
    }
}
