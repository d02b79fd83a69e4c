//! The SDK for Camshaft policies.
//!
//! A policy is a WebAssembly component that answers one of five hooks: who may call ([`auth`]), which requests are
//! acceptable ([`validator`]), which request runs next ([`scheduler`]), which token is drawn ([`sampler`]), what of the
//! text goes out ([`filter`]). Write a struct, implement the hook's `Policy` for it, and export it with an `export_…!` macro:
//!
//! ```
//! use camshaft_plugin::validator::{Policy, Refusal, Request, Verdict};
//!
//! struct FewChoices;
//! impl Policy for FewChoices {
//!     const NAME: &'static str = "few-choices";
//!     type Settings = camshaft_plugin::NoSettings;
//!     fn new(_: Self::Settings) -> Result<Self, String> { Ok(Self) }
//!     fn validate(&mut self, request: &Request) -> Result<Verdict, Refusal> {
//!         if request.n <= 4 { Ok(Verdict::Accept) } else { Err(Refusal::new(400, "too_many", "n is at most 4").param("n")) }
//!     }
//! }
//! camshaft_plugin::export_validator!(FewChoices);
//! ```
//!
//! In the `Cargo.toml` of a crate of its own:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib", "rlib"]
//!
//! [dependencies]
//! camshaft-plugin = { path = "../camshaft/sdk/rust" } # path to the repository
//! serde = { version = "1", features = ["derive"] }    # only for settings
//! ```
//!
//! Build it with `cargo build --release --target wasm32-wasip2` and copy
//! `target/wasm32-wasip2/release/few_choices.wasm` to `policy.d/validator/20-few-choices.wasm`. File names order a
//! chain. The first auth policy that decides wins, so an auth policy of yours must sort before `10-api-keys`, which
//! refuses every key that it does not know.
//!
//! The exports exist only for WebAssembly, so the crate runs its unit tests natively. In unit tests, [`log`] prints,
//! [`metrics`] does nothing, the modules `testing` of the hooks make requests and points, and everything else that calls the
//! host ([`state`], [`crypto`], [`documents`], [`clock`], [`random`], [`vocabulary`], [`sampler::Row`]) panics. So keep decisions in functions that take
//! the host's answers as arguments. Only auth policies and validators may ask the [`clock`]: others are refused.
//!
//! The host configures an instance once, before any other call. A refusal is an answer; a panic is a *fault*, for which
//! the operator has chosen what the host does.
#![deny(unsafe_code)]

pub mod auth;
#[doc(hidden)]
pub mod bindings;
pub mod filter;
#[doc(hidden)]
pub mod instance;
pub mod log;
pub mod metrics;
mod priority;
mod refusal;
pub mod sampler;
pub mod scheduler;
mod settings;
mod span;
pub mod validator;

pub use bindings::host::context::Setup;
pub use bindings::host::types::Refusal;
pub use bindings::host::{clock, crypto, documents, random, state, vocabulary};
pub use priority::Priority;
pub use settings::{NoSettings, parse};
pub use span::Span;
