//! Prints a table, and writes the figures as JSON and as a plot.
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use serde_json::{Value, json};

use crate::{Options, Result};

pub(crate) const OWN: &str = "camshaft";
/// Of the servers that Camshaft is compared with, in their order.
const COLOURS: [RGBColor; 4] = [RGBColor(42, 111, 151), RGBColor(188, 108, 37), RGBColor(141, 153, 174), BLACK];
/// Pixels.
const WIDTH: u32 = 900;
const BAR: i32 = 14;
const LABELS: i32 = 430;
const LEGEND: i32 = 40;

struct Figure {
    workload: String,
    unit: &'static str,
    /// Measurements of each server, in the order of the run.
    measured: Vec<(String, Vec<f64>)>,
}

/// Collects measurements and reports medians.
pub(crate) struct Report {
    head: Value,
    out: Option<PathBuf>,
    gate: Option<PathBuf>,
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
    fn ratio(&self, to: &str) -> Option<f64> {
        let pairs = self.values(OWN).iter().zip(self.values(to));
        median(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }

    /// How many times as good as the other server, whether more is better or less.
    fn advantage(&self, over: &str) -> Option<f64> {
        self.ratio(over).map(|ratio| if self.unit == "ms" { 1.0 / ratio } else { ratio })
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
            "model": options.model.file_name().unwrap_or_default().to_string_lossy(), "settings": options.settings,
            "repeats": options.repeats, "rounds": options.rounds, "tokens": options.tokens,
            "cpu": cpu(), "version": env!("CARGO_PKG_VERSION"),
        });
        println!("{head}");
        Self { head, out: options.out.clone(), gate: options.gate.clone(), figures: Vec::new() }
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

    /// All servers but our own, in the order in which they were measured.
    fn others(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for (name, _) in self.figures.iter().flat_map(|figure| &figure.measured) {
            if name != OWN && !names.contains(&name.as_str()) {
                names.push(name.as_str());
            }
        }
        names
    }

    /// Prints the table and writes the files.
    pub(crate) fn finish(self) -> Result<()> {
        let others = self.others();
        let heads: String = others.iter().map(|other| format!(" {other} | / {other} |")).collect();
        println!("| workload | unit | {OWN} |{heads}\n|---|---|---|{}", "---|---|".repeat(others.len()));
        let cell = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
        for figure in &self.figures {
            let pair =
                |other: &&str| format!(" {} | {} |", cell(figure.median(other), 1), cell(figure.ratio(other), 2));
            let pairs: String = others.iter().map(pair).collect();
            println!("| {} | {} | {} |{pairs}", figure.workload, figure.unit, cell(figure.median(OWN), 1));
        }
        if let Some(out) = &self.out {
            std::fs::create_dir_all(out)?;
            let model = self.head["model"].as_str().unwrap_or_default().trim_end_matches(".gguf");
            std::fs::write(out.join(format!("{model}.json")), serde_json::to_string_pretty(&self.json())?)?;
            self.plot(&out.join(format!("{model}.svg")), &format!("{model}: {}", cpu()))?;
        }
        self.gate.as_ref().map_or(Ok(()), |floors| self.check(floors))
    }

    /// Fails where a ratio to the bare loop is below what the file wants: an object of workloads and ratios.
    fn check(&self, floors: &Path) -> Result<()> {
        let floors: serde_json::Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(floors)?)?;
        let mut low = Vec::new();
        for (workload, floor) in &floors {
            let floor = floor.as_f64().ok_or(format!("{workload}: the floor is no number"))?;
            let measured = self.figures.iter().find(|figure| figure.workload == *workload);
            match measured.and_then(|figure| figure.ratio("bare")) {
                Some(ratio) if ratio >= floor => println!("{workload}: {ratio:.2} of the bare loop, at least {floor}"),
                Some(ratio) => low.push(format!("{workload}: {ratio:.2} of the bare loop, below {floor}")),
                None => low.push(format!("{workload}: not measured")),
            }
        }
        if low.is_empty() { Ok(()) } else { Err(low.join("; ").into()) }
    }

    fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            let measured: serde_json::Map<String, Value> =
                figure.measured.iter().map(|(who, values)| (who.clone(), json!(values))).collect();
            let ratios: serde_json::Map<String, Value> =
                self.others().iter().map(|other| ((*other).to_owned(), json!(figure.ratio(other)))).collect();
            json!({"workload": figure.workload, "unit": figure.unit, "ratios": ratios, "measured": measured})
        };
        json!({"run": self.head, "figures": self.figures.iter().map(figure).collect::<Vec<_>>()})
    }

    /// For each workload, how many times as good Camshaft is as each other server; a line at 1.
    fn plot(&self, path: &Path, title: &str) -> Result<()> {
        let others = self.others();
        let advantage = |figure: &Figure, other: &&str| figure.advantage(other);
        let all =
            self.figures.iter().flat_map(|figure| others.iter().filter_map(move |other| advantage(figure, other)));
        let most = all.fold(1.5, f64::max).min(4.0);
        let group = BAR * others.len() as i32 + 10;
        let height = LEGEND + BAR * others.len() as i32 + group * self.figures.len() as i32 + 10;
        let root = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let text = |words: &str, at: (i32, i32)| Text::new(words.to_owned(), at, ("sans-serif", 12).into_font());
        root.draw(&text(&format!("{title}. Camshaft / the other server; above 1 Camshaft is better"), (8, 10)))?;
        let mut y = LEGEND;
        for (other, colour) in others.iter().zip(COLOURS) {
            root.draw(&Rectangle::new([(8, y), (20, y + BAR - 3)], colour.filled()))?;
            root.draw(&text(other, (26, y)))?;
            y += BAR;
        }
        y += 6;
        let scale = f64::from(WIDTH as i32 - LABELS - 60) / most;
        let one = LABELS + scale as i32;
        root.draw(&PathElement::new([(one, y - 4), (one, height - 6)], BLACK.stroke_width(1)))?;
        for figure in &self.figures {
            root.draw(&text(&figure.workload, (8, y)))?;
            for (other, colour) in others.iter().zip(COLOURS) {
                if let Some(value) = figure.advantage(other) {
                    let end = LABELS + (value.min(most) * scale) as i32;
                    root.draw(&Rectangle::new([(LABELS, y), (end, y + BAR - 3)], colour.mix(0.85).filled()))?;
                    root.draw(&text(&format!("{value:.2}"), (end + 4, y)))?;
                }
                y += BAR;
            }
            y += 10;
        }
        root.present()?;
        Ok(())
    }
}

/// The processor's name, where Linux tells it.
fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or("unknown CPU", |(_, name)| name).to_owned()
}
