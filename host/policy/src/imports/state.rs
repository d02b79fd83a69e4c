//! `camshaft:host/state`: a small store shared by all instances of a plugin's name.
//!
//! Processes that run samplers and filters have copies. A change is made in the copy at once, and then in the store, in the order in
//! which the changes of a process arrive; what others have changed comes back, under what this process has changed since.
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::state::{self, Entry, Error, Host};
use crate::journal::{Happened, Journal, StateChange};

/// Maximum size of a plugin's keys and values together.
const STORE_BYTES: usize = 1 << 20;
const KEYS: usize = 4096;
const VALUE_BYTES: usize = 64 << 10;
const KEY_BYTES: usize = 256;
/// Keys that are remembered to have been removed, for copies.
const REMOVED: usize = KEYS;

/// The store of one plugin, shared by all its instances.
#[derive(Debug, Default)]
pub(crate) struct PluginState {
    store: Mutex<StateStore>,
    /// In a process that has a copy, with the number that the store has.
    journal: Option<(Arc<Journal>, u64)>,
}

#[derive(Debug, Default)]
struct StateStore {
    slots: HashMap<String, Slot>,
    bytes: usize,
    writes: u64,
    /// Keys that were removed, each with the number of writes before.
    removed: VecDeque<(u64, String)>,
    /// Changes of each process that has a copy, so far.
    taken: HashMap<u64, u64>,
    /// In a copy: changes that may not be in the store yet, and how many were before them.
    pending: VecDeque<StateChange>,
    settled: u64,
}

/// A value, and what is left of its time.
type Lasting = (Vec<u8>, Option<Duration>);

/// What others have changed in a store.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StateNews {
    /// `None`: the key was removed.
    entries: Vec<(String, Option<Lasting>)>,
    /// Changes of the process that this is for, which are in them.
    taken: u64,
}

impl PluginState {
    /// A copy of the store with this number, whose changes go to a journal.
    pub(crate) fn copy(journal: &Arc<Journal>, number: u64) -> Self {
        Self { store: Mutex::default(), journal: Some((journal.clone(), number)) }
    }

    /// Its number among those that there are.
    pub(crate) fn number(self: &Arc<Self>) -> u64 {
        Arc::as_ptr(self) as usize as u64
    }

    fn store(&self) -> MutexGuard<'_, StateStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a change that a process has made in its copy. What does not fit here any more is left out.
    pub(crate) fn carry_out(&self, change: StateChange, process: u64) {
        let mut store = self.store();
        *store.taken.entry(process).or_default() += 1;
        store.carry_out(change, Instant::now());
    }

    /// What has changed since this many writes for a process, and the writes by now. `entries`: whether others than it make changes.
    pub(crate) fn news(&self, since: u64, process: u64, entries: bool) -> (StateNews, u64) {
        let (store, now) = (self.store(), Instant::now());
        let mut news = StateNews { entries: Vec::new(), taken: store.taken.get(&process).copied().unwrap_or_default() };
        if entries {
            let removed =
                store.removed.iter().filter(|(writes, key)| *writes >= since && !store.slots.contains_key(key));
            news.entries.extend(removed.map(|(_, key)| (key.clone(), None)));
            let changed = store.slots.iter().filter(|(_, slot)| slot.version > since && slot.live(now));
            let left = |slot: &Slot| slot.expires.map(|at| at.saturating_duration_since(now));
            news.entries.extend(changed.map(|(key, slot)| (key.clone(), Some((slot.value.clone(), left(slot))))));
        }
        (news, store.writes)
    }

    /// Takes what others have changed into a copy.
    pub(crate) fn merge(&self, news: StateNews) {
        let (mut store, now) = (self.store(), Instant::now());
        while store.settled < news.taken && store.pending.pop_front().is_some() {
            store.settled += 1;
        }
        let StateNews { entries, .. } = news;
        let keys: Vec<String> = entries.iter().map(|(key, _)| key.clone()).collect();
        for (key, value) in entries {
            match value {
                // It fitted there.
                Some((value, left)) => {
                    let expires = left.and_then(|left| now.checked_add(left));
                    let _ = store.set(key, NewValue { value, expires }, now);
                }
                None => store.remove(&key),
            }
        }
        let pending: Vec<StateChange> = store.pending.iter().cloned().collect();
        let again = pending.into_iter().filter(|change| keys.iter().any(|key| key == change.key()));
        again.for_each(|change| store.carry_out(change, now));
    }
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
            if self.removed.len() >= REMOVED {
                self.removed.pop_front();
            }
            self.removed.push_back((self.writes, key.to_owned()));
        }
    }

    fn carry_out(&mut self, change: StateChange, now: Instant) {
        // What does not fit is not there: its plugin was told so, or will be.
        let _ = match change {
            StateChange::Set { key, value, ttl_ms } => {
                self.set(key, NewValue::living(value, now, ttl_ms), now).map(drop)
            }
            StateChange::Add { key, delta, ttl_ms } => self.increment(key, delta, now, ttl_ms).map(drop),
            StateChange::Delete { key } => {
                self.remove(&key);
                Ok(())
            }
        };
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
        if let Some(old) = self.slots.remove(&key) {
            self.bytes -= key.len() + old.value.len();
        }
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
        Ok(act(&mut self.state.store(), Instant::now()))
    }

    /// The same, and notes the change where the store is a copy.
    fn change<T>(
        &self,
        change: impl FnOnce() -> StateChange,
        act: impl FnOnce(&mut StateStore, Instant) -> Result<T, Error>,
    ) -> wasmtime::Result<Result<T, Error>> {
        self.with_store(|store, now| {
            // Before its parts are used up.
            let noted = self.state.journal.as_ref().map(|journal| (journal, change()));
            let done = act(store, now)?;
            if let Some(((journal, number), change)) = noted {
                store.pending.push_back(change.clone());
                // Under the lock, so that changes arrive in this order.
                journal.note(*number, Happened::State(change));
            }
            Ok(done)
        })
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
        let change = || StateChange::Set { key: key.clone(), value: value.clone(), ttl_ms };
        self.change(change, |store, now| store.set(key.clone(), NewValue::living(value.clone(), now, ttl_ms), now))
    }

    fn compare_and_set(
        &mut self,
        key: String,
        expected: Option<u64>,
        value: Vec<u8>,
        ttl_ms: Option<u64>,
    ) -> wasmtime::Result<Result<u64, Error>> {
        let change = || StateChange::Set { key: key.clone(), value: value.clone(), ttl_ms };
        let new = |now| NewValue::living(value.clone(), now, ttl_ms);
        self.change(change, |store, now| store.compare_and_set(key.clone(), expected, new(now), now))
    }

    fn increment(&mut self, key: String, delta: i64, ttl_ms: Option<u64>) -> wasmtime::Result<Result<i64, Error>> {
        let change = || StateChange::Add { key: key.clone(), delta, ttl_ms };
        self.change(change, |store, now| store.increment(key.clone(), delta, now, ttl_ms))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<Result<(), Error>> {
        self.change(
            || StateChange::Delete { key: key.clone() },
            |store, _| {
                store.remove(&key);
                Ok(())
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_hear_of_each_other_and_keep_what_they_have_not_told_yet() {
        let (store, journal) = (PluginState::default(), Arc::new(Journal::default()));
        let copies = [(); 2].map(|()| PluginState::copy(&journal, 1));
        let add = |copy: &PluginState, key: &str, delta| {
            CurrentState { state: copy, is_granted: true }.increment(key.into(), delta, None).unwrap().unwrap()
        };
        let tell = |process| {
            for (_, happened) in journal.take(true) {
                let Happened::State(change) = happened else { panic!("{happened:?}") };
                store.carry_out(change, process);
            }
        };
        assert_eq!((add(&copies[0], "n", 2), add(&copies[0], "own", 1)), (2, 1));
        tell(0);
        assert_eq!(add(&copies[1], "n", 5), 5);
        tell(1);
        // Not told before the news come.
        assert_eq!(add(&copies[0], "n", 1), 3);
        let (news, writes) = store.news(0, 0, true);
        copies[0].merge(news);
        assert_eq!(add(&copies[0], "n", 0), 8, "2 and 5 from the store, and 1 of its own");
        tell(0);
        let (news, _) = store.news(0, 1, true);
        copies[1].merge(news);
        assert_eq!((add(&copies[1], "n", 0), add(&copies[1], "own", 0)), (8, 1));
        CurrentState { state: &copies[1], is_granted: true }.delete("own".into()).unwrap().unwrap();
        tell(1);
        let (news, _) = store.news(writes, 0, true);
        copies[0].merge(news);
        let own = CurrentState { state: &copies[0], is_granted: true }.get("own".into());
        assert!(matches!(own, Ok(Ok(None))), "what was removed is gone");
        let (news, _) = store.news(0, 0, false);
        assert!(news.entries.is_empty() && news.taken == 4);
    }

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
