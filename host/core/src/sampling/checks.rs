//! The arguments of row operations: what is refused, and how that is told.

/// An operation refused an argument. It has changed nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RowError {
    #[error("token {token} is outside the vocabulary of {size}")]
    UnknownToken { token: u32, size: usize },
    #[error("{ids} ids but {values} values")]
    UnequalLengths { ids: usize, values: usize },
    #[error("{name} = {value} is out of range")]
    OutOfRange { name: &'static str, value: f32 },
    #[error("{ids} ids for a vocabulary of {size}")]
    TooManyIds { ids: usize, size: usize },
    #[error("{ids} tokens that no repetition goes across, of at most {max}")]
    TooManyBreakers { ids: usize, max: usize },
    #[error("{words} words of bits for a vocabulary of {size} tokens")]
    MaskLength { words: usize, size: usize },
    #[error("{ids} tokens to force, of at most {max}")]
    TooManyForced { ids: usize, max: usize },
    #[error("logits {start}..{end} are outside the vocabulary of {size}")]
    OutOfBounds { start: u64, end: u64, size: usize },
}

/// Refuses `value` unless `ok`.
pub(super) fn check(name: &'static str, value: f32, ok: bool) -> Result<(), RowError> {
    if ok { Ok(()) } else { Err(RowError::OutOfRange { name, value }) }
}

pub(super) fn check_biases(ids: &[u32], values: &[f32], size: usize) -> Result<(), RowError> {
    if ids.len() != values.len() {
        return Err(RowError::UnequalLengths { ids: ids.len(), values: values.len() });
    }
    check_ids(ids, size)?;
    values.iter().try_for_each(|&value| check("bias", value, !value.is_nan()))
}

/// Refuses a list that is longer than any that says something, because a call must end soon.
pub(super) fn check_ids(ids: &[u32], size: usize) -> Result<(), RowError> {
    if ids.len() > size {
        return Err(RowError::TooManyIds { ids: ids.len(), size });
    }
    match ids.iter().find(|&&token| token as usize >= size) {
        Some(&token) => Err(RowError::UnknownToken { token, size }),
        None => Ok(()),
    }
}

pub(super) fn check_mask(bits: &[u32], size: usize) -> Result<(), RowError> {
    if bits.len() == size.div_ceil(32) { Ok(()) } else { Err(RowError::MaskLength { words: bits.len(), size }) }
}

pub(super) fn check_penalties(repeat: f32, frequency: f32, presence: f32) -> Result<(), RowError> {
    check("repeat", repeat, repeat.is_finite() && repeat > 0.0)?;
    check("frequency", frequency, frequency.is_finite())?;
    check("presence", presence, presence.is_finite())
}

pub(super) fn check_temperature(t: f32) -> Result<(), RowError> {
    check("temperature", t, t.is_finite() && t > 0.0 && (1.0 / t).is_finite())
}

pub(super) fn check_mass(name: &'static str, p: f32) -> Result<(), RowError> {
    check(name, p, p > 0.0 && p <= 1.0)
}

pub(super) fn check_min_p(p: f32) -> Result<(), RowError> {
    check("min-p", p, (0.0..=1.0).contains(&p))
}

pub(super) fn check_sigma(n: f32) -> Result<(), RowError> {
    check("top-sigma", n, n.is_finite() && n > 0.0)
}

pub(super) fn check_exclusion(threshold: f32, probability: f32) -> Result<(), RowError> {
    check("threshold", threshold, threshold > 0.0 && threshold <= 1.0)?;
    check("probability", probability, (0.0..=1.0).contains(&probability))
}

pub(super) fn check_surprise(target: f32, rate: f32) -> Result<(), RowError> {
    check("target", target, target.is_finite() && target > 0.0)?;
    check("rate", rate, rate.is_finite() && rate > 0.0)
}
