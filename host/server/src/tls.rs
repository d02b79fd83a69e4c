//! The certificate of the public listener, and who vouches for its clients: read at the start, and again when the files change.
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use camshaft_policy::FileError;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::client_certificates::{self, InForce};
use crate::config::{Origins, TlsFiles};
use crate::error::{Problem, ServerError};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks at files that cannot be read it is said.
const UNREAD_LOOKS: u32 = 10;
/// Bytes of one file.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Certificate and key, which later connections use, and the files that they come from.
#[derive(Debug)]
pub(crate) struct Certificate {
    files: TlsFiles,
    origins: Origins,
    pair: Pair,
    /// `None`: clients are asked for no certificate.
    clients: Option<Arc<ArcSwap<Arc<dyn ClientCertVerifier>>>>,
    seen: Mutex<Seen>,
}

/// What was read last.
#[derive(Debug)]
struct Seen {
    contents: Contents,
    /// Whether it is the pair in force.
    good: bool,
}

/// Looks one after the other at files that could not be read.
#[derive(Debug, Default)]
struct Unread(u32);

impl Unread {
    /// After one more look: once, and not for files that are on their way.
    fn is_to_be_said(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 == UNREAD_LOOKS
    }
}

#[derive(Debug, Clone)]
struct Pair(Arc<ArcSwap<CertifiedKey>>);

impl ResolvesServerCert for Pair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Certificate {
    /// # Errors
    /// Files that are missing, hold something else, or do not belong together.
    pub(crate) fn read(files: TlsFiles, origins: &Origins) -> Result<Self, ServerError> {
        let contents = Contents::read(&files, origins)?;
        let pair = Pair(Arc::new(ArcSwap::from_pointee(contents.pair(&files, origins)?)));
        let clients = contents.clients(&files, origins)?;
        let clients = clients.map(|verifier| Arc::new(ArcSwap::from_pointee(verifier)));
        Ok(Self { files, origins: origins.clone(), pair, clients, seen: Mutex::new(Seen { contents, good: true }) })
    }

    /// What a listener needs. It uses the pair that is in force when a client connects.
    ///
    /// # Errors
    /// The library offers no protocol.
    pub(crate) fn acceptor(&self) -> Result<Arc<ServerConfig>, ServerError> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| ServerError::internal("set up TLS", error))?;
        let resolver = Arc::new(self.pair.clone());
        let mut config = match (&self.clients, &self.files.clients) {
            (Some(verifier), Some((_, mandatory))) => {
                let clients = InForce { verifier: verifier.clone(), mandatory: *mandatory };
                let mut config = builder.with_client_cert_verifier(Arc::new(clients)).with_cert_resolver(resolver);
                // A session that goes on would go on with a certificate that nobody vouches for any more.
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config.send_tls13_tickets = 0;
                config
            }
            _ => builder.with_no_client_auth().with_cert_resolver(resolver),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Reads the files again. A pair that cannot be used changes nothing.
    ///
    /// # Errors
    /// As [`Certificate::read`].
    pub(crate) fn reread(&self) -> Result<(), ServerError> {
        let found = Contents::read(&self.files, &self.origins)?;
        self.replace(found)
    }

    fn replace(&self, found: Contents) -> Result<(), ServerError> {
        let mut seen = self.seen();
        if seen.good && seen.contents == found {
            return Ok(());
        }
        let pair = found.pair(&self.files, &self.origins);
        let read = pair.and_then(|pair| Ok((pair, found.clients(&self.files, &self.origins)?)));
        *seen = Seen { contents: found, good: read.is_ok() };
        let (pair, clients) = read?;
        self.pair.0.store(Arc::new(pair));
        if let (Some(in_force), Some(clients)) = (&self.clients, clients) {
            in_force.store(Arc::new(clients));
        }
        tracing::info!("the TLS certificate was read again");
        Ok(())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files again whenever they change. Never ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut unread = Unread::default();
        loop {
            tokio::time::sleep(LOOK).await;
            let found = match self.look().await {
                Ok(found) => found,
                // It may be on its way.
                Err(error) => {
                    if unread.is_to_be_said() {
                        tracing::error!(%error, "the TLS files cannot be read; the certificate before stays in force");
                    }
                    continue;
                }
            };
            unread = Unread::default();
            if found == self.seen().contents {
                continue;
            }
            // Two files are not replaced at once: what is there comes to rest before it is believed.
            tokio::time::sleep(LOOK).await;
            if self.look().await.is_ok_and(|again| again == found)
                && let Err(error) = self.replace(found)
            {
                tracing::error!(%error, "the new TLS certificate is rejected; the one before stays in force");
            }
        }
    }

    /// # Errors
    /// A file cannot be read now.
    async fn look(self: &Arc<Self>) -> Result<Contents, ServerError> {
        let certificate = self.clone();
        let read = move || Contents::read(&certificate.files, &certificate.origins);
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|error| Err(ServerError::internal("read the TLS files", error)))
    }
}

impl Contents {
    fn read(files: &TlsFiles, origins: &Origins) -> Result<Self, ServerError> {
        let read = |key: &str, path: &Path| {
            camshaft_policy::read_whole(path, FILE_MAX_BYTES)
                .map_err(|error: FileError| bad(origins, key, path, error.into()))
        };
        let client_ca = files.clients.as_ref().map(|(ca, _)| read("tls.client-ca", ca)).transpose()?;
        Ok(Self { cert: read("tls.cert", &files.cert)?, key: read("tls.key", &files.key)?, client_ca })
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
        let all = CertificateDer::pem_slice_iter(&self.cert).collect::<Result<Vec<_>, _>>()?;
        if all.is_empty() { Err(rustls::pki_types::pem::Error::NoItemsFound) } else { Ok(all) }
    }

    /// `None`: clients are asked for no certificate.
    fn clients(&self, files: &TlsFiles, origins: &Origins) -> Result<Option<Arc<dyn ClientCertVerifier>>, ServerError> {
        let (Some(ca), Some((path, mandatory))) = (&self.client_ca, &files.clients) else { return Ok(None) };
        let read = client_certificates::verifier(ca, *mandatory, provider());
        read.map(Some).map_err(|error| bad(origins, "tls.client-ca", path, error))
    }

    fn pair(&self, files: &TlsFiles, origins: &Origins) -> Result<CertifiedKey, ServerError> {
        let bad_cert = |problem: Problem| bad(origins, "tls.cert", &files.cert, problem);
        let certificates = self.certificates().map_err(|error| bad_cert(error.into()))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key);
        let key = key.map_err(|error| bad(origins, "tls.key", &files.key, error.into()))?;
        CertifiedKey::from_der(certificates, key, &provider()).map_err(|error| bad_cert(error.into()))
    }
}

fn bad(origins: &Origins, key: &str, path: &Path, problem: Problem) -> ServerError {
    ServerError::value(origins, key, &path.display(), problem)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files {
        dir: tempfile::TempDir,
        clients: Option<bool>,
    }

    impl Files {
        /// With a new pair.
        fn new() -> Self {
            let files = Self { dir: tempfile::tempdir().unwrap(), clients: None };
            files.write(&pair());
            files
        }

        fn paths(&self) -> TlsFiles {
            let path = |name| self.dir.path().join(name);
            TlsFiles {
                cert: path("cert.pem"),
                key: path("key.pem"),
                clients: self.clients.map(|must| (path("ca.pem"), must)),
            }
        }

        fn write(&self, (cert, key): &(String, String)) {
            std::fs::write(self.paths().cert, cert).unwrap();
            std::fs::write(self.paths().key, key).unwrap();
        }

        fn read(&self) -> Result<Certificate, ServerError> {
            Certificate::read(self.paths(), &Origins::default())
        }
    }

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn in_force(certificate: &Certificate) -> Vec<CertificateDer<'static>> {
        certificate.pair.0.load().cert.clone()
    }

    #[test]
    fn regression_a_new_pair_is_used_and_a_bad_one_is_not() {
        let files = Files::new();
        let certificate = files.read().unwrap();
        let first = in_force(&certificate);
        let (cert, key) = pair();
        files.write(&(cert.clone(), "no key".to_owned()));
        assert!(certificate.reread().unwrap_err().to_string().contains("tls.key"));
        files.write(&(cert.clone(), pair().1));
        assert!(certificate.reread().unwrap_err().to_string().contains("tls.cert"), "another certificate's key");
        assert!(certificate.reread().is_err(), "it is said every time");
        std::fs::remove_file(files.paths().cert).unwrap();
        assert!(certificate.reread().unwrap_err().to_string().contains("tls.cert"));
        assert_eq!(in_force(&certificate), first);
        files.write(&(cert, key));
        certificate.reread().unwrap();
        let second = in_force(&certificate);
        assert_ne!(second, first);
        certificate.reread().unwrap();
        assert_eq!(in_force(&certificate), second);
    }

    #[test]
    fn regression_a_broken_key_under_the_certificate_in_force_is_refused_every_time() {
        let files = Files::new();
        let (cert, key) = pair();
        files.write(&(cert.clone(), key.clone()));
        let certificate = files.read().unwrap();
        let first = in_force(&certificate);
        for broken in ["no key".to_owned(), pair().1] {
            files.write(&(cert.clone(), broken));
            for round in 0..3 {
                assert!(certificate.reread().is_err(), "{round}");
            }
        }
        files.write(&(cert, key));
        certificate.reread().unwrap();
        assert_eq!(in_force(&certificate), first);
    }

    #[test]
    fn who_vouches_for_clients_is_read_with_the_rest_and_a_bad_file_changes_nothing() {
        let files = Files { clients: Some(true), ..Files::new() };
        assert!(files.read().unwrap_err().to_string().contains("tls.client-ca"));
        let ca = files.dir.path().join("ca.pem");
        for bad in ["", "no certificate", &pair().1] {
            std::fs::write(&ca, bad).unwrap();
            assert!(files.read().unwrap_err().to_string().contains("tls.client-ca"), "{bad}");
        }
        std::fs::write(&ca, pair().0).unwrap();
        let certificate = files.read().unwrap();
        let in_force = || Arc::as_ptr(&certificate.clients.as_ref().unwrap().load()).addr();
        let first = in_force();
        std::fs::write(&ca, "no certificate").unwrap();
        assert!(certificate.reread().is_err());
        assert_eq!(in_force(), first);
        std::fs::write(&ca, pair().0).unwrap();
        certificate.reread().unwrap();
        assert_ne!(in_force(), first);
        certificate.acceptor().unwrap();
    }

    #[tokio::test]
    async fn a_change_is_noticed() {
        let files = Files::new();
        let certificate = Arc::new(files.read().unwrap());
        let first = in_force(&certificate);
        let watch = tokio::spawn(certificate.clone().watch());
        files.write(&pair());
        let changes = async {
            while in_force(&certificate) == first {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), changes).await.expect("it is noticed");
        watch.abort();
    }

    #[test]
    fn files_that_cannot_be_read_are_said_once() {
        let mut unread = Unread::default();
        let said: Vec<u32> = (1..=3 * UNREAD_LOOKS).filter(|_| unread.is_to_be_said()).collect();
        assert_eq!(said, [UNREAD_LOOKS]);
    }

    #[test]
    fn a_file_has_a_bound() {
        let files = Files::new();
        let (cert, key) = pair();
        let padded = |bytes: u64| format!("{cert}{}", "#".repeat(bytes as usize - cert.len()));
        files.write(&(padded(FILE_MAX_BYTES), key.clone()));
        files.read().unwrap();
        files.write(&(padded(FILE_MAX_BYTES + 1), key));
        assert!(files.read().unwrap_err().to_string().contains("tls.cert"));
    }
}
