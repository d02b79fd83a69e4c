//! What a settings file may say of documents and secrets.
use std::path::PathBuf;
use std::time::Duration;

use camshaft_core::policy::Hook;

use super::Sidecar;
use crate::documents::Source;
use crate::secrets::SecretSource;

fn read(text: &str) -> Result<Sidecar, String> {
    Sidecar::read(Hook::Auth, "10-x.toml", text.as_bytes()).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    read(text).expect_err(text)
}

#[test]
fn reads_documents_of_files_and_urls() {
    let sidecar = read(
        r#"
        [documents.jwks]
        url = "https://idp.example/jwks?key=1"
        refresh = "5m"
        timeout = "30s"
        max-bytes = "8MiB"
        ca = "/etc/ca.pem"
        [documents.deny-list]
        path = "/etc/deny"
        "#,
    );
    let documents = sidecar.unwrap().documents;
    let [deny, jwks] = [0, 1].map(|index| documents[index].clone());
    assert_eq!((deny.name.as_str(), deny.refresh, deny.max_bytes), ("deny-list", Duration::from_secs(60), 1 << 20));
    assert_eq!(deny.source, Source::Path(PathBuf::from("/etc/deny")));
    assert_eq!((jwks.refresh, jwks.max_bytes), (Duration::from_secs(300), 8 << 20));
    assert_eq!(jwks.source.to_string(), "https://idp.example/jwks", "what may be a key is not shown");
    assert!(matches!(jwks.source, Source::Url { timeout, .. } if timeout == Duration::from_secs(30)));
}

#[test]
fn refuses_documents_out_of_bounds_naming_the_bound() {
    let path = "path = \"/x\"";
    let url = "url = \"http://x/\"";
    for (lines, said) in [
        ("refresh = \"1s\"".to_owned(), "either path or url"),
        (format!("{path}\n{url}"), "either path or url"),
        ("path = \"relative\"".to_owned(), "absolute path"),
        ("path = 5".to_owned(), "absolute path"),
        ("url = \"ftp://x/\"".to_owned(), "begins with http"),
        ("url = \"https://me:secret@x/\"".to_owned(), "names no user"),
        ("url = \"https:///x\"".to_owned(), "begins with http"),
        ("url = \"https://x/ y\"".to_owned(), "without spaces"),
        (format!("url = \"https://x/{}\"", "y".repeat(2039)), "2048"),
        (format!("{path}\nrefresh = \"999ms\""), "\"1s\" to \"24h\""),
        (format!("{path}\nrefresh = \"25h\""), "\"1s\" to \"24h\""),
        (format!("{path}\nmax-bytes = \"0B\""), "\"8MiB\""),
        (format!("{path}\nmax-bytes = \"8388609B\""), "\"8MiB\""),
        (format!("{path}\ntimeout = \"1s\""), "only a document with a url"),
        (format!("{url}\ntimeout = \"31s\""), "\"30s\""),
        (format!("{url}\ntimeout = \"99ms\""), "\"100ms\""),
        (format!("{url}\nca = \"/x\""), "https"),
        (format!("{path}\nmax-byte = \"1B\""), "did you mean `documents.x.max-bytes`?"),
    ] {
        let text = refused(&format!("[documents.x]\n{lines}"));
        assert!(text.contains(said) && !text.contains("secret"), "{lines}: {text}");
    }
    assert!(read("[documents.x]\nurl = \"https://x/y\"\nrefresh = \"24h\"\ntimeout = \"100ms\"").is_ok());
    assert!(read(&format!("[documents.x]\nurl = \"https://x/{}\"", "y".repeat(2038))).is_ok());
    for name in ["X", "a_b", "\"\"", &"x".repeat(65)] {
        assert!(refused(&format!("[documents.{name}]\n{path}")).contains("small letters"), "{name}");
    }
    let many = |count: usize| (0..count).map(|i| format!("[documents.d{i}]\n{path}\n")).collect::<String>();
    assert_eq!(read(&many(16)).unwrap().documents.len(), 16);
    assert!(refused(&many(17)).contains("at most 16 documents"));
    let large = |count: usize| {
        (0..count).map(|i| format!("[documents.d{i}]\n{path}\nmax-bytes = \"8MiB\"\n")).collect::<String>()
    };
    assert!(read(&large(4)).is_ok());
    assert!(refused(&large(5)).contains("32 MiB"));
    assert!(refused("documents = 1").contains("expected a table"));
}

#[test]
fn reads_where_secrets_are_and_repeats_none_in_errors() {
    let sidecar = read("[secrets]\nkey = { file = \"/run/key\" }\nsalt = { env = \"SALT\" }").unwrap();
    assert_eq!(sidecar.secrets["key"], SecretSource::File(PathBuf::from("/run/key")));
    assert_eq!(sidecar.secrets["salt"], SecretSource::Env("SALT".to_owned()));
    for wrong in [
        "[secrets]\nkey = \"hunter2\"",
        "[secrets]\nkey = { file = \"hunter2\" }",
        "[secrets]\nkey = { env = \"hunter2=\" }",
        "[secrets]\nkey = { file = \"/hunter2\", env = \"HUNTER\" }",
        "[secrets]\nkey = {}",
        "[secrets]\nkey = { value = \"hunter2\" }",
        "[secrets]\nKEY = { file = \"/hunter2\" }",
        "secrets = \"hunter2\"",
    ] {
        let text = refused(wrong);
        assert!(text.contains("secrets") && !text.contains("hunter2"), "{wrong}: {text}");
    }
    let many = |count: usize| (0..count).map(|i| format!("s{i} = {{ env = \"S\" }}\n")).collect::<String>();
    assert_eq!(read(&format!("[secrets]\n{}", many(16))).unwrap().secrets.len(), 16);
    assert!(refused(&format!("[secrets]\n{}", many(17))).contains("at most 16 secrets"));
}

#[test]
fn regression_secrets_are_not_read_from_variables_that_the_server_takes_for_its_configuration() {
    assert!(read("[secrets]\nsalt = { env = \"MY_CAMSHAFT_SALT\" }").is_ok());
    let refused = refused("[secrets]\nsalt = { env = \"CAMSHAFT_SALT\" }");
    assert!(refused.contains("secrets.salt") && refused.contains("keys of the server's configuration"), "{refused}");
}
