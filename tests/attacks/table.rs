//! What an attack found, for the table of `cargo xtask attacks`.
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

/// A row of the table. It is written when the attack has ended, with what it measured.
#[derive(Debug)]
pub(crate) struct Row {
    attack: &'static str,
    begun: Instant,
}

impl Row {
    pub(crate) fn begin(attack: &'static str) -> Self {
        Self { attack, begun: Instant::now() }
    }

    /// Prints the row, and appends it to the file that `CAMSHAFT_ATTACKS` names.
    pub(crate) fn end(self, measured: &str) {
        let line = format!("| {} | {measured} | {:.1} s |\n", self.attack, self.begun.elapsed().as_secs_f64());
        eprint!("{line}");
        if let Some(path) = std::env::var_os("CAMSHAFT_ATTACKS") {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the table can be written");
        }
    }
}

/// Milliseconds, sorted.
#[derive(Debug)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    pub(crate) fn at(&self, share: f64) -> f64 {
        let index = ((self.0.len() as f64 * share).ceil() as usize).clamp(1, self.0.len()) - 1;
        self.0[index]
    }

    pub(crate) fn told(&self) -> String {
        format!("{:.1}/{:.1}/{:.1}", self.at(0.5), self.at(0.99), self.at(1.0))
    }
}
