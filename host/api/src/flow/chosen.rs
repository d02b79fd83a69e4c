//! Which model a request was given: the same each time that it is read, whatever is swapped or overloaded meanwhile.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::flow::adapters::Adapter;
use crate::flow::api::Found;
use crate::flow::error::FlowError;
use crate::flow::served::Served;
use crate::wire::echo::Shown;

/// The model that a request got, by the name that it asked for.
#[derive(Debug, Default)]
pub(crate) struct Chosen(Mutex<Choice>);

#[derive(Debug, Default)]
struct Choice {
    found: Option<(Option<String>, Found)>,
    /// The client's own timeout, as its body says: one that waits for a model that sleeps has not been read any further.
    timeout: Option<Duration>,
    /// Names of fields that nobody knows, once they are looked at.
    unknown: Option<Vec<String>>,
}

/// Unknown fields that are noted of a body.
const UNKNOWN_FIELDS: usize = 16;

impl Chosen {
    fn choice(&self) -> MutexGuard<'_, Choice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the timeout in the request's body. One that is wrong is told where the body is read on.
    pub(crate) fn note_timeout<E>(&self, timeout: Result<Option<Duration>, E>) {
        self.choice().timeout = timeout.ok().flatten();
    }

    /// Notes the first fields of the client's body that nobody knows. What was noted stays: later the same body is read again,
    /// or what a translation or a policy made of it.
    pub(crate) fn note_unknown<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let noted = || names.take(UNKNOWN_FIELDS).map(|name| Shown(name).to_string()).collect();
        self.choice().unknown.get_or_insert_with(noted);
    }

    pub(crate) fn take_unknown(&self) -> Vec<String> {
        self.choice().unknown.take().unwrap_or_default()
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.choice().timeout
    }

    /// # Errors
    /// Those of `find`, which is asked if the request has none by this name.
    pub(crate) fn of(
        &self,
        asked: Option<&str>,
        find: impl FnOnce() -> Result<Found, FlowError>,
    ) -> Result<Arc<Served>, FlowError> {
        let mut choice = self.choice();
        if let Some((name, found)) = &choice.found
            && name.as_deref() == asked
        {
            return Ok(found.served.clone());
        }
        let found = find()?;
        let (_, found) = choice.found.insert((asked.map(str::to_owned), found));
        Ok(found.served.clone())
    }

    /// The adapter that its name has behind the model's.
    pub(crate) fn adapter(&self) -> Option<Arc<Adapter>> {
        self.choice().found.as_ref().and_then(|(_, found)| found.adapter.clone())
    }

    /// The model that was meant, where another one stands in for it.
    pub(crate) fn instead_of(&self) -> Option<String> {
        self.choice().found.as_ref().and_then(|(_, found)| found.instead_of.clone())
    }
}
