//! What the schema says of the keys, and the files that come with the server.
use super::*;

#[test]
fn a_change_is_told_key_by_key_for_each_half() {
    let before = file("[queue]\nhigh-watermark = 9").unwrap();
    let differ = |text: &str| {
        let after = file(text).unwrap();
        (changed(&before.live, &after.live), changed(&before.fixed, &after.fixed))
    };
    let none = || Vec::<String>::new();
    assert_eq!(differ("[queue]\nhigh-watermark = 9\nlow-watermark = 6"), (none(), none()));
    let (live, fixed) =
        differ("[queue]\nhigh-watermark = 9\n[log]\nlevel = \"debug\"\n[shutdown]\ndrain = 1\ngrace = 2");
    assert_eq!((live, fixed), (vec!["log.level".into(), "shutdown.drain".into(), "shutdown.grace".into()], none()));
    let text = "listen = \"127.0.0.1:9\"\n[queue]\nhigh-watermark = 9\n[[model]]\nsequences = 4\n[limits]\nconnections = 4\n[policy]\npoll = \"1s\"";
    let (live, fixed) = differ(text);
    assert_eq!(live, ["model.0.sequences", "policy.poll"]);
    assert_eq!(fixed, ["limits.connections", "listen"]);
    let two = differ("[queue]\nhigh-watermark = 9\n[[model]]\n[[model]]\nid = \"b\"");
    assert_eq!(two, (vec!["model".to_owned()], none()));
}

#[test]
fn every_key_stands_in_one_half() {
    let keys = keys::Keys::new();
    let leaves = |half: &serde_json::Value, tree: toml::Value| {
        let mut names = Vec::new();
        tree::Node::of(tree, &Source::Default).leaves(&mut |key, _, _| names.push(key.to_owned()));
        assert!(half["properties"].is_object());
        names
    };
    let live = leaves(&keys.live, toml::Value::try_from(Live::default()).unwrap());
    let fixed = leaves(&keys.fixed, toml::Value::try_from(Fixed::default()).unwrap());
    assert!(live.len() > 8 && fixed.len() > 15, "{live:?} {fixed:?}");
    assert!(live.iter().all(|key| !fixed.contains(key)), "{live:?} {fixed:?}");
    assert!(live.iter().chain(&fixed).all(|key| keys.at(key).is_some()));
}

/// Every schema of a key below this one, with its path.
fn described(schema: &serde_json::Value, path: &str, visit: &mut impl FnMut(&str, &serde_json::Value)) {
    let list = schema["items"]["properties"].as_object();
    for (key, below) in schema["properties"].as_object().or(list).into_iter().flatten() {
        let path = format!("{path}.{key}");
        visit(&path, below);
        described(below, &path, visit);
    }
}

#[test]
fn regression_the_schema_has_a_title_and_says_what_each_key_does() {
    let schema = schema();
    assert_eq!(schema["title"], "Camshaft configuration");
    assert_eq!(schema["additionalProperties"], serde_json::json!(false));
    let mut keys = 0;
    described(&schema, "", &mut |path, key| {
        keys += 1;
        assert!(key["description"].as_str().is_some_and(|text| text.len() > 10), "{path}: {key}");
        let section = key["properties"].is_object();
        assert!(section || key.get("default").is_some(), "{path} says no default: {key}");
        if section {
            assert_eq!(key["additionalProperties"], serde_json::json!(false), "{path}");
        }
    });
    assert!(keys > 45, "{keys}");
    assert_eq!(schema["properties"]["queue"]["properties"]["timeout"]["default"], "1m");
    assert_eq!(schema["properties"]["limits"]["properties"]["connections"]["maximum"], 1_000_000);
    let model = &schema["properties"]["model"]["items"]["properties"];
    assert_eq!(model["kv-type"]["enum"], serde_json::json!(["auto", "f16", "q8_0", "q4_0"]));
    assert_eq!(model["kv-type"]["type"], "string");
    // A section of both halves has the keys of both.
    let limits = schema["properties"]["limits"]["properties"].as_object().unwrap();
    assert!(limits.contains_key("body") && limits.contains_key("connections"), "{limits:?}");
}

/// The shipped file with its commented keys switched on.
fn shipped(with_comments: bool) -> String {
    let text = std::fs::read_to_string("../../config/camshaft.toml").unwrap();
    let is_key =
        |rest: &str| rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if with_comments && is_key(rest) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_shipped_file_says_the_defaults_and_nothing_else() {
    let mut shipped = file(&shipped(false)).unwrap();
    assert_eq!(shipped.live.model[0].path.take(), Some("demo".into()));
    let mut defaults = Config::default();
    defaults.complete();
    assert_eq!(changed(&defaults.live, &shipped.live), ["policy.dir"], "relative");
    assert_eq!(changed(&defaults.fixed, &shipped.fixed), [""; 0]);
}

#[test]
fn the_shipped_file_shows_every_key() {
    let tree = tree::Node::parse(&shipped(true), std::path::Path::new("camshaft.toml")).unwrap();
    let keys = keys::Keys::new();
    assert_eq!(keys.check(&tree), []);
    let mut missing = Vec::new();
    described(&keys.all, "", &mut |path, key| {
        let lists = ["model.", "adapter.", "grant."];
        let path = lists.iter().fold(path[1..].to_owned(), |path, list| path.replace(list, &format!("{list}0.")));
        if !key["properties"].is_object() && tree.at(&path).is_none() {
            missing.push(path);
        }
    });
    // Another way to write `kind`.
    assert_eq!(missing, ["model.0.embeddings"]);
}
