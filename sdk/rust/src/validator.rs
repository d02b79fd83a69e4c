//! The validator hook: decides which requests are acceptable.
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::DeserializeOwned;

pub use crate::Refusal;
use crate::Setup;
use crate::bindings::host::validator_context::Draft;
pub use crate::bindings::validator::{Request as Facts, Verdict};
use crate::instance::{self, Package, plugin_exports};

/// A validator policy.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance: for validators, once per request.
    ///
    /// # Errors
    /// The settings are wrong; says why in a sentence for the operator. The previous version of the policy continues to
    /// serve.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// Learns which policy of which server it is. The host calls it in every fresh instance, after the policy was made.
    ///
    /// # Errors
    /// As [`Policy::new`].
    fn set_up(&mut self, _setup: &Setup) -> Result<(), String> {
        Ok(())
    }

    /// Decides on one generation or embedding request, within 5 ms by default.
    ///
    /// # Errors
    /// The host answers the client with the refusal, and calls no further validator.
    fn validate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal>;
}

/// What the host says of a request, and what it can be asked.
#[derive(Debug)]
pub struct Request<'a> {
    facts: Facts,
    source: Source<'a>,
}

#[derive(Debug)]
enum Source<'a> {
    Host(&'a Draft),
    #[cfg(not(target_family = "wasm"))]
    Test {
        tenant: String,
        body: serde_json::Value,
    },
}

impl Deref for Request<'_> {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Request<'_> {
    /// Whose request it is.
    pub fn tenant(&self) -> String {
        match &self.source {
            Source::Host(draft) => draft.tenant(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { tenant, .. } => tenant.clone(),
        }
    }

    /// The client's request as one JSON object, with the amendments of earlier validators.
    pub fn body(&self) -> String {
        match &self.source {
            Source::Host(draft) => draft.body(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { body, .. } => body.to_string(),
        }
    }

    /// One value of the body as JSON text, by its JSON pointer, e.g. `/messages/0/role`.
    pub fn field(&self, pointer: &str) -> Option<String> {
        match &self.source {
            Source::Host(draft) => draft.field(pointer),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { body, .. } => body.pointer(pointer).map(ToString::to_string),
        }
    }
}

/// Requests for unit tests.
#[cfg(not(target_family = "wasm"))]
pub mod testing {
    use super::{Facts, Request, Source};

    /// A request of this tenant with this body.
    pub fn request(facts: Facts, tenant: &str, body: serde_json::Value) -> Request<'static> {
        Request { facts, source: Source::Test { tenant: tenant.to_owned(), body } }
    }
}

/// Connects a policy to the component's exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::validator::Guest for Component<P, V> {
    fn validate(facts: Facts, cx: &Draft) -> Result<Verdict, Refusal> {
        let request = Request { facts, source: Source::Host(cx) };
        instance::with(|policy: &mut P| policy.validate(&request))
    }
}

/// Exports a [`Policy`](crate::validator::Policy) as the component's validator hook.
#[macro_export]
macro_rules! export_validator {
    ($policy:ty) => {
        $crate::__export!(validator, $policy);
    };
}
