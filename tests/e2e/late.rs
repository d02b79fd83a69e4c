//! Values that turn out wrong only when they are used: `serve` and `check` name who wrote them, as they do for values that
//! are refused while they are read.
use std::fs;
use std::net::TcpListener;

use camshaft_tests::{Finished, Setup};

/// The exit code, and words that standard error has to hold.
fn assert_exit(finished: &Finished, code: i32, words: &[&str]) {
    assert_eq!(finished.code, Some(code), "{finished:?}");
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} in {finished:?}");
    }
}

/// Both commands refuse what `setup` is configured with.
fn refused(setup: &Setup, code: i32, words: &[&str]) {
    for command in ["serve", "check"] {
        assert_exit(&setup.run_again(&[command]), code, words);
    }
}

fn alone(setup: Setup) -> Setup {
    setup.args(["--policy-dir", "none"])
}

#[test]
fn regression_certificates_that_are_missing_name_their_line() {
    let setup = alone(Setup::new().config("[tls]\ncert = \"none.pem\"\nkey = \"none.key\"\n"));
    refused(&setup, 64, &["tls.cert = ", "none.pem", "config.toml:2)"]);
    let setup = alone(Setup::new());
    fs::write(setup.scratch.path().join("cert.pem"), rcgen_certificate()).unwrap();
    let setup = setup.config("[tls]\ncert = \"cert.pem\"\n").env("CAMSHAFT_TLS__KEY", "none.key");
    refused(&setup, 64, &["tls.key = none.key", "(environment CAMSHAFT_TLS__KEY)"]);
}

fn rcgen_certificate() -> String {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem()
}

#[test]
fn regression_model_files_that_are_missing_or_bad_name_their_flag_variable_or_line() {
    let flag = alone(Setup::new()).args(["--model", "nowhere.gguf"]);
    refused(&flag, 66, &["nowhere.gguf", "(flag --model)"]);
    let variable = alone(Setup::new()).env("CAMSHAFT_MODEL__0__PATH", "nowhere.gguf");
    refused(&variable, 66, &["nowhere.gguf", "(environment CAMSHAFT_MODEL__0__PATH)"]);
    let digest = alone(Setup::new().config(&format!("[[model]]\nsha256 = \"{}\"\n", "0".repeat(64))));
    refused(&digest, 65, &["SHA-256", "config.toml:2)"]);
    for (key, line) in [("lora", 3), ("draft-model", 3)] {
        let setup = alone(Setup::new());
        fs::write(setup.scratch.path().join("text.gguf"), "not a model").unwrap();
        let setup = setup.config(&format!("[[model]]\nid = \"m\"\n{key} = \"text.gguf\"\n"));
        refused(&setup, 65, &["model \"m\"", "text.gguf", &format!("config.toml:{line})")]);
    }
}

#[test]
fn regression_settings_that_do_not_fit_the_model_name_their_source() {
    let setup = alone(Setup::new().config("[[model]]\nid = \"m\"\ndimensions = [8]\n"));
    refused(&setup, 64, &["model.0.dimensions = [8]", "only for models that embed", "config.toml:3)"]);
}

#[test]
fn regression_a_policy_directory_that_cannot_be_read_names_its_source() {
    let setup = Setup::new();
    fs::create_dir_all(setup.scratch.path().join("policies")).unwrap();
    fs::write(setup.scratch.path().join("policies/auth"), "no directory").unwrap();
    let dir = setup.scratch.path().join("policies").display().to_string();
    refused(&setup.args(["--policy-dir", &dir]), 64, &["policy.dir", "policies/auth", "(flag --policy-dir)"]);
    let setup = Setup::new();
    let file = setup.scratch.path().join("file").display().to_string();
    fs::write(&file, "no directory").unwrap();
    refused(&setup.args(["--policy-dir", &file]), 64, &["policy.dir", &file, "(flag --policy-dir)"]);
}

#[test]
fn regression_an_address_in_use_names_its_source() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let setup = alone(Setup::new()).args(["--admin-listen", &address]);
    assert_exit(&setup.run_again(&["serve"]), 69, &[&address, "(flag --admin-listen)"]);
}

#[test]
fn regression_check_opens_the_disk_directory_and_names_its_source() {
    let setup = alone(Setup::new());
    fs::write(setup.scratch.path().join("taken"), "a file").unwrap();
    let setup = setup.config("[cache]\ndisk = \"1GiB\"\ndisk-dir = \"taken\"\n");
    assert_exit(&setup.run_again(&["check"]), 64, &["cache.disk-dir = ", "taken", "config.toml:3)"]);
    let server = setup.start_as_is("serve");
    let log = server.settled_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("no prefixes are kept on disk")).collect();
    assert!(lines.len() == 1 && lines[0].contains("config.toml:3)"), "{log}");
}

#[test]
fn regression_check_beside_a_server_does_not_mind_its_disk_cache() {
    let kept = tempfile::tempdir().unwrap();
    let dir = kept.path().to_string_lossy();
    let setup = || alone(Setup::new()).set("cache.disk", "1GiB").set("cache.disk-dir", &dir);
    let _server = setup().start_as_is("serve");
    let finished = setup().run(&["check"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

#[test]
fn check_says_in_whose_notation_a_model_writes() {
    let said = |setup: Setup| {
        let finished = setup.run(&["check"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let line = finished.stdout.lines().find(|line| line.contains("tool calls and thinking")).map(str::to_owned);
        line.expect("a line about its family")
    };
    let demo = "model demo: tool calls and thinking as of family ";
    assert_eq!(said(Setup::new()), format!("{demo}hermes"));
    let named = Setup::new().config("[[model]]\nid = \"demo\"\npath = \"demo\"\nfamily = \"granite\"\n");
    assert_eq!(said(named), format!("{demo}granite, though its chat template shows hermes"));
}

#[test]
fn regression_check_leaves_nothing_behind() {
    let kept = tempfile::tempdir().unwrap();
    let dir = kept.path().join("not/there/yet");
    let finished =
        alone(Setup::new()).set("cache.disk", "1GiB").set("cache.disk-dir", &dir.to_string_lossy()).run(&["check"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(fs::read_dir(kept.path()).unwrap().next().is_none(), "check makes nothing");
}

#[test]
fn regression_what_is_enforced_names_the_port_that_the_system_chose() {
    let server = alone(Setup::new()).start_as_is("serve");
    let log = server.settled_log();
    let line = log.lines().find(|line| line.contains("open to operators at ")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&format!("open to operators at {}: ", server.admin.address)), "{line}");
}

#[test]
fn regression_a_cache_directory_that_others_can_reach_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let setup = alone(Setup::new());
    let dir = setup.scratch.path().join("cache");
    fs::create_dir(&dir).unwrap();
    let setup = setup.set("cache.disk-dir", &format!("{dir:?}")).set("cache.disk", "\"10MiB\"");
    assert_exit(&setup.run_again(&["check"]), 0, &[]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let words = ["cache.disk-dir = ", "can be written to by others (mode 777)", "(flag --set cache.disk-dir)"];
    assert_exit(&setup.run_again(&["check"]), 64, &words);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(dir.join("0123456789abcdef")).unwrap();
    fs::write(dir.join("0123456789abcdef/key"), [7; 32]).unwrap();
    fs::set_permissions(dir.join("0123456789abcdef/key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_exit(&setup.run_again(&["check"]), 64, &["0123456789abcdef/key can be read by others (mode 644)"]);
}
