//! One entry per hook, with everything in which loading, settings files, chains and instances differ between hooks.
use camshaft_core::breaker::BreakerSettings;
use camshaft_core::policy::{Endpoint, Hook, PolicyEffect};
use camshaft_core::sampling::RandomStream;
use serde::{Deserialize, Serialize};
use wasmtime::component::Linker;

use crate::imports;
use crate::imports::clock::Time;
use crate::imports::random::Randomness;
use crate::store::GuestState;

/// What the host does when a policy faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnFault {
    Deny,
    Skip,
    Fallback,
    /// Go back to the version of the file before; for each single fault, the default.
    LastGood,
}

impl OnFault {
    pub(crate) const ALL: [OnFault; 4] = [OnFault::Deny, OnFault::Skip, OnFault::Fallback, OnFault::LastGood];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            OnFault::Deny => "deny",
            OnFault::Skip => "skip",
            OnFault::Fallback => "fallback",
            OnFault::LastGood => "last-good",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|on_fault| on_fault.as_str() == text)
    }

    /// Whether a single fault of a policy of this hook fails what needs its answer.
    pub(crate) fn denies(self, hook: Hook) -> bool {
        match self {
            OnFault::Deny => true,
            OnFault::LastGood => spec(hook).guards,
            OnFault::Skip | OnFault::Fallback => false,
        }
    }

    /// What requests meet while a policy of this hook cannot be asked.
    pub(crate) fn effect(self, hook: Hook) -> PolicyEffect {
        if self.denies(hook) { PolicyEffect::Fails } else { PolicyEffect::None }
    }
}

/// When a policy's instances begin from a snapshot, by its settings file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SnapshotMode {
    /// Where `configure` leaves the same in all of them.
    #[default]
    Auto,
    Never,
    /// Also where it draws random numbers, which all of them then have in common.
    ShareRandom,
}

impl SnapshotMode {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "never" => Some(Self::Never),
            "share-random" => Some(Self::ShareRandom),
            _ => None,
        }
    }
}

/// Which policies decide if several of a hook are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decides {
    /// The policies are a chain.
    All,
    /// The last in file order decides; the others stand by.
    Last,
}

/// A host interface that guests may import.
pub(crate) struct Grant {
    /// Package and interface.
    pub(crate) name: &'static str,
    /// The version that this host has.
    pub(crate) version: &'static str,
    pub(crate) link: fn(&mut Linker<GuestState>) -> wasmtime::Result<()>,
}

/// Versions of the packages in `wit/deps`.
const HOST: &str = "1.0.0";
const AUTH_VERSION: &str = "1.0.0";
const VALIDATOR_VERSION: &str = "1.0.0";
const SCHEDULER_VERSION: &str = "0.2.0";
const SAMPLER_VERSION: &str = "0.2.0";
const FILTER_VERSION: &str = "0.1.0";

const TYPES: Grant = Grant { name: "camshaft:host/types", version: HOST, link: imports::types::add_to_linker };
const LOG: Grant = Grant { name: "camshaft:host/log", version: HOST, link: imports::log::add_to_linker };
const CLOCK: Grant = Grant { name: "camshaft:host/clock", version: HOST, link: imports::clock::add_to_linker };
const RANDOM: Grant = Grant { name: "camshaft:host/random", version: HOST, link: imports::random::add_to_linker };
const METRICS: Grant = Grant { name: "camshaft:host/metrics", version: HOST, link: imports::metrics::add_to_linker };
const STATE: Grant = Grant { name: "camshaft:host/state", version: HOST, link: imports::state::add_to_linker };
const CRYPTO: Grant = Grant { name: "camshaft:host/crypto", version: HOST, link: imports::crypto::add_to_linker };
const DOCUMENTS: Grant =
    Grant { name: "camshaft:host/documents", version: HOST, link: imports::documents::add_to_linker };
const VOCABULARY: Grant =
    Grant { name: "camshaft:host/vocabulary", version: HOST, link: imports::vocabulary::add_to_linker };
const SETUP: Grant = Grant { name: "camshaft:host/context", version: HOST, link: imports::setup::add_to_linker };
const CALL: Grant = Grant { name: "camshaft:auth/context", version: AUTH_VERSION, link: imports::call::add_to_linker };
const DRAFT: Grant =
    Grant { name: "camshaft:validator/context", version: VALIDATOR_VERSION, link: imports::draft::add_to_linker };
const POOL: Grant =
    Grant { name: "camshaft:scheduler/context", version: SCHEDULER_VERSION, link: imports::pool::add_to_linker };
const SEQUENCE: Grant =
    Grant { name: "camshaft:sampler/context", version: SAMPLER_VERSION, link: imports::sequence::add_to_linker };
const STREAM: Grant =
    Grant { name: "camshaft:filter/context", version: FILTER_VERSION, link: imports::stream::add_to_linker };
const LOGITS: Grant =
    Grant { name: "camshaft:sampler/logits", version: SAMPLER_VERSION, link: imports::logits::add_to_linker };

const PLANS: Grant =
    Grant { name: "camshaft:sampler/plans", version: SAMPLER_VERSION, link: imports::plans::add_to_linker };

/// By which a scheduler's instances hand over what they know.
pub(crate) const CHECKPOINT: &str = "camshaft:scheduler/checkpoint";

/// How the host treats one hook. `bindings` has the exports of its world, and `hooks` its calls.
pub(crate) struct HookSpec {
    /// The version of the hook's package that this host has.
    pub(crate) version: &'static str,
    /// Host interfaces that its policies may import.
    pub(crate) grants: &'static [Grant],
    /// Interfaces that its policies may export beside their hook, without version; their version is the hook's.
    pub(crate) optional_exports: &'static [&'static str],
    /// The choices of `on-fault`. The first is the default.
    pub(crate) on_fault: &'static [OnFault],
    /// Why the other choices are not supported.
    pub(crate) on_fault_why: &'static str,
    pub(crate) decides: Decides,
    /// The keys of `[match]`: what is known when its policies are asked.
    pub(crate) matches: &'static [&'static str],
    /// What `endpoints` of `[match]` names, where it does not name routes.
    pub(crate) endpoints: &'static [Endpoint],
    /// When the breaker of a policy opens whose settings do not say.
    pub(crate) breaker: BreakerSettings,
    /// Instances at once. No other hook can use them.
    pub(crate) instances: u32,
    /// Whether its policies guard requests. A guard that cannot be loaded at start refuses everything, and a removed
    /// guard serves until the files that came with its removal are compiled.
    pub(crate) guards: bool,
    /// Makes the random numbers of an instance; the argument is the request's seed, if it has one.
    pub(crate) randomness: fn(Option<u64>) -> Randomness,
    pub(crate) time: Time,
}

/// Instances at once: one for each thread that asks (of HTTP, and of those that block, which are 512); one for each pool,
/// and the next of each; one per policy of each running sequence.
const AUTH_INSTANCES: u32 = 512;
const VALIDATOR_INSTANCES: u32 = 576;
const SCHEDULER_INSTANCES: u32 = 256;
const SAMPLER_INSTANCES: u32 = 2048;
const FILTER_INSTANCES: u32 = 2048;
/// Where tokens are drawn.
const GENERATING: [Endpoint; 2] = [Endpoint::Chat, Endpoint::Completion];
/// The seed of every scheduler, so that a replay gives the same answers.
const SCHEDULER_SEED: u64 = 0x6361_6d73_6861_6674;

/// The entry of a hook.
pub(crate) fn spec(hook: Hook) -> &'static HookSpec {
    match hook {
        Hook::Auth => &AUTH,
        Hook::Validator => &VALIDATOR,
        Hook::Scheduler => &SCHEDULER,
        Hook::Sampler => &SAMPLER,
        Hook::Filter => &FILTER,
    }
}

static AUTH: HookSpec = HookSpec {
    version: AUTH_VERSION,
    grants: &[TYPES, SETUP, LOG, CLOCK, RANDOM, METRICS, STATE, CRYPTO, DOCUMENTS, CALL],
    optional_exports: &[],
    on_fault: &OnFault::ALL,
    on_fault_why: "",
    decides: Decides::All,
    matches: &["endpoints"],
    endpoints: &[],
    breaker: BreakerSettings::SHARED,
    instances: AUTH_INSTANCES,
    guards: true,
    randomness: |_| Randomness::Secure,
    time: Time::Real,
};

static VALIDATOR: HookSpec = HookSpec {
    version: VALIDATOR_VERSION,
    grants: &[TYPES, SETUP, LOG, CLOCK, RANDOM, METRICS, STATE, CRYPTO, DOCUMENTS, DRAFT],
    optional_exports: &[],
    on_fault: &OnFault::ALL,
    on_fault_why: "",
    decides: Decides::All,
    matches: &["tenants", "models", "endpoints"],
    endpoints: &Endpoint::ALL,
    breaker: BreakerSettings::SHARED,
    instances: VALIDATOR_INSTANCES,
    guards: true,
    randomness: |_| Randomness::Secure,
    time: Time::Real,
};

static SCHEDULER: HookSpec = HookSpec {
    version: SCHEDULER_VERSION,
    // No clock: a scheduler reads the time from its events, so that it can be replayed.
    grants: &[TYPES, SETUP, LOG, RANDOM, METRICS, STATE, CRYPTO, DOCUMENTS, POOL],
    optional_exports: &[CHECKPOINT],
    on_fault: &[OnFault::Fallback, OnFault::LastGood],
    on_fault_why: "the native scheduler takes over at once",
    decides: Decides::Last,
    matches: &["models"],
    endpoints: &[],
    breaker: BreakerSettings::SINGLE,
    instances: SCHEDULER_INSTANCES,
    guards: false,
    randomness: |_| Randomness::Seeded(RandomStream::new(SCHEDULER_SEED)),
    time: Time::Frozen,
};

static SAMPLER: HookSpec = HookSpec {
    version: SAMPLER_VERSION,
    // No clock either.
    grants: &[TYPES, SETUP, LOG, RANDOM, METRICS, STATE, CRYPTO, DOCUMENTS, VOCABULARY, LOGITS, PLANS, SEQUENCE],
    optional_exports: &[],
    on_fault: &[OnFault::Fallback, OnFault::Deny, OnFault::Skip, OnFault::LastGood],
    on_fault_why: "",
    decides: Decides::All,
    matches: &["tenants", "models", "endpoints"],
    endpoints: &GENERATING,
    breaker: BreakerSettings::SHARED,
    instances: SAMPLER_INSTANCES,
    guards: false,
    randomness: |seed| Randomness::Seeded(RandomStream::new(seed.unwrap_or_default())),
    time: Time::Frozen,
};

static FILTER: HookSpec = HookSpec {
    version: FILTER_VERSION,
    // No clock either: the same text is to come of the same tokens.
    grants: &[TYPES, SETUP, LOG, RANDOM, METRICS, STATE, CRYPTO, DOCUMENTS, STREAM],
    optional_exports: &[],
    on_fault: &[OnFault::Deny, OnFault::Skip, OnFault::LastGood],
    on_fault_why: "there is no native filter to fall back to",
    decides: Decides::All,
    matches: &["tenants", "models", "endpoints"],
    endpoints: &GENERATING,
    breaker: BreakerSettings::SHARED,
    instances: FILTER_INSTANCES,
    guards: true,
    randomness: |seed| Randomness::Seeded(RandomStream::new(seed.unwrap_or_default())),
    time: Time::Frozen,
};

impl HookSpec {
    /// The version of `camshaft:host` that this host has.
    pub(crate) const HOST: &str = HOST;

    /// The grant of an interface, by its name without version.
    pub(crate) fn grant(&self, interface: &str) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.name == interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::{Addresses, PLENTY_BYTES};

    #[test]
    fn every_hook_has_defaults_that_it_supports() {
        for hook in Hook::ALL {
            let spec = spec(hook);
            assert!(!spec.on_fault.is_empty(), "{hook}");
            // The error explains why a choice is not supported.
            assert_eq!(spec.on_fault_why.is_empty(), spec.on_fault.len() == OnFault::ALL.len(), "{hook}");
        }
    }

    #[test]
    fn regression_a_process_that_has_plenty_of_addresses_has_enough_for_the_instances_of_all_hooks() {
        let instances: u64 = Hook::ALL.into_iter().map(|hook| u64::from(spec(hook).instances)).sum();
        let reserved = |addresses: Addresses| instances * (addresses.reserved_bytes() + addresses.guard_bytes());
        assert!(reserved(Addresses::Plenty) < PLENTY_BYTES, "{} TiB", reserved(Addresses::Plenty) >> 40);
        assert!(reserved(Addresses::Few) < 512 << 30, "what docs/limits.md promises");
    }
}
