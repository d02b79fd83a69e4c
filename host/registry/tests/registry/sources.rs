//! Hugging Face, Ollama's registries, split models and files of this machine.
use std::fs;
use std::sync::{Arc, Mutex};

use camshaft_registry::{Class, Digest, Environment, Outcome, Registry, RegistryError, Token};

use crate::made::{bytes, lying, pinned, pull, registry, request, settings};
use crate::server::{Framing, Reply, Seen, Server, file};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Answers as the hub does: HEAD with the headers of large file storage, GET with a redirect to another host.
fn hub(storage: &Server, model: &[u8], commit: &'static str) -> Server {
    let (storage, digest, size) = (storage.clone(), Digest::of(model), model.len());
    Server::start(move |seen, _| {
        // The same machine by another name is another host.
        let location = format!("http://localhost:{}{}?signature=s", storage.address.port(), seen.target);
        Reply::new(302, b"")
            .with("location", location)
            .with("x-repo-commit", commit)
            .with("x-linked-size", size.to_string())
            .with("x-linked-etag", format!("\"{digest}\""))
            .with("etag", "\"of-the-redirect\"")
    })
}

fn of_hub(dir: &std::path::Path, hub: &Server) -> Registry {
    let mut settings = settings(dir);
    settings.hf_endpoint = format!("http://{}", hub.address);
    settings.hf_token = Some(Token::new("HF_TOKEN", "hf_secret").unwrap());
    Registry::open(settings).unwrap()
}

#[test]
fn a_file_of_hugging_face_is_pulled_at_its_commit_and_the_token_stays_with_the_hub() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 300_000));
    let storage = {
        let model = model.clone();
        Server::start(move |seen, _| file(seen, &model, "stored"))
    };
    let hub = hub(&storage, &model, COMMIT);
    let registry = of_hub(dir.path(), &hub);
    let wanted = request("hf:org/repo/sub/x.gguf@v1");
    let pulled = pull(&registry, &wanted).0.unwrap();
    assert_eq!(fs::read(pulled.held.path()).unwrap(), model);
    assert_eq!((pulled.outcome, pulled.revision.as_deref()), (Outcome::Fetched, Some(COMMIT)));
    let asked: Vec<_> = hub.seen().iter().map(|seen| format!("{} {}", seen.method, seen.target)).collect();
    let [head, get] =
        ["HEAD /org/repo/resolve/v1/sub/x.gguf".to_owned(), format!("GET /org/repo/resolve/{COMMIT}/sub/x.gguf")];
    assert_eq!(asked, [head, get]);
    assert!(hub.seen().iter().all(|seen| seen.header("authorization") == Some("Bearer hf_secret")));
    assert_eq!(storage.seen().len(), 1);
    assert_eq!(storage.seen()[0].header("authorization"), None, "never to the host that a redirect leads to");
    let again = pull(&registry, &wanted).0.unwrap();
    assert_eq!((again.outcome, storage.seen().len(), hub.seen().len()), (Outcome::Current, 1, 3), "only asked about");
}

#[test]
fn a_digest_that_the_hub_contradicts_is_refused_before_anything_is_downloaded() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 3000));
    let storage = Server::start(|_, _| Reply::new(500, b""));
    let hub = hub(&storage, &model, COMMIT);
    let error = pull(&of_hub(dir.path(), &hub), &pinned("hf:org/repo/x.gguf", b"other")).0.unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");
    assert_eq!((hub.seen().len(), storage.seen().len()), (1, 0));
}

#[test]
fn bytes_past_the_announced_size_are_refused() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 30_000));
    let storage = Server::start(|_, _| Reply::new(200, &bytes(1, 30_001)).framed(Framing::Chunked));
    let hub = hub(&storage, &model, COMMIT);
    let error = pull(&of_hub(dir.path(), &hub), &request("hf:org/repo/x.gguf")).0.unwrap_err();
    assert!(matches!(error, RegistryError::Oversize { announced: 30_000, .. }), "{error}");
    assert_eq!((lying(dir.path(), "partials"), lying(dir.path(), "blobs")), (vec![], vec![]));
    let exact = Server::start(|_, _| Reply::new(200, &bytes(1, 30_000)).framed(Framing::Chunked));
    let hub = self::hub(&exact, &model, COMMIT);
    assert!(pull(&of_hub(dir.path(), &hub), &request("hf:org/repo/x.gguf")).0.is_ok(), "at the size itself");
}

#[test]
fn another_size_than_the_announced_one_is_refused() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 30_000));
    let storage = Server::start(|seen, _| file(seen, &bytes(1, 29_999), "a"));
    let hub = hub(&storage, &model, COMMIT);
    let error = pull(&of_hub(dir.path(), &hub), &request("hf:org/repo/x.gguf")).0.unwrap_err();
    assert!(matches!(error, RegistryError::WrongSize { expected: 30_000, got: 29_999, .. }), "{error}");
}

#[test]
fn a_new_commit_is_pulled_and_who_serves_the_old_file_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (bytes(1, 3000), bytes(2, 4000));
    let now = Arc::new(Mutex::new(old.clone()));
    let hub = {
        let now = now.clone();
        Server::start(move |seen, _| {
            let model = now.lock().unwrap().clone();
            let digest = Digest::of(&model);
            let reply = file(seen, &model, "a").with("x-linked-etag", format!("\"{digest}\""));
            reply.with("x-linked-size", model.len().to_string()).with("x-repo-commit", &digest.to_string()[..40])
        })
    };
    let registry = of_hub(dir.path(), &hub);
    let first = pull(&registry, &request("hf:org/repo/x.gguf")).0.unwrap();
    *now.lock().unwrap() = new.clone();
    let second = pull(&registry, &request("hf:org/repo/x.gguf")).0.unwrap();
    assert_eq!((second.outcome, fs::read(second.held.path()).unwrap()), (Outcome::Fetched, new));
    assert_eq!(fs::read(first.held.path()).unwrap(), old, "it is in use");
    drop(first);
    *now.lock().unwrap() = bytes(3, 10);
    pull(&registry, &request("hf:org/repo/x.gguf")).0.unwrap();
    drop(second);
    *now.lock().unwrap() = bytes(4, 10);
    pull(&registry, &request("hf:org/repo/x.gguf")).0.unwrap();
    assert_eq!(lying(dir.path(), "blobs").len(), 1, "what nobody uses any more is gone");
}

#[test]
fn a_file_without_a_digest_is_told_by_its_tag() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 3000));
    let hub = {
        let model = model.clone();
        Server::start(move |seen, _| file(seen, &model, "of-git").with("x-repo-commit", COMMIT))
    };
    let registry = of_hub(dir.path(), &hub);
    let pulled = pull(&registry, &request("hf:org/repo/x.gguf")).0.unwrap();
    assert_eq!(pulled.held.digest(), Digest::of(&model));
    assert_eq!(pull(&registry, &request("hf:org/repo/x.gguf")).0.unwrap().outcome, Outcome::Current);
    let methods: Vec<_> = hub.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["HEAD", "GET", "HEAD"]);
}

#[test]
fn a_gated_file_says_what_it_takes_and_a_bad_commit_is_no_path() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Server::start(|_, _| Reply::new(401, b""));
    let error = pull(&of_hub(dir.path(), &hub), &request("hf:org/repo/x.gguf")).0.unwrap_err();
    assert!(error.to_string().contains("HF_TOKEN") && !error.to_string().contains("hf_secret"), "{error}");
    let hub = Server::start(|_, _| Reply::new(404, b""));
    assert_eq!(pull(&of_hub(dir.path(), &hub), &request("hf:org/repo/x.gguf")).0.unwrap_err().class(), Class::Missing);
    let hub = Server::start(|seen, _| file(seen, b"x", "a").with("x-repo-commit", "../../../etc"));
    let error = pull(&of_hub(dir.path(), &hub), &request("hf:org/repo/x.gguf")).0.unwrap_err();
    assert!(matches!(error, RegistryError::BadAnswer { .. }), "{error}");
}

#[test]
fn the_environment_names_another_hub() {
    let of = |name: &str| (name == "HF_ENDPOINT").then(|| "https://hub.example.org".to_owned());
    let environment = Environment::of(of).unwrap();
    let settings = camshaft_registry::Settings::new(Some("/x".into()), environment).unwrap();
    assert_eq!(settings.hf_endpoint, "https://hub.example.org");
}

/// The parts of a split model, by name.
fn part_of<'a>(parts: &'a [Vec<u8>], seen: &Seen) -> Option<&'a [u8]> {
    let name = seen.target.rsplit('/').next()?;
    let found = (0..parts.len()).find(|at| name == format!("m-{:05}-of-{:05}.gguf", at + 1, parts.len()));
    found.map(|at| parts[at].as_slice())
}

#[test]
fn all_parts_of_a_split_model_lie_beside_each_other_under_their_own_names() {
    let parts: Vec<Vec<u8>> = (1..=3).map(|seed| bytes(seed, 20_000 + seed as usize)).collect();
    let server = {
        let parts = parts.clone();
        Server::start(move |seen, _| match part_of(&parts, seen) {
            Some(part) => file(seen, part, &Digest::of(part).to_string())
                .with("x-linked-etag", format!("\"{}\"", Digest::of(part)))
                .with("x-linked-size", part.len().to_string())
                .with("x-repo-commit", COMMIT),
            None => Reply::new(404, b""),
        })
    };
    let digests: Vec<Digest> = parts.iter().map(|part| Digest::of(part)).collect();
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let of_url = server.url("a/m-00002-of-00003.gguf");
    let mut by_url = request(&of_url);
    by_url.sha256 = Some(Digest::of_parts(&digests));
    for (registry, wanted) in [
        (of_hub(one.path(), &server), request("hf:o/r/m-00001-of-00003.gguf")),
        (registry(other.path()), by_url.clone()),
    ] {
        let pulled = pull(&registry, &wanted).0.unwrap();
        assert!(pulled.held.path().ends_with("m-00001-of-00003.gguf"));
        for (path, part) in pulled.held.files().iter().zip(&parts) {
            assert_eq!(&fs::read(path).unwrap(), part);
            assert_eq!(path.parent(), pulled.held.path().parent());
        }
        assert_eq!(pulled.held.digest(), Digest::of_parts(&digests));
        assert_eq!(pull(&registry, &wanted).0.unwrap().outcome, Outcome::Current);
    }
    let third = tempfile::tempdir().unwrap();
    by_url.sha256 = Some(digests[0]);
    let error = pull(&registry(third.path()), &by_url).0.unwrap_err();
    assert!(matches!(error, RegistryError::WrongDigest { .. }), "{error}");
    assert_eq!((lying(third.path(), "partials"), lying(third.path(), "blobs")), (vec![], vec![]));
}

#[test]
fn a_split_model_that_breaks_off_goes_on_with_the_part_that_is_missing() {
    let parts: Vec<Vec<u8>> = (1..=2).map(|seed| bytes(seed, 20_000)).collect();
    let digest = Digest::of_parts(&parts.iter().map(|part| Digest::of(part)).collect::<Vec<_>>());
    let server = {
        let parts = parts.clone();
        Server::start(move |seen, number| match part_of(&parts, seen) {
            Some(part) if number != 1 => file(seen, part, "a"),
            _ => Reply::new(404, b""),
        })
    };
    let (dir, mut wanted) = (tempfile::tempdir().unwrap(), request(&server.url("m-00001-of-00002.gguf")));
    wanted.sha256 = Some(digest);
    let registry = registry(dir.path());
    assert_eq!(pull(&registry, &wanted).0.unwrap_err().class(), Class::Missing);
    assert_eq!(lying(dir.path(), "names"), [""; 0], "not a part of a model");
    assert!(pull(&registry, &wanted).0.is_ok());
}

/// Answers as Ollama's registry does.
fn of_ollama(dir: &std::path::Path, manifest: impl Fn(Digest, usize) -> String, model: &[u8]) -> (Registry, Server) {
    let (digest, model) = (Digest::of(model), model.to_vec());
    let manifest = manifest(digest, model.len());
    let server = Server::start(move |seen, _| match seen.target.as_str() {
        "/v2/library/tiny/manifests/latest" | "/v2/me/tiny/manifests/8b" => Reply::new(200, manifest.as_bytes())
            .with("docker-content-digest", format!("sha256:{}", Digest::of(manifest.as_bytes()))),
        target if target.ends_with(&format!("/blobs/sha256:{digest}")) => file(seen, &model, "a"),
        _ => Reply::new(404, b""),
    });
    let mut settings = settings(dir);
    settings.ollama_registry = format!("http://{}", server.address);
    (Registry::open(settings).unwrap(), server)
}

fn manifest(digest: &str, size: usize) -> String {
    let layer = |kind: &str, digest: &str, size: usize| {
        format!("{{\"mediaType\":\"application/vnd.ollama.image.{kind}\",\"digest\":\"{digest}\",\"size\":{size}}}")
    };
    let other = layer("template", "sha256:../../../../template", 3);
    format!("{{\"schemaVersion\":2,\"config\":{{}},\"layers\":[{other},{}]}}", layer("model", digest, size))
}

#[test]
fn a_model_of_an_ollama_registry_is_the_layer_of_its_manifest() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 30_000));
    let (registry, server) = of_ollama(dir.path(), |digest, size| manifest(&format!("sha256:{digest}"), size), &model);
    let pulled = pull(&registry, &request("ollama:tiny")).0.unwrap();
    assert!(pulled.held.path().ends_with("tiny-latest.gguf") && pulled.revision.unwrap().starts_with("sha256:"));
    assert_eq!(fs::read(pulled.held.path()).unwrap(), model);
    assert!(server.seen()[0].header("accept").unwrap().contains("manifest.v2+json"));
    assert_eq!(pull(&registry, &request("ollama:tiny:latest")).0.unwrap().outcome, Outcome::Current);
    let by_host = request(&format!("{}/me/tiny:8b", server.address));
    let other = pull(&registry, &by_host).0.unwrap();
    assert_eq!(other.outcome, Outcome::Current, "the content is there");
    assert!(other.held.path().ends_with("tiny-8b.gguf"));
    assert_eq!(lying(dir.path(), "blobs").len(), 1);
    assert_eq!(pull(&registry, &request("ollama:none")).0.unwrap_err().class(), Class::Missing);
}

#[test]
fn hostile_manifests_lead_nowhere() {
    let model = bytes(1, 3000);
    for digest in ["sha256:../../../../etc/passwd", "../../x", "sha256:", &"a".repeat(500_000), &"é\u{1b}[2J".repeat(9)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (registry, server) = of_ollama(dir.path(), |_, size| manifest(digest, size), &model);
        let error = pull(&registry, &request("ollama:tiny")).0.unwrap_err();
        assert!(matches!(error, RegistryError::BadAnswer { .. }) && error.to_string().len() < 700, "{error}");
        assert_eq!((server.seen().len(), lying(dir.path(), "names")), (1, vec![]));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing beside the cache");
    }
}

#[test]
fn a_manifest_has_at_most_1_mib() {
    let model = bytes(1, 3000);
    for (more, fits) in [(0, true), (1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let padded = |digest: Digest, size| {
            let text = manifest(&format!("sha256:{digest}"), size);
            format!("{text}{}", " ".repeat((1 << 20) + more - text.len()))
        };
        let (registry, _) = of_ollama(dir.path(), padded, &model);
        assert_eq!(pull(&registry, &request("ollama:tiny")).0.is_ok(), fits, "{more}");
    }
}

#[test]
fn a_file_of_this_machine_is_copied_and_may_change_then() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 300_000));
    let path = dir.path().join("x.gguf");
    fs::write(&path, &model).unwrap();
    let (registry, source) = (registry(dir.path()), path.to_string_lossy().into_owned());
    assert!(matches!(pull(&registry, &pinned(&source, b"other")).0, Err(RegistryError::WrongDigest { .. })));
    let pulled = pull(&registry, &pinned(&source, &model)).0.unwrap();
    assert_eq!(pulled.outcome, Outcome::Fetched);
    fs::write(&path, b"other").unwrap();
    assert_eq!(fs::read(pulled.held.path()).unwrap(), model);
    fs::remove_file(&path).unwrap();
    assert_eq!(pull(&registry, &request(&source)).0.unwrap_err().class(), Class::Missing);
    assert!(registry.cached(&request(&source)).unwrap().is_some(), "what was there stays");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = pull(&registry, &request(&source)).0.unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    assert!(pull(&registry, &request(&dir.path().join("cache/blobs").to_string_lossy())).0.is_err(), "a directory");
}

#[test]
fn a_split_file_of_this_machine_needs_all_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let part = |number: u32| dir.path().join(format!("m-{number:05}-of-00002.gguf"));
    fs::write(part(1), b"one").unwrap();
    let (registry, source) = (registry(dir.path()), part(1).to_string_lossy().into_owned());
    assert_eq!(pull(&registry, &request(&source)).0.unwrap_err().class(), Class::Missing);
    assert_eq!(lying(dir.path(), "names"), [""; 0]);
    fs::write(part(2), b"two").unwrap();
    let held = pull(&registry, &request(&source)).0.unwrap().held;
    assert_eq!((held.files().len(), held.bytes()), (2, 6));
}
