//! What runs the server as a service: its health command, and the unit for systemd.
use std::path::Path;
use std::process::{Command, Output};

use camshaft_tests::{Setup, binary, repository};
use serde_json::json;

fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn the_health_command_tells_whether_a_server_lives_and_serves() {
    let mut server = Setup::new().start();
    let (public, admin) = (server.client.address.to_string(), server.admin.address.to_string());
    let ask = |admin: &str, more: &[&str]| {
        run(Command::new(binary()).args(["health", "--listen", &public, "--admin-listen", admin]).args(more))
    };
    for listen in [admin.as_str(), ""] {
        assert_eq!((ask(listen, &[]).0, ask(listen, &["--ready"]).0), (Some(0), Some(0)), "{listen:?}");
    }
    // An address that is given is the one that is asked, whoever else is there.
    let at = |listen: &str| run(Command::new(binary()).args(["health", "--listen", listen]));
    assert_eq!(at(&public).0, Some(0));
    let (code, said) = at("127.0.0.1:1");
    assert!(code == Some(69) && said.contains("127.0.0.1:1/healthz"), "{code:?} {said}");
    assert_eq!(server.admin.post("/admin/drain", &json!({})).status, 200);
    let (code, said) = ask(&admin, &["--ready"]);
    assert!(code == Some(69) && said.contains("/readyz") && said.contains("503"), "{code:?} {said}");
    assert_eq!(ask(&admin, &[]).0, Some(0), "it lives");
    server.signal(rustix::process::Signal::KILL);
    server.wait();
    let (code, said) = ask(&admin, &[]);
    assert!(code == Some(69) && said.contains("/healthz"), "{code:?} {said}");
    let tls = ["--set", "tls.cert=c.pem", "--set", "tls.key=k.pem"];
    let (code, said) = ask("", &tls);
    assert!(code == Some(64) && said.contains("encrypted"), "{code:?} {said}");
}

/// The unit, with the binary where it lies here.
fn unit(dir: &Path) -> std::path::PathBuf {
    let text = std::fs::read_to_string(repository().join("config/systemd/camshaft.service")).unwrap();
    let changed = text.replace("/opt/camshaft/camshaft", &binary().to_string_lossy());
    assert_ne!(changed, text);
    let path = dir.join("camshaft.service");
    std::fs::write(&path, changed).unwrap();
    path
}

#[test]
fn given_systemd_the_unit_is_valid_and_leaves_the_server_little() {
    let dir = tempfile::tempdir().unwrap();
    let unit = unit(dir.path());
    let (code, said) = run(Command::new("systemd-analyze").args(["verify", "--recursive-errors=no"]).arg(&unit));
    assert!(code == Some(0) && said.is_empty(), "{code:?} {said}");
    // Of 100, where 100 is everything.
    let (code, said) =
        run(Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=20"]).arg(&unit));
    assert_eq!(code, Some(0), "{said}");
}
