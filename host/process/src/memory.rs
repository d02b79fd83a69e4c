//! Freed memory that goes back to the system.
use std::io;
use std::thread::Builder;
use std::time::Duration;

/// About how long freed memory stays, for whoever wants some next: mimalloc's own delay, and at most as long again.
const DELAY: Duration = Duration::from_secs(1);

/// From now on what this process frees goes back to the system after a while, also where nothing is allocated any more: mimalloc only
/// looks at its clock when it is called, so that a process with nothing to do would keep what its last requests took.
///
/// # Errors
/// No thread can be started.
pub fn give_back_memory() -> io::Result<()> {
    let give_back = || {
        // For a thread that has allocated nothing mimalloc does nothing.
        drop(std::hint::black_box(Box::new(0)));
        loop {
            std::thread::sleep(DELAY);
            collect();
        }
    };
    Builder::new().name("memory".to_owned()).spawn(give_back).map(drop)
}

/// Memory that no thread holds any more and nobody wanted for as long as mimalloc waits.
#[allow(unsafe_code, reason = "mimalloc speaks C")]
fn collect() {
    // SAFETY: any thread may call it at any time.
    unsafe { libmimalloc_sys::mi_collect(false) };
}
