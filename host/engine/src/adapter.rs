//! LoRA adapters that are loaded beside a model: each is freed once nobody holds it.
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use camshaft_core::ids::AdapterDigest;

use crate::adapter_file::{check_adapter, check_numbers};
use crate::devices::Lost;
use crate::error::EngineLoadError;
use crate::gguf::{self, AdapterKeys, Tensors};
use crate::model::{Lora, Model};
use crate::parts::ModelFiles;

/// An adapter in memory. Requests hold it while they use it, and so do contexts that apply it.
pub struct LoadedAdapter {
    lora: Lora,
    model: Arc<Model>,
    /// `None`: the model uses no device.
    lost: Option<Lost>,
    digest: AdapterDigest,
    bytes: u64,
}

impl fmt::Debug for LoadedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedAdapter").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl LoadedAdapter {
    /// SHA-256 of its file.
    pub fn digest(&self) -> AdapterDigest {
        self.digest
    }

    /// Size of its file, which is about what it takes in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn lora(&self) -> Lora {
        self.lora
    }
}

impl Drop for LoadedAdapter {
    fn drop(&mut self) {
        // To free what lies on a device that is lost would end the process.
        if !self.lost.as_ref().is_some_and(Lost::is_set) {
            // SAFETY: it is the model's, which lives; whoever used it held this object.
            unsafe { self.model.free_lora(self.lora) };
        }
    }
}

/// What adapters of a model must fit, and those that are in memory.
#[derive(Debug)]
pub(crate) struct AdapterShelf {
    keys: AdapterKeys,
    tensors: Tensors,
    loaded: Mutex<HashMap<AdapterDigest, Weak<LoadedAdapter>>>,
}

impl AdapterShelf {
    pub(crate) fn new(keys: AdapterKeys, tensors: Tensors) -> Self {
        Self { keys, tensors, loaded: Mutex::default() }
    }

    pub(crate) fn find(&self, digest: AdapterDigest) -> Option<Arc<LoadedAdapter>> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&digest).and_then(Weak::upgrade)
    }

    /// Opens an adapter's file and checks that it fits the model. Returns it with its digest.
    ///
    /// # Errors
    /// It is missing, no regular file, bad, or of another model.
    pub(crate) fn examine(&self, path: &Path) -> Result<(ModelFiles, AdapterDigest), EngineLoadError> {
        let bad = |why| EngineLoadError::BadAdapter { path: path.to_owned(), why };
        let (mut files, header) = ModelFiles::open(path, path)?;
        check_adapter(&header, &self.keys, &self.tensors).map_err(bad)?;
        let digest = files.digest()?;
        let numbers = files.first().map(|file| check_numbers(file, &header.tensors));
        numbers.transpose().map_err(|error| match error {
            gguf::Refused::Io(source) => EngineLoadError::Unreadable { path: path.to_owned(), source },
            gguf::Refused::Bad(why) => bad(why),
        })?;
        let digest = AdapterDigest::try_from(digest).map_err(|error| bad(error.to_string()))?;
        Ok((files, digest))
    }

    /// Loads an adapter of `model`, unless it is in memory already.
    ///
    /// # Errors
    /// As [`AdapterShelf::examine`], or llama.cpp refuses it.
    pub(crate) fn load(
        &self,
        path: &Path,
        model: &Arc<Model>,
        lost: Option<&Lost>,
    ) -> Result<Arc<LoadedAdapter>, EngineLoadError> {
        let (files, digest) = self.examine(path)?;
        if let Some(loaded) = self.find(digest) {
            return Ok(loaded);
        }
        let lora = load_lora(model, path)?;
        let adapter = LoadedAdapter { lora, model: model.clone(), lost: lost.cloned(), digest, bytes: files.bytes() };
        files.check_unchanged()?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|_, adapter| adapter.strong_count() > 0);
        // Another thread may have loaded it meanwhile.
        if let Some(other) = loaded.get(&digest).and_then(Weak::upgrade) {
            return Ok(other);
        }
        let adapter = Arc::new(adapter);
        loaded.insert(digest, Arc::downgrade(&adapter));
        Ok(adapter)
    }
}

/// Has llama.cpp load an adapter's file.
///
/// # Errors
/// llama.cpp refuses it, or it is to change only what follows certain tokens.
pub(crate) fn load_lora(model: &Model, path: &Path) -> Result<Lora, EngineLoadError> {
    let lora = model.load_lora(path);
    let lora = lora.map_err(|source| EngineLoadError::NotAnAdapter { path: path.to_owned(), source })?;
    if lora.is_activated() {
        // SAFETY: it was just loaded, and nobody else knows it.
        unsafe { model.free_lora(lora) };
        return Err(EngineLoadError::ActivatedAdapter { path: path.to_owned() });
    }
    Ok(lora)
}
