//! What stays in the cache, what goes, and what is found to be damaged.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use camshaft_registry::{Class, InUse, Outcome, Registry, RegistryError, Silent};

use crate::made::{bytes, lying, pull, registry, request, settings};

/// Puts a file of this machine into the cache.
fn put(registry: &Registry, dir: &Path, name: &str, content: &[u8]) -> Result<InUse, RegistryError> {
    let path = dir.join(name);
    fs::write(&path, content).unwrap();
    let mut wanted = request(&path.to_string_lossy());
    wanted.name = Some(name.to_owned());
    pull(registry, &wanted).0.map(|pulled| pulled.held)
}

fn bounded(dir: &Path, bytes_max: u64) -> Registry {
    let mut settings = settings(dir);
    settings.bytes_max = bytes_max;
    Registry::open(settings).unwrap()
}

fn names(registry: &Registry) -> Vec<String> {
    registry.list().unwrap().models.into_iter().map(|model| model.name).collect()
}

/// So that one is used after another, whatever the file system's clock resolves.
fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(15));
}

#[test]
fn what_was_not_used_for_longest_goes_first_and_the_bound_holds_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let registry = bounded(dir.path(), 3000);
    for name in ["a", "b", "c"] {
        drop(
            put(&registry, dir.path(), name, &bytes(name.len() as u64 + u64::from(name.as_bytes()[0]), 1000)).unwrap(),
        );
        tick();
    }
    assert_eq!((names(&registry), registry.list().unwrap().bytes), (vec!["a".into(), "b".into(), "c".into()], 3000));
    // It is used again, and so is not the next to go.
    drop(registry.cached(&camshaft_registry::Request {
        name: Some("a".into()),
        ..request(&dir.path().join("a").to_string_lossy())
    }));
    tick();
    drop(put(&registry, dir.path(), "d", &bytes(9, 1)).unwrap());
    assert_eq!(names(&registry), ["a", "c", "d"]);
    assert_eq!((registry.list().unwrap().bytes, lying(dir.path(), "blobs").len()), (2001, 3));
}

#[test]
fn a_model_in_use_is_never_evicted_and_one_that_does_not_fit_beside_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let registry = bounded(dir.path(), 3000);
    let served = put(&registry, dir.path(), "served", &bytes(1, 2000)).unwrap();
    tick();
    drop(put(&registry, dir.path(), "idle", &bytes(2, 900)).unwrap());
    tick();
    // Another process has it open.
    let other = bounded(dir.path(), 3000);
    drop(put(&other, dir.path(), "new", &bytes(3, 1000)).unwrap());
    assert_eq!(names(&other), ["new", "served"], "the older one is in use");
    let error = put(&other, dir.path(), "large", &bytes(4, 1001)).unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { needed: 1001, bound: 3000, held: 2000 }), "{error}");
    assert_eq!(names(&other), ["new", "served"], "a refusal costs nobody anything");
    assert_eq!(fs::read(served.path()).unwrap(), bytes(1, 2000));
    drop(served);
    drop(put(&other, dir.path(), "large", &bytes(4, 1001)).unwrap());
    assert_eq!(names(&other), ["large", "new"]);
}

#[test]
fn a_model_in_use_is_not_removed_and_an_idle_one_is_with_what_nobody_else_has() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path());
    let served = put(&registry, dir.path(), "a", &bytes(1, 1000)).unwrap();
    let error = registry.remove("a").unwrap_err();
    assert!(matches!(error, RegistryError::InUse { .. }) && error.class() == Class::Unavailable, "{error}");
    assert!(registry.list().unwrap().models[0].in_use);
    drop(served);
    assert!(!registry.list().unwrap().models[0].in_use);
    // The same content under another name.
    drop(put(&registry, dir.path(), "b", &bytes(1, 1000)).unwrap());
    assert_eq!(lying(dir.path(), "blobs").len(), 1);
    let removed = registry.remove("a").unwrap();
    assert_eq!((removed.bytes, names(&registry)), (0, vec!["b".to_owned()]));
    assert_eq!(registry.remove("b").unwrap().bytes, 1000);
    assert_eq!(
        (lying(dir.path(), "blobs"), lying(dir.path(), "snapshots"), lying(dir.path(), "uses")),
        (vec![], vec![], vec![])
    );
    assert!(matches!(registry.remove("b"), Err(RegistryError::Unknown { .. })));
    assert!(matches!(registry.remove(&"x".repeat(2 << 20)), Err(RegistryError::Unknown { .. })));
}

#[test]
fn verify_finds_one_flipped_bit_and_the_next_pull_repairs_it() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path());
    let model = bytes(1, 400_000);
    let path = put(&registry, dir.path(), "a", &model).unwrap().path().canonicalize().unwrap();
    let verified = registry.verify(&[], &Silent).unwrap();
    assert_eq!((verified.len(), verified[0].damage.len(), verified[0].bytes), (1, 0, 400_000));
    let mut flipped = model.clone();
    flipped[123_456] ^= 1;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, &flipped).unwrap();
    let verified = registry.verify(&["a".to_owned()], &Silent).unwrap();
    assert!(verified[0].damage[0].contains("sha256"), "{verified:?}");
    let wanted =
        camshaft_registry::Request { name: Some("a".into()), ..request(&dir.path().join("a").to_string_lossy()) };
    assert!(registry.cached(&wanted).unwrap().is_none(), "nobody is served it");
    let repaired = pull(&registry, &wanted).0.unwrap();
    assert_eq!((repaired.outcome, fs::read(repaired.held.path()).unwrap()), (Outcome::Fetched, model));
    assert_eq!(registry.verify(&[], &Silent).unwrap()[0].damage, [""; 0]);
    assert_eq!(lying(dir.path(), "blobs").len(), 1, "the damaged one is gone");
    assert!(matches!(registry.verify(&["none".to_owned()], &Silent), Err(RegistryError::Unknown { .. })));
}

#[test]
fn a_file_that_was_cut_or_is_gone_is_found_without_reading_it() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path());
    let path = put(&registry, dir.path(), "a", &bytes(1, 1000)).unwrap().path().canonicalize().unwrap();
    let wanted =
        camshaft_registry::Request { name: Some("a".into()), ..request(&dir.path().join("a").to_string_lossy()) };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, b"short").unwrap();
    assert!(registry.cached(&wanted).unwrap().is_none());
    fs::remove_file(&path).unwrap();
    assert!(registry.cached(&wanted).unwrap().is_none());
    assert!(registry.verify(&[], &Silent).unwrap()[0].damage[0].contains("missing"));
    assert!(registry.obtain(&wanted, &Silent).is_ok(), "pulled anew");
}

#[test]
fn hostile_files_among_the_names_are_reported_and_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path());
    drop(put(&registry, dir.path(), "a", &bytes(1, 1000)).unwrap());
    let names_dir = dir.path().join("cache/names");
    let good = fs::read_to_string(names_dir.join(&lying(dir.path(), "names")[0])).unwrap();
    fs::write(names_dir.join("x.json"), good.replace("\"name\":\"a\"", "\"name\":\"../../a\"")).unwrap();
    fs::write(names_dir.join("y.json"), &good).unwrap();
    fs::write(names_dir.join("z.json"), "[".repeat(500_000)).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(names_dir.join("p.json")).status().unwrap().success());
    std::os::unix::fs::symlink("/etc/passwd", names_dir.join("l.json")).unwrap();
    let listing = registry.list().unwrap();
    assert_eq!((listing.models.len(), listing.damaged.len()), (1, 5), "{listing:?}");
    assert!(listing.damaged.iter().all(|line| !line.contains("root:")));
    // Nothing is thrown away while it is not known what refers to it.
    drop(put(&registry, dir.path(), "b", &bytes(2, 1000)).unwrap());
    assert_eq!(lying(dir.path(), "blobs").len(), 2);
}

#[test]
fn a_directory_that_everybody_may_write_to_is_no_cache() {
    let dir = tempfile::tempdir().unwrap();
    drop(registry(dir.path()));
    fs::set_permissions(dir.path().join("cache"), fs::Permissions::from_mode(0o777)).unwrap();
    let error = Registry::open(settings(dir.path())).unwrap_err();
    assert!(matches!(error, RegistryError::BadDirectory { .. }), "{error}");
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let mut on_a_file = settings(dir.path());
    on_a_file.dir = file;
    assert!(Registry::open(on_a_file).is_err());
}

#[test]
fn a_cache_whose_directory_vanishes_says_so_and_works_again_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path());
    let held = put(&registry, dir.path(), "a", &bytes(1, 1000)).unwrap();
    let (cache, away) = (dir.path().join("cache"), dir.path().join("away"));
    fs::rename(&cache, &away).unwrap();
    assert!(registry.list().is_err() && registry.remove("a").is_err());
    assert!(put(&registry, dir.path(), "b", b"x").is_err());
    let _ = fs::remove_dir_all(&cache);
    fs::rename(&away, &cache).unwrap();
    assert!(matches!(registry.remove("a"), Err(RegistryError::InUse { .. })), "it is still held");
    drop(held);
    assert!(registry.remove("a").is_ok());
}

#[test]
fn a_cache_holds_4096_models() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path());
    let names_dir = dir.path().join("cache/names");
    (0..4095).for_each(|number| fs::write(names_dir.join(format!("{number}.json")), "{}").unwrap());
    drop(put(&registry, dir.path(), "last", b"x").unwrap());
    assert!(matches!(put(&registry, dir.path(), "more", b"y"), Err(RegistryError::TooMany { max: 4096 })));
    assert!(put(&registry, dir.path(), "last", b"z").is_ok(), "one that is there may change");
}
