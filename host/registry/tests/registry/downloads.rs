//! Downloads that go well, and those that cannot.
use std::fs;
use std::time::Duration;

use camshaft_registry::{Class, Digest, Outcome, Proxies, Registry, RegistryError};

use crate::made::{Told, bytes, lying, pinned, pull, registry, request, settings};
use crate::server::{Framing, Reply, Server, file};

#[test]
fn a_file_is_downloaded_once_and_revalidated_by_its_tag() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 700_000));
    let server = {
        let model = model.clone();
        Server::start(move |seen, _| file(seen, &model, "a"))
    };
    let (registry, wanted) = (registry(dir.path()), pinned(&server.url("m/x.gguf"), &model));
    assert!(registry.cached(&wanted).unwrap().is_none());
    let (pulled, told) = pull(&registry, &wanted);
    let pulled = pulled.unwrap();
    assert_eq!((pulled.outcome, fs::read(pulled.held.path()).unwrap()), (Outcome::Fetched, model.clone()));
    assert!(pulled.held.path().ends_with("x.gguf"), "under its own name");
    assert!(told.has("bytes: 700000, total: 700000"), "{told:?}");
    assert_eq!(registry.cached(&wanted).unwrap().unwrap().path(), pulled.held.path());
    let (again, _) = pull(&registry, &wanted);
    assert_eq!(again.unwrap().outcome, Outcome::Current);
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header("accept-encoding"), Some("identity"));
    assert_eq!(seen[1].header("if-none-match"), Some("\"a\""), "and the answer is 304");
    assert_eq!(lying(dir.path(), "partials"), [""; 0]);
    let mode = fs::metadata(pulled.held.path()).unwrap().permissions();
    assert!(mode.readonly(), "nobody writes what is named by its digest");
}

#[test]
fn a_file_that_changed_upstream_is_said_so_and_what_is_cached_stays() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 5000));
    let server = {
        let model = model.clone();
        Server::start(move |seen, number| match number {
            0 => file(seen, &model, "a"),
            _ => file(seen, &bytes(2, 5000), "b"),
        })
    };
    let (registry, wanted) = (registry(dir.path()), pinned(&server.url("x.gguf"), &model));
    pull(&registry, &wanted).0.unwrap();
    let (again, told) = pull(&registry, &wanted);
    let again = again.unwrap();
    assert_eq!((again.outcome, fs::read(again.held.path()).unwrap()), (Outcome::Current, model));
    assert!(told.has("changed upstream"), "{told:?}");
}

#[test]
fn a_wrong_digest_leaves_what_was_there_and_nothing_to_resume() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 300_000));
    let server = {
        let model = model.clone();
        Server::start(move |seen, number| file(seen, &if number == 0 { model.clone() } else { bytes(2, 300_000) }, "a"))
    };
    let registry = registry(dir.path());
    let wanted = pinned(&server.url("x.gguf"), &model);
    drop(pull(&registry, &wanted).0.unwrap());
    let other = pinned(&server.url("x.gguf"), &bytes(3, 300_000));
    let error = pull(&registry, &other).0.unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");
    let text = error.to_string();
    let (expected, got) = (Digest::of(&bytes(3, 300_000)).to_string(), Digest::of(&bytes(2, 300_000)).to_string());
    assert!(text.contains(&expected) && text.contains(&got), "{text}");
    assert_eq!(error.class(), Class::Data);
    assert_eq!(lying(dir.path(), "partials"), [""; 0]);
    assert_eq!(fs::read(registry.cached(&wanted).unwrap().unwrap().path()).unwrap(), model);
    assert!(registry.cached(&other).unwrap().is_none());
}

#[test]
fn what_is_not_there_is_missing_and_is_asked_for_once() {
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(|_, _| Reply::new(404, b"no")));
    let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), b"x")).0.unwrap_err();
    assert!(matches!(error, RegistryError::NotFound { status: 404, .. }), "{error}");
    assert_eq!((error.class(), server.seen().len()), (Class::Missing, 1));
    assert_eq!(lying(dir.path(), "names"), [""; 0]);
}

#[test]
fn a_server_that_fails_is_asked_again_a_bounded_number_of_times() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 5000));
    let fails = |times: usize, status: u16| {
        let model = model.clone();
        Server::start(
            move |seen, number| if number < times { Reply::new(status, b"") } else { file(seen, &model, "a") },
        )
    };
    for status in [500, 503, 429, 408] {
        let server = fails(2, status);
        let (pulled, told) = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model));
        assert!(pulled.is_ok() && told.has("Retry"), "{status}");
    }
    let server = fails(3, 503);
    let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model)).0.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { attempts: 3, .. }), "{error}");
    assert!(error.to_string().contains("503") && error.class() == Class::Unavailable, "{error}");
}

#[test]
fn nobody_listening_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = pull(&registry(dir.path()), &pinned(&format!("http://{address}/x.gguf"), b"x")).0.unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { attempts: 3, .. }), "{error}");
}

#[test]
fn a_silent_peer_and_one_that_drips_are_given_up() {
    let model = bytes(1, 100_000);
    for framing in [Framing::SilentAfter(0), Framing::SilentAfter(10_000), Framing::Drip(Duration::from_millis(20))] {
        let dir = tempfile::tempdir().unwrap();
        let server = {
            let (model, framing) = (model.clone(), framing.clone());
            // Ranges are heeded, so that each attempt goes on where the one before ended.
            Server::start(move |seen, _| file(seen, &model, "a").framed(framing.clone()))
        };
        let mut settings = settings(dir.path());
        settings.times.stall = Duration::from_millis(400);
        settings.times.attempts = 2;
        let error = pull(&Registry::open(settings).unwrap(), &pinned(&server.url("x.gguf"), &model)).0.unwrap_err();
        let known = matches!(error, RegistryError::Torn { .. } | RegistryError::Unreachable { .. });
        assert!(known && error.class() == Class::Unavailable, "{framing:?}: {error}");
        assert!(server.seen().len() >= 2, "{framing:?}");
    }
}

#[test]
fn a_file_of_unknown_size_or_in_a_coding_is_refused() {
    let model = bytes(1, 50_000);
    for (framing, header) in [(Framing::Chunked, None), (Framing::Length, Some(("content-encoding", "gzip")))] {
        let (dir, model) = (tempfile::tempdir().unwrap(), model.clone());
        let wanted = model.clone();
        let server = Server::start(move |seen, _| {
            let reply = file(seen, &model, "a").framed(framing.clone());
            header.iter().fold(reply, |reply, (name, value)| reply.with(name, *value))
        });
        let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &wanted)).0.unwrap_err();
        assert!(matches!(error, RegistryError::BadAnswer { .. }), "{error}");
        assert_eq!((server.seen().len(), lying(dir.path(), "blobs")), (1, vec![]));
    }
}

#[test]
fn a_file_of_more_than_4_tib_is_refused_before_it_is_read() {
    for (bytes, fits) in [((4u64 << 40) + 1, false), (u64::MAX, false)] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(move |_, _| Reply::new(200, b"").with("content-length", bytes.to_string()));
        let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), b"x")).0.unwrap_err();
        assert_eq!(matches!(error, RegistryError::FileTooLarge { .. }), !fits, "{error}");
    }
    // At the bound it is the disk that has no room.
    let (dir, server) = (
        tempfile::tempdir().unwrap(),
        Server::start(|_, _| Reply::new(200, b"").with("content-length", (4u64 << 40).to_string())),
    );
    let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), b"x")).0.unwrap_err();
    assert!(matches!(error, RegistryError::NoSpace { .. }), "{error}");
}

#[test]
fn redirects_are_followed_five_times_and_no_more() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 5000));
    let hops = |hops: usize| {
        let model = model.clone();
        Server::start(move |seen, number| match number < hops {
            true => Reply::new(302, b"").with("location", format!("/hop{number}?signature=secret")),
            false => file(seen, &model, "a"),
        })
    };
    let server = hops(5);
    assert!(pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model)).0.is_ok());
    let server = hops(6);
    let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model)).0.unwrap_err().to_string();
    assert!(error.contains("more than 5 redirects") && !error.contains("secret"), "{error}");
    for location in ["ftp://h/x", "http://192.0.2.1/x", "", &"a".repeat(5000)] {
        let location = location.to_owned();
        let server = Server::start(move |_, _| Reply::new(302, b"").with("location", location.clone()));
        let error = pull(&registry(dir.path()), &pinned(&server.url("x.gguf"), &model)).0.unwrap_err();
        assert!(!matches!(error, RegistryError::Unreachable { .. }), "{error}");
    }
}

#[test]
fn a_url_needs_a_digest_and_only_one() {
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start(|_, _| Reply::new(200, b"x")));
    let registry = registry(dir.path());
    let error = pull(&registry, &request(&server.url("x.gguf"))).0.unwrap_err();
    assert!(error.to_string().contains("--sha256") && error.class() == Class::Usage, "{error}");
    let (one, other) = (Digest::of(b"x"), Digest::of(b"y"));
    let named = server.url(&format!("x.gguf#sha256={one}"));
    let mut wanted = request(&named);
    assert!(pull(&registry, &wanted).0.is_ok());
    wanted.sha256 = Some(other);
    assert_eq!(pull(&registry, &wanted).0.unwrap_err().class(), Class::Usage);
}

#[test]
fn other_machines_are_not_asked_without_tls_unless_it_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let error = pull(&registry(dir.path()), &pinned("http://192.0.2.1/x.gguf", b"x")).0.unwrap_err();
    assert!(error.to_string().contains("--allow-http") && error.class() == Class::Usage, "{error}");
}

#[test]
fn other_machines_are_asked_through_the_proxy_and_this_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let proxy = Server::start(|_, _| Reply::new(502, b""));
    let mut settings = settings(dir.path());
    settings.allow_http = true;
    settings.times.attempts = 1;
    settings.proxies = Proxies {
        http: Some(format!("http://{}", proxy.address)),
        https: Some(format!("http://{}", proxy.address)),
        none: Some("spared.invalid".to_owned()),
    };
    let registry = Registry::open(settings).unwrap();
    let ask = |url: &str| pull(&registry, &pinned(url, b"x")).0.unwrap_err();
    ask("http://models.invalid/x.gguf");
    ask("https://models.invalid/x.gguf");
    ask("http://spared.invalid/x.gguf");
    let seen: Vec<String> = proxy.seen().into_iter().map(|seen| format!("{} {}", seen.method, seen.target)).collect();
    assert_eq!(seen, ["CONNECT models.invalid:80", "CONNECT models.invalid:443"]);
    let own = Server::start(|seen, _| file(seen, b"x", "a"));
    assert!(pull(&registry, &pinned(&own.url("x.gguf"), b"x")).0.is_ok());
    assert_eq!(proxy.seen().len(), 2);
}

#[test]
fn a_model_larger_than_the_cache_is_refused_before_it_is_downloaded() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 10_000));
    let server = {
        let model = model.clone();
        Server::start(move |seen, _| file(seen, &model, "a").framed(Framing::SilentAfter(0)))
    };
    let mut settings = settings(dir.path());
    settings.bytes_max = 9999;
    let error = pull(&Registry::open(settings).unwrap(), &pinned(&server.url("x.gguf"), &model)).0.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { needed: 10_000, bound: 9999, held: 0 }), "{error}");
}

#[test]
fn a_pull_that_is_cancelled_keeps_what_it_has() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 3_000_000));
    let server = {
        let model = model.clone();
        Server::start(move |seen, number| match number {
            0 => file(seen, &model, "a").framed(Framing::SilentAfter(1_000_000)),
            _ => file(seen, &model, "a"),
        })
    };
    let (registry, wanted) = (registry(dir.path()), pinned(&server.url("x.gguf"), &model));
    let told = Told::cancelling(1);
    assert!(matches!(registry.pull(&wanted, &told), Err(RegistryError::Cancelled)));
    assert_eq!(registry.list().unwrap().partials.len(), 1);
    assert!(pull(&registry, &wanted).0.is_ok());
    assert!(server.seen()[1].header("range").is_some(), "resumed");
}
