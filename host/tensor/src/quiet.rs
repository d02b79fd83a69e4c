//! Runs what may panic at numbers of a file or of a request, without a word of it in the log.
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is expected, and told in another way.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`; `None` if it panics. A client can cause that as often as it likes, so the log has nothing of it.
pub(crate) fn quietly<T>(act: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let done = catch_unwind(AssertUnwindSafe(act));
    IS_QUIET.set(false);
    done.ok()
}

/// What a runtime panics at.
pub(crate) const OUT_OF_RANGE: &str =
    "a number is out of range for an operation, such as an index that a table does not have, or a division by zero";
