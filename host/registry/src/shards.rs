//! Split GGUF files: `name-00001-of-00003.gguf` has two more, as llama.cpp names them.
use crate::limits::PARTS;

/// The number of a part, and how many there are, by its file's name.
fn of_name(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (stem, count) = split_number(stem)?;
    let (stem, number) = split_number(stem.strip_suffix("-of")?)?;
    let good = count > 0 && (1..=count).contains(&number);
    good.then_some((stem, number, count))
}

/// `a-00012` as `a` and 12.
fn split_number(text: &str) -> Option<(&str, u32)> {
    let (stem, digits) = text.rsplit_once('-')?;
    let five = digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    five.then(|| digits.parse().ok()).flatten().map(|number| (stem, number))
}

/// The names of all files of a model, one of whose files has this name. A name that is no part's is alone.
///
/// # Errors
/// There are more parts than [`PARTS`]: their number.
pub(crate) fn parts_of(name: &str) -> Result<Vec<String>, u32> {
    match of_name(name) {
        None => Ok(vec![name.to_owned()]),
        Some((_, _, count)) if count > PARTS => Err(count),
        Some((stem, _, count)) => {
            Ok((1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect())
        }
    }
}

/// The name without what says which part it is, and without its ending: what a model is called by default.
pub(crate) fn stem(name: &str) -> &str {
    match of_name(name) {
        Some((stem, ..)) => stem,
        None => name.rsplit_once('.').map_or(name, |(stem, _)| stem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_split_model_are_known_by_the_name_of_any_of_them() {
        let three = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
        for name in three {
            assert_eq!(parts_of(name).unwrap(), three);
            assert_eq!(stem(name), "m");
        }
        for alone in
            ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf", "m-00001-of-00000.gguf"]
        {
            assert_eq!(parts_of(alone).unwrap(), [alone]);
        }
        assert_eq!((stem("m.Q4.gguf"), stem("m")), ("m.Q4", "m"));
    }

    #[test]
    fn a_model_has_at_most_512_parts() {
        assert_eq!(parts_of("m-00001-of-00512.gguf").unwrap().len(), 512);
        assert_eq!(parts_of("m-00001-of-00513.gguf"), Err(513));
    }
}
