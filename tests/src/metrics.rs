//! A parser for the Prometheus text format.

/// One scrape.
#[derive(Debug, Clone)]
pub struct Metrics(String);

impl Metrics {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The scrape's text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The sum of all series of this name that have these labels; `None` if there is none.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let values: Vec<f64> =
            self.series(name).filter(|(set, _)| has_all(set, labels)).map(|(_, value)| value).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Like [`Metrics::get`], but 0 if the counter does not exist yet.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.get(name, labels).unwrap_or(0.0)
    }

    fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.trim().parse().ok()?))
        })
    }
}

fn has_all(set: &str, labels: &[(&str, &str)]) -> bool {
    labels.iter().all(|(name, value)| set.split(',').any(|label| label == format!("{name}=\"{value}\"")))
}
