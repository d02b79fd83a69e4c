//! What loading and serving write to the log, and how often.
use std::sync::{Arc, Mutex};
use std::time::Instant;

use camshaft_core::answering::wait;
use camshaft_core::ids::PolicyDigest;
use camshaft_core::policy::{AuthRequest, Hook, PolicySet};

use super::bench::{Bench, component};
use crate::grants::{GrantEntry, Grants};
use crate::registry::Registry;
use crate::set::LoadedSet;
use crate::view::View;

/// Keeps the messages of a closure's log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{}={value:?} ", field.name()));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// What is logged meanwhile on this thread.
fn logged(act: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), act);
    let lines = lines.0.lock().unwrap();
    lines.clone()
}

#[test]
fn regression_a_chain_that_is_gone_is_told_of_once() {
    let (registry, gone) = (Registry::new(false), PolicyDigest::new([9; 32]));
    let lines = logged(|| {
        for chain in [gone, gone, PolicyDigest::new([8; 32]), registry.current().chain(Hook::Sampler).digest] {
            registry.find(Hook::Sampler, chain);
        }
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains(&gone.to_string()) && lines[0].contains("is gone"), "{lines:?}");
    registry.publish(LoadedSet::empty(false));
    assert_eq!(logged(|| drop(registry.find(Hook::Sampler, gone))).len(), 1, "news again after a change");
}

#[test]
fn regression_settings_that_are_corrected_to_what_serves_are_logged() {
    let mut bench = Bench::new();
    let settings = "[policy]\ndeadline = \"20ms\"";
    bench.put("auth/10-keys.wasm", component("guests/misbehave-auth"));
    bench.put("auth/10-keys.toml", settings);
    bench.loader.start().unwrap();
    let about_keys = |lines: Vec<String>| lines.into_iter().filter(|line| line.contains("keys")).collect::<Vec<_>>();
    let wrong = about_keys(logged(|| {
        bench.put("auth/10-keys.toml", "[policy]\ndeadline = 20");
        bench.loader.scan_settled();
    }));
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[1].contains("audit") && wrong[1].contains("event=\"rejected\""), "{wrong:?}");
    assert!(wrong[0].contains("auth/10-keys.toml") && wrong[0].contains("10-keys.toml, line 2: policy.deadline = 20"));
    let again = about_keys(logged(|| {
        bench.put("auth/10-keys.toml", settings);
        bench.loader.scan_settled();
        bench.loader.scan_settled();
    }));
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].contains("valid again"), "{again:?}");
}

#[test]
fn regression_differences_of_a_monitored_policy_are_logged_within_its_allowance() {
    const CALLS: usize = 1000;
    let mut bench = Bench::new();
    bench.put("auth/10-keys.wasm", component("guests/misbehave-auth"));
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"monitor\"");
    bench.loader.start().unwrap();
    let set = View::stable(bench.loader.registry.current());
    let stranger = AuthRequest {
        method: "GET".to_owned(),
        path: "/v1/models".to_owned(),
        remote_address: "192.0.2.1".to_owned(),
        ..AuthRequest::default()
    };
    let stranger = std::sync::Arc::new(stranger);
    let begun = Instant::now();
    let lines = logged(|| (0..CALLS).for_each(|_| drop(wait(set.authenticate(&stranger)))));
    // The allowance is a hundred lines for each second that has begun.
    let allowed = 100 * (2 + begun.elapsed().as_secs() as usize);
    let differences: Vec<_> = lines.iter().filter(|line| line.contains("would have decided otherwise")).collect();
    assert!(differences[0].contains("kind="), "{}", differences[0]);
    let differences = differences.len();
    assert!((100..=allowed).contains(&differences), "{differences} lines, {allowed} allowed");
    assert!(allowed < CALLS, "too slow a machine to tell");
}

#[test]
fn regression_policies_in_the_wrong_place_are_logged_once() {
    let mut bench = Bench::new();
    bench.loader.start().unwrap();
    bench.put("Validator/10-limits.wasm", b"");
    bench.put("auth/10-alone.toml", b"");
    let lines = logged(|| {
        for _ in 0..3 {
            bench.loader.scan_settled();
        }
    });
    let ignored: Vec<&String> = lines.iter().filter(|line| line.contains("ignored")).collect();
    assert_eq!(ignored.len(), 2, "{lines:?}");
    assert!(ignored[0].contains("Validator") && ignored[1].contains("10-alone.toml"), "{ignored:?}");
}

#[test]
fn a_grant_for_a_policy_that_is_not_there_is_told() {
    let entry = |policy: &str| GrantEntry { policy: policy.to_owned(), state: true, ..GrantEntry::default() };
    let grants = |policies: &[&str]| {
        Grants::new(true, &policies.iter().map(|policy| entry(policy)).collect::<Vec<_>>()).unwrap()
    };
    let mut bench = Bench::new();
    bench.put("sampler/10-x.wasm", component("guests/misbehave-sampler"));
    bench.loader.set_grants(grants(&["sampler/x"]));
    let told = |lines: &[String]| {
        lines.iter().filter(|line| line.contains("policy that is not in the directory")).cloned().collect::<Vec<_>>()
    };
    let lines = logged(|| bench.loader.start().unwrap());
    assert_eq!(told(&lines), [""; 0], "{lines:?}");
    let lines = logged(|| assert!(bench.loader.set_grants(grants(&["sampler/x", "sampler/y", "auth/x"]))));
    let told = told(&lines);
    assert!(told.len() == 2 && told[0].contains("\"x\"") && told[1].contains("\"y\""), "{lines:?}");
}
