//! Released interfaces stay as they were: their text, what today's interfaces have of them, and the guests that were built for them.
//! The draft of the next version only adds to today's.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use camshaft_tests::{Request, Server, Setup, repository, sha256_hex};
use serde_json::{Value, json};
use wit_parser::{Docs, Handle, InterfaceId, Resolve, Stability, Type, TypeDefKind};

use crate::errors::error_of;

const COMPLETIONS: &str = "/v1/completions";

fn released() -> PathBuf {
    repository().join("wit/released")
}

fn fixtures() -> PathBuf {
    repository().join("tests/fixtures/released")
}

/// All files below a folder but its list of digests, by their paths in it.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder can be listed") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(folder).expect("below it").to_string_lossy().into_owned();
            match name.as_str() {
                "SHA256SUMS" => {}
                _ if path.is_dir() => folders.push(path),
                _ => drop(found.insert(name, std::fs::read(path).expect("a file can be read"))),
            }
        }
    }
    found
}

/// `auth-1.0.0`, or `auth-1.0.0.wasm`, as a hook or package and a version.
fn split(name: &str) -> (&str, semver::Version) {
    let (package, version) = name.trim_end_matches(".wasm").rsplit_once('-').expect("a name and a version");
    (package, version.parse().expect("a version"))
}

#[test]
fn what_was_released_is_as_it_was_released() {
    for folder in [released(), fixtures()] {
        let sums: BTreeMap<String, String> =
            files(&folder).into_iter().map(|(name, content)| (name, sha256_hex(&content))).collect();
        assert!(sums.len() >= 5, "{sums:?}");
        let text = std::fs::read_to_string(folder.join("SHA256SUMS")).expect("the digests can be read");
        let line = |line: &str| line.split_once("  ").map(|(sum, name)| (name.to_owned(), sum.to_owned()));
        let known: BTreeMap<String, String> = text.lines().map(|text| line(text).expect("a line")).collect();
        assert_eq!(sums, known, "{}: a released version never changes; a new one is another folder", folder.display());
    }
    let bytes: usize = files(&fixtures()).values().map(Vec::len).sum();
    assert!(bytes < 1 << 20, "{bytes} bytes of guests are a burden to everybody who clones");
}

/// What an interface has, by name: the shapes of types, and of functions.
type Shapes = BTreeMap<String, String>;

/// The packages in folders, each with the name of its folder.
fn resolved(packages: &[PathBuf]) -> Resolve {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    std::fs::write(scratch.path().join("none.wit"), "package camshaft:none;").expect("a file can be written");
    for package in packages {
        let to = scratch.path().join("deps").join(package.file_name().expect("a name"));
        std::fs::create_dir_all(&to).expect("a folder can be made");
        for (name, content) in files(package) {
            std::fs::write(to.join(name), content).expect("a file can be written");
        }
    }
    let mut resolve = Resolve::default();
    resolve.push_dir(scratch.path()).unwrap_or_else(|error| panic!("{packages:?}: {error:?}"));
    resolve
}

/// `camshaft:host/log`.
fn plain_name(resolve: &Resolve, interface: InterfaceId) -> String {
    let name = resolve.id_of(interface).expect("an interface has a name");
    name.split('@').next().expect("a name").to_owned()
}

/// The shapes of all packages in folders below one, and which function came with which version.
fn shapes(packages: &[PathBuf]) -> (Shapes, BTreeMap<String, semver::Version>) {
    shapes_in(&resolved(packages))
}

fn shapes_in(resolve: &Resolve) -> (Shapes, BTreeMap<String, semver::Version>) {
    let (mut found, mut since) = (Shapes::new(), BTreeMap::new());
    for (id, interface) in resolve.interfaces.iter() {
        let name = plain_name(resolve, id);
        for (of, ty) in &interface.types {
            found.insert(format!("{name} type {of}"), shape_of(resolve, &resolve.types[*ty].kind));
        }
        for (of, function) in &interface.functions {
            let parameters: Vec<String> =
                function.params.iter().map(|param| format!("{}: {}", param.name, shape(resolve, &param.ty))).collect();
            let result = function.result.map_or("nothing".to_owned(), |result| shape(resolve, &result));
            let key = format!("{name} function {of}");
            if let Stability::Stable { since: version, .. } = &function.stability {
                since.insert(key.clone(), version.clone());
            }
            found.insert(key, format!("({}) -> {result}", parameters.join(", ")));
        }
    }
    (found, since)
}

fn shape(resolve: &Resolve, ty: &Type) -> String {
    let Type::Id(id) = ty else { return format!("{ty:?}") };
    let def = &resolve.types[*id];
    match (&def.name, &def.owner) {
        (Some(name), wit_parser::TypeOwner::Interface(interface)) => {
            let owner = resolve.id_of(*interface).unwrap_or_default();
            format!("{}.{name}", owner.split('@').next().unwrap_or_default())
        }
        _ => shape_of(resolve, &def.kind),
    }
}

fn shape_of(resolve: &Resolve, kind: &TypeDefKind) -> String {
    let one = |ty: &Type| shape(resolve, ty);
    let maybe = |ty: &Option<Type>| ty.as_ref().map_or("_".to_owned(), one);
    let id = |id: &wit_parser::TypeId| one(&Type::Id(*id));
    match kind {
        TypeDefKind::Record(record) => {
            let fields = record.fields.iter().map(|field| format!("{}: {}", field.name, one(&field.ty)));
            format!("record {{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        TypeDefKind::Variant(variant) => {
            let cases = variant.cases.iter().map(|case| format!("{}({})", case.name, maybe(&case.ty)));
            format!("variant {{ {} }}", cases.collect::<Vec<_>>().join(", "))
        }
        TypeDefKind::Enum(cases) => {
            format!("enum {:?}", cases.cases.iter().map(|case| &case.name).collect::<Vec<_>>())
        }
        TypeDefKind::Flags(flags) => {
            format!("flags {:?}", flags.flags.iter().map(|flag| &flag.name).collect::<Vec<_>>())
        }
        TypeDefKind::Tuple(tuple) => format!("tuple<{}>", tuple.types.iter().map(one).collect::<Vec<_>>().join(", ")),
        TypeDefKind::Resource => "resource".to_owned(),
        TypeDefKind::Handle(Handle::Own(of)) => format!("own<{}>", id(of)),
        TypeDefKind::Handle(Handle::Borrow(of)) => format!("borrow<{}>", id(of)),
        TypeDefKind::Option(of) => format!("option<{}>", one(of)),
        TypeDefKind::List(of) => format!("list<{}>", one(of)),
        TypeDefKind::Result(of) => format!("result<{}, {}>", maybe(&of.ok), maybe(&of.err)),
        TypeDefKind::Type(of) => one(of),
        other => panic!("no interface has a {}", other.as_str()),
    }
}

/// What is not allowed between a released version and today's.
fn changes(
    before: &Shapes,
    now: &Shapes,
    since: &BTreeMap<String, semver::Version>,
    version: &semver::Version,
) -> Vec<String> {
    let changed = before.iter().filter(|(name, shape)| now.get(*name) != Some(shape));
    let changed = changed.map(|(name, shape)| format!("{name} was {shape} and is {:?}", now.get(name)));
    let interfaces: Vec<&str> = before.keys().filter_map(|name| name.split(' ').next()).collect();
    let came = now.keys().filter(|name| !before.contains_key(*name));
    // What a new function takes may be a new type. New interfaces say so themselves.
    let came = came
        .filter(|name| name.contains(" function ") && interfaces.iter().any(|of| name.split(' ').next() == Some(of)));
    let untold = came.filter(|name| since.get(*name).is_none_or(|since| since <= version));
    let untold = untold.map(|name| format!("{name} is new, but has no @since(version = …) above {version}"));
    changed.chain(untold).collect()
}

/// The folder of the newest released version of each package.
fn newest() -> BTreeMap<String, (semver::Version, PathBuf)> {
    let mut newest: BTreeMap<String, (semver::Version, PathBuf)> = BTreeMap::new();
    for entry in std::fs::read_dir(released()).expect("there are releases") {
        let path = entry.expect("an entry").path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let (package, version) = split(&name);
        if newest.get(package).is_none_or(|(other, _)| *other < version) {
            newest.insert(package.to_owned(), (version, path.clone()));
        }
    }
    newest
}

#[test]
fn todays_interfaces_have_all_that_was_released_and_new_functions_say_since_when() {
    let newest = newest();
    let names: Vec<&str> = newest.keys().map(String::as_str).collect();
    assert_eq!(names, ["auth", "filter", "host", "sampler", "scheduler", "validator"]);
    let (now, since) = shapes_in(&todays());
    let (before, _) = shapes(&newest.values().map(|(_, path)| path.clone()).collect::<Vec<_>>());
    assert!(before.len() > 100, "{} items", before.len());
    for (name, (version, _)) in &newest {
        let own = |shapes: &Shapes| -> Shapes {
            let begins = format!("camshaft:{name}/");
            shapes.iter().filter(|(item, _)| item.starts_with(&begins)).map(|(a, b)| (a.clone(), b.clone())).collect()
        };
        let found = changes(&own(&before), &own(&now), &since, version);
        assert!(found.is_empty(), "camshaft:{name}@{version} is released: {found:#?}");
    }
}

#[test]
fn a_field_a_case_and_a_function_without_a_version_are_noticed() {
    let scratch = tempfile::tempdir().unwrap();
    let shapes_of = |name: &str, body: &str| {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(
            folder.join("x.wit"),
            format!("package a:x@1.1.0; @since(version = 1.0.0) interface i {{ {body} }}"),
        )
        .unwrap();
        shapes(&[folder])
    };
    let types = "record r { a: u8 } enum e { x } variant v { y(u8) }";
    let (before, _) = shapes_of("before", &format!("{types} resource c {{ f: func(a: r) -> option<e>; }}"));
    let version = "1.0.0".parse().unwrap();
    let found = |name: &str, body: &str| {
        let (now, since) = shapes_of(name, body);
        changes(&before, &now, &since, &version)
    };
    let grown = "resource c { f: func(a: r) -> option<e>; @since(version = 1.1.0) g: func() -> v; }";
    assert_eq!(found("grown", &format!("{types} {grown}")), Vec::<String>::new());
    for (name, body, word) in [
        (
            "field",
            "record r { a: u8, b: u8 } enum e { x } variant v { y(u8) } resource c { f: func(a: r) -> option<e>; }",
            "type r was",
        ),
        (
            "case",
            "record r { a: u8 } enum e { x, z } variant v { y(u8) } resource c { f: func(a: r) -> option<e>; }",
            "type e was",
        ),
        (
            "type",
            "record r { a: u8 } enum e { x } variant v { y(u16) } resource c { f: func(a: r) -> option<e>; }",
            "type v was",
        ),
        ("gone", "record r { a: u8 } enum e { x } variant v { y(u8) } resource c { }", "[method]c.f was"),
        (
            "result",
            "record r { a: u8 } enum e { x } variant v { y(u8) } resource c { f: func(a: r) -> e; }",
            "[method]c.f was",
        ),
        (
            "untold",
            "record r { a: u8 } enum e { x } variant v { y(u8) } resource c { f: func(a: r) -> option<e>; g: func(); }",
            "@since",
        ),
    ] {
        let found = found(name, body);
        assert!(found.len() == 1 && found[0].contains(word), "{name}: {found:?}");
    }
}

/// What is served, as `host/policy/build.rs` reads it.
fn todays() -> Resolve {
    let mut resolve = Resolve::default();
    resolve.push_path(repository().join("wit")).expect("the interfaces of today can be read");
    resolve
}

/// The version of each package that functions come with: after what was released the next minor one, below 1.0 the next patch
/// version.
fn next_versions() -> BTreeMap<String, semver::Version> {
    let next = |version: semver::Version| match version.major {
        0 => semver::Version::new(0, version.minor, version.patch + 1),
        major => semver::Version::new(major, version.minor + 1, 0),
    };
    newest().into_iter().map(|(package, (version, _))| (package, next(version))).collect()
}

/// What is wrong with a draft, which opens interfaces and resources of today's again, for functions alone, and may bring new
/// interfaces.
fn mistakes(draft: &Resolve, today: &Resolve, next: &BTreeMap<String, semver::Version>) -> Vec<String> {
    let (now, _) = shapes_in(today);
    let interfaces: Vec<String> = today.interfaces.iter().map(|(id, _)| plain_name(today, id)).collect();
    let is_told = |docs: &Docs| docs.contents.as_ref().is_some_and(|text| text.len() > 40);
    let mut found = Vec::new();
    for (id, interface) in draft.interfaces.iter() {
        let name = plain_name(draft, id);
        let package = &draft.packages[interface.package.expect("an interface has a package")].name;
        let next = next.get(&package.name).cloned();
        if next.is_none() || package.version != next {
            found.push(format!("{name} is of version {:?}, and the next one is {next:?}", package.version));
        }
        let since = |stability: &Stability| match stability {
            Stability::Stable { since, .. } => Some(since.clone()),
            _ => None,
        };
        let is_new = !interfaces.contains(&name);
        if is_new && (since(&interface.stability) != next || !is_told(&interface.docs)) {
            found.push(format!("{name} is new, but does not say since when and what for"));
        }
        for (of, ty) in interface.types.iter().filter(|_| !is_new) {
            let is_resource = matches!(draft.types[*ty].kind, TypeDefKind::Resource);
            if !is_resource || now.get(&format!("{name} type {of}")).is_none_or(|shape| shape != "resource") {
                found.push(format!("{name}: {of} is a type, and there only functions may come"));
            }
        }
        for (of, function) in &interface.functions {
            if now.contains_key(&format!("{name} function {of}")) {
                found.push(format!("{name}: {of} is there today"));
            }
            // Those of a new interface came with it.
            let since = since(&function.stability).or_else(|| since(&interface.stability));
            if since != next {
                found.push(format!("{name}: {of} has no @since of the next version"));
            }
            if !is_told(&function.docs) {
                found.push(format!("{name}: {of} does not say what it promises"));
            }
        }
    }
    found
}

/// The packages of `wit/next`, one to a file.
fn draft() -> Resolve {
    let mut resolve = Resolve::default();
    for (name, text) in files(&repository().join("wit/next")) {
        let text = String::from_utf8(text).expect("text");
        resolve.push_str(&name, &text).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
    resolve
}

#[test]
fn the_draft_of_the_next_version_only_adds_functions_with_their_promises() {
    let draft = draft();
    assert_eq!(mistakes(&draft, &todays(), &next_versions()), Vec::<String>::new());
    assert!(draft.interfaces.iter().next().is_some(), "these tests read the draft");
}

#[test]
fn a_draft_that_does_more_than_add_functions_is_noticed() {
    let read = |text: &str| {
        let mut resolve = Resolve::default();
        resolve.push_str("x.wit", text).unwrap();
        resolve
    };
    let today = read("package a:x@1.0.0; interface i { record r { a: u8 } resource c { f: func(); } }");
    // The comment that a function needs.
    let told = "/// Costs a copy. Never fails. May be called at any time.\n";
    let next = BTreeMap::from([("x".to_owned(), semver::Version::new(1, 1, 0))]);
    let found = |version: &str, body: &str| {
        mistakes(&read(&format!("package a:x@{version}; {}", body.replace("TOLD", told))), &today, &next)
    };
    let method = "interface i { resource c { TOLD @since(version = 1.1.0) g: func(); } }";
    let interface = "TOLD @since(version = 1.1.0) interface j { record s { b: u8 } TOLD h: func() -> s; }";
    assert_eq!(found("1.1.0", &format!("{method} {interface}")), Vec::<String>::new());
    for (version, body, word) in [
        ("1.2.0", "interface i {}", "the next one is"),
        ("1.1.0", "interface i { record r { a: u8, b: u8 } }", "r is a type"),
        ("1.1.0", "interface i { resource d; }", "d is a type"),
        ("1.1.0", "@since(version = 1.1.0) interface j {}", "j is new"),
        ("1.1.0", "interface i { @since(version = 1.1.0) g: func(); }", "what it promises"),
        ("1.1.0", "interface i { TOLD g: func(); }", "no @since"),
        ("1.1.0", "interface i { TOLD @since(version = 1.0.0) g: func(); }", "no @since"),
        ("1.1.0", "interface i { resource c { TOLD @since(version = 1.1.0) f: func(); } }", "f is there today"),
    ] {
        let found = found(version, body);
        assert!(found.len() == 1 && found[0].contains(word), "{body}: {found:?}");
    }
}

/// A server with a guest that was built when its interface was released.
fn serve(hook: &str, component: &[u8]) -> Server {
    // Instances are configured with all that the host has, on a busy machine.
    let server = Setup::new().component(hook, "10-released", component, "[policy]\ndeadline = \"5s\"\n").start();
    server.wait_until_active(hook, "released", component);
    server
}

fn complete(server: &Server, prompt: &str, more: &Value) -> Value {
    let mut body = json!({"model": "demo", "temperature": 0, "prompt": prompt, "max_tokens": 12});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let response = server.client.post(COMPLETIONS, &body);
    if response.status == 200 { response.json()["choices"][0].clone() } else { error_of(&response) }
}

/// Asserts what the guests in `tests/fixtures/guests` say they do.
fn runs(hook: &str, server: &Server) {
    let (nothing, counting) = (json!({}), "1, 2, 3,");
    match hook {
        "auth" => {
            let refused = server.client.send(&Request::get("/v1/models?a=b").header("x-refuse", "1"));
            assert_eq!(
                (refused.status, error_of(&refused)["message"].clone()),
                (403, json!("GET /v1/models?a=b from 127.0.0.1"))
            );
            let body = json!({"model": "demo", "prompt": "a", "max_tokens": 1});
            let statuses: Vec<u16> = (0..3).map(|_| server.client.post(COMPLETIONS, &body).status).collect();
            assert_eq!(statuses, [200, 200, 429], "two a minute");
            server.wait_for_log("\"tenant\":\"released\"");
        }
        "validator" => {
            assert_eq!(complete(server, "refuse", &nothing)["message"], "completion of demo for anonymous");
            assert_eq!(complete(server, counting, &nothing)["text"], " 4,");
        }
        "scheduler" => {
            let refused = complete(server, counting, &json!({"max_tokens": 1}));
            assert_eq!(refused["message"], "demo anonymous");
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| assert_eq!(complete(server, counting, &nothing)["finish_reason"], "length"));
                }
            });
        }
        "sampler" => {
            assert_eq!(complete(server, counting, &json!({"seed": 7}))["message"], "demo anonymous");
            let text = complete(server, counting, &json!({"ignore_eos": true}));
            assert!(text["text"].as_str().unwrap().starts_with("#$") && text["finish_reason"] == "stop", "{text}");
            let planned = complete(server, counting, &json!({"seed": 8, "ignore_eos": true}));
            assert_eq!(planned["finish_reason"], "length", "the plan wakes for the first token only: {planned}");
        }
        _ => {
            let text = |prompt: &str| complete(server, prompt, &json!({"max_tokens": 24}));
            let counted = text("0, 1,");
            assert!(counted["text"].as_str().unwrap().contains("[demo anonymous 0]"), "{counted}");
            let more = text("3, 4,");
            assert_eq!(more["finish_reason"], "content_filter", "{more}");
            assert!(!more["text"].as_str().unwrap().contains('6'), "{more}");
        }
    }
    let metrics = server.metrics();
    for outcome in ["trap", "deadline", "memory", "invalid_output", "unavailable"] {
        assert_eq!(metrics.count("camshaft_policy_calls_total", &[("outcome", outcome)]), 0.0, "{hook}: {outcome}");
    }
    assert!(metrics.count("camshaft_policy_calls_total", &[("hook", hook)]) > 0.0, "{hook} was asked");
    assert!(metrics.count("camshaft_plugin_configured", &[("hook", hook)]) > 0.0, "{hook} counted");
}

#[test]
fn guests_that_were_built_for_released_interfaces_load_and_run() {
    let guests = files(&fixtures());
    for (name, component) in &guests {
        let hook = split(name).0;
        let mut server = serve(hook, component);
        runs(hook, &server);
        server.wait_until_idle();
        server.assert_runs();
    }
    let folders: BTreeSet<String> =
        files(&released()).keys().filter_map(|path| Some(path.split_once('/')?.0.to_owned())).collect();
    let hooks: Vec<&String> = folders.iter().filter(|name| split(name).0 != "host").collect();
    let built: Vec<&str> = guests.keys().map(|name| name.trim_end_matches(".wasm")).collect();
    assert_eq!(built, hooks, "each released version of a hook has one");
}
