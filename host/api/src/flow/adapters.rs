//! LoRA adapters of a model as requests name them: by `lora`, or by the model name `base:adapter`.
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use camshaft_core::adapters::AdapterSet;
use camshaft_core::ids::AdapterDigest;
use camshaft_core::limits;

use crate::wire::echo::Shown;

/// What keeps an adapter in memory until it is dropped.
pub trait AdapterLease: fmt::Debug + Send + Sync {}

/// An adapter of a model. Requests hold it until they end, also when it was taken off the list.
#[derive(Debug)]
pub struct Adapter {
    /// Unique in its model, and without a colon.
    pub id: String,
    pub digest: AdapterDigest,
    /// For requests that name none.
    pub scale: f32,
    /// Time of loading, in seconds since the Unix epoch.
    pub created: u64,
    pub bytes: u64,
    pub lease: Arc<dyn AdapterLease>,
}

/// An adapter that somebody wants a model to have.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedAdapter {
    pub id: String,
    pub path: PathBuf,
    /// For requests that name none.
    pub scale: f32,
}

/// An adapter that was loaded from a file.
#[derive(Debug)]
pub struct LoadedFile {
    pub digest: AdapterDigest,
    pub bytes: u64,
    pub lease: Arc<dyn AdapterLease>,
}

/// Loads files as adapters of one model, while it is served.
pub trait AdapterSource: fmt::Debug + Send + Sync {
    /// Takes as long as the file is large.
    ///
    /// # Errors
    /// Why the file is not an adapter of the model.
    fn load(&self, path: &Path) -> Result<LoadedFile, String>;
}

/// Why an adapter was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    #[error("an adapter's id must have 1 to {} characters, no colon and no control character, got {:?}", limits::NAME_CHARS, Shown(.0))]
    Name(String),
    #[error("scale must be between {} and {}, got {}", limits::ADAPTER_SCALE.min, limits::ADAPTER_SCALE.max, .0)]
    Scale(String),
    #[error("the model has an adapter named {:?} already", Shown(.0))]
    Exists(String),
    #[error("the model has {} adapters, which is the most it may have", limits::ADAPTERS_OF_MODEL)]
    Full,
    #[error("another adapter of the model is being loaded")]
    Busy,
    #[error("{0}")]
    File(String),
    /// Of a model that loads no adapters at run time.
    #[error("this model takes no adapters: it generates no text, or there is no file of it")]
    NoSource,
}

/// The adapters of a model that requests may name. They come and go while it is served.
#[derive(Debug, Default)]
pub struct Adapters {
    all: ArcSwap<Vec<Arc<Adapter>>>,
    source: Option<Box<dyn AdapterSource>>,
    /// Held while one is loaded.
    loading: Mutex<()>,
}

impl Adapters {
    /// None yet. `source` loads them.
    pub fn of(source: Box<dyn AdapterSource>) -> Self {
        Self { source: Some(source), ..Self::default() }
    }

    /// Whether there may be any.
    pub(crate) fn can_load(&self) -> bool {
        self.source.is_some()
    }

    /// In the order in which they were added.
    pub fn all(&self) -> Arc<Vec<Arc<Adapter>>> {
        self.all.load_full()
    }

    pub fn find(&self, id: &str) -> Option<Arc<Adapter>> {
        self.all.load().iter().find(|adapter| adapter.id == id).cloned()
    }

    /// Loads a file and adds it, as requests name it from then on. One at a time: another one is refused meanwhile.
    ///
    /// # Errors
    /// The name, the scale or the file is bad, there is one of this name, or there are as many as may be.
    pub fn load(&self, wanted: &WantedAdapter, created: u64) -> Result<Arc<Adapter>, NotAdded> {
        let WantedAdapter { id, path, scale } = wanted;
        let source = self.source.as_ref().ok_or(NotAdded::NoSource)?;
        let _loading = self.loading.try_lock().map_err(|_| NotAdded::Busy)?;
        self.check(id, *scale)?;
        let loaded = source.load(path).map_err(NotAdded::File)?;
        self.add(id, *scale, created, loaded)
    }

    /// Checks what one is to be called, and its scale, before it is loaded.
    ///
    /// # Errors
    /// The name or the scale is bad, there is one of this name, or there are as many as may be.
    pub fn check(&self, id: &str, scale: f32) -> Result<(), NotAdded> {
        check(id, scale)?;
        self.check_new(id, &self.all())
    }

    fn check_new(&self, id: &str, all: &[Arc<Adapter>]) -> Result<(), NotAdded> {
        match all.len() {
            _ if all.iter().any(|other| other.id == id) => Err(NotAdded::Exists(id.to_owned())),
            limits::ADAPTERS_OF_MODEL.. => Err(NotAdded::Full),
            _ => Ok(()),
        }
    }

    /// Adds one whose name and scale are good.
    ///
    /// # Errors
    /// There is one of this name, or there are as many as may be.
    pub fn add(&self, id: &str, scale: f32, created: u64, loaded: LoadedFile) -> Result<Arc<Adapter>, NotAdded> {
        let LoadedFile { digest, bytes, lease } = loaded;
        let adapter = Arc::new(Adapter { id: id.to_owned(), digest, scale, created, bytes, lease });
        let mut added = Ok(());
        self.all.rcu(|all| {
            added = self.check_new(&adapter.id, all);
            let new = added.is_ok().then(|| adapter.clone());
            all.iter().cloned().chain(new).collect::<Vec<_>>()
        });
        added.map(|()| adapter)
    }

    /// Has requests find these and no others from now on, with those of them as they are that `keeps` names. If one cannot be
    /// loaded, all is as before.
    ///
    /// # Errors
    /// As [`Adapters::load`].
    pub fn set(&self, all: &[WantedAdapter], keeps: impl Fn(&str) -> bool, created: u64) -> Result<(), NotAdded> {
        let source = self.source.as_ref().ok_or(NotAdded::NoSource)?;
        let _loading = self.loading.try_lock().map_err(|_| NotAdded::Busy)?;
        let mut new: Vec<Arc<Adapter>> = Vec::with_capacity(all.len().min(limits::ADAPTERS_OF_MODEL));
        for WantedAdapter { id, path, scale } in all {
            check(id, *scale)?;
            self.check_new(id, &new)?;
            if let Some(kept) = self.find(id).filter(|_| keeps(id)) {
                new.push(kept);
                continue;
            }
            let LoadedFile { digest, bytes, lease } = source.load(path).map_err(NotAdded::File)?;
            new.push(Arc::new(Adapter { id: id.clone(), digest, scale: *scale, created, bytes, lease }));
        }
        self.all.store(Arc::new(new));
        Ok(())
    }

    /// Takes one off the list. Requests that use it go on. False if there is none of this name.
    pub fn remove(&self, id: &str) -> bool {
        let before = self.all.rcu(|all| all.iter().filter(|adapter| adapter.id != id).cloned().collect::<Vec<_>>());
        before.iter().any(|adapter| adapter.id == id)
    }
}

/// The adapters that a request is computed under.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChosenAdapters {
    pub(crate) set: AdapterSet,
    /// Kept in memory until the request ends.
    pub(crate) held: Vec<Arc<Adapter>>,
    /// The model's name, if it names an adapter.
    pub(crate) name: Option<String>,
}

impl ChosenAdapters {
    pub(crate) fn new(chosen: Vec<(Arc<Adapter>, f32)>, name: Option<String>) -> Self {
        let set = AdapterSet::new(chosen.iter().map(|(adapter, scale)| (adapter.digest, *scale)));
        Self { set, held: chosen.into_iter().map(|(adapter, _)| adapter).collect(), name }
    }
}

/// # Errors
/// The name or the scale is bad.
fn check(id: &str, scale: f32) -> Result<(), NotAdded> {
    if !is_name(id) {
        return Err(NotAdded::Name(id.to_owned()));
    }
    if !limits::ADAPTER_SCALE.contains(scale.into()) {
        return Err(NotAdded::Scale(scale.to_string()));
    }
    Ok(())
}

/// Whether an adapter may be called so. A colon would be taken for the one after the model's name.
pub fn is_name(id: &str) -> bool {
    (1..=limits::NAME_CHARS).contains(&id.chars().count()) && !id.contains(':') && !id.contains(char::is_control)
}

/// The name by which requests ask for a model with an adapter.
pub(crate) fn name(model: &str, adapter: &str) -> String {
    format!("{model}:{adapter}")
}

/// A model's name and an adapter's, of a name that may be of both.
pub(crate) fn split(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl AdapterLease for Nothing {}

    /// Takes any path that is not empty.
    #[derive(Debug)]
    struct Any;

    impl AdapterSource for Any {
        fn load(&self, path: &Path) -> Result<LoadedFile, String> {
            let digest = AdapterDigest::new([7; 32]);
            let loaded = LoadedFile { digest, bytes: 1, lease: Arc::new(Nothing) };
            if path.as_os_str().is_empty() { Err("no file".to_owned()) } else { Ok(loaded) }
        }
    }

    fn wanted(id: &str, path: &str, scale: f32) -> WantedAdapter {
        WantedAdapter { id: id.to_owned(), path: path.into(), scale }
    }

    fn load(adapters: &Adapters, id: &str) -> Result<(), NotAdded> {
        adapters.load(&wanted(id, "file", 1.0), 0).map(drop)
    }

    #[test]
    fn a_model_has_at_most_so_many_adapters_each_of_another_name() {
        let adapters = Adapters::of(Box::new(Any));
        for n in 0..limits::ADAPTERS_OF_MODEL {
            assert_eq!(load(&adapters, &n.to_string()), Ok(()));
            assert_eq!(load(&adapters, "0"), Err(NotAdded::Exists("0".to_owned())));
        }
        assert_eq!(load(&adapters, "more"), Err(NotAdded::Full));
        assert!(adapters.remove("0") && !adapters.remove("0"));
        assert!(adapters.find("0").is_none() && adapters.find("1").is_some());
        assert_eq!(load(&adapters, "more"), Ok(()));
        assert_eq!(adapters.all().len(), limits::ADAPTERS_OF_MODEL);
    }

    #[test]
    fn whoever_uses_an_adapter_keeps_it_when_it_is_removed() {
        let adapters = Adapters::of(Box::new(Any));
        load(&adapters, "a").unwrap();
        let used = adapters.find("a").unwrap();
        let lease = Arc::downgrade(&used.lease);
        adapters.remove("a");
        assert!(lease.upgrade().is_some());
        drop(used);
        assert!(lease.upgrade().is_none());
    }

    #[test]
    fn a_list_takes_the_place_of_another_as_a_whole_or_not_at_all() {
        let adapters = Adapters::of(Box::new(Any));
        load(&adapters, "a").unwrap();
        load(&adapters, "b").unwrap();
        let (a, b) = (adapters.find("a").unwrap(), adapters.find("b").unwrap());
        let list = [wanted("b", "file", 2.0), wanted("a", "file", 1.0), wanted("c", "", 1.0)];
        assert_eq!(adapters.set(&list, |id| id == "a", 0), Err(NotAdded::File("no file".to_owned())));
        assert!(Arc::ptr_eq(&adapters.find("b").unwrap(), &b) && adapters.all().len() == 2);
        assert_eq!(adapters.set(&list[..2], |id| id == "a", 0), Ok(()));
        assert!(Arc::ptr_eq(&adapters.find("a").unwrap(), &a) && adapters.find("b").unwrap().scale == 2.0);
        let twice = [wanted("d", "file", 1.0), wanted("d", "file", 1.0)];
        assert_eq!(adapters.set(&twice, |_| true, 0), Err(NotAdded::Exists("d".to_owned())));
        let many = |count: usize| (0..count).map(|n| wanted(&n.to_string(), "file", 1.0)).collect::<Vec<_>>();
        assert_eq!(adapters.set(&many(limits::ADAPTERS_OF_MODEL), |_| false, 0), Ok(()));
        assert_eq!(adapters.set(&many(limits::ADAPTERS_OF_MODEL + 1), |_| true, 0), Err(NotAdded::Full));
        assert_eq!(adapters.set(&[], |_| true, 0), Ok(()));
        assert!(adapters.all().is_empty());
    }

    #[test]
    fn names_scales_and_files_are_checked() {
        let adapters = Adapters::of(Box::new(Any));
        assert_eq!(load(&adapters, &"n".repeat(limits::NAME_CHARS)), Ok(()));
        for id in ["", "a:b", "a\nb", &"n".repeat(limits::NAME_CHARS + 1)] {
            assert_eq!(load(&adapters, id), Err(NotAdded::Name(id.to_owned())));
        }
        for (scale, good) in [(100.0, true), (-100.0, true), (100.1, false), (f32::NAN, false), (f32::INFINITY, false)]
        {
            assert_eq!(adapters.load(&wanted(&format!("{scale}"), "file", scale), 0).is_ok(), good, "{scale}");
        }
        let error = adapters.load(&wanted("b", "", 1.0), 0).unwrap_err();
        assert_eq!(error.to_string(), "no file");
        assert_eq!(load(&Adapters::default(), "a"), Err(NotAdded::NoSource));
    }
}
