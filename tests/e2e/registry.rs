//! `camshaft model`, and models that are served from the cache, against a server on this machine.
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use camshaft_tests::{Finished, Setup, demo_model};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Serves the demo model at every path, as Hugging Face and as a plain server does.
#[derive(Clone)]
struct Hub {
    address: SocketAddr,
    /// Request lines.
    asked: Arc<Mutex<Vec<String>>>,
    sha256: String,
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl Hub {
    fn start() -> Self {
        let model = std::fs::read(demo_model()).expect("the demo model can be read");
        let sha256 = Sha256::digest(&model).iter().map(|byte| format!("{byte:02x}")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let hub = Self { address, asked: Arc::default(), sha256 };
        let serving = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (hub, model) = (serving.clone(), model.clone());
                std::thread::spawn(move || hub.answer(stream, &model));
            }
        });
        hub
    }

    fn answer(&self, stream: TcpStream, model: &[u8]) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut request = String::new();
            reader.read_line(&mut request).ok().filter(|n| *n > 0)?;
            let mut known = false;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                known |= line.to_ascii_lowercase().starts_with("if-none-match: \"demo\"");
                if line.trim_end().is_empty() {
                    break;
                }
            }
            self.asked.lock().expect("nobody panics with it").push(request.trim_end().to_owned());
            let missing = request.contains("missing");
            let (status, length) = match (missing, known) {
                (true, _) => ("404 x", 0),
                (_, true) => ("304 x", 0),
                _ => ("200 x", model.len()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\netag: \"demo\"\r\nx-repo-commit: {COMMIT}\r\n\
                 x-linked-etag: \"{}\"\r\nx-linked-size: {}\r\n\r\n",
                self.sha256,
                model.len()
            );
            let stream = reader.get_mut();
            stream.write_all(head.as_bytes()).ok()?;
            if length > 0 && !request.starts_with("HEAD") {
                stream.write_all(model).ok()?;
            }
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics with it").clone()
    }
}

/// With a cache of its own, and this hub.
fn setup(hub: &Hub) -> Setup {
    let setup = Setup::new();
    let cache = setup.scratch.path().join("models").to_string_lossy().into_owned();
    setup
        .env("CAMSHAFT_MODELS__CACHE_DIR", &cache)
        .env("CAMSHAFT_MODELS__HF_ENDPOINT", &format!("http://{}", hub.address))
}

fn good(finished: Finished) -> String {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

fn listed(setup: &Setup) -> Value {
    serde_json::from_str(&good(setup.run_again(&["model", "list", "--json"]))).expect("it writes JSON")
}

#[test]
fn a_model_is_pulled_listed_verified_and_removed() {
    let hub = Hub::start();
    let setup = setup(&hub);
    let pull = ["model", "pull", "hf:org/repo/x.gguf", "--as", "mine"];
    let pulled = setup.run_again(&pull);
    assert!(pulled.stderr.contains("100 %"), "{}", pulled.stderr);
    let pulled = good(pulled);
    for part in ["mine: pulled", COMMIT, &hub.sha256, "x.gguf"] {
        assert!(pulled.contains(part), "{part}: {pulled}");
    }
    assert!(good(setup.run_again(&pull)).contains("mine: is current"));
    assert_eq!(hub.asked().iter().filter(|line| line.starts_with("GET")).count(), 1);
    let list = listed(&setup);
    let model = &list["models"][0];
    assert_eq!(
        (&model["name"], &model["in_use"], &model["sha256"]),
        (&json!("mine"), &json!(false), &json!(hub.sha256))
    );
    assert!(good(setup.run_again(&["model", "list"])).contains("mine"));
    assert!(good(setup.run_again(&["model", "verify"])).contains("mine: ok"));

    let file = std::fs::canonicalize(model["path"].as_str().expect("a path")).expect("it is there");
    let mut bytes = std::fs::read(&file).expect("it can be read");
    bytes[1000] ^= 1;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    std::fs::write(&file, bytes).expect("it can be written");
    let damaged = setup.run_again(&["model", "verify", "mine"]);
    assert_eq!((damaged.code, damaged.stdout.contains("mine: damaged")), (Some(65), true), "{}", damaged.stdout);
    assert!(good(setup.run_again(&pull)).contains("mine: pulled"));

    assert!(good(setup.run_again(&["model", "remove", "mine"])).contains("mine: removed"));
    assert_eq!(listed(&setup)["models"], json!([]));
    assert_eq!(setup.run_again(&["model", "remove", "mine"]).code, Some(66));
}

#[test]
fn exit_codes_say_what_kind_of_failure_a_pull_met() {
    let hub = Hub::start();
    let setup = setup(&hub);
    let url = format!("http://{}/x.gguf", hub.address);
    let (missing, other) = (format!("http://{}/missing.gguf", hub.address), "0".repeat(64));
    let code = |arguments: &[&str], code: i32, words: &str| {
        let finished = setup.run_again(&[&["model", "pull"], arguments].concat());
        assert_eq!(
            (finished.code, finished.stderr.contains(words)),
            (Some(code), true),
            "{arguments:?}: {}",
            finished.stderr
        );
    };
    code(&[&url], 64, "--sha256");
    code(&[&url, "--sha256", "12"], 64, "64 hexadecimal digits");
    code(&[&url, "--sha256", &other], 65, "wrong digest");
    code(&[&missing, "--sha256", &other], 66, "not found");
    code(&["hf:nonsense"], 64, "hf:ORG/REPO/FILE");
    code(&["http://192.0.2.1/x.gguf", "--sha256", &other], 64, "--allow-http");
    code(&["./none.gguf"], 66, "No such file");
    assert!(good(setup.run_again(&["model", "pull", &url, "--sha256", &hub.sha256])).contains(": pulled"));
    assert!(good(setup.run_again(&["model", "pull", &format!("{url}#sha256={}", hub.sha256)])).contains("is current"));
}

#[test]
fn a_model_with_a_source_is_pulled_at_start_served_from_the_cache_and_held_in_it() {
    let hub = Hub::start();
    let beside = Setup::new();
    let cache = beside.scratch.path().join("models").to_string_lossy().into_owned();
    let beside = beside.env("CAMSHAFT_MODELS__CACHE_DIR", &cache);
    let config = "[[model]]\nid = \"hub\"\nsource = \"hf:org/repo/x.gguf\"\nthreads = 1\n";
    let server = setup(&hub).env("CAMSHAFT_MODELS__CACHE_DIR", &cache).config(config).start();
    let answer = server.client.ask("/v1/completions", &json!({"model": "hub", "prompt": "a", "max_tokens": 2}));
    assert_eq!(answer["model"], "hub");
    assert_eq!(listed(&beside)["models"][0]["in_use"], json!(true));
    let refused = beside.run_again(&["model", "remove", "hf:org/repo/x.gguf"]);
    assert_eq!((refused.code, refused.stderr.contains("in use")), (Some(69), true), "{}", refused.stderr);
    let asked = hub.asked().len();
    // Another server finds it in the cache, and asks nobody.
    let offline = Setup::new().env("CAMSHAFT_MODELS__CACHE_DIR", &cache).config(config).start();
    assert_eq!(offline.client.get("/v1/models/hub").status, 200);
    assert_eq!(hub.asked().len(), asked);
    drop((server, offline));
    assert!(good(beside.run_again(&["model", "remove", "hf:org/repo/x.gguf"])).contains("removed"));
}

#[test]
fn a_source_on_the_command_line_is_served_under_its_files_name_and_one_that_fails_ends_the_start() {
    let hub = Hub::start();
    let server = setup(&hub).args(["--model", "hf:org/repo/sub/small.Q4.gguf@v1"]).start();
    assert_eq!(server.client.get("/v1/models/small.Q4").status, 200);
    drop(server);
    let failed = setup(&hub).args(["--model", "hf:org/repo/missing.gguf"]).run(&["serve"]);
    assert_eq!(failed.code, Some(66), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("model \"missing\": cannot be pulled") && failed.stderr.contains("--model"),
        "{}",
        failed.stderr
    );
    let unchecked = setup(&hub).args(["--model", "hf:org/repo/x.gguf"]).run(&["check"]);
    assert!(unchecked.stdout.contains("not in the cache") && unchecked.code == Some(0), "{}", unchecked.stdout);
    for (line, words) in [
        ("source = \"hf:org/repo/x.gguf\"\npath = \"x.gguf\"", "path as well"),
        ("source = \"./x.gguf\"", "path is for files"),
        ("source = \"https://h/x.gguf\"", "needs the file's digest"),
        ("source = \"hf:x\"", "hf:ORG/REPO/FILE"),
    ] {
        let refused = setup(&hub).config(&format!("[[model]]\n{line}\n")).run(&["check"]);
        assert_eq!((refused.code, refused.stderr.contains(words)), (Some(64), true), "{line}: {}", refused.stderr);
    }
}
