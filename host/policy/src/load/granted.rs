//! Whether what a settings file names is granted to its policy.
use std::path::Path;

use crate::documents::Source;
use crate::error::PolicyError;
use crate::grants::Grant;
use crate::secrets::SecretSource;
use crate::sidecar::Sidecar;

/// # Errors
/// The first document or secret that the policy may not have.
pub(super) fn check(grant: &Grant, sidecar: &Sidecar) -> Result<(), PolicyError> {
    let path_of = |path: &Path| path.display().to_string();
    for document in &sidecar.documents {
        let (from, ca) = match &document.source {
            Source::Path(path) => (path_of(path), None),
            Source::Url { url, ca, .. } => (url.clone(), ca.as_deref().map(path_of)),
        };
        let mut places = std::iter::once(from).chain(ca);
        if let Some(from) = places.find(|from| !grant.has_document(from)) {
            return Err(PolicyError::Withheld { what: format!("document {}", document.name), from });
        }
    }
    for (name, source) in &sidecar.secrets {
        let from = match source {
            SecretSource::File(path) => path_of(path),
            SecretSource::Env(variable) => format!("${variable}"),
        };
        if !grant.has_secret(&from) {
            return Err(PolicyError::Withheld { what: format!("secret {name}"), from });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use camshaft_core::policy::Hook;

    use super::*;
    use crate::grants::{GrantEntry, Grants};

    fn grants(documents: &[&str], secrets: &[&str]) -> Grants {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Grants::new(
            true,
            &[GrantEntry {
                documents: texts(documents),
                secrets: texts(secrets),
                policy: "auth/x".to_owned(),
                ..GrantEntry::default()
            }],
        )
        .unwrap()
    }

    fn checked(grants: &Grants, name: &str, text: &str) -> Result<(), String> {
        let sidecar = Sidecar::read(Hook::Auth, "10-x.toml", text.as_bytes()).unwrap();
        super::check(&grants.of(Hook::Auth, name), &sidecar).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_with_an_entry_has_what_the_entry_names_and_nothing_else() {
        let grants = grants(&["/etc/camshaft/*", "https://idp.example/keys/*"], &["/run/secrets/a", "$JWT_*"]);
        for (text, granted) in [
            ("[documents.d]\npath = \"/etc/camshaft/list\"", true),
            ("[documents.d]\npath = \"/etc/camshaft/a/b\"", true),
            ("[documents.d]\npath = \"/etc/shadow\"", false),
            ("[documents.d]\npath = \"/etc/camshaft/../shadow\"", false),
            ("[documents.d]\npath = \"/etc/camshaftx\"", false),
            ("[documents.d]\nurl = \"https://idp.example/keys/jwks.json\"", true),
            ("[documents.d]\nurl = \"https://idp.example/admin\"", false),
            ("[documents.d]\nurl = \"https://idp.example/keys/../admin\"", false),
            ("[documents.d]\nurl = \"https://idp.example/keys/%2E%2e/admin\"", false),
            ("[documents.d]\nurl = \"https://idp.example/keys/..\\\\admin\"", false),
            ("[documents.d]\nurl = \"https://idp.example.evil/keys/x\"", false),
            ("[documents.d]\nurl = \"http://idp.example/keys/x\"", false),
            ("[documents.d]\nurl = \"https://idp.example/keys/x\"\nca = \"/etc/shadow\"", false),
            ("[secrets]\ns = { file = \"/run/secrets/a\" }", true),
            ("[secrets]\ns = { file = \"/run/secrets/ab\" }", false),
            ("[secrets]\ns = { env = \"JWT_KEY\" }", true),
            ("[secrets]\ns = { env = \"PATH\" }", false),
        ] {
            let found = checked(&grants, "x", text);
            assert_eq!(found.is_ok(), granted, "{text}: {found:?}");
            assert!(checked(&grants, "other", text).is_ok(), "without an entry the default holds");
        }
        let nothing = Grants::new(false, &[]).unwrap();
        assert!(checked(&nothing, "x", "[secrets]\ns = { env = \"PATH\" }").unwrap_err().contains("$PATH"));
        assert!(checked(&nothing, "x", "[settings]\na = 1").is_ok());
        let grant = nothing.of(Hook::Auth, "x");
        assert!(!grant.state && !grant.body && !grant.shows_header("authorization"));
        let all = Grants::default().of(Hook::Auth, "x");
        assert!(all.state && all.body && all.shows_header("authorization"));
    }
}
