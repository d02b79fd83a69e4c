//! The certificates of TLS clients: who vouches for them, which may change while the server runs.
use std::sync::Arc;

use arc_swap::ArcSwap;
use camshaft_api::PeerCertificates;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime, pem};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ServerConnection, WebPkiClientVerifier};
use tokio_rustls::rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::error::Problem;

type Verifier = Arc<dyn ClientCertVerifier>;

/// A verifier of the certificates that these vouch for (PEM).
///
/// # Errors
/// There is none, or one cannot be used.
pub(crate) fn verifier(ca: &[u8], mandatory: bool, provider: Arc<CryptoProvider>) -> Result<Verifier, Problem> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err(pem::Error::NoItemsFound.into());
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    Ok(if mandatory { builder.build() } else { builder.allow_unauthenticated().build() }?)
}

/// What a client has shown. `None`: nothing.
pub(crate) fn of(connection: &ServerConnection) -> Option<PeerCertificates> {
    let shown = connection.peer_certificates().filter(|shown| !shown.is_empty())?;
    Some(PeerCertificates(Arc::new(shown.iter().map(|certificate| certificate.to_vec()).collect())))
}

/// Asks the verifier in force.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) verifier: Arc<ArcSwap<Verifier>>,
    pub(crate) mandatory: bool,
}

impl ClientCertVerifier for InForce {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Who vouches may change, and a client that gets no hint shows what it has.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verifier.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.load().supported_verify_schemes()
    }
}
