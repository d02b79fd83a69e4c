//! How a model's requests are sampled that name no parameters, as its file says: the keys `general.sampling.*`.
use camshaft_core::sampling::SamplingDefaults;

/// Reads the keys by `metadata`. What is no number, or out of a request's bounds, counts as absent.
pub(crate) fn sampling(metadata: impl Fn(&str) -> Option<String>) -> SamplingDefaults {
    let number = |name: &str| metadata(&format!("general.sampling.{name}"))?.trim().parse::<f32>().ok();
    let integer = |name: &str| metadata(&format!("general.sampling.{name}"))?.trim().parse::<u32>().ok();
    let defaults = SamplingDefaults {
        temperature: number("temp"),
        top_k: integer("top_k"),
        top_p: number("top_p"),
        min_p: number("min_p"),
        repeat_penalty: number("penalty_repeat"),
        repeat_last_n: integer("penalty_last_n"),
        ..SamplingDefaults::default()
    };
    defaults.within_limits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_file_are_read_and_what_is_out_of_bounds_is_left_out() {
        let file = |key: &str| match key {
            "general.sampling.temp" => Some("0.600000".to_owned()),
            "general.sampling.top_k" => Some("20".to_owned()),
            "general.sampling.top_p" => Some("1.5".to_owned()),
            "general.sampling.penalty_last_n" => Some("-1".to_owned()),
            _ => None,
        };
        let expected = SamplingDefaults { temperature: Some(0.6), top_k: Some(20), ..SamplingDefaults::default() };
        assert_eq!(sampling(file), expected);
        assert_eq!(sampling(|_| None), SamplingDefaults::default());
    }
}
