//! The validator hook: decides which requests are acceptable.
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::DeserializeOwned;

use crate::Setup;
use crate::bindings::host::validator_context::Draft;
pub use crate::bindings::validator::{Request as Facts, Verdict};
use crate::instance::{self, Package, plugin_exports};
pub use crate::{Priority, Refusal};

/// A validator policy.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance: for validators, once per request,
    /// unless [`Policy::set_up`] allows it several ([`Setup::reuse`]).
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
    Test(testing::Draft),
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
            Source::Test(draft) => draft.tenant.clone(),
        }
    }

    /// The client's request as one JSON object, with the amendments of earlier validators.
    pub fn body(&self) -> String {
        match &self.source {
            Source::Host(draft) => draft.body(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => draft.body.to_string(),
        }
    }

    /// One value of the body as JSON text, by its JSON pointer, e.g. `/messages/0/role`.
    pub fn field(&self, pointer: &str) -> Option<String> {
        match &self.source {
            Source::Host(draft) => draft.field(pointer),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => draft.body.pointer(pointer).map(ToString::to_string),
        }
    }

    /// The name that the auth policy gave the key or user.
    pub fn principal(&self) -> String {
        match &self.source {
            Source::Host(draft) => draft.principal(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(_) => "test".to_owned(),
        }
    }

    /// What an earlier policy, or this one, has noted by this name.
    pub fn attribute(&self, name: &str) -> Option<String> {
        match &self.source {
            Source::Host(draft) => draft.attribute(name),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => draft.attributes.borrow().get(name).cloned(),
        }
    }

    /// Notes something about the request for later policies. It counts only if the request is accepted or amended.
    ///
    /// # Errors
    /// Name or value are out of bounds (64 characters a-z, 0-9, `.`, `_`, `-`; 256 bytes), or there are 16. Says which.
    pub fn set_attribute(&self, name: &str, value: &str) -> Result<(), String> {
        match &self.source {
            Source::Host(draft) => draft.set_attribute(name, value),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => {
                draft.attributes.borrow_mut().insert(name.to_owned(), value.to_owned());
                Ok(())
            }
        }
    }

    /// Tokens that the tenant's account is charged in advance, prompts and output together.
    pub fn estimated_cost(&self) -> u64 {
        match &self.source {
            Source::Host(draft) => draft.estimated_cost(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => draft.cost,
        }
    }

    /// The priority that the request has so far.
    pub fn priority(&self) -> u8 {
        match &self.source {
            Source::Host(draft) => draft.priority(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => draft.priority.get(),
        }
    }

    /// Gives the request another priority, higher or lower. It counts only if the request is accepted or amended.
    pub fn set_priority(&self, priority: u8) {
        match &self.source {
            Source::Host(draft) => draft.set_priority(priority),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(draft) => draft.priority.set(priority),
        }
    }
}

/// Requests for unit tests.
#[cfg(not(target_family = "wasm"))]
pub mod testing {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::{Facts, Priority, Request, Source};

    /// What stands for the host.
    #[derive(Debug)]
    pub(super) struct Draft {
        pub(super) tenant: String,
        pub(super) body: serde_json::Value,
        pub(super) attributes: RefCell<BTreeMap<String, String>>,
        pub(super) cost: u64,
        pub(super) priority: Cell<u8>,
    }

    /// A request of this tenant with this body.
    pub fn request(facts: Facts, tenant: &str, body: serde_json::Value) -> Request<'static> {
        let (tenant, attributes, priority) = (tenant.to_owned(), RefCell::default(), Cell::new(Priority::NORMAL));
        Request { facts, source: Source::Test(Draft { tenant, body, attributes, cost: 0, priority }) }
    }

    impl Request<'_> {
        /// With an attribute that an earlier policy has set.
        #[must_use]
        pub fn with_attribute(mut self, name: &str, value: &str) -> Self {
            if let Source::Test(draft) = &mut self.source {
                draft.attributes.get_mut().insert(name.to_owned(), value.to_owned());
            }
            self
        }

        /// That is charged with so many tokens in advance.
        #[must_use]
        pub fn costing(mut self, tokens: u64) -> Self {
            if let Source::Test(draft) = &mut self.source {
                draft.cost = tokens;
            }
            self
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
