//! The auth hook: decides who may call.
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

pub use crate::bindings::auth::exports::camshaft::policy::auth::{Principal, Quotas, Request, Verdict};
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

    /// Makes the policy. The host calls it in every fresh instance: for auth, once per request.
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

    /// Decides on one HTTP request, within 5 ms by default.
    ///
    /// # Errors
    /// The host answers the client with the refusal, and calls no further auth policy.
    fn authenticate(&mut self, request: &Request) -> Result<Verdict, Refusal>;
}

impl Request {
    /// The first header with this name, which must be in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

impl Principal {
    /// A caller with normal priority, weight 1 and no limits.
    pub fn new(name: impl Into<String>, tenant: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tenant: tenant.into(),
            priority: Priority::Normal,
            weight: 1.0,
            quotas: Quotas {
                requests_per_minute: None,
                tokens_per_minute: None,
                concurrent_requests: None,
                queue_share: None,
            },
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

impl<P: Policy, V: Package> crate::bindings::auth::exports::camshaft::policy::auth::Guest for Component<P, V> {
    fn authenticate(request: Request) -> Result<Verdict, Refusal> {
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
