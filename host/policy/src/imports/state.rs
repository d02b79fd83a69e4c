//! `camshaft:host/state`: a small store shared by all instances of a plugin's name.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use wasmtime::component::{HasData, Linker};

use crate::bindings::host::state::{self, Entry, Error, Host};

/// Maximum size of a plugin's keys and values together.
const STORE_BYTES: usize = 1 << 20;
const KEYS: usize = 4096;
const VALUE_BYTES: usize = 64 << 10;
const KEY_BYTES: usize = 256;

/// The store of one plugin, shared by all its instances.
#[derive(Debug, Default)]
pub(crate) struct PluginState {
    store: Mutex<StateStore>,
}

#[derive(Debug, Default)]
struct StateStore {
    slots: HashMap<String, Slot>,
    bytes: usize,
    writes: u64,
}

#[derive(Debug)]
struct Slot {
    value: Vec<u8>,
    version: u64,
    expires: Option<Instant>,
}

/// The new value of a key.
struct NewValue {
    value: Vec<u8>,
    expires: Option<Instant>,
}

impl NewValue {
    /// A value that expires `ttl_ms` from now.
    fn living(value: Vec<u8>, now: Instant, ttl_ms: Option<u64>) -> Self {
        Self { value, expires: expiry(now, ttl_ms) }
    }
}

impl Slot {
    fn live(&self, now: Instant) -> bool {
        self.expires.is_none_or(|at| now < at)
    }
}

/// When an entry with this time to live expires; never if that is out of the clock's range.
fn expiry(now: Instant, ttl_ms: Option<u64>) -> Option<Instant> {
    ttl_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)))
}

impl StateStore {
    fn get(&self, key: &str, now: Instant) -> Option<&Slot> {
        self.slots.get(key).filter(|slot| slot.live(now))
    }

    fn remove(&mut self, key: &str) {
        if let Some(slot) = self.slots.remove(key) {
            self.bytes -= key.len() + slot.value.len();
        }
    }

    fn set(&mut self, key: String, new: NewValue, now: Instant) -> Result<u64, Error> {
        let NewValue { value, expires } = new;
        if key.len() > KEY_BYTES || value.len() > VALUE_BYTES {
            let (key, value) = (key.len(), value.len());
            return Err(Error::Full(format!(
                "a key of {key} bytes with a value of {value} is over the bounds of {KEY_BYTES} and {VALUE_BYTES} bytes"
            )));
        }
        let before = self.slots.get(&key).map_or(0, |slot| key.len() + slot.value.len());
        let size = key.len() + value.len();
        if !self.fits(before, size) {
            self.expire(now);
            let before = self.slots.get(&key).map_or(0, |slot| key.len() + slot.value.len());
            if !self.fits(before, size) {
                return Err(Error::Full(format!("the store holds at most {KEYS} keys and {STORE_BYTES} bytes")));
            }
        }
        self.remove(&key);
        self.bytes += size;
        self.writes += 1;
        self.slots.insert(key, Slot { value, version: self.writes, expires });
        Ok(self.writes)
    }

    /// Whether an entry of `size` bytes fits in place of one of `before` bytes (0: a new entry).
    fn fits(&self, before: usize, size: usize) -> bool {
        self.bytes - before + size <= STORE_BYTES && (before > 0 || self.slots.len() < KEYS)
    }

    fn expire(&mut self, now: Instant) {
        self.slots.retain(|_, slot| slot.live(now));
        self.bytes = self.slots.iter().map(|(key, slot)| key.len() + slot.value.len()).sum();
    }

    fn compare_and_set(
        &mut self,
        key: String,
        expected: Option<u64>,
        value: NewValue,
        now: Instant,
    ) -> Result<u64, Error> {
        let present = self.get(&key, now).map(|slot| slot.version);
        if present != expected {
            return Err(Error::Conflict(present));
        }
        self.set(key, value, now)
    }

    fn increment(&mut self, key: String, delta: i64, now: Instant, ttl_ms: Option<u64>) -> Result<i64, Error> {
        let (sum, expires) = match self.get(&key, now) {
            None => (delta, expiry(now, ttl_ms)),
            Some(slot) => {
                let number = std::str::from_utf8(&slot.value).ok().and_then(|text| text.parse::<i64>().ok());
                (number.ok_or(Error::NotANumber)?.saturating_add(delta), slot.expires)
            }
        };
        self.set(key, NewValue { value: sum.to_string().into_bytes(), expires }, now)?;
        Ok(sum)
    }
}

/// The store of a plugin, for one of its instances.
pub(crate) struct CurrentState<'a> {
    pub(crate) state: &'a PluginState,
    pub(crate) is_granted: bool,
}

impl CurrentState<'_> {
    fn with_store<T>(
        &self,
        act: impl FnOnce(&mut StateStore, Instant) -> Result<T, Error>,
    ) -> wasmtime::Result<Result<T, Error>> {
        if !self.is_granted {
            return Ok(Err(Error::Unavailable("the configuration does not grant it a store".to_owned())));
        }
        let mut store = self.state.store.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(act(&mut store, Instant::now()))
    }
}

/// The part of a guest's state that the store needs.
pub(crate) trait StateView: 'static {
    fn state(&mut self) -> CurrentState<'_>;
}

struct State;

impl HasData for State {
    type Data<'a> = CurrentState<'a>;
}

pub(crate) fn add_to_linker<T: StateView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    state::add_to_linker::<_, State>(linker, T::state)
}

impl Host for CurrentState<'_> {
    fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<Entry>, Error>> {
        self.with_store(|store, now| {
            Ok(store.get(&key, now).map(|slot| Entry { value: slot.value.clone(), version: slot.version }))
        })
    }

    fn set(&mut self, key: String, value: Vec<u8>, ttl_ms: Option<u64>) -> wasmtime::Result<Result<u64, Error>> {
        self.with_store(|store, now| store.set(key, NewValue::living(value, now, ttl_ms), now))
    }

    fn compare_and_set(
        &mut self,
        key: String,
        expected: Option<u64>,
        value: Vec<u8>,
        ttl_ms: Option<u64>,
    ) -> wasmtime::Result<Result<u64, Error>> {
        self.with_store(|store, now| store.compare_and_set(key, expected, NewValue::living(value, now, ttl_ms), now))
    }

    fn increment(&mut self, key: String, delta: i64, ttl_ms: Option<u64>) -> wasmtime::Result<Result<i64, Error>> {
        self.with_store(|store, now| store.increment(key, delta, now, ttl_ms))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<Result<(), Error>> {
        self.with_store(|store, _| {
            store.remove(&key);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lasting(value: Vec<u8>) -> NewValue {
        NewValue { value, expires: None }
    }

    #[test]
    fn without_a_grant_no_call_reads_or_writes() {
        let state = PluginState::default();
        let mut denied = CurrentState { state: &state, is_granted: false };
        let unavailable = |error: Option<Error>| assert!(matches!(error, Some(Error::Unavailable(_))));
        unavailable(denied.get("k".into()).unwrap().err());
        unavailable(denied.set("k".into(), vec![1], None).unwrap().err());
        unavailable(denied.compare_and_set("k".into(), None, vec![1], None).unwrap().err());
        unavailable(denied.increment("k".into(), 1, None).unwrap().err());
        unavailable(denied.delete("k".into()).unwrap().err());
        let mut granted = CurrentState { state: &state, is_granted: true };
        assert!(matches!(granted.get("k".into()), Ok(Ok(None))), "nothing was written");
        assert!(matches!(granted.set("k".into(), vec![1], None), Ok(Ok(_))));
    }

    #[test]
    fn sets_only_over_the_expected_version() {
        let (mut store, now) = (StateStore::default(), Instant::now());
        let first = store.compare_and_set("k".into(), None, lasting(b"1".to_vec()), now).unwrap();
        assert!(
            matches!(store.compare_and_set("k".into(), None, lasting(vec![]), now), Err(Error::Conflict(Some(v))) if v == first)
        );
        let second = store.compare_and_set("k".into(), Some(first), lasting(b"2".to_vec()), now).unwrap();
        assert!(second > first);
        store.remove("k");
        assert!(matches!(
            store.compare_and_set("k".into(), Some(second), lasting(vec![]), now),
            Err(Error::Conflict(None))
        ));
        assert_eq!(store.bytes, 0);
    }

    #[test]
    fn counts_up_until_the_key_expires() {
        let (mut store, now) = (StateStore::default(), Instant::now());
        assert_eq!(store.increment("n".into(), 2, now, Some(1000)).unwrap(), 2);
        let later = now + Duration::from_millis(999);
        assert_eq!(store.increment("n".into(), -5, later, Some(1000)).unwrap(), -3);
        assert_eq!(store.increment("n".into(), 1, now + Duration::from_millis(1000), None).unwrap(), 1);
        store.set("t".into(), lasting(b"text".to_vec()), now).unwrap();
        assert!(matches!(store.increment("t".into(), 1, now, None), Err(Error::NotANumber)));
    }

    #[test]
    fn holds_its_bounds_and_makes_room_by_expiring() {
        let (mut store, now) = (StateStore::default(), Instant::now());
        let too_long = store.set("k".repeat(KEY_BYTES + 1), lasting(vec![]), now);
        assert!(matches!(too_long, Err(Error::Full(_))));
        assert!(matches!(store.set("k".into(), lasting(vec![0; VALUE_BYTES + 1]), now), Err(Error::Full(_))));
        for i in 0..KEYS {
            store.set(format!("{i}"), NewValue::living(vec![0; 8], now, (i == 0).then_some(10)), now).unwrap();
        }
        assert!(matches!(store.set("more".into(), lasting(vec![]), now), Err(Error::Full(_))));
        store.set("1".into(), lasting(vec![1]), now).unwrap();
        store.set("more".into(), lasting(vec![]), now + Duration::from_millis(10)).unwrap();
        assert_eq!(store.slots.len(), KEYS);
    }
}
