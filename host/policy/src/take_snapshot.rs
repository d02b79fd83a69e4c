//! Takes snapshots: makes components whose instances begin configured, for plugins whose instances take long to make.
//!
//! A plugin has none whose `configure` was given what may be another thing for another instance, or a secret: the code that is
//! compiled for it goes through a file.
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use wasmtime::component::{Instance, Lift, WasmList};
use wasmtime::{PoolConcurrencyLimitError, Store};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

use crate::digest::digest_of;
use crate::engine::MEMORIES;
use crate::error::PolicyError;
use crate::examine;
use crate::files::{self, COMPONENT_MAX_BYTES};
use crate::loaded::{HookPre, Loaded};
use crate::memory::memory_left;
use crate::snapshot::{Kept, Snapshot};
use crate::spec::SnapshotMode;
use crate::store::{self, GuestState};
use crate::task::Task;

/// Memory that an instance is given so that it can be read: each of its memories grows by a page each time, and is read twice.
const READ_BYTES: usize = 2 * MEMORIES * (64 << 10);
/// How long reading the memory of an instance may take.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// The most memory that this process needs meanwhile, in sizes of the component and of an instance.
const COPIES: u64 = 4;

/// Why a policy has no snapshot.
#[derive(Debug, thiserror::Error)]
enum NoSnapshot {
    #[error("nobody uses the version any more")]
    Gone,
    #[error("its file has changed since")]
    OtherFile,
    #[error("{0}")]
    Unfit(&'static str),
    #[error("its snapshot has {0} bytes, which exceeds the maximum of {COMPONENT_MAX_BYTES}")]
    TooLarge(usize),
    #[error("the memory that the control group leaves, {0} bytes, may be too little")]
    NoMemory(u64),
    #[error("it cannot be instrumented or run: {0:#}")]
    Wasm(wasmtime::Error),
    #[error(transparent)]
    Code(#[from] PolicyError),
    #[error("taking it panicked")]
    Panic,
}

impl NoSnapshot {
    /// Whether it may be taken later.
    fn is_transient(&self) -> bool {
        match self {
            Self::NoMemory(_) => true,
            Self::Wasm(error) => error.is::<PoolConcurrencyLimitError>(),
            Self::Code(error) => error.is_transient(),
            _ => false,
        }
    }
}

/// Takes the snapshot of a policy, unless nobody uses that any more. That lasts many seconds.
pub(crate) fn take(policy: &Weak<Loaded>) {
    let taken = catch_unwind(AssertUnwindSafe(|| taken(policy))).unwrap_or(Err(NoSnapshot::Panic));
    let Some(policy) = policy.upgrade() else { return };
    let (hook, plugin) = (policy.hook().as_str(), policy.name.as_str());
    match taken {
        Ok(snapshot) => {
            policy.snapshots.put(snapshot);
            policy.ahead.begin_anew();
            policy.runtime.feeds.bump();
            tracing::info!(hook, plugin, "instances of a policy begin from a snapshot that was taken after configure");
        }
        Err(why) => {
            let (is_transient, why) = (why.is_transient(), why.to_string());
            tracing::info!(hook, plugin, why, "instances of a policy begin without a snapshot");
            if is_transient {
                policy.snapshots.pause();
            } else {
                policy.snapshots.give_up(why);
            }
        }
    }
}

fn taken(policy: &Weak<Loaded>) -> Result<Snapshot, NoSnapshot> {
    let there = || policy.upgrade().ok_or(NoSnapshot::Gone);
    let (runtime, compiled, stopping, memory_bytes) = {
        let policy = there()?;
        let stopping = policy.snapshots.stopping();
        (policy.runtime.clone(), policy.compiled.clone(), stopping, policy.sidecar.memory_bytes)
    };
    let hook = compiled.pre.hook();
    check_room(compiled.size_bytes + memory_bytes as u64, memory_left())?;
    let file = compiled.file.load_full().ok_or(NoSnapshot::OtherFile)?;
    let bytes = files::read(&file, "a component", COMPONENT_MAX_BYTES)?;
    if digest_of(&bytes) != compiled.digest {
        return Err(NoSnapshot::OtherFile);
    }
    // Before anything is compiled, an ordinary instance tells whether that is worth it.
    configured(&*there()?, &compiled.pre)?;
    let mut wizer = Wizer::new();
    // One that a component has by chance.
    wizer.keep_init_func(true);
    let (context, instrumented) = wizer.instrument_component(&bytes).map_err(NoSnapshot::Wasm)?;
    let linked = |bytes: &[u8]| {
        let component = runtime.component(&Task { hook, bytes, stopping: &stopping })?;
        examine::link(runtime.linker(hook), &component, hook)
    };
    let pre = linked(&instrumented)?;
    drop(instrumented);
    let (snapshot, reusable) = {
        let policy = there()?;
        let (mut store, instance) = configured(&policy, &pre)?;
        let reusable = store.data().may_be_kept();
        store::arm(&mut store, READ_LIMIT);
        store.data_mut().allow_more(READ_BYTES);
        // All that it has is read at once.
        store.set_hostcall_fuel(store.data().used_bytes() + READ_BYTES);
        let mut read = InstanceReader { store: &mut store, instance };
        let snapshot = at_once(wizer.snapshot_component(&context, &mut read)).map_err(NoSnapshot::Wasm)?;
        (snapshot, reusable)
    };
    drop((context, pre));
    check_size(snapshot.len())?;
    // It holds the settings, and nobody takes the same again: what is in memory next time is not the same to the last bit.
    let code = Kept::new(&runtime, hook, &snapshot);
    let pre = linked(&snapshot)?;
    introduce(&*there()?, &pre)?;
    Ok(Snapshot { pre, reusable, code: Some(code) })
}

/// An instance as all will be, if it may stand for all.
fn configured(policy: &Loaded, pre: &HookPre) -> Result<(Store<GuestState>, Instance), NoSnapshot> {
    let mut store = policy.store(None);
    // What it does before `configure` is to be the same in all instances, too.
    store.data_mut().set_muted(true);
    store::arm(&mut store, examine::START_LIMIT);
    let (guest, instance) = pre.instantiate_whole(&mut store).map_err(NoSnapshot::Wasm)?;
    store::arm(&mut store, examine::CONFIGURE_LIMIT);
    let accepted = guest.configure(&mut store, &policy.sidecar.settings).map_err(NoSnapshot::Wasm)?;
    if accepted.is_err() {
        return Err(NoSnapshot::Unfit("it refuses its settings"));
    }
    store.data_mut().set_muted(false);
    let share_random = policy.sidecar.snapshot == SnapshotMode::ShareRandom;
    store.data().stands_for_all(share_random).map_err(NoSnapshot::Unfit)?;
    Ok((store, instance))
}

/// One instance starts and tells the name that the policy is known by.
fn introduce(policy: &Loaded, pre: &HookPre) -> Result<(), NoSnapshot> {
    let mut store = policy.store(None);
    store::arm(&mut store, examine::START_LIMIT);
    let guest = pre.instantiate(&mut store).map_err(NoSnapshot::Wasm)?;
    let said = guest.describe(&mut store).map_err(NoSnapshot::Wasm)?;
    match policy.identity.described.get() {
        Some(name) if *name != examine::name_of(&said) => {
            Err(NoSnapshot::Unfit("its instances describe themselves otherwise"))
        }
        _ => Ok(()),
    }
}

fn check_size(bytes: usize) -> Result<(), NoSnapshot> {
    if bytes as u64 > COMPONENT_MAX_BYTES { Err(NoSnapshot::TooLarge(bytes)) } else { Ok(()) }
}

fn check_room(each_bytes: u64, left: Option<u64>) -> Result<(), NoSnapshot> {
    match left {
        Some(left) if left < each_bytes.saturating_mul(COPIES) => Err(NoSnapshot::NoMemory(left)),
        _ => Ok(()),
    }
}

/// The result of a future that never waits: reading an instance calls it, and calls are synchronous.
fn at_once<T>(future: impl Future<Output = wasmtime::Result<T>>) -> wasmtime::Result<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(wasmtime::Error::msg("reading an instance waits")),
    }
}

/// Reads what an instance knows, through the functions that instrumenting added to its component.
struct InstanceReader<'a> {
    store: &'a mut Store<GuestState>,
    instance: Instance,
}

impl InstanceReader<'_> {
    /// Panics where a call fails: there is no other way to say so.
    fn call<R: Lift + 'static, T>(
        &mut self,
        interface: &str,
        function: &str,
        then: impl FnOnce(&Store<GuestState>, R) -> T,
    ) -> T {
        let called = (|| {
            let found = self.instance.get_export_index(&mut *self.store, None, interface)?;
            let found = self.instance.get_export_index(&mut *self.store, Some(&found), function)?;
            let function = self.instance.get_typed_func::<(), (R,)>(&mut *self.store, found).ok()?;
            let (answer,) = function.call(&mut *self.store, ()).ok()?;
            Some(then(self.store, answer))
        })();
        called.unwrap_or_else(|| panic!("an instance cannot be read: {interface} {function}"))
    }
}

impl ComponentInstanceState for InstanceReader<'_> {
    async fn call_func_ret_list_u8(&mut self, interface: &str, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        self.call(interface, name, |store, list: WasmList<u8>| contents(list.as_le_slice(store)));
    }

    async fn call_func_ret_s32(&mut self, interface: &str, name: &str) -> i32 {
        self.call(interface, name, |_, number| number)
    }

    async fn call_func_ret_s64(&mut self, interface: &str, name: &str) -> i64 {
        self.call(interface, name, |_, number| number)
    }

    async fn call_func_ret_f32(&mut self, interface: &str, name: &str) -> u32 {
        self.call(interface, name, |_, number: f32| number.to_bits())
    }

    async fn call_func_ret_f64(&mut self, interface: &str, name: &str) -> u64 {
        self.call(interface, name, |_, number: f64| number.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_at_them_and_not_one_past_them() {
        let most = COMPONENT_MAX_BYTES as usize;
        assert!(check_size(most).is_ok() && check_size(most + 1).is_err());
        assert!(check_room(10, None).is_ok() && check_room(10, Some(40)).is_ok());
        assert!(check_room(10, Some(39)).is_err());
    }
}
