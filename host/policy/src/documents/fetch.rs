//! Fetches what a URL names, in bounded time and size.
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::whole_file::read_whole;

const REDIRECTS: u32 = 3;
const HEADER_BYTES: usize = 64 << 10;
/// Bytes of a file with certificates.
const CA_BYTES: u64 = 1 << 20;

/// What to fetch.
pub(super) struct Fetch<'a> {
    pub(super) url: &'a str,
    pub(super) timeout: Duration,
    pub(super) ca: Option<&'a Path>,
    pub(super) max_bytes: u64,
}

impl Fetch<'_> {
    /// Asks no proxy. A redirect from https leads to https only.
    ///
    /// # Errors
    /// There was no answer in time, not one of status 200, or one that is too large.
    pub(super) fn run(&self) -> Result<Vec<u8>, String> {
        let is_https = self.url.starts_with("https:");
        let mut config = Agent::config_builder()
            .timeout_global(Some(self.timeout))
            .max_redirects(REDIRECTS)
            .max_redirects_will_error(true)
            .https_only(is_https)
            .proxy(None)
            .max_response_header_size(HEADER_BYTES)
            .user_agent(concat!("camshaft/", env!("CARGO_PKG_VERSION")));
        if is_https {
            config = config.tls_config(tls(self.ca)?);
        }
        let mut response = Agent::new_with_config(config.build()).get(self.url).call().map_err(told)?;
        // 204 and its like have no content to keep.
        if response.status().as_u16() != 200 {
            return Err(format!("the server answers {}", response.status().as_u16()));
        }
        // None was asked for, and the plugin would take it for the document.
        let coding = response.headers().get("content-encoding").filter(|coding| coding.as_bytes() != b"identity");
        if let Some(coding) = coding {
            return Err(format!("the answer has the content coding {coding:?}, which was not asked for"));
        }
        let mut bytes = Vec::new();
        let body = response.body_mut().as_reader();
        body.take(self.max_bytes + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| format!("the answer breaks off: {error}"))?;
        if bytes.len() as u64 > self.max_bytes {
            return Err(format!("the answer has more than the {} bytes allowed", self.max_bytes));
        }
        Ok(bytes)
    }
}

fn told(error: ureq::Error) -> String {
    match error {
        ureq::Error::StatusCode(status) => format!("the server answers {status}"),
        ureq::Error::Timeout(_) => "the server does not answer in time".to_owned(),
        // Where a redirect leads may be as secret as a query.
        ureq::Error::RequireHttpsOnly(_) => "the server leads from https to http".to_owned(),
        ureq::Error::BadUri(_) => "the server leads to what is no URL".to_owned(),
        error => error.to_string(),
    }
}

fn tls(ca: Option<&Path>) -> Result<TlsConfig, String> {
    let certificates: Vec<Certificate<'static>> = match ca {
        Some(path) => of_file(path)?,
        None => {
            let found = rustls_native_certs::load_native_certs();
            found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
        }
    };
    if certificates.is_empty() {
        let of = ca.map_or_else(|| "the system's certificates".to_owned(), |path| path.display().to_string());
        return Err(format!("there is no certificate to trust in {of}"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = RootCerts::Specific(Arc::new(certificates));
    Ok(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build())
}

fn of_file(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = read_whole(path, CA_BYTES).map_err(|error| error.to_string())?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        match item.map_err(|error| format!("{}: {error}", path.display()))? {
            PemItem::Certificate(certificate) => certificates.push(certificate),
            _ => return Err(format!("{}: holds something other than certificates", path.display())),
        }
    }
    Ok(certificates)
}
