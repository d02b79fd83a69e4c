//! The filter hook: decides what of a generation's text goes out.
//!
//! ```
//! use camshaft_plugin::filter::{Piece, Policy, Refusal, Replacement, Verdict};
//!
//! struct NoTabs;
//! impl Policy for NoTabs {
//!     const NAME: &'static str = "no-tabs";
//!     type Settings = camshaft_plugin::NoSettings;
//!     fn new(_: Self::Settings) -> Result<Self, String> { Ok(Self) }
//!     fn check(&mut self, piece: &Piece<'_>) -> Result<Verdict, Refusal> {
//!         Ok(match piece.text.find('\t') {
//!             // The host asks again for what follows.
//!             Some(at) => Verdict::Replace(Replacement { start: piece.at(at), end: piece.at(at + 1), text: " ".to_owned() }),
//!             None => piece.pass_all(),
//!         })
//!     }
//! }
//! camshaft_plugin::export_filter!(NoTabs);
//! ```
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::DeserializeOwned;

pub use crate::Refusal;
use crate::Setup;
use crate::bindings::filter::Piece as Facts;
pub use crate::bindings::filter::{Ending, Reason, Replacement, Verdict};
use crate::bindings::host::filter_context::Stream;
use crate::instance::{self, Package, plugin_exports};

/// A filter policy. An instance serves one choice from the beginning of its text to the end.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance: for filters, once per choice, and once when it examines
    /// the file.
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

    /// Decides on what it has not decided on. The host calls it when there is new text, on the worker's thread, where every
    /// microsecond delays all sequences of the batch. What a verdict leaves undecided comes again, so a filter needs no memory
    /// of text: it looks at the piece, and at what is before it.
    ///
    /// # Errors
    /// The choice ends with the refusal, which the client reads.
    fn check(&mut self, piece: &Piece<'_>) -> Result<Verdict, Refusal>;
}

/// Text to decide on, and what the host can be asked about it.
#[derive(Debug)]
pub struct Piece<'a> {
    facts: Facts,
    source: Source<'a>,
}

#[derive(Debug)]
enum Source<'a> {
    Host(&'a Stream),
    #[cfg(not(target_family = "wasm"))]
    Test {
        before: &'a str,
        rewinds: u32,
        request: &'a about::AboutRequest,
    },
}

impl Deref for Piece<'_> {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Piece<'_> {
    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.at(self.facts.text.len())
    }

    /// The position of a byte of its text.
    pub fn at(&self, byte: usize) -> u64 {
        self.facts.start + byte as u64
    }

    /// The verdict that holds what is beyond a byte of its text.
    pub fn pass(&self, byte: usize) -> Verdict {
        Verdict::Pass(self.at(byte))
    }

    /// The verdict that lets all of it go out.
    pub fn pass_all(&self) -> Verdict {
        Verdict::Pass(self.end())
    }

    /// The last `max` bytes before it, less what is not a whole character. The host keeps 4096.
    pub fn before(&self, max: u32) -> String {
        match &self.source {
            Source::Host(stream) => stream.before(max),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { before, .. } => {
                let from = before.len().saturating_sub(max.min(4096) as usize);
                let whole = (from..=before.len()).find(|&at| before.is_char_boundary(at));
                before[whole.unwrap_or(from)..].to_owned()
            }
        }
    }

    /// The model that the client asked for.
    pub fn model(&self) -> String {
        match &self.source {
            Source::Host(stream) => stream.model(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { .. } => "test".to_owned(),
        }
    }

    /// Whose request it is.
    pub fn tenant(&self) -> String {
        match &self.source {
            Source::Host(stream) => stream.tenant(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { .. } => "test".to_owned(),
        }
    }

    /// Index of the choice if the client asked for several.
    pub fn choice(&self) -> u32 {
        match &self.source {
            Source::Host(stream) => stream.choice(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { .. } => 0,
        }
    }

    /// What an auth or validator policy has noted by this name.
    pub fn attribute(&self, name: &str) -> Option<String> {
        match &self.source {
            Source::Host(stream) => stream.attribute(name),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { request, .. } => request.attributes.get(name).cloned(),
        }
    }

    /// One value of the client's request as JSON text, by its JSON pointer, e.g. `/user`. Costs a pass over the request: ask once.
    pub fn field(&self, pointer: &str) -> Option<String> {
        match &self.source {
            Source::Host(stream) => stream.field(pointer),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { request, .. } => request.body.pointer(pointer).map(ToString::to_string),
        }
    }

    /// The tokens of which bytes lie in this part of the text, as far as the host keeps them.
    pub fn tokens(&self, start: u64, len: u32) -> Vec<u32> {
        match &self.source {
            Source::Host(stream) => stream.tokens(start, len),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { .. } => Vec::new(),
        }
    }

    /// The log-probabilities of these tokens. A filter that calls this anywhere has the host compute them for every token.
    pub fn logprobs(&self, start: u64, len: u32) -> Vec<f32> {
        match &self.source {
            Source::Host(stream) => stream.logprobs(start, len),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { .. } => Vec::new(),
        }
    }

    /// How often the text was rewound so far.
    pub fn rewinds(&self) -> u32 {
        match &self.source {
            Source::Host(stream) => stream.rewinds(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test { rewinds, .. } => *rewinds,
        }
    }
}

#[cfg(not(target_family = "wasm"))]
mod about;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

/// Connects a policy to the component's exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::filter::Guest for Component<P, V> {
    fn check(facts: Facts, cx: &Stream) -> Result<Verdict, Refusal> {
        let piece = Piece { facts, source: Source::Host(cx) };
        instance::with(|policy: &mut P| policy.check(&piece))
    }
}

/// Exports a [`Policy`](crate::filter::Policy) as the component's filter hook.
#[macro_export]
macro_rules! export_filter {
    ($policy:ty) => {
        $crate::__export!(filter, $policy);
    };
}
