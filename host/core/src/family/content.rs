//! Which markers content may have, what each begins, and whether calls need one.
use crate::family::description::{ContentForm, Family, ThinkingState};
use crate::family::tools::Tools;

/// What a marker in content begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    Call,
    Thinking,
    /// Nothing: it is dropped.
    Frame,
}

/// The markers that the parser looks for in content, without the whitespace around them, and what each begins. Free text of a
/// constrained answer has none of them.
pub(crate) fn markers(family: &Family, calls: bool, thinking: ThinkingState) -> (Vec<String>, Vec<Meaning>) {
    let thoughts = family.thinking.iter().filter(|thoughts| thoughts.repeats && thinking != ThinkingState::Off);
    let frames =
        family.channels.iter().flat_map(|channels| [channels.answer, channels.preamble, channels.end, channels.next]);
    let calls = family.calls.triggers().filter(|_| calls).map(|marker| (marker.to_owned(), Meaning::Call));
    let thoughts = thoughts.map(|thoughts| (thoughts.begin.to_owned(), Meaning::Thinking));
    let frames = frames.chain(family.framing.iter().copied()).map(|marker| (marker.to_owned(), Meaning::Frame));
    calls.chain(thoughts).chain(frames).unzip()
}

/// Whether an object at an answer's beginning is a call. Where content is JSON, only if there is no content.
pub(crate) fn unmarked_calls(family: &Family, tools: &Tools, form: ContentForm) -> bool {
    family.calls.unmarked && !tools.callable().is_empty() && (form == ContentForm::Text || tools.required())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::known::FAMILIES;

    #[test]
    fn no_marker_is_empty_or_the_beginning_of_another() {
        for family in FAMILIES {
            let (markers, _) = markers(family, true, ThinkingState::Possible);
            for (at, marker) in markers.iter().enumerate() {
                let others = markers.iter().enumerate().filter(|(other, _)| *other != at);
                assert!(
                    !marker.is_empty() && others.into_iter().all(|(_, other)| !other.starts_with(marker.as_str())),
                    "{marker}"
                );
            }
        }
    }
}
