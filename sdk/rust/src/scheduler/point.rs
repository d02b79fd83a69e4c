//! A scheduling point, and what the host can be asked at it.
use std::ops::{Deref, DerefMut};

use crate::bindings::host::scheduler_context::Pool;
use crate::bindings::scheduler::Point as Facts;

/// A scheduling point: what the host says ([`Facts`](super::Facts) has the fields), and what it can be asked.
#[derive(Debug)]
pub struct Point<'a> {
    facts: Facts,
    source: Source<'a>,
}

#[derive(Debug)]
enum Source<'a> {
    Host(&'a Pool),
    /// The names of tenants by their numbers.
    #[cfg(not(target_family = "wasm"))]
    Test(Vec<String>),
}

impl Deref for Point<'_> {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl DerefMut for Point<'_> {
    fn deref_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }
}

impl<'a> Point<'a> {
    pub(crate) fn new(facts: Facts, pool: &'a Pool) -> Self {
        Self { facts, source: Source::Host(pool) }
    }

    /// The model that clients ask for.
    pub fn model(&self) -> String {
        match &self.source {
            Source::Host(pool) => pool.model(),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(_) => "test".to_owned(),
        }
    }

    /// The name of a tenant, by its number in an arrival. A number that the host has not given is a fault.
    pub fn tenant(&self, number: u32) -> String {
        match &self.source {
            Source::Host(pool) => pool.tenant(number),
            #[cfg(not(target_family = "wasm"))]
            Source::Test(names) => names.get(number as usize).cloned().unwrap_or_else(|| format!("tenant-{number}")),
        }
    }
}

#[cfg(not(target_family = "wasm"))]
impl Point<'static> {
    /// A point for unit tests, whose tenants are called `tenant-0` and so on.
    pub(crate) fn test(facts: Facts) -> Self {
        Self { facts, source: Source::Test(Vec::new()) }
    }

    /// Names tenants in a unit test: the first has number 0.
    #[must_use]
    pub fn tenants(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.source = Source::Test(names.into_iter().map(Into::into).collect());
        self
    }
}
