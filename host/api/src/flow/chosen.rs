//! Which model a request was given: the same each time that it is read, whatever is swapped or overloaded meanwhile.
use std::sync::{Arc, Mutex, PoisonError};

use crate::flow::adapters::Adapter;
use crate::flow::api::Found;
use crate::flow::error::FlowError;
use crate::flow::served::Served;

/// The model that a request got, by the name that it asked for.
#[derive(Debug, Default)]
pub(crate) struct Chosen(Mutex<Option<(Option<String>, Found)>>);

impl Chosen {
    /// # Errors
    /// Those of `find`, which is asked if the request has none by this name.
    pub(crate) fn of(
        &self,
        asked: Option<&str>,
        find: impl FnOnce() -> Result<Found, FlowError>,
    ) -> Result<Arc<Served>, FlowError> {
        let mut chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, found)) = &*chosen
            && name.as_deref() == asked
        {
            return Ok(found.served.clone());
        }
        let found = find()?;
        let (_, found) = chosen.insert((asked.map(str::to_owned), found));
        Ok(found.served.clone())
    }

    /// The adapter that its name has behind the model's.
    pub(crate) fn adapter(&self) -> Option<Arc<Adapter>> {
        let chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.as_ref().and_then(|(_, found)| found.adapter.clone())
    }

    /// The model that was meant, where another one stands in for it.
    pub(crate) fn instead_of(&self) -> Option<String> {
        let chosen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.as_ref().and_then(|(_, found)| found.instead_of.clone())
    }
}
