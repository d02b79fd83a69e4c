//! The operations on a row, as values: what a plan holds, and what the native chain runs.
use super::checks::{
    RowError, check_biases, check_exclusion, check_ids, check_mask, check_mass, check_min_p, check_penalties,
    check_sigma, check_surprise, check_temperature,
};
use super::repeats::Repeats;
use super::row::Row;

/// One operation on a row. The operations of [`Row`] say what each does.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Bias { ids: Vec<u32>, values: Vec<f32> },
    Penalize { last_n: u32, repeat: f32, frequency: f32, presence: f32 },
    PenalizeRepeats(Repeats),
    Temperature(f32),
    KeepBest,
    KeepTopK(u32),
    KeepTopP { p: f32, min_keep: u32 },
    KeepMinP { p: f32, min_keep: u32 },
    KeepTypical { p: f32, min_keep: u32 },
    KeepTopSigma(f32),
    ExcludeTop { threshold: f32, probability: f32 },
    KeepSurprise { target: f32, rate: f32 },
    Ban(Vec<u32>),
    AllowOnly(Vec<u32>),
    Mask(Vec<u32>),
}

impl Step {
    /// # Errors
    /// An argument is out of range, as when the row's operation is called.
    pub fn apply(&self, row: &mut Row) -> Result<(), RowError> {
        match self {
            Step::Bias { ids, values } => row.bias(ids, values),
            Step::Penalize { last_n, repeat, frequency, presence } => {
                row.penalize(*last_n, *repeat, *frequency, *presence)
            }
            Step::PenalizeRepeats(repeats) => row.penalize_repeats(repeats),
            Step::Temperature(t) => row.temperature(*t),
            Step::KeepBest => {
                row.keep_best();
                Ok(())
            }
            Step::KeepTopK(k) => {
                row.keep_top_k(*k);
                Ok(())
            }
            Step::KeepTopP { p, min_keep } => row.keep_top_p(*p, *min_keep),
            Step::KeepMinP { p, min_keep } => row.keep_min_p(*p, *min_keep),
            Step::KeepTypical { p, min_keep } => row.keep_typical(*p, *min_keep),
            Step::KeepTopSigma(n) => row.keep_top_sigma(*n),
            Step::ExcludeTop { threshold, probability } => row.exclude_top(*threshold, *probability),
            Step::KeepSurprise { target, rate } => row.keep_surprise(*target, *rate),
            Step::Ban(ids) => row.ban(ids),
            Step::AllowOnly(ids) => row.allow_only(ids),
            Step::Mask(bits) => row.mask(bits),
        }
    }

    /// The same with arguments that [`Step::check`] has checked for this vocabulary and [`Step::prepare`] has prepared: no list
    /// is checked or sorted anew.
    ///
    /// # Errors
    /// Never, but the compiler does not know that.
    pub(super) fn apply_prepared(&self, row: &mut Row) -> Result<(), RowError> {
        match self {
            Step::Bias { ids, values } => row.bias_checked(ids, values),
            Step::PenalizeRepeats(repeats) => row.penalize_repeats_prepared(repeats)?,
            Step::Ban(ids) => row.ban_checked(ids),
            Step::AllowOnly(ids) => row.allow_only_checked(ids),
            step => step.apply(row)?,
        }
        Ok(())
    }

    /// What a plan does once and not at every token.
    pub(super) fn prepare(&mut self) {
        if let Step::PenalizeRepeats(repeats) = self {
            repeats.prepare();
        }
    }

    /// Refuses what [`Step::apply`] would refuse on every row of a vocabulary of `size` tokens.
    ///
    /// # Errors
    /// As `apply`.
    pub fn check(&self, size: usize) -> Result<(), RowError> {
        match self {
            Step::Bias { ids, values } => check_biases(ids, values, size),
            Step::Penalize { repeat, frequency, presence, .. } => check_penalties(*repeat, *frequency, *presence),
            Step::PenalizeRepeats(repeats) => repeats.check(size),
            Step::Temperature(t) => check_temperature(*t),
            Step::KeepBest | Step::KeepTopK(_) => Ok(()),
            Step::KeepTopP { p, .. } => check_mass("top-p", *p),
            Step::KeepMinP { p, .. } => check_min_p(*p),
            Step::KeepTypical { p, .. } => check_mass("typical-p", *p),
            Step::KeepTopSigma(n) => check_sigma(*n),
            Step::ExcludeTop { threshold, probability } => check_exclusion(*threshold, *probability),
            Step::KeepSurprise { target, rate } => check_surprise(*target, *rate),
            Step::Ban(ids) | Step::AllowOnly(ids) => check_ids(ids, size),
            Step::Mask(bits) => check_mask(bits, size),
        }
    }

    /// Numbers in its lists.
    pub fn entries(&self) -> usize {
        match self {
            Step::Bias { ids, values } => ids.len() + values.len(),
            Step::Ban(ids) | Step::AllowOnly(ids) | Step::Mask(ids) => ids.len(),
            Step::PenalizeRepeats(repeats) => repeats.breakers.len(),
            _ => 0,
        }
    }
}
