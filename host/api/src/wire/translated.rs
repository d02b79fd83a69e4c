//! A body that was written for one endpoint, as another one reads it.
use serde::Serialize;

use crate::wire::error::RequestError;
use crate::wire::json::{self, Body};
use crate::wire::taken::Taken;

/// A body for the endpoint that serves it, and what its answer needs to know.
#[derive(Debug)]
pub(crate) struct Translated<T> {
    pub(crate) body: Body,
    pub(crate) kept: T,
    /// What is kept takes this much memory.
    pub(crate) kept_bytes: usize,
}

impl<T> Translated<T> {
    pub(crate) fn map<U>(self, kept: impl FnOnce(T) -> U) -> Translated<U> {
        Translated { body: self.body, kept: kept(self.kept), kept_bytes: self.kept_bytes }
    }
}

impl Translated<()> {
    /// A body that its own endpoint reads.
    pub(crate) fn own(body: Body) -> Self {
        Self { body, kept: (), kept_bytes: 0 }
    }
}

/// What a JSON value takes in memory, at most.
pub(crate) fn held_bytes(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |text| json::parsed_bytes(&text))
}

/// Refuses fields of the endpoint that serves the request, where the client's own has other names for them: ignored, they would
/// silently change the answer.
///
/// # Errors
/// 400 that says which field to use instead.
pub(crate) fn refuse_foreign(fields: &Taken, names: &[(&str, &str)]) -> Result<(), RequestError> {
    match names.iter().find(|(name, _)| fields.has(name)) {
        None => Ok(()),
        Some((name, instead)) => {
            Err(RequestError::field(*name, format!("{name} is no field of this endpoint: use {instead}")))
        }
    }
}

/// Refuses fields that are not supported.
///
/// # Errors
/// 400 that says why.
pub(crate) fn refuse_unsupported(fields: &Taken, names: &[(&str, &str)]) -> Result<(), RequestError> {
    match names.iter().find(|(name, _)| fields.has(name)) {
        None => Ok(()),
        Some((name, why)) => Err(RequestError::field(*name, format!("{name} is not supported: {why}"))),
    }
}
