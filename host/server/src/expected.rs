//! Keeps warnings of llama.cpp out of the log that say nothing wrong happened.
use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Where llama.cpp's lines come from, see `log` in the engine.
const TARGET: &str = "llama-cpp-2";
/// Ends the warning that the KV cache is larger than the trained context. It is shared by many sequences, each of which is
/// kept within the trained context.
const CONTEXT_OVERFLOW: &str = "possible training context overflow";

/// Lets everything pass but those warnings.
pub(crate) struct Unexpected;

impl<S> Filter<S> for Unexpected {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if event.metadata().target() != TARGET {
            return true;
        }
        let mut expected = Expected(false);
        event.record(&mut expected);
        !expected.0
    }
}

/// Whether the message is one of those.
struct Expected(bool);

impl Visit for Expected {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0 |= field.name() == "message" && value.contains(CONTEXT_OVERFLOW);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::Subscriber;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    static PASSED: AtomicUsize = AtomicUsize::new(0);

    struct Count;

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            PASSED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn regression_a_cache_larger_than_the_trained_context_is_no_warning_of_llama_cpp() {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Count.with_filter(Unexpected)), || {
            let line = "n_ctx_seq (8192) > n_ctx_train (1024) -- possible training context overflow";
            tracing::warn!(target: "llama-cpp-2", message = line);
            assert_eq!(PASSED.load(Ordering::Relaxed), 0);
            tracing::warn!(target: "llama-cpp-2", message = "something else");
            tracing::warn!(message = line);
            assert_eq!(PASSED.load(Ordering::Relaxed), 2);
        });
    }
}
