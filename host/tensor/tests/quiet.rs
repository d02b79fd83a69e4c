//! What a client can cause as often as it likes leaves the log alone. Alone in its process: it counts what the panic hook is told.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
use std::sync::atomic::{AtomicUsize, Ordering};

use camshaft_core::tensor::{Datatype, Tensor};
use camshaft_tensor::{BackendChoice, gather, load};

static TOLD: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_panic_of_the_runtime_leaves_the_log_alone_and_others_do_not() {
    std::panic::set_hook(Box::new(|_| _ = TOLD.fetch_add(1, Ordering::Relaxed)));
    let path = format!("{}/../../tests/fixtures/models/lookup.onnx", env!("CARGO_MANIFEST_DIR"));
    let files = gather(path.as_ref(), |wanted| {
        std::fs::read(wanted.path).map(Some).or_else(|error| if wanted.may_be_missing { Ok(None) } else { Err(error) })
    });
    let model = load(files.unwrap(), BackendChoice::Auto).unwrap();
    for id in [3i64, 7, -9, i64::MAX, i64::MIN] {
        let input = Tensor::new(Datatype::Int64, vec![1], id.to_le_bytes().to_vec()).unwrap();
        assert!(model.run(&[input]).is_err(), "{id}");
    }
    assert_eq!(TOLD.load(Ordering::Relaxed), 0);
    let other = std::thread::spawn(|| panic!("an ordinary one")).join();
    assert!(other.is_err());
    assert_eq!(TOLD.load(Ordering::Relaxed), 1);
}
