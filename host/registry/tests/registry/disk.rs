//! Disks without room: a small file system of the test's own.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use camshaft_registry::{Class, Registry, RegistryError};
use tempfile::TempDir;

use crate::made::{bytes, lying, pinned, pull, settings};
use crate::server::{Server, file};

/// A file system of one MiB in memory. Gone when dropped.
struct Small {
    dir: TempDir,
}

impl Small {
    fn mount() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success(), "file systems can be mounted");
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}

fn served(model: &[u8]) -> Server {
    let model = model.to_vec();
    Server::start(move |seen, _| file(seen, &model, "a"))
}

#[test]
fn given_mount_a_file_larger_than_the_disk_is_refused_before_it_is_downloaded() {
    let (small, model) = (Small::mount(), bytes(1, 1 << 20));
    let server = served(&model);
    let registry = Registry::open(settings(small.path())).unwrap();
    let kept = bytes(2, 1000);
    let other = served(&kept);
    drop(pull(&registry, &pinned(&other.url("kept.gguf"), &kept)).0.unwrap());
    let error = pull(&registry, &pinned(&server.url("x.gguf"), &model)).0.unwrap_err();
    assert!(matches!(error, RegistryError::NoSpace { .. }) && error.class() == Class::Unavailable, "{error}");
    assert!(error.to_string().contains("needs 1.1 MiB on the disk"), "{error}");
    assert_eq!((lying(small.path(), "blobs").len(), registry.list().unwrap().partials.len()), (1, 0));
    assert!(registry.cached(&pinned(&other.url("kept.gguf"), &kept)).unwrap().is_some(), "what was there stays");
}

#[test]
fn given_mount_a_disk_that_fills_up_meanwhile_is_said_so_and_the_download_resumed_later() {
    let (small, model) = (Small::mount(), bytes(1, 700_000));
    let filler: Arc<PathBuf> = Arc::new(small.path().join("filler"));
    let server = {
        let (model, filler) = (model.clone(), filler.clone());
        Server::start(move |seen, number| {
            if number == 0 {
                // The disk had room when the file was asked for; somebody else takes it before the file comes.
                let sizes = file(seen, &model, "a");
                let filler = filler.clone();
                std::thread::spawn(move || fs::write(&*filler, vec![1; 600_000]).unwrap()).join().unwrap();
                return sizes;
            }
            file(seen, &model, "a")
        })
    };
    let registry = Registry::open(settings(small.path())).unwrap();
    let wanted = pinned(&server.url("x.gguf"), &model);
    let error = pull(&registry, &wanted).0.unwrap_err();
    // Seen when the answer's head is there.
    assert!(matches!(error, RegistryError::NoSpace { .. }), "{error}");
    fs::remove_file(&*filler).unwrap();
    assert_eq!(fs::read(pull(&registry, &wanted).0.unwrap().held.path()).unwrap(), model);
}

#[test]
fn given_mount_a_write_that_fails_for_want_of_space_leaves_what_was_there() {
    let (small, model) = (Small::mount(), bytes(1, 900_000));
    let registry = Registry::open(settings(small.path())).unwrap();
    let kept = served(&bytes(2, 10_000));
    drop(pull(&registry, &pinned(&kept.url("kept.gguf"), &bytes(2, 10_000))).0.unwrap());
    let server = served(&model);
    let wanted = pinned(&server.url("x.gguf"), &model);
    let filler = small.path().join("filler");
    let fills = Fills { filler: filler.clone() };
    let error = registry.pull(&wanted, &fills).unwrap_err();
    assert!(matches!(error, RegistryError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("No space left") && error.class() == Class::Unavailable, "{error}");
    assert!(registry.cached(&pinned(&kept.url("kept.gguf"), &bytes(2, 10_000))).unwrap().is_some());
    fs::remove_file(&filler).unwrap();
    let pulled = pull(&registry, &wanted).0.unwrap();
    assert_eq!(fs::read(pulled.held.path()).unwrap(), model);
}

/// Fills the disk when the first bytes of a file arrive.
struct Fills {
    filler: PathBuf,
}

impl camshaft_registry::Progress for Fills {
    fn tell(&self, event: &camshaft_registry::Event<'_>) {
        if matches!(event, camshaft_registry::Event::Moved(_)) && !self.filler.exists() {
            // As much of it as there is room for.
            let _ = fs::write(&self.filler, vec![1; 2 << 20]);
        }
    }
}
