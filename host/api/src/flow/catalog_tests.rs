//! Which model a name leads to.
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use camshaft_core::engine::EngineLimits;
use camshaft_core::fake::{ByteTokenizer, FakeEngine};
use camshaft_core::grammar::GrammarStore;

use super::*;
use crate::flow::backend::{Backend, GenerateBackend, TextModel};
use crate::flow::readiness::ModelHealth;

const LIMITS: EngineLimits = EngineLimits { sequences: 1, kv_tokens: 64, batch_tokens: 16, context_tokens: 64 };

fn naming(id: &str) -> Naming {
    let (name, version) = id.split_once('@').map_or((id, None), |(name, version)| (name, Some(version.to_owned())));
    Naming { version, ..Naming::of(name) }
}

fn served(naming: Naming, accepts: bool) -> Entry {
    let health = ModelHealth::default();
    health.worker().ready();
    let (pool, _) = crossbeam_channel::bounded(1);
    let grammars = Arc::new(GrammarStore::new(FakeEngine::info(LIMITS).vocabulary));
    let text = TextModel::local(FakeEngine::info(LIMITS), Arc::new(ByteTokenizer), grammars.clone(), None);
    let (adapters, accepts) = (Arc::default(), Arc::new(AtomicBool::new(accepts)));
    let backend = Backend::Generate(GenerateBackend {
        grammars,
        text,
        sampling: Default::default(),
        family: None,
        adapters,
        pool,
        accepts,
    });
    let model = Model { id: naming.id(), naming: naming.clone(), health, created: 7, backend };
    Entry { naming, held: Held::Served(Served::new(model)) }
}

fn absent(naming: Naming, absence: Absence) -> Entry {
    Entry { naming, held: Held::Absent { kind: None, absence } }
}

fn catalog(entries: Vec<Entry>) -> Catalog {
    Catalog { entries }
}

/// What a name leads to, and the model that was meant if it is another one.
fn leads(catalog: &Catalog, name: &str, who: u64) -> Option<(String, Option<String>)> {
    catalog.route(name, who, |_| true).map(|route| (route.entry.id(), route.instead_of))
}

#[test]
fn ids_names_and_aliases_lead_to_models() {
    let with_alias = Naming { aliases: vec!["gpt".to_owned()], ..naming("big") };
    let catalog =
        catalog(vec![served(with_alias, true), served(naming("chat@1"), true), served(naming("chat@2"), true)]);
    let to = |name: &str| leads(&catalog, name, 0).map(|(id, _)| id);
    assert_eq!(to("big").as_deref(), Some("big"));
    assert_eq!(to("gpt").as_deref(), Some("big"));
    assert_eq!(to("chat@2").as_deref(), Some("chat@2"));
    assert!(to("chat").is_some_and(|id| id.starts_with("chat@")));
    assert_eq!(to("chat@3"), None);
    assert_eq!(to(""), None);
}

#[test]
fn of_the_patterns_that_fit_a_name_the_longest_leads() {
    let known_as = |id: &str, alias: &str| served(Naming { aliases: vec![alias.to_owned()], ..naming(id) }, true);
    let catalog = catalog(vec![
        known_as("any", "*"),
        known_as("big", "claude-*"),
        known_as("small", "claude-haiku-*"),
        known_as("own", "claude-opus"),
    ]);
    let to = |name: &str| leads(&catalog, name, 0).map(|(id, _)| id).unwrap();
    assert_eq!(
        ["claude-sonnet", "claude-haiku-4", "claude-opus", "gpt", "own"].map(to),
        ["big", "small", "own", "any", "own"]
    );
}

#[test]
fn a_split_follows_the_weights_and_keeps_each_caller_with_one_version() {
    let weighing = |id: &str, weight| served(Naming { weight, ..naming(id) }, true);
    let catalog = catalog(vec![weighing("m@1", 3.0), weighing("m@2", 1.0), weighing("m@3", 0.0)]);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for tenant in 0..4000 {
        let who = who(&format!("tenant-{tenant}"), None);
        let (id, _) = leads(&catalog, "m", who).unwrap();
        assert_eq!(leads(&catalog, "m", who).unwrap().0, id);
        *counts.entry(id).or_default() += 1;
    }
    assert!(counts["m@1"] > 2800 && counts["m@1"] < 3200 && !counts.contains_key("m@3"), "{counts:?}");
    assert_eq!(leads(&catalog, "m@3", 0).unwrap().0, "m@3", "by its own name it is there");
    assert_ne!(who("a", Some("s")), who("a", Some("t")), "sessions of one tenant are divided, too");
}

#[test]
fn without_any_weight_the_first_version_serves() {
    let weightless = |id: &str| served(Naming { weight: 0.0, ..naming(id) }, true);
    let catalog = catalog(vec![weightless("m@1"), weightless("m@2")]);
    for who in [0, u64::MAX / 2, u64::MAX] {
        assert_eq!(leads(&catalog, "m", who).unwrap().0, "m@1");
    }
}

#[test]
fn a_fallback_stands_in_for_a_model_that_cannot_be_used() {
    let falling = |id: &str, to: &str| Naming { fallback: Some(to.to_owned()), ..naming(id) };
    for entry in [
        served(falling("big", "small"), false),
        absent(falling("big", "small"), Absence::Loading),
        absent(falling("big", "small"), Absence::Failed("why".to_owned())),
        absent(falling("big", "small"), Absence::Asleep),
    ] {
        let catalog = catalog(vec![entry, served(naming("small"), true)]);
        assert_eq!(leads(&catalog, "big", 0), Some(("small".to_owned(), Some("big".to_owned()))));
        let refused = catalog.route("big", 0, |naming| naming.name != "small").unwrap();
        assert_eq!(refused.entry.id(), "big", "whoever may not use the fallback gets the model's own error");
    }
    let open = catalog(vec![served(falling("big", "small"), true), served(naming("small"), true)]);
    assert_eq!(leads(&open, "big", 0), Some(("big".to_owned(), None)));
}

#[test]
fn regression_a_fallback_that_does_something_else_does_not_stand_in() {
    let big = Naming { fallback: Some("small".to_owned()), ..naming("big") };
    let asleep = |kind| Entry { naming: big.clone(), held: Held::Absent { kind, absence: Absence::Asleep } };
    for (kind, leads_to) in [(None, "small"), (Some(ModelKind::Generate), "small"), (Some(ModelKind::Embed), "big")] {
        let catalog = catalog(vec![asleep(kind), served(naming("small"), true)]);
        assert_eq!(leads(&catalog, "big", 0).unwrap().0, leads_to, "{kind:?}");
    }
}

#[test]
fn fallbacks_in_a_circle_come_to_an_end() {
    let falling = |id: &str, to: &str| absent(Naming { fallback: Some(to.to_owned()), ..naming(id) }, Absence::Loading);
    let catalog = catalog(vec![falling("a", "b"), falling("b", "a")]);
    assert_eq!(leads(&catalog, "a", 0), Some(("a".to_owned(), None)));
}

#[test]
fn a_chain_of_fallbacks_is_followed() {
    let falling = |id: &str, to: &str| Naming { fallback: Some(to.to_owned()), ..naming(id) };
    let catalog = catalog(vec![
        absent(falling("a", "b"), Absence::Loading),
        served(falling("b", "c"), false),
        served(naming("c"), true),
    ]);
    assert_eq!(leads(&catalog, "a", 0), Some(("c".to_owned(), Some("a".to_owned()))));
}

#[test]
fn an_entry_takes_the_place_of_the_one_with_its_id() {
    let mut catalog = catalog(vec![served(naming("a"), true), served(naming("b"), true)]);
    assert!(catalog.put(absent(naming("a"), Absence::Loading)).is_some());
    assert!(catalog.put(served(naming("a@2"), true)).is_none());
    assert_eq!(catalog.entries().map(Entry::id).collect::<Vec<_>>(), ["a", "b", "a@2"]);
    assert!(catalog.rename("b", &Naming { aliases: vec!["c".to_owned()], ..naming("b") }));
    assert_eq!(leads(&catalog, "c", 0).unwrap().0, "b");
    assert!(catalog.remove("b").is_some() && catalog.remove("b").is_none());
    assert!(!catalog.rename("b", &naming("b")));
}

#[test]
fn whoever_holds_a_model_is_in_flight() {
    let entry = served(naming("a"), true);
    assert_eq!(entry.in_flight(), 0);
    let held = entry.served().unwrap().ask();
    assert_eq!((entry.in_flight(), held.asked()), (1, 1));
    drop(held);
    assert_eq!(entry.in_flight(), 0);
}
