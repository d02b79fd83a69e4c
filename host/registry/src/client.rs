//! Asks servers over HTTP: bounded in time and redirects, through the environment's proxies, without content codings.
use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Error};
use url::{Origin, Url};

use crate::address::{self, shown_url};
use crate::error::RegistryError;
use crate::limits::{HEAD_BYTES, REDIRECTS};
use crate::proxies::Proxies;
use crate::retry::Failure;
use crate::settings::{Settings, Token};
use crate::text::shown;

/// Asks servers.
pub(crate) struct Client {
    agent: Agent,
    proxies: Proxies,
    allow_http: bool,
    /// Whether the system has certificates to trust.
    trusts: bool,
}

/// A token, and the one origin that it is sent to.
#[derive(Debug, Clone)]
pub(crate) struct Secret {
    origin: Origin,
    token: Token,
}

impl Secret {
    pub(crate) fn new(url: &Url, token: &Token) -> Self {
        Self { origin: url.origin(), token: token.clone() }
    }
}

/// A request.
pub(crate) struct Ask<'a> {
    pub(crate) url: &'a Url,
    /// HEAD instead of GET.
    pub(crate) head: bool,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) secret: Option<&'a Secret>,
    /// Redirects to other origins are answers.
    pub(crate) stays: bool,
}

impl<'a> Ask<'a> {
    pub(crate) fn get(url: &'a Url) -> Self {
        Self { url, head: false, headers: Vec::new(), secret: None, stays: false }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// What a server answers, redirects followed.
pub(crate) struct Answer {
    /// Who answers.
    pub(crate) url: Url,
    pub(crate) status: u16,
    headers: HeaderMap,
    body: Body,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Answer {
    /// A header of visible ASCII, of at most 1 KiB.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| value.len() <= 1024)
    }

    /// A header that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let digits = self.header(name)?.trim();
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    }

    /// The entity tag, with its quotes.
    pub(crate) fn etag(&self) -> Option<String> {
        self.header("etag").filter(|tag| tag.ends_with('"')).map(str::to_owned)
    }

    /// Refuses content codings, none of which was asked for.
    ///
    /// # Errors
    /// There is one: what arrives is not the file.
    pub(crate) fn check_coding(&self) -> Result<(), RegistryError> {
        match self.headers.get("content-encoding").filter(|coding| coding.as_bytes() != b"identity") {
            None => Ok(()),
            Some(coding) => {
                let coding = shown(&String::from_utf8_lossy(coding.as_bytes()));
                let why = format!("the answer has the content coding {coding:?}, which was not asked for");
                Err(RegistryError::answer(shown_url(&self.url), why))
            }
        }
    }

    /// What a status that is no success means.
    pub(crate) fn failure(&self, hint: &'static str) -> Failure {
        let (url, status) = (shown_url(&self.url), self.status);
        match status {
            404 | 410 => RegistryError::NotFound { url, status }.into(),
            401 | 403 | 407 => RegistryError::Refused { url, status, hint }.into(),
            408 | 429 | 500..=599 => {
                let after = self.number("retry-after").map(Duration::from_secs);
                Failure::Again { why: format!("the server answers {status}"), after }
            }
            _ => RegistryError::Status { url, status }.into(),
        }
    }

    /// The body. Whoever reads it bounds it.
    pub(crate) fn reader(&mut self) -> impl Read {
        self.body.as_reader()
    }

    /// All of a body that is no file.
    pub(crate) fn read_small(&mut self, max: u64) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let read = self.body.as_reader().take(max + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::again(format!("the answer breaks off: {}", told(error.into()))))?;
        if bytes.len() as u64 > max {
            return Err(RegistryError::answer(shown_url(&self.url), format!("more than {max} bytes")).into());
        }
        Ok(bytes)
    }
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Self {
        let found = rustls_native_certs::load_native_certs();
        let certificates: Vec<Certificate<'static>> =
            found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let trusts = !certificates.is_empty();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(certificates)))
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let times = &settings.times;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Each hop is looked at here: where it leads, who proxies it, and who may see the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .proxy(None)
            .timeout_resolve(Some(times.connect))
            .timeout_connect(Some(times.connect))
            .timeout_send_request(Some(times.stall))
            .timeout_recv_response(Some(times.stall))
            .timeout_per_read(Some(times.stall))
            .max_response_header_size(HEAD_BYTES)
            .tls_config(tls)
            .user_agent(concat!("camshaft/", env!("CARGO_PKG_VERSION")));
        let agent = Agent::new_with_config(config.build());
        Self { agent, proxies: settings.proxies.clone(), allow_http: settings.allow_http, trusts }
    }

    /// Asks once, and follows redirects.
    pub(crate) fn ask(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        let mut url = ask.url.clone();
        for _ in 0..=REDIRECTS {
            let answer = self.once(ask, &url)?;
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = answer.headers.get("location").and_then(|location| location.to_str().ok());
            let none = || RegistryError::answer(shown_url(&url), format!("{} without a location", answer.status));
            let next = address::joined(&url, location.ok_or_else(none)?)?;
            if ask.stays && next.origin() != url.origin() {
                return Ok(answer);
            }
            url = next;
        }
        Err(RegistryError::answer(shown_url(ask.url), format!("more than {REDIRECTS} redirects")).into())
    }

    fn once(&self, ask: &Ask<'_>, url: &Url) -> Result<Answer, Failure> {
        address::check_open("url", url, self.allow_http)?;
        if url.scheme() == "https" && !self.trusts {
            let why = "the system has no certificates to trust (SSL_CERT_FILE names others)";
            return Err(RegistryError::answer(shown_url(url), why).into());
        }
        let method = if ask.head { self.agent.head(url.as_str()) } else { self.agent.get(url.as_str()) };
        let mut request = method.config().proxy(self.proxies.for_url(url)?).build();
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        // Never to the host that a redirect leads to.
        if let Some(secret) = ask.secret.filter(|secret| secret.origin == url.origin()) {
            request = request.header("authorization", secret.token.bearer());
        }
        match request.call() {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                let status = StatusCode::as_u16(&parts.status);
                Ok(Answer { url: url.clone(), status, headers: parts.headers, body })
            }
            Err(error) if may_pass(&error) => Err(Failure::again(told(error))),
            Err(error) => Err(RegistryError::answer(shown_url(url), told(error)).into()),
        }
    }
}

/// Whether another attempt may end otherwise.
fn may_pass(error: &Error) -> bool {
    matches!(
        error,
        Error::Io(_) | Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed | Error::ConnectProxyFailed(_)
    )
}

/// What a failure of the transport is called.
pub(crate) fn told(error: Error) -> String {
    match error {
        Error::Timeout(_) => "no progress in time".to_owned(),
        Error::HostNotFound => "the host has no address".to_owned(),
        Error::Io(error) => shown(&error.to_string()),
        error => shown(&error.to_string()),
    }
}
