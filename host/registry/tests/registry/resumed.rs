//! Downloads that break off and go on, or begin anew.
use std::fs;

use camshaft_registry::{Outcome, Registry, RegistryError};

use crate::made::{bytes, lying, pinned, pull, registry, settings};
use crate::server::{Framing, Reply, Server, file};

const SIZE: usize = 2_500_000;
const CUT: usize = 900_000;

/// A server whose first answer breaks off; what it answers then.
fn broken(then: impl Fn(&crate::server::Seen, &[u8]) -> Reply + Send + Sync + 'static) -> (Server, Vec<u8>) {
    let model = bytes(1, SIZE);
    let server = {
        let model = model.clone();
        Server::start(move |seen, number| match number {
            0 => file(seen, &model, "a").framed(Framing::CutAfter(CUT)),
            _ => then(seen, &model),
        })
    };
    (server, model)
}

#[test]
fn an_interrupted_download_goes_on_where_it_broke_off() {
    let dir = tempfile::tempdir().unwrap();
    let (server, model) = broken(|seen, model| file(seen, model, "a"));
    let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model));
    assert_eq!(fs::read(pulled.unwrap().held.path()).unwrap(), model);
    assert!(told.has("Retry"), "{told:?}");
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    let range = format!("bytes={CUT}-");
    assert_eq!((seen[1].header("range"), seen[1].header("if-range")), (Some(range.as_str()), Some("\"a\"")));
}

#[test]
fn a_torn_download_is_kept_and_resumed_by_the_next_pull() {
    let dir = tempfile::tempdir().unwrap();
    let (server, model) = broken(|seen, model| file(seen, model, "a"));
    let wanted = pinned(&server.url("x.gguf"), &model);
    let mut hasty = settings(dir.path());
    hasty.times.attempts = 1;
    let error = pull(&Registry::open(hasty).unwrap(), &wanted).0.unwrap_err();
    assert!(
        matches!(error, RegistryError::Torn { got, total, .. } if (got, total) == (CUT as u64, SIZE as u64)),
        "{error}"
    );
    let registry = registry(dir.path());
    let partial = registry.list().unwrap().partials.remove(0);
    assert_eq!((partial.bytes, partial.total, partial.running), (CUT as u64, SIZE as u64, false));
    let pulled = pull(&registry, &wanted).0.unwrap();
    assert_eq!((pulled.outcome, fs::read(pulled.held.path()).unwrap()), (Outcome::Fetched, model));
    assert_eq!(server.seen()[1].header("range"), Some(format!("bytes={CUT}-").as_str()));
    assert_eq!(registry.list().unwrap().partials, []);
}

#[test]
fn a_file_that_changes_meanwhile_is_noticed_and_begun_anew() {
    // A server that heeds If-Range sends all of the new file; one that does not, a part of it with another tag.
    for heeds in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let new = bytes(2, SIZE);
        let (server, _) = {
            let new = new.clone();
            broken(move |seen, _| {
                let mut seen = seen.clone();
                if !heeds {
                    seen.headers.remove("if-range");
                }
                file(&seen, &new, "b")
            })
        };
        let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &new));
        assert_eq!(fs::read(pulled.unwrap().held.path()).unwrap(), new);
        assert!(told.has("changed upstream"), "{told:?}");
    }
}

#[test]
fn a_file_that_changed_meanwhile_and_is_not_the_one_asked_for_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (server, model) = broken(|seen, _| file(seen, &bytes(2, SIZE), "b"));
    let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model));
    let error = pulled.unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }) && told.has("changed upstream"), "{error} {told:?}");
    assert_eq!((lying(dir.path(), "partials"), lying(dir.path(), "blobs")), (vec![], vec![]));
}

#[test]
fn a_wrong_range_is_never_written_where_another_was_asked_for() {
    for range in ["bytes 0-9/2500000", "bytes 900000-2499999/2500001", "bytes 900000-999999/2500000", "nonsense", ""] {
        let dir = tempfile::tempdir().unwrap();
        let (server, model) = broken(move |seen, model| match seen.header("range") {
            Some(_) => Reply::new(206, &model[CUT..]).with("content-range", range).with("etag", "\"a\""),
            None => file(seen, model, "a"),
        });
        let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model));
        assert_eq!(fs::read(pulled.unwrap().held.path()).unwrap(), model, "{range}");
        assert!(told.has("wrong Content-Range"), "{range}: {told:?}");
    }
}

#[test]
fn a_server_that_always_sends_a_wrong_range_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let model = bytes(1, SIZE);
    let server = {
        let model = model.clone();
        Server::start(move |seen, _| match seen.header("range") {
            Some(_) => Reply::new(206, &model[..9]).with("content-range", "bytes 0-8/9").with("etag", "\"a\""),
            None => file(seen, &model, "a").framed(Framing::CutAfter(CUT)),
        })
    };
    let mut patient = settings(dir.path());
    patient.times.attempts = 100;
    let error = pull(&Registry::open(patient).unwrap(), &pinned(&server.url("x.gguf"), &model)).0.unwrap_err();
    assert!(matches!(error, RegistryError::BadAnswer { .. }), "{error}");
    assert!(server.seen().len() < 10, "{}", server.seen().len());
}

#[test]
fn a_server_that_does_not_resume_sends_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let (server, model) = broken(|_, model| Reply::new(200, model).with("etag", "\"a\""));
    let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model));
    assert_eq!(fs::read(pulled.unwrap().held.path()).unwrap(), model);
    assert!(told.has("does not resume"), "{told:?}");
}

#[test]
fn a_file_that_is_shorter_now_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let new = bytes(2, 1000);
    let (server, _) = {
        let new = new.clone();
        broken(move |seen, _| match seen.header("range") {
            Some(_) => Reply::new(416, b""),
            None => file(seen, &new, "b"),
        })
    };
    let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &new));
    assert_eq!(fs::read(pulled.unwrap().held.path()).unwrap(), new);
    assert!(told.has("shorter now"), "{told:?}");
}

#[test]
fn a_part_that_nobody_asked_for_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(|_, _| Reply::new(206, b"abc").with("content-range", "bytes 3-5/6"));
    let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), b"abcdef")).0.unwrap_err();
    assert!(matches!(error, RegistryError::BadAnswer { .. }), "{error}");
}
