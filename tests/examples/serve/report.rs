//! Prints a table, and writes the figures as JSON and as a plot.
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{Options, Result};

const COLOURS: [(&str, &str); 3] = [("camshaft", "#2a6f97"), ("peer", "#bc6c25"), ("bare", "#8d99ae")];

struct Figure {
    workload: String,
    unit: &'static str,
    /// Measurements of each server, in the order of the run.
    measured: Vec<(String, Vec<f64>)>,
}

/// Collects measurements and reports medians.
pub(crate) struct Report {
    head: Value,
    out: Option<std::path::PathBuf>,
    figures: Vec<Figure>,
}

impl Figure {
    fn values(&self, who: &str) -> &[f64] {
        self.measured.iter().find(|(name, _)| name == who).map_or(&[], |(_, values)| values)
    }

    fn median(&self, who: &str) -> Option<f64> {
        median(self.values(who).to_vec())
    }

    /// The median of the ratios of neighbouring measurements: a temporarily slower machine affects both.
    fn ratio(&self, to: &str) -> String {
        let pairs = self.values("camshaft").iter().zip(self.values(to));
        median(pairs.map(|(ours, theirs)| ours / theirs).collect()).map_or(String::new(), |ratio| format!("{ratio:.2}"))
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        let head = json!({
            "model": options.model.file_name().unwrap_or_default().to_string_lossy(),
            "threads": options.threads, "repeats": options.repeats, "rounds": options.rounds, "tokens": options.tokens,
            "kv_tokens": options.kv_tokens, "kv_layout": options.kv_layout, "sampling": options.sampling.name(),
        });
        println!("{head}");
        Self { head, out: options.out.clone(), figures: Vec::new() }
    }

    pub(crate) fn add(&mut self, workload: &str, unit: &'static str, who: &str, value: f64) {
        let index = self.figures.iter().position(|figure| figure.workload == workload).unwrap_or_else(|| {
            self.figures.push(Figure { workload: workload.to_owned(), unit, measured: Vec::new() });
            self.figures.len() - 1
        });
        let measured = &mut self.figures[index].measured;
        match measured.iter_mut().find(|(name, _)| name == who) {
            Some((_, values)) => values.push(value),
            None => measured.push((who.to_owned(), vec![value])),
        }
    }

    /// Prints the table and writes the files.
    pub(crate) fn finish(self) -> Result<()> {
        println!("| workload | unit | camshaft | bare | / bare | peer | / peer |\n|---|---|---|---|---|---|---|");
        for figure in &self.figures {
            let cell = |who| figure.median(who).map_or(String::new(), |value| format!("{value:.1}"));
            println!(
                "| {} | {} | {} | {} | {} | {} | {} |",
                figure.workload,
                figure.unit,
                cell("camshaft"),
                cell("bare"),
                figure.ratio("bare"),
                cell("peer"),
                figure.ratio("peer")
            );
        }
        if let Some(out) = &self.out {
            std::fs::create_dir_all(out)?;
            std::fs::write(out.join("bench.json"), serde_json::to_string_pretty(&self.json())?)?;
            std::fs::write(out.join("bench.svg"), self.svg()?)?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            let measured: serde_json::Map<String, Value> =
                figure.measured.iter().map(|(who, values)| (who.clone(), json!(values))).collect();
            json!({"workload": figure.workload, "unit": figure.unit, "measured": measured})
        };
        json!({"run": self.head, "figures": self.figures.iter().map(figure).collect::<Vec<_>>()})
    }

    /// One bar per server and workload, scaled to the workload's largest value.
    fn svg(&self) -> Result<String> {
        let rows: usize = self.figures.iter().map(|figure| figure.measured.len() + 1).sum();
        let height = rows * 18 + 20;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        );
        let mut y = 16;
        for figure in &self.figures {
            writeln!(out, "<text x=\"8\" y=\"{y}\" font-weight=\"bold\">{} ({})</text>", figure.workload, figure.unit)?;
            y += 18;
            let medians = figure.measured.iter().filter_map(|(who, _)| figure.median(who));
            let largest = medians.fold(f64::MIN_POSITIVE, f64::max);
            for (who, _) in &figure.measured {
                let value = figure.median(who).unwrap_or(0.0);
                let width = value / largest * 480.0;
                let colour = COLOURS.iter().find(|(name, _)| name == who).map_or("#666666", |(_, colour)| colour);
                writeln!(
                    out,
                    "<text x=\"8\" y=\"{y}\">{who}</text><rect x=\"90\" y=\"{}\" width=\"{width:.1}\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{y}\">{value:.1}</text>",
                    y - 10,
                    96.0 + width
                )?;
                y += 18;
            }
        }
        out.push_str("</svg>\n");
        Ok(out)
    }
}
