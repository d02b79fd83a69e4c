//! The auth hook: decides who may call.
//!
//! Settings are a struct of the author's. With `deny_unknown_fields` a misspelled key is an error that the operator reads, not
//! one that is ignored, and with `rename_all` keys are written as all others are:
//!
//! ```
//! use camshaft_plugin::auth::{Policy, Principal, Priority, Refusal, Request, Verdict};
//!
//! #[derive(serde::Deserialize)]
//! #[serde(rename_all = "kebab-case", deny_unknown_fields)]
//! struct Settings { team_header: String }
//!
//! struct Teams { header: String }
//! impl Policy for Teams {
//!     const NAME: &'static str = "teams";
//!     type Settings = Settings;
//!     fn new(settings: Settings) -> Result<Self, String> {
//!         if settings.team_header.is_empty() { return Err("settings.team-header is empty".to_owned()) }
//!         Ok(Self { header: settings.team_header.to_lowercase() })
//!     }
//!     fn authenticate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
//!         match request.values(&self.header).as_slice() {
//!             [] => Ok(Verdict::Next), // the next auth policy decides
//!             [team] if !team.is_empty() => {
//!                 let team = String::from_utf8_lossy(team).into_owned();
//!                 Ok(Verdict::Allow(Principal { priority: Priority::NORMAL, ..Principal::new(team.clone(), team) }))
//!             }
//!             _ => Err(Refusal::new(401, "one_team", "name one team")),
//!         }
//!     }
//! }
//! camshaft_plugin::export_auth!(Teams);
//! ```
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::Setup;
pub use crate::bindings::auth::{Principal, Request as Head, Verdict};
use crate::bindings::host::auth_context::Call;
use crate::instance::{self, Package, plugin_exports};
pub use crate::{Priority, Refusal};

/// An auth policy.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance: for auth, once per request,
    /// unless [`Policy::set_up`] allows it several ([`Setup::reuse`]).
    ///
    /// # Errors
    /// The settings are wrong; says why in a sentence for the operator. The previous version of the policy continues to
    /// serve.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// The same from the settings' JSON text. For policies whose settings are so large that parsing all of them for every
    /// request would cost too much.
    ///
    /// # Errors
    /// As [`Policy::new`].
    fn from_text(settings: String) -> Result<Self, String> {
        instance::parsed(&settings, Self::new)
    }

    /// Learns which policy of which server it is. The host calls it in every fresh instance, after the policy was made.
    ///
    /// # Errors
    /// As [`Policy::new`].
    fn set_up(&mut self, _setup: &Setup) -> Result<(), String> {
        Ok(())
    }

    /// Decides on one HTTP request, within 5 ms by default.
    ///
    /// # Errors
    /// The host answers the client with the refusal, and calls no further auth policy.
    fn authenticate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal>;
}

/// The head of an HTTP request, and what the host can be asked about it.
#[derive(Debug)]
pub struct Request<'a> {
    head: Head,
    source: Source<'a>,
}

#[derive(Debug)]
enum Source<'a> {
    Host(&'a Call),
    #[cfg(not(target_family = "wasm"))]
    Test(Box<testing::Call>),
}

/// Limits of a tenant; what is `None` is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u32>,
    pub concurrent_requests: Option<u32>,
    /// Of the queue, for waiting requests: above 0 and at most 1.
    pub queue_share: Option<f64>,
}

impl Limits {
    /// Those that are set, by the names that the host knows them by.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Self { requests_per_minute, tokens_per_minute, concurrent_requests, queue_share } = *self;
        let whole = |name, value: Option<u32>| value.map(|value| (name, f64::from(value)));
        let limits = [
            whole("requests-per-minute", requests_per_minute),
            whole("tokens-per-minute", tokens_per_minute),
            whole("concurrent-requests", concurrent_requests),
            queue_share.map(|share| ("queue-share", share)),
        ];
        limits.into_iter().flatten()
    }
}

impl Deref for Request<'_> {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

impl Request<'_> {
    /// The request's id in the server's log.
    pub fn id(&self) -> String {
        match &self.source {
            Source::Host(call) => call.id(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.id.clone(),
        }
    }

    /// What follows `?` in the request's target, undecoded.
    pub fn query(&self) -> String {
        match &self.source {
            Source::Host(call) => call.query(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.query.clone(),
        }
    }

    /// Every value of the header with this name, which must be in lower case.
    pub fn values(&self, name: &str) -> Vec<Vec<u8>> {
        match &self.source {
            Source::Host(call) => call.header(name),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.values(name),
        }
    }

    /// The names of all headers, in lower case, each once.
    pub fn names(&self) -> Vec<String> {
        match &self.source {
            Source::Host(call) => call.header_names(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.names(),
        }
    }

    /// The first value of the header with this name, which must be in lower case. `None` also if it is not UTF-8: where that
    /// matters, or a second value, ask for [`Request::values`].
    pub fn header(&self, name: &str) -> Option<String> {
        String::from_utf8(self.values(name).into_iter().next()?).ok()
    }

    /// Limits the tenant of a caller that the policy allows.
    ///
    /// # Errors
    /// As [`Request::set_limit`], of the first that cannot be set.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), String> {
        limits.named().try_for_each(|(name, value)| self.set_limit(name, value))
    }

    /// Sets one limit by its name.
    ///
    /// # Errors
    /// This host does not know the name, or the value is out of range. Says which.
    pub fn set_limit(&self, name: &str, value: f64) -> Result<(), String> {
        match &self.source {
            Source::Host(call) => call.set_limit(name, value),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => {
                call.limits.borrow_mut().push((name.to_owned(), value));
                Ok(())
            }
        }
    }

    /// Notes something about the request of a caller that the policy allows: later policies read it by this name.
    ///
    /// # Errors
    /// Name or value are out of bounds (64 characters a-z, 0-9, `.`, `_`, `-`; 256 bytes), or there are 16. Says which.
    pub fn set_attribute(&self, name: &str, value: &str) -> Result<(), String> {
        match &self.source {
            Source::Host(call) => call.set_attribute(name, value),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => {
                call.attributes.borrow_mut().push((name.to_owned(), value.to_owned()));
                Ok(())
            }
        }
    }

    /// The certificates that a TLS client has shown, DER, its own first. The server has verified them.
    pub fn peer_certificates(&self) -> Vec<Vec<u8>> {
        match &self.source {
            Source::Host(call) => call.peer_certificates(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.certificates.clone(),
        }
    }

    /// SHA-256 of the body. `None` unless the policy's settings file says `body-digest = true` under `[policy]`.
    pub fn body_sha256(&self) -> Option<Vec<u8>> {
        match &self.source {
            Source::Host(call) => call.body_sha256(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.digest.clone(),
        }
    }

    /// Sets a header of the response, with a verdict that allows and with a refusal.
    ///
    /// # Errors
    /// The name is none that policies may set (those that begin with `x-`, and a few others), name or value are out of bounds, or
    /// there are 16. Says which.
    pub fn set_response_header(&self, name: &str, value: &str) -> Result<(), String> {
        match &self.source {
            Source::Host(call) => call.set_response_header(name, value),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => {
                call.response.borrow_mut().push((name.to_owned(), value.to_owned()));
                Ok(())
            }
        }
    }

    /// Tells a client that the policy refuses when to try again: in whole seconds, rounded up, at most 120.
    pub fn set_retry_after(&self, wait: Duration) {
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        match &self.source {
            Source::Host(call) => call.set_retry_after_ms(ms),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => call.retry_after.set(Some(Duration::from_millis(ms))),
        }
    }

    /// Lets the host give the same answer for so long, at most ten minutes, without calling the policy: to calls with the same
    /// values of these headers, credentials, method, path, query, address and certificates. The names are in lower case.
    ///
    /// # Errors
    /// The time or a name is out of bounds. Says which; it is as if this was not called.
    pub fn reuse_for(&self, time: Duration, headers: &[&str]) -> Result<(), String> {
        let (ms, headers) =
            (u64::try_from(time.as_millis()).unwrap_or(u64::MAX), headers.iter().map(|name| (*name).to_owned()));
        let headers: Vec<String> = headers.collect();
        match &self.source {
            Source::Host(call) => call.reuse_for_ms(ms, &headers),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(call) => {
                *call.reuse.borrow_mut() = Some((Duration::from_millis(ms), headers));
                Ok(())
            }
        }
    }
}

/// Requests for unit tests.
#[cfg(not(target_family = "wasm"))]
pub mod testing {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use super::{Head, Request, Source};

    /// What stands for the host.
    #[derive(Debug, Default)]
    pub(super) struct Call {
        pub(super) id: String,
        pub(super) query: String,
        headers: Vec<(String, Vec<u8>)>,
        pub(super) limits: RefCell<Vec<(String, f64)>>,
        pub(super) attributes: RefCell<Vec<(String, String)>>,
        pub(super) certificates: Vec<Vec<u8>>,
        pub(super) digest: Option<Vec<u8>>,
        pub(super) response: RefCell<Vec<(String, String)>>,
        pub(super) retry_after: Cell<Option<Duration>>,
        pub(super) reuse: RefCell<Option<(Duration, Vec<String>)>>,
    }

    impl Call {
        pub(super) fn values(&self, name: &str) -> Vec<Vec<u8>> {
            self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value.clone()).collect()
        }
    }

    impl Call {
        pub(super) fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = self.headers.iter().map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            names.dedup();
            names
        }
    }

    /// A request with these headers, whose names are in lower case.
    pub fn request(head: Head, headers: &[(&str, &str)]) -> Request<'static> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Request { head, source: Source::Test(Box::new(Call { headers, ..Call::default() })) }
    }

    impl Request<'_> {
        /// With this id and query.
        #[must_use]
        pub fn called(mut self, id: &str, query: &str) -> Self {
            if let Source::Test(call) = &mut self.source {
                (call.id, call.query) = (id.to_owned(), query.to_owned());
            }
            self
        }

        /// With one more value of a header, which need not be UTF-8.
        #[must_use]
        pub fn with_value(mut self, name: &str, value: &[u8]) -> Self {
            if let Source::Test(call) = &mut self.source {
                call.headers.push((name.to_owned(), value.to_vec()));
            }
            self
        }

        /// Of a TLS client with these certificates, and with a body of this digest.
        #[must_use]
        pub fn shown(mut self, certificates: Vec<Vec<u8>>, digest: Option<Vec<u8>>) -> Self {
            if let Source::Test(call) = &mut self.source {
                (call.certificates, call.digest) = (certificates, digest);
            }
            self
        }

        /// The headers of the response that were set, in order.
        pub fn response_headers(&self) -> Vec<(String, String)> {
            match &self.source {
                Source::Host(_) => Vec::new(),
                Source::Test(call) => call.response.borrow().clone(),
            }
        }

        /// When a refused client is told to try again.
        pub fn retry_after(&self) -> Option<Duration> {
            match &self.source {
                Source::Host(_) => None,
                Source::Test(call) => call.retry_after.get(),
            }
        }

        /// How long the answer may be used again, and by which headers.
        pub fn reuse(&self) -> Option<(Duration, Vec<String>)> {
            match &self.source {
                Source::Host(_) => None,
                Source::Test(call) => call.reuse.borrow().clone(),
            }
        }

        /// The attributes that were set, in order.
        pub fn attributes(&self) -> Vec<(String, String)> {
            match &self.source {
                Source::Host(_) => Vec::new(),
                Source::Test(call) => call.attributes.borrow().clone(),
            }
        }

        /// The limits that were set, in order.
        pub fn limits(&self) -> Vec<(String, f64)> {
            match &self.source {
                Source::Host(_) => Vec::new(),
                Source::Test(call) => call.limits.borrow().clone(),
            }
        }
    }
}

impl Principal {
    /// A caller with normal priority, weight 1 and no limits.
    pub fn new(name: impl Into<String>, tenant: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tenant: tenant.into(),
            priority: Priority::NORMAL,
            weight: 1.0,
            allowed_models: None,
            cache_namespace: None,
        }
    }
}

/// Connects a policy to the component's exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!(P::from_text);

impl<P: Policy, V: Package> crate::bindings::auth::Guest for Component<P, V> {
    fn authenticate(head: Head, cx: &Call) -> Result<Verdict, Refusal> {
        let request = Request { head, source: Source::Host(cx) };
        instance::with(|policy: &mut P| policy.authenticate(&request))
    }
}

/// Exports a [`Policy`](crate::auth::Policy) as the component's auth hook.
#[macro_export]
macro_rules! export_auth {
    ($policy:ty) => {
        $crate::__export!(auth, $policy);
    };
}
