//! What reports show of names and texts that anybody may have written.

/// Jaro-Winkler similarity from which an unknown name passes for a misspelled one.
const SIMILAR: f64 = 0.75;

/// Characters of a client's value in an error, at most.
const SHOWN: usize = 128;

/// The beginning of a client's value, as errors show it.
pub fn cut(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// What follows an unknown name: the most similar of the known ones, if it is similar, or else all of them, each after `section`.
pub fn did_you_mean<'a>(name: &str, section: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.into_iter().collect();
    let similar = known.iter().map(|known| (strsim::jaro_winkler(name, known), known));
    match similar.max_by(|(one, _), (other, _)| one.total_cmp(other)) {
        Some((similarity, best)) if similarity >= SIMILAR => format!("; did you mean `{section}{best}`?"),
        Some(_) => {
            let known: Vec<_> = known.iter().map(|known| format!("`{section}{known}`")).collect();
            format!("; known here: {}", known.join(", "))
        }
        None => String::new(),
    }
}

/// The text without what a terminal acts on, and on one line, so that nobody forges a line of a log.
pub fn on_one_line(text: &str) -> String {
    escaped(text, |_| false)
}

/// The text without what a terminal acts on but line breaks.
pub fn on_lines(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let directs =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if (c.is_control() || directs(c)) && !stays(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_similar_name_or_all() {
        let after = |name, known: &[&str]| did_you_mean(name, "policy.", known.iter().copied());
        assert_eq!(after("dedline", &["breaker", "deadline"]), "; did you mean `policy.deadline`?");
        assert_eq!(after("xyz", &["breaker", "deadline"]), "; known here: `policy.breaker`, `policy.deadline`");
        assert_eq!(after("xyz", &[]), "");
    }

    #[test]
    fn shows_what_a_terminal_acts_on() {
        assert_eq!(on_one_line("a\n\u{1b}[2Jé\u{202e}"), "a\\n\\u{1b}[2Jé\\u{202e}");
        assert_eq!(on_lines("a\n\u{1b}[2Jé\u{2069}\t"), "a\n\\u{1b}[2Jé\\u{2069}\\t");
    }
}
