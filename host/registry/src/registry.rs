//! The door to everything: one cache, and what is asked of it.
use std::fmt;
use std::sync::OnceLock;

use crate::client::Client;
use crate::error::RegistryError;
use crate::list::{self, Listing};
use crate::lock::Kind;
use crate::progress::Progress;
use crate::pull::{Outcome, Pull, Pulled, Request};
use crate::remove::{self, Removed};
use crate::settings::Settings;
use crate::store::{InUse, Store};
use crate::verify::{self, Verified};

/// A cache of models, and where they come from. Any number of processes may have the same cache open.
pub struct Registry {
    store: Store,
    settings: Settings,
    client: OnceLock<Client>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("dir", &self.store.dir()).finish_non_exhaustive()
    }
}

impl Registry {
    /// Opens the cache, and makes its directory. Asks nobody.
    ///
    /// # Errors
    /// The directory cannot be used, or an address of the settings is none.
    pub fn open(settings: Settings) -> Result<Self, RegistryError> {
        settings.check()?;
        let store = Store::open(&settings.dir, &settings.times)?;
        Ok(Self { store, settings, client: OnceLock::new() })
    }

    /// Brings a model into the cache, or finds that it is there, and holds it. Asks the source in any case. Another pull of the
    /// same source is waited for.
    ///
    /// # Errors
    /// The model cannot be had. What was there before is still there; what has arrived is kept if it can be resumed.
    pub fn pull(&self, request: &Request, progress: &dyn Progress) -> Result<Pulled, RegistryError> {
        let client = self.client.get_or_init(|| Client::new(&self.settings));
        Pull { store: &self.store, settings: &self.settings, client, progress }.run(request)
    }

    /// Holds a model that is in the cache, whole. Asks no server. `None`: it has to be pulled.
    ///
    /// # Errors
    /// The cache cannot be read, or two digests are asked for that differ.
    pub fn cached(&self, request: &Request) -> Result<Option<InUse>, RegistryError> {
        let expected = request.expected()?;
        let tables = self.store.tables(Kind::Shared)?;
        let source = request.source.to_string();
        let Some(entry) = self.store.find(&tables, request.name.as_deref().unwrap_or(&source))? else {
            return Ok(None);
        };
        if entry.source != source || expected.is_some_and(|expected| expected != entry.digest()) {
            return Ok(None);
        }
        self.store.hold(&tables, &entry)
    }

    /// Holds a model, which is pulled if it is not in the cache.
    ///
    /// # Errors
    /// As [`Registry::pull`].
    pub fn obtain(&self, request: &Request, progress: &dyn Progress) -> Result<Pulled, RegistryError> {
        match self.cached(request)? {
            Some(held) => Ok(Pulled { outcome: Outcome::Current, revision: None, held }),
            None => self.pull(request, progress),
        }
    }

    /// # Errors
    /// The cache cannot be read.
    pub fn list(&self) -> Result<Listing, RegistryError> {
        list::list(&self.store)
    }

    /// Reads models again, all if none is named, and compares their digests. What is damaged is put aside.
    ///
    /// # Errors
    /// A name is unknown, the cache cannot be read, or somebody cancelled.
    pub fn verify(&self, names: &[String], progress: &dyn Progress) -> Result<Vec<Verified>, RegistryError> {
        verify::verify(&self.store, names, progress)
    }

    /// Removes a model, or what a torn pull of a source left.
    ///
    /// # Errors
    /// There is no such model, it is in use, or somebody pulls it.
    pub fn remove(&self, name: &str) -> Result<Removed, RegistryError> {
        remove::remove(&self.store, name)
    }
}
