//! What a choice has used, counted where its tokens are drawn: a client that takes nothing of them pays all the same.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use camshaft_core::message::Event;

/// Shared by the worker's side of a choice, which counts, and by its request.
#[derive(Debug, Clone, Default)]
pub struct Spent(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    started: AtomicBool,
    tokens: AtomicU32,
}

impl Spent {
    /// Counts what an event says, before anybody decides whether to send it.
    pub fn note(&self, event: &Event) {
        match event {
            Event::Started { .. } => self.0.started.store(true, Ordering::Relaxed),
            Event::Delta { delta, .. } => drop(self.0.tokens.fetch_add(delta.tokens, Ordering::Relaxed)),
            // Not all tokens have text.
            Event::Finished { usage, .. } => drop(self.0.tokens.fetch_max(usage.generated_tokens, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Whether the prompt was computed or is being computed.
    pub(crate) fn is_started(&self) -> bool {
        self.0.started.load(Ordering::Relaxed)
    }

    /// Tokens drawn so far.
    pub fn tokens(&self) -> u32 {
        self.0.tokens.load(Ordering::Relaxed)
    }
}
