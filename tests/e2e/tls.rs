//! HTTPS on the public listener.
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use camshaft_tests::{Server, Setup};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

/// A server with a certificate of its own for `localhost`, and that certificate.
fn serve(more: &str) -> (Server, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let setup = Setup::new();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| setup.scratch.path().join(name));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = setup.config(&format!("[tls]\ncert = {cert:?}\nkey = {key:?}\n{more}")).start();
    (server, made.cert.der().clone())
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

type Pair = rcgen::CertifiedKey<rcgen::KeyPair>;

fn connect(server: &Server, trusted: &CertificateDer<'static>, protocols: &[&str]) -> Tls {
    connect_as(server, trusted, protocols, None)
}

/// Shows a certificate, if the client has one.
fn connect_as(server: &Server, trusted: &CertificateDer<'static>, protocols: &[&str], own: Option<&Pair>) -> Tls {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![own.cert.der().clone()], key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(server.client.address).unwrap();
    socket.set_read_timeout(Some(camshaft_tests::PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
}

fn exchange(mut tls: Tls, request: &str) -> String {
    tls.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    tls.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn requests_and_streams_come_through_tls() {
    let (server, trusted) = serve("");
    let body =
        json!({"model": "demo", "prompt": "1, 2,", "max_tokens": 8, "ignore_eos": true, "stream": true}).to_string();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = exchange(connect(&server, &trusted, &["http/1.1"]), &request);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("data: [DONE]"), "{answer}");

    // A client that offers HTTP/2 gets it: the server begins with its settings, a frame of type 4.
    let mut tls = connect(&server, &trusted, &["h2", "http/1.1"]);
    tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut frame = [0; 9];
    tls.read_exact(&mut frame).unwrap();
    assert_eq!((tls.conn.alpn_protocol(), frame[3]), (Some(b"h2".as_slice()), 4));

    // The admin listener stays on loopback and without TLS.
    assert_eq!(server.admin.get("/admin/models").status, 200);
}

const GET: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[test]
fn regression_clients_without_tls_and_silent_clients_are_closed_and_delay_nobody() {
    let (mut server, trusted) = serve("[limits]\nconnections = 10\nheader-timeout = \"2s\"\n");
    // More than there is room for. Some begin a handshake, and some end it and ask for nothing.
    let mut silent: Vec<TcpStream> = (0..20).map(|_| server.client.connect()).collect();
    for socket in &mut silent[..5] {
        socket.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    }
    let answer = exchange(connect(&server, &trusted, &["http/1.1"]), GET);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut shaken = connect(&server, &trusted, &["h2"]);
    shaken.flush().unwrap();
    let mut plain = server.client.connect();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The connection may end in any way, but without an answer in plain text.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    for mut socket in silent {
        let mut bytes = [0; 64];
        // The read times out only if the server keeps the connection.
        let end = socket.read(&mut bytes);
        let kept = end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!kept && !matches!(end, Ok(1..) if !bytes.starts_with(&[21])), "{end:?}");
    }
    let mut bytes = Vec::new();
    let end = shaken.read_to_end(&mut bytes);
    assert!(!end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "a handshake wins no time");
    server.assert_runs();
}

#[test]
fn regression_a_new_certificate_is_used_without_a_restart() {
    let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (first, second) = (made(), made());
    let setup = Setup::new();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| setup.scratch.path().join(name));
    let write = |pair: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        fs::write(&cert, pair.cert.pem()).unwrap();
        fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    };
    write(&first);
    let server = setup.config(&format!("[tls]\ncert = {cert:?}\nkey = {key:?}\n")).start();
    let answers = |pair: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let mut tls = connect(&server, pair.cert.der(), &["http/1.1"]);
        tls.write_all(GET.as_bytes()).is_ok() && tls.read(&mut [0; 64]).is_ok()
    };
    assert!(answers(&first) && !answers(&second));
    fs::write(&key, "no key").unwrap();
    let reloaded = server.admin.post("/admin/reload", &json!({}));
    assert!(reloaded.text().contains("tls.key"), "{}", reloaded.text());
    assert!(answers(&first), "the one before stays in force");
    write(&second);
    assert_eq!(server.admin.post("/admin/reload", &json!({})).status, 200);
    assert!(answers(&second) && !answers(&first));
}

/// The answer to a client with this certificate; `None`: there is no connection.
fn asked_by(server: &Server, trusted: &CertificateDer<'static>, own: Option<&Pair>) -> Option<String> {
    const MODELS: &str = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut tls = connect_as(server, trusted, &["http/1.1"], own);
    let mut answer = String::new();
    // With TLS 1.3 a client learns only after its handshake that the server wants no connection.
    tls.write_all(MODELS.as_bytes()).ok()?;
    tls.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn clients_show_certificates_where_they_have_to_and_auth_sees_them() {
    let made = || rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
    let (known, stranger) = (made(), made());
    let tells = "[policy]\ndeadline = \"5s\"\n[settings]\nbehave = \"tell\"\n";
    for mode in ["request", "require"] {
        let setup = Setup::new();
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let [cert, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| setup.scratch.path().join(name));
        fs::write(&cert, own.cert.pem()).unwrap();
        fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        fs::write(&ca, known.cert.pem()).unwrap();
        let clients = format!("client-auth = {mode:?}\nclient-ca = {ca:?}\n");
        let config = format!("[tls]\ncert = {cert:?}\nkey = {key:?}\n{clients}");
        let server = setup.guest("auth", "10-a", tells).config(&config).start();
        let ask = |client| asked_by(&server, own.cert.der(), client);
        let shown = |answer: Option<String>| {
            let answer = answer?;
            Some(answer.contains(&format!(" [{}] None 4", known.cert.der().len())))
        };
        assert_eq!(shown(ask(Some(&known))), Some(true), "{mode}");
        assert_eq!(shown(ask(None)), (mode == "request").then_some(false), "{mode}");
        assert_eq!(ask(Some(&stranger)), None, "{mode}: nobody vouches for it");
        // Who vouches changes with the files; a connection begun then knows no one else.
        fs::write(&ca, stranger.cert.pem()).unwrap();
        assert_eq!(server.admin.post("/admin/reload", &json!({})).status, 200);
        assert!(ask(Some(&known)).is_none() && ask(Some(&stranger)).is_some(), "{mode}");
        fs::write(&ca, "no certificate").unwrap();
        let reloaded = server.admin.post("/admin/reload", &json!({}));
        assert!(reloaded.text().contains("tls.client-ca"), "{}", reloaded.text());
        assert!(ask(Some(&stranger)).is_some(), "the one before stays in force");
    }
}

#[test]
fn files_that_hold_no_certificate_are_named() {
    for (cert, key, named) in [("no", "key", "tls.cert"), ("cert", "no", "tls.key"), ("key", "key", "tls.cert")] {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let setup = Setup::new();
        let path = |name: &str| setup.scratch.path().join(name);
        fs::write(path("cert"), made.cert.pem()).unwrap();
        fs::write(path("key"), made.signing_key.serialize_pem()).unwrap();
        let setup = setup.config(&format!("[tls]\ncert = {cert:?}\nkey = {key:?}\n"));
        for command in ["serve", "check"] {
            let ended = setup.run_again(&[command]);
            assert_eq!(ended.code, Some(64), "{command} {cert} {key}: {}", ended.stderr);
            assert!(ended.stderr.contains(named), "{command} {cert} {key}: {}", ended.stderr);
        }
    }
}
