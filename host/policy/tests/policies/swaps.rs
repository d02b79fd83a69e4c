//! Swaps: who gets which generation, and for how long it lives.
use std::sync::Arc;

use camshaft_core::ids::PolicyDigest;
use camshaft_core::policy::{Hook, Mode, Policies, PolicySet, PolicyState, SamplerHook};

use crate::rig::{behave, component, drawn, rig, row, sampling_request};

#[test]
fn a_sequence_keeps_the_sampler_that_it_began_with() {
    let standard = component("plugins/sampler-standard");
    let rig = rig(&[("sampler/10-x.wasm", &component("guests/misbehave-sampler"))]);
    rig.put("sampler/10-x.toml", behave("nonsense", "on-fault = \"deny\""));
    let mut old = rig.sampler(&sampling_request()).unwrap();
    std::fs::remove_file(rig.path("sampler/10-x.toml")).unwrap();
    rig.put("sampler/10-x.wasm", &standard);
    let mut new = rig.sampler(&sampling_request()).unwrap();
    assert!(drawn(&mut *new, &mut row()).is_ok());
    assert!(drawn(&mut *old, &mut row()).is_err(), "the old instance answers as it always did");
}

#[test]
fn a_chain_is_found_while_somebody_uses_it_and_the_newest_otherwise() {
    let rig = rig(&[("sampler/10-x.wasm", &component("guests/misbehave-sampler"))]);
    let nonsense = behave("nonsense", "on-fault = \"deny\"");
    rig.put("sampler/10-x.toml", &nonsense);
    let held = rig.host.current();
    rig.put("sampler/10-x.toml", behave("well", ""));
    let denies = |chain| {
        let mut sampler = SamplerHook::open(&*rig.host, chain, &sampling_request()).unwrap();
        drawn(&mut *sampler, &mut row()).is_err()
    };
    let old = held.sampler_chain();
    assert!(denies(old), "held, so a request of it starts under it");
    assert!(!denies(rig.chain()));
    drop(held);
    assert!(!denies(old), "gone, so the newest serves");
    assert!(!denies(PolicyDigest::new([9; 32])));
}

#[test]
fn a_generation_is_freed_when_its_last_user_is_gone() {
    let rig = rig(&[("sampler/10-x.wasm", &component("plugins/sampler-standard"))]);
    let held: Arc<dyn PolicySet> = rig.host.current();
    let sampler = SamplerHook::open(&*rig.host, held.sampler_chain(), &sampling_request()).unwrap();
    rig.put("sampler/10-x.wasm", component("guests/misbehave-sampler"));
    assert_ne!(rig.generation(), held.generation());
    drop(held);
    assert_eq!(rig.host.generations(), 2, "a running sequence holds the old one");
    drop(sampler);
    assert_eq!(rig.host.generations(), 1);
}

/// Changes one hook after another, now and then by a file, and asserts that nothing but the newest generation is left.
fn swap(swaps: usize) {
    let of = [
        (Hook::Auth, "guests/misbehave-auth"),
        (Hook::Validator, "guests/misbehave-validator"),
        (Hook::Scheduler, "guests/misbehave-scheduler"),
        (Hook::Sampler, "guests/misbehave-sampler"),
        (Hook::Filter, "guests/misbehave-filter"),
    ];
    let files = of.map(|(hook, guest)| (format!("{hook}/10-x.wasm"), component(guest)));
    let rig = rig(&files.each_ref().map(|(file, content)| (file.as_str(), content.as_slice())));
    let mut is_off = [false; 5];
    for i in 0..swaps {
        let (hook, _) = of[i % of.len()];
        // Somebody works with it while the next one comes.
        let used = rig.sampler(&sampling_request()).unwrap();
        let off = &mut is_off[i % of.len()];
        *off = !*off && i % 50 != 0;
        if i % 50 == 0 {
            rig.put(&format!("{hook}/10-x.toml"), format!("[policy]\ndeadline = \"{}ms\"", i / 50 + 10));
        } else {
            rig.host.set_mode(hook, "x", if *off { Mode::Off } else { Mode::Enforce }).unwrap();
        }
        drop(used);
    }
    assert_eq!(rig.generation().0, 1 + swaps as u64);
    assert_eq!(rig.host.generations(), 1, "all others are gone");
}

#[test]
fn three_hundred_swaps_leave_one_generation() {
    swap(300);
}

#[test]
fn long_attack_ten_thousand_swaps_leave_one_generation() {
    swap(10_000);
}

#[test]
fn an_unchanged_directory_publishes_nothing() {
    let rig = rig(&[("auth/10-x.wasm", &component("guests/misbehave-auth"))]);
    let generation = rig.generation();
    rig.host.reload().unwrap();
    rig.put("auth/10-x.wasm", component("guests/misbehave-auth"));
    rig.put("auth/notes.txt", "not a policy");
    assert_eq!(rig.generation(), generation);
}

#[test]
fn a_removed_file_is_a_removed_policy() {
    let (first, second) = (component("guests/misbehave-auth"), component("plugins/auth-api-keys"));
    let rig = rig(&[("auth/10-x.wasm", &first), ("auth/20-y.wasm", &second)]);
    let series = "camshaft_policy_generation{hook=\"auth\",plugin=\"x\"}";
    assert_eq!(rig.metric(series), 1.0);
    rig.remove("auth/10-x.wasm");
    assert_eq!((rig.swaps("auth", "removed"), rig.metric(series)), (1.0, 0.0));
    assert_eq!(rig.host.status().len(), 1);
    rig.remove("auth/20-y.wasm");
    assert!(rig.host.current().has_auth(), "the last guard stays");
    assert_eq!(rig.metric("camshaft_policies_without_files{hook=\"auth\"}"), 1.0);
    rig.host.set_mode(Hook::Auth, "y", Mode::Off).unwrap();
    assert!(!rig.host.current().has_auth() && rig.host.status().is_empty());
    assert_eq!(rig.metric("camshaft_policies_without_files{hook=\"auth\"}"), 0.0);
}

#[test]
fn a_stopped_host_goes_on_answering() {
    let rig = rig(&[("sampler/10-x.wasm", &component("plugins/sampler-standard"))]);
    rig.host.stop();
    rig.put("sampler/10-x.wasm", "nonsense");
    let mut sampler = rig.sampler(&sampling_request()).unwrap();
    assert!(drawn(&mut *sampler, &mut row()).is_ok());
    assert_eq!(rig.status("sampler/10-x.wasm").state, PolicyState::Active, "nothing was looked at any more");
}

#[test]
fn a_chain_is_named_by_what_it_is_made_of() {
    let (standard, avoid) = (component("plugins/sampler-standard"), component("plugins/sampler-avoid-words"));
    let words = |word: &str| format!("[settings]\nwords = [\"{word}\"]");
    let first = rig(&[("sampler/10-x.wasm", &standard)]);
    let chain = first.chain();
    assert_ne!(chain, PolicyDigest::NATIVE);
    first.put("auth/10-x.wasm", component("guests/misbehave-auth"));
    assert_eq!(first.chain(), chain, "other hooks have no part in it");
    first.put("sampler/20-y.wasm", &avoid);
    first.put("sampler/20-y.toml", words("blue"));
    let both = first.chain();
    assert_ne!(both, chain);
    first.put("sampler/20-y.toml", words("red"));
    assert_ne!(first.chain(), both, "settings count");
    // Another process, another history, the same chain.
    let second = rig(&[
        ("sampler/10-x.wasm", &standard),
        ("sampler/20-y.wasm", &avoid),
        ("sampler/20-y.toml", words("blue").as_bytes()),
    ]);
    assert_eq!(second.chain(), both);
    second.remove("sampler/20-y.wasm");
    assert_eq!(second.chain(), chain);
    let turned = rig(&[
        ("sampler/20-x.wasm", &standard),
        ("sampler/10-y.wasm", &avoid),
        ("sampler/10-y.toml", words("blue").as_bytes()),
    ]);
    assert_ne!(turned.chain(), both, "order counts");
}
