//! Documents of files and URLs that change, fail and come back.
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use camshaft_core::policy::Hook;
use camshaft_core::threads::Spawner;
use crossbeam_channel::{Receiver, bounded};
use prometheus::{Registry, TextEncoder};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::{Document, DocumentMetrics, DocumentSpec, Library, Opened, Reader, Source};

const READER: Reader<'static> = Reader { hook: Hook::Auth, plugin: "x" };
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    library: Library,
    notices: Receiver<()>,
    metrics: Registry,
    dir: TempDir,
}

fn rig() -> Rig {
    let (notices, told) = bounded(1);
    let metrics = Registry::new();
    let library = Library::new(Spawner::detached(), notices, DocumentMetrics::register(&metrics).unwrap());
    Rig { library, notices: told, metrics, dir: tempfile::tempdir().unwrap() }
}

fn of_path(path: &Path, max_bytes: u64) -> DocumentSpec {
    let refresh = Duration::from_millis(20);
    DocumentSpec { name: "d".to_owned(), source: Source::Path(path.to_owned()), refresh, max_bytes }
}

fn of_url(url: &str, max_bytes: u64) -> DocumentSpec {
    let source = Source::Url { url: url.to_owned(), timeout: Duration::from_secs(2), ca: None };
    DocumentSpec { source, ..of_path(Path::new("/"), max_bytes) }
}

impl Rig {
    /// Asks until the document is there or cannot be had.
    fn open(&self, spec: &DocumentSpec) -> Result<Arc<Document>, String> {
        loop {
            match self.library.open(READER, std::slice::from_ref(spec)) {
                Ok(Opened::Ready(documents)) => return Ok(documents[0].clone()),
                Ok(Opened::Reading) => self.notices.recv_timeout(PATIENCE).expect("it is read in bounded time"),
                Err(missing) => return Err(missing.why),
            }
        }
    }

    fn metric(&self, series: &str) -> f64 {
        let text = TextEncoder::new().encode_to_string(&self.metrics.gather()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).trim().parse().unwrap()
    }

    fn stale(&self) -> f64 {
        self.metric("camshaft_policy_documents_stale{hook=\"auth\"}")
    }

    fn failed(&self) -> f64 {
        self.metric("camshaft_policy_document_reads_total{hook=\"auth\",result=\"failed\"}")
    }
}

fn wait(what: &str, mut reached: impl FnMut() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < PATIENCE, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn text(document: &Document) -> String {
    String::from_utf8(document.current().unwrap().bytes.clone()).unwrap()
}

/// Puts a file there as careful writers do.
fn put(path: &Path, content: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}

#[test]
fn the_last_good_version_of_a_file_stays_whatever_lies_there() {
    let rig = rig();
    let path = rig.dir.path().join("document");
    put(&path, b"first");
    let document = rig.open(&of_path(&path, 8)).unwrap();
    let first = document.current().unwrap().number;
    assert_eq!(text(&document), "first");
    let fails = |what: &str| {
        let before = rig.failed();
        wait(what, || rig.failed() > before + 1.0);
        assert_eq!((text(&document).as_str(), document.current().unwrap().number), ("first", first), "{what}");
        assert_eq!(rig.stale(), 1.0, "{what}");
    };
    put(&path, b"too large");
    fails("a file that is too large");
    put(&path, b"");
    fails("an empty file");
    fs::remove_file(&path).unwrap();
    fails("no file");
    fs::create_dir(&path).unwrap();
    fails("a directory");
    fs::remove_dir(&path).unwrap();
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fails("a pipe");
    fs::remove_file(&path).unwrap();
    put(&path, b"second 8");
    wait("the new version", || text(&document) == "second 8");
    assert!(document.current().unwrap().number > first);
    wait("none is stale", || rig.stale() == 0.0);
    fs::remove_file(&path).unwrap();
    wait("one is stale", || rig.stale() == 1.0);
    drop(document);
    // A thread may be reading it still.
    wait("what is gone is not stale", || rig.stale() == 0.0);
}

#[test]
fn a_file_that_is_rewritten_in_place_is_never_seen_half() {
    let rig = rig();
    let path = rig.dir.path().join("document");
    put(&path, b"AAAA");
    let document = rig.open(&of_path(&path, 64)).unwrap();
    for round in 0..5 {
        let whole = if round % 2 == 0 { "BBBBBBBB" } else { "AAAA" };
        let mut file = fs::File::create(&path).unwrap();
        for byte in whole.bytes() {
            file.write_all(&[byte]).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            assert!(["AAAA", "BBBBBBBB"].contains(&text(&document).as_str()));
        }
        drop(file);
        wait("the whole file", || text(&document) == whole);
    }
}

#[test]
fn a_document_that_was_never_there_is_refused_and_asked_for_again() {
    let rig = rig();
    let path = rig.dir.path().join("document");
    let spec = of_path(&path, 5);
    assert!(rig.open(&spec).unwrap_err().contains("No such file"));
    put(&path, b"123456");
    assert!(rig.open(&spec).unwrap_err().contains("has 6 bytes, more than the 5 allowed"));
    put(&path, b"12345");
    let document = rig.open(&spec).unwrap();
    let again = rig.open(&spec).unwrap();
    assert!(Arc::ptr_eq(&document, &again), "who has it open already waits for nothing");
}

/// What a server answers: the response, after which it keeps silent for a while.
type Answer = Arc<Mutex<(Vec<u8>, Duration)>>;

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body]
        .concat()
}

fn respond(mut stream: TcpStream, answer: &Answer) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let (bytes, silence) = answer.lock().unwrap().clone();
    // The client may have enough.
    let _ = stream.write_all(&bytes);
    std::thread::sleep(silence);
}

/// A server whose answer changes.
fn server() -> (String, Answer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let said: Answer = Arc::new(Mutex::new((answer("200 OK", b"first"), Duration::ZERO)));
    let answer = said.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            std::thread::spawn(move || respond(stream.unwrap(), &answer));
        }
    });
    (url, said)
}

#[test]
fn the_last_good_version_of_a_url_stays_whatever_answers() {
    let rig = rig();
    let (url, said) = server();
    let document = rig.open(&of_url(&url, 4096)).unwrap();
    assert_eq!(text(&document), "first");
    let say = |bytes: Vec<u8>, silence| *said.lock().unwrap() = (bytes, silence);
    let redirect = format!("302 Found\r\nlocation: {url}");
    let long = Duration::from_secs(3600);
    for (what, bytes, silence) in [
        ("an error", answer("500 Internal Server Error", b"no"), Duration::ZERO),
        ("no content", answer("204 No Content", b""), Duration::ZERO),
        ("an empty answer", answer("200 OK", b""), Duration::ZERO),
        ("a compressed one", answer("200 OK\r\ncontent-encoding: gzip", b"\x1f\x8b\x08"), Duration::ZERO),
        ("too much", answer("200 OK", &[b'x'; 4097]), Duration::ZERO),
        ("65 MiB", answer("200 OK", &vec![b'x'; 65 << 20]), Duration::ZERO),
        ("a circle of redirects", answer(&redirect, b""), Duration::ZERO),
        ("an answer that breaks off", answer("200 OK", b"whole")[..60].to_vec(), Duration::ZERO),
        ("no answer", Vec::new(), long),
        ("an answer that hangs", answer("200 OK", b"whole")[..60].to_vec(), long),
        ("no HTTP", b"SSH-2.0-x\r\n".to_vec(), Duration::ZERO),
    ] {
        say(bytes, silence);
        // The one that is under way may have had the answer before.
        let before = rig.failed();
        wait(what, || rig.failed() > before + 1.0);
        assert_eq!((text(&document).as_str(), rig.stale()), ("first", 1.0), "{what}");
    }
    say(answer("200 OK", &[b'y'; 4096]), Duration::ZERO);
    wait("the new version, at the bound", || text(&document).len() == 4096 && rig.stale() == 0.0);
    say(answer("503 Service Unavailable", b""), Duration::ZERO);
    let spec = DocumentSpec { name: "other".to_owned(), ..of_url(&url, 4096) };
    assert_eq!(rig.open(&spec).unwrap_err(), "the server answers 503");
}

#[test]
fn a_document_that_hangs_delays_no_other() {
    let rig = rig();
    let (url, said) = server();
    *said.lock().unwrap() = (Vec::new(), Duration::from_secs(3600));
    let slow = of_url(&url, 64);
    assert!(matches!(rig.library.open(READER, std::slice::from_ref(&slow)), Ok(Opened::Reading)));
    let path = rig.dir.path().join("document");
    put(&path, b"here");
    let document = rig.open(&of_path(&path, 64)).unwrap();
    assert!(matches!(rig.library.open(READER, std::slice::from_ref(&slow)), Ok(Opened::Reading)), "it hangs still");
    assert_eq!(text(&document), "here");
    assert_eq!(rig.open(&slow).unwrap_err(), "the server does not answer in time");
}

#[test]
fn https_trusts_what_the_operator_names_and_nothing_else() {
    let rig = rig();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, ca) = (made.cert.der().clone(), rig.dir.path().join("ca.pem"));
    fs::write(&ca, made.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let (plain, _) = server();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream.unwrap());
            let mut request = [0; 4096];
            let Ok(read) = stream.read(&mut request) else { continue };
            let is_down = request[..read].starts_with(b"GET /down");
            let redirect = format!("302 Found\r\nlocation: {plain}");
            let said = if is_down { answer(&redirect, b"") } else { answer("200 OK", b"sealed") };
            let _ = stream.write_all(&said);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    let spec = |path: &str, ca| {
        let source = Source::Url { url: format!("{url}{path}"), timeout: Duration::from_secs(10), ca };
        DocumentSpec { source, ..of_url("", 64) }
    };
    assert_eq!(text(&rig.open(&spec("", Some(ca.clone()))).unwrap()), "sealed");
    // The test's machine may have no certificates at all.
    rig.open(&spec("", None)).unwrap_err();
    let why = rig.open(&spec("down", Some(ca.clone()))).unwrap_err();
    assert!(why.contains("https"), "no redirect leads out of TLS: {why}");
    fs::write(&ca, "no certificate").unwrap();
    assert!(rig.open(&spec("again", Some(ca))).unwrap_err().contains("no certificate to trust"));
}

#[test]
fn regression_a_document_that_no_thread_can_read_keeps_nobody_waiting() {
    let (notices, told) = bounded(1);
    let spawner = Spawner::new(|_, _| Err(std::io::Error::other("no more threads")));
    let library = Library::new(spawner, notices, DocumentMetrics::register(&Registry::new()).unwrap());
    let spec = of_path(Path::new("/x"), 8);
    assert!(matches!(library.open(READER, std::slice::from_ref(&spec)), Ok(Opened::Reading)));
    told.recv_timeout(PATIENCE).expect("whoever waits is told");
    let missing = library.open(READER, std::slice::from_ref(&spec)).unwrap_err();
    assert!(missing.why.contains("no thread"), "{}", missing.why);
}

#[test]
fn regression_a_file_from_the_future_is_read() {
    let rig = rig();
    let path = rig.dir.path().join("document");
    put(&path, b"later");
    let later = std::time::SystemTime::now() + Duration::from_secs(3600);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!(text(&rig.open(&of_path(&path, 8)).unwrap()), "later");
}

#[test]
fn regression_where_a_redirect_leads_is_not_told() {
    let spec = |location: &str| {
        let (url, said) = server();
        *said.lock().unwrap() = (answer(&format!("302 Found\r\nlocation: {location}"), b""), Duration::ZERO);
        of_url(&url, 8)
    };
    for location in ["http://127.0.0.1:1/?token=hidden", "bad://hidden", "http://[hidden/"] {
        let why = rig().open(&spec(location)).unwrap_err();
        assert!(!why.contains("hidden"), "{why}");
    }
}
