use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

mod schema;
mod sources;

fn load(file: Option<&str>, environment: &[(&str, &str)], overrides: &Overrides) -> Result<Config, String> {
    let mut on_disk = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    on_disk.write_all(file.unwrap_or_default().as_bytes()).unwrap();
    let path = file.map(|_| on_disk.path());
    Config::load(path, variables(environment), overrides).map_err(|error| error.to_string())
}

fn variables<'a>(environment: &'a [(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> + 'a {
    environment.iter().map(|(name, text)| (OsString::from(name), OsString::from(text)))
}

/// Every key with its value and source, without a file.
fn keys(environment: &[(&str, &str)], overrides: Overrides) -> Vec<(String, String, String)> {
    let sources = Sources::new(None, variables(environment), overrides).unwrap();
    let entry = |one: Effective| (one.key, one.value.to_string(), one.source.to_string());
    sources.snapshot().unwrap().keys.into_iter().map(entry).collect()
}

fn has(keys: &[(String, String, String)], key: &str, value: &str, source: &str) -> bool {
    keys.contains(&(key.to_owned(), value.to_owned(), source.to_owned()))
}

fn file(text: &str) -> Result<Config, String> {
    load(Some(text), &[], &Overrides::default())
}

fn set(pairs: &[&str]) -> Overrides {
    Overrides { set: pairs.iter().map(|p| (*p).to_owned()).collect(), ..Overrides::default() }
}

#[test]
fn without_anything_it_serves_the_demo_model_on_loopback() {
    let config = load(None, &[("PATH", "/bin"), ("CAMSHAFT_MODELS", "/tmp")], &Overrides::default()).unwrap();
    let Config { live, fixed, .. } = config;
    assert_eq!(fixed.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(fixed.admin.listen.to_string(), "127.0.0.1:9090");
    let [model] = &live.model[..] else { panic!("one model") };
    assert_eq!((model.id.as_str(), model.source()), ("demo", ModelSource::Demo));
    assert_eq!(live.shutdown.drain.0, Duration::from_secs(30));
    assert_eq!(live.queue.watermarks().low, 192);
    assert_eq!(fixed.telemetry.endpoint(), None);
}

#[test]
fn flags_beat_the_environment_which_beats_the_file_which_beats_defaults() {
    let text = "[queue]\nhigh-watermark = 200\n";
    let environment = [("CAMSHAFT_QUEUE__HIGH_WATERMARK", "300")];
    let flags = set(&["queue.high-watermark=400"]);
    let none = Overrides::default();
    let watermark = |file, environment: &[(&str, &str)], flags: &Overrides| {
        load(file, environment, flags).unwrap().live.queue.watermarks().high
    };
    for (with_file, with_environment, with_flag, expected) in [
        (false, false, false, 256),
        (true, false, false, 200),
        (false, true, false, 300),
        (true, true, false, 300),
        (false, false, true, 400),
        (true, false, true, 400),
        (false, true, true, 400),
        (true, true, true, 400),
    ] {
        let environment = if with_environment { &environment[..] } else { &[] };
        let flags = if with_flag { &flags } else { &none };
        assert_eq!(watermark(with_file.then_some(text), environment, flags), expected as usize);
    }
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (text, key, nearest) in [
        ("lisen = \"x\"", "lisen", "listen"),
        ("[queue]\nhigh-watermrk = 1", "queue.high-watermrk", "high-watermark"),
        ("[[model]]\nsequence = 1", "sequence", "sequences"),
        ("high-watermark = 1", "high-watermark", "queue.high-watermark"),
        ("context-tokens = 4096", "context-tokens", "model.0.context-tokens"),
    ] {
        let error = file(text).unwrap_err();
        assert!(error.contains(key) && error.contains(&format!("`{nearest}`")), "{error}");
    }
    let error = load(None, &[("CAMSHAFT_QUEUE__HIGH_WATERMAK", "1")], &Overrides::default()).unwrap_err();
    assert!(error.contains("queue.high-watermak") && error.contains("`high-watermark`"), "{error}");
}

#[test]
fn regression_an_unknown_key_that_resembles_none_lists_the_known_ones() {
    for (text, key, known) in
        [("[server]\nport = 1", "server", "listen"), ("[[model]]\nengine = \"x\"", "engine", "sequences")]
    {
        let error = file(text).unwrap_err();
        assert!(error.contains(key) && error.contains("known here: "), "{error}");
        assert!(error.contains(&format!("`{known}`")) && !error.contains("did you mean"), "{error}");
    }
}

#[test]
fn numbers_are_held_to_their_bounds() {
    for (good, bad, key) in [
        ("[[model]]\nsequences = 255", "[[model]]\nsequences = 256", "sequences"),
        ("[[model]]\nsequences = 1", "[[model]]\nsequences = 0", "sequences"),
        (
            "[[model]]\nsequences = 32\nbatch-tokens = 32",
            "[[model]]\nsequences = 32\nbatch-tokens = 31",
            "batch-tokens",
        ),
        (
            "[[model]]\nkv-layout = \"per-sequence\"\nsequences = 4\ncontext-tokens = 64",
            "[[model]]\nkv-layout = \"per-sequence\"\nsequences = 4\ncontext-tokens = 63",
            "context-tokens",
        ),
        ("[[model]]\ncontext-tokens = 16", "[[model]]\ncontext-tokens = 15", "context-tokens"),
        ("[limits]\nslow-reader = \"2s\"", "[limits]\nslow-reader = \"1999ms\"", "limits.slow-reader"),
        ("[limits]\nframe-interval = \"1s\"", "[limits]\nframe-interval = \"1001ms\"", "limits.frame-interval"),
        ("[policy]\npoll = \"100ms\"", "[policy]\npoll = \"99ms\"", "policy.poll"),
        ("[cors]\norigins = [\"*\", \"https://a.org\"]", "[cors]\norigins = [\"a.org\"]", "cors.origins"),
        ("[tls]\ncert = \"c\"\nkey = \"k\"", "[tls]\ncert = \"c\"", "tls.cert"),
        ("[[model]]\ndraft-tokens = 16", "[[model]]\ndraft-tokens = 17", "draft-tokens"),
        (
            "[[model]]\ndraft-model = \"small.gguf\"\ndraft-tokens = 1",
            "[[model]]\ndraft-model = \"small.gguf\"\ndraft-tokens = 0",
            "draft-tokens",
        ),
        ("[[model]]\nlora-scale = -100", "[[model]]\nlora-scale = 100.1", "lora-scale"),
        ("[[model]]\nlora-scale = 100.0", "[[model]]\nlora-scale = nan", "lora-scale"),
        (
            "[[model]]\nsampling = { temperature = 2.0 }",
            "[[model]]\nsampling = { temperature = 2.1 }",
            "model.0.sampling.temperature",
        ),
        ("[[model]]\nsampling = { top-p = 0.0 }", "[[model]]\nsampling = { top-p = nan }", "model.0.sampling.top-p"),
        (
            "[[model]]\nsampling = { top-k = 1000000 }",
            "[[model]]\nsampling = { top-k = 1000001 }",
            "model.0.sampling.top-k",
        ),
        (
            "[[model]]\n[[model.adapter]]\npath = \"x.gguf\"\nscale = -100",
            "[[model]]\n[[model.adapter]]\npath = \"x.gguf\"\nscale = -100.1",
            "model.0.adapter.0.scale",
        ),
        (
            "[[model]]\n[[model.adapter]]\npath = \"x.gguf\"\nscale = 0.0",
            "[[model]]\n[[model.adapter]]\npath = \"x.gguf\"\nscale = nan",
            "model.0.adapter.0.scale",
        ),
        ("[limits]\nbody = \"1KiB\"", "[limits]\nbody = 1023", "limits.body"),
        ("[limits]\nmax-tokens = 1", "[limits]\nmax-tokens = 0", "limits.max-tokens"),
        ("[limits]\nmax-duration = \"1s\"", "[limits]\nmax-duration = \"999ms\"", "limits.max-duration"),
        ("[limits]\nmax-duration = \"24h\"", "[limits]\nmax-duration = \"25h\"", "limits.max-duration"),
        ("[queue]\nlow-watermark = 255", "[queue]\nlow-watermark = 256", "queue.low-watermark"),
        ("[queue]\nmax-timeout = \"60s\"", "[queue]\nmax-timeout = \"59s\"", "queue.max-timeout"),
        ("[queue]\nlow-watermark=0\nhigh-watermark = 1", "[queue]\nhigh-watermark = 0", "queue.high-watermark"),
    ] {
        assert!(file(good).is_ok(), "{good}: {:?}", file(good));
        let error = file(bad).unwrap_err();
        assert!(error.contains(key), "{bad}: {error}");
    }
}

#[test]
fn wrong_values_name_their_key() {
    for (text, key) in [
        ("listen = \"nowhere\"", "listen"),
        ("[queue]\ntimeout = \"soon\"", "timeout"),
        ("[queue]\ntimeout = -1", "timeout"),
        ("[limits]\nbody = \"2XB\"", "body"),
        ("[log]\nformat = \"xml\"", "format"),
        ("[[model]]\nkv-type = \"q2\"", "kv-type"),
        ("[[model]]\nsha256 = \"abc\"", "sha256"),
        ("[[model]]\nkind = \"generate\"\ndimensions = [64]", "model.0.dimensions"),
        ("[[model]]\nembeddings = true\ndimensions = [0]", "model.0.dimensions"),
        ("[[model]]\nkind = \"embed\"\nlora = \"x.gguf\"", "model.0.lora"),
        ("[[model]]\nkind = \"embed\"\n[[model.adapter]]\npath = \"x.gguf\"", "model.0.adapter is only"),
        ("[[model]]\nkind = \"predict\"\n[[model.adapter]]\npath = \"x.gguf\"", "model.0.adapter is only"),
        ("[[model]]\nadapter = \"x.gguf\"", "[[model.0.adapter]]"),
        (
            "[[model]]\nid = \"a\"\nfallback = \"c\"\n[[model]]\nid = \"b@1\"\naliases = [\"d\"]",
            "model.0.fallback must be the name of another model (b, b@1, d), got \"c\"",
        ),
        (
            "[[model]]\nid = \"a\"\nfallback = \"c\"",
            "model.0.fallback must be the name of another model (there is no other)",
        ),
        ("[[model]]\n[[model.adapter]]\nid = \"a\"", "model.0.adapter.0.path must be set"),
        ("[[model]]\n[[model.adapter]]\nid = \"a:b\"\npath = \"x\"", "model.0.adapter.0.id must have"),
        ("[[model]]\n[[model.adapter]]\npath = \"a\\u0000b\"", "model.0.adapter.0.path must be a path without NUL"),
        ("[[model]]\n[[model.adapter]]\npath = \"x\"\nweight = 1", "model.0.adapter.0.weight"),
        (
            "[[model]]\n[[model.adapter]]\npath = \"a/x.gguf\"\n[[model.adapter]]\npath = \"b/x.gguf\"",
            "model.0.adapter.1.id must be another",
        ),
        (
            "[[model]]\nid = \"m\"\n[[model.adapter]]\nid = \"a\"\npath = \"x\"\n[[model]]\nid = \"m:a\"",
            "model.1.id must not be the name of a model with an adapter, got \"m:a\"",
        ),
        (
            "[[model]]\nid = \"m@1\"\n[[model.adapter]]\nid = \"a\"\npath = \"x\"\n[[model]]\nid = \"b\"\naliases = [\"m:a\"]",
            "model.1.aliases must not be the name of a model with an adapter, got \"m:a\"",
        ),
        (
            "[[model]]\nid = \"n:a\"\n[[model]]\nid = \"m\"\naliases = [\"n\"]\n[[model.adapter]]\nid = \"a\"\npath = \"x\"",
            "must not be the name of a model with an adapter, got \"n:a\"",
        ),
        (
            "[[model]]\nid = \"m\"\naliases = [\"m:a\"]\n[[model.adapter]]\nid = \"a\"\npath = \"x\"",
            "model.0.aliases must not be the name of a model with an adapter, got \"m:a\"",
        ),
        ("[[model]]\nembeddings = true\ndraft-tokens = 1", "model.0.draft-tokens"),
        ("[[model]]\nembeddings = true\nkind = \"generate\"", "model.0.kind"),
        ("[[model]]\nkind = \"rank\"", "model.0.kind"),
        ("queue = 5", "queue is a section"),
        ("model = 5", "[[model]]"),
        ("[model]\nid = \"a\"", "model is a list of sections: write [[model]]"),
        (
            "listen = \"127.0.0.1:7\"\nadmin.listen = \"127.0.0.1:7\"",
            "admin.listen must be another address than listen",
        ),
        ("listen = [1]", "listen"),
        ("[listen]\na = 1", "listen is a single value"),
        ("[queue]\nhigh-watermark = 99999999999999999999", "queue.high-watermark"),
        ("[queue]\nhigh-watermark = -1", "queue.high-watermark must be between 1 and 1000000, got -1"),
        ("[queue]\nhigh-watermark = \"many\"", "queue.high-watermark"),
        ("[[model]]\nkv-reserve = \"some\"", "kv-reserve"),
        ("[[model]]\nkv-layout = \"paged\"", "kv-layout"),
        ("[[model]]\nstep-target = \"0s\"", "model.0.step-target"),
        ("[[model]]\nbatch-size = 0", "model.0.batch-size must be between 1 and 4096, got 0"),
        ("[[model]]\nbatch-size = 4097", "model.0.batch-size must be between 1 and 4096, got 4097"),
        ("[[model]]\nbatch-window = \"1001ms\"", "model.0.batch-window"),
        ("[[model]]\nid = \"a\"\n[[model]]\nid = \"a\"", "model.1.id"),
        ("not toml", ":1: is not TOML"),
    ] {
        let error = file(text).unwrap_err();
        assert!(error.contains(key), "{text}: {error}");
    }
}

#[test]
fn sizes_and_spans_have_units() {
    let live = file("[limits]\nbody = \"3MiB\"\n[queue]\ntimeout = \"1500ms\"\n[shutdown]\ndrain = 5").unwrap().live;
    assert_eq!(live.limits.body.0, 3 << 20);
    assert_eq!(live.queue.timeout.0, Duration::from_millis(1500));
    assert_eq!(live.shutdown.drain.0, Duration::from_secs(5));
}

#[test]
fn a_model_has_a_path_or_a_source_and_is_called_after_its_file() {
    let model = |text: &str| file(&format!("[[model]]\n{text}")).map(|config| config.live.model[0].clone());
    for (source, id) in [
        ("hf:org/repo/a/x-00001-of-00002.gguf@v1", "x"),
        ("ollama:me/llama3:8b", "llama3"),
        ("registry.example.org/me/llama3:8b", "llama3"),
    ] {
        let model = model(&format!("source = \"{source}\"")).unwrap();
        assert_eq!((model.id.as_str(), model.source()), (id, ModelSource::Remote(source.to_owned())));
    }
    let digest = "0".repeat(64);
    assert!(model(&format!("source = \"https://h/x.gguf\"\nsha256 = \"{digest}\"")).is_ok());
    assert!(model(&format!("source = \"https://h/x.gguf#sha256={digest}\"")).is_ok());
    for (text, words) in [
        ("source = \"https://h/x.gguf\"", "needs the file's digest"),
        ("source = \"hf:a/b/c\"\npath = \"x\"", "path as well"),
        ("source = \"x.gguf\"", "path is for files"),
        ("source = \"\"", "must have 1 to 4096 bytes"),
    ] {
        let error = model(text).unwrap_err();
        assert!(error.contains(words) && error.contains("model.0.source"), "{error}");
    }
    let flags = Overrides { models: vec!["hf:a/b/c.gguf".into(), "d.gguf".into()], ..Overrides::default() };
    let models = load(None, &[], &flags).unwrap().live.model;
    assert_eq!(models[0].source(), ModelSource::Remote("hf:a/b/c.gguf".into()));
    assert_eq!(models[1].source(), ModelSource::File("d.gguf".into()));
    let added = load(None, &[], &set(&["model.1.source=ollama:x"])).unwrap().live.model;
    assert_eq!(added[1].id, "x");
}

#[test]
fn paths_in_a_file_are_relative_to_it_and_paths_of_flags_are_not() {
    let config = file("[policy]\ndir = \"p\"\n[[model]]\npath = \"m/x.gguf\"").unwrap();
    let dir = std::env::temp_dir();
    assert_eq!(config.live.policy.dir, dir.join("p"));
    assert_eq!(config.live.model[0].source(), ModelSource::File(dir.join("m/x.gguf")));
    assert_eq!(config.live.model[0].id, "x");
    let demo = file("[[model]]\npath = \"demo\"").unwrap();
    assert_eq!(demo.live.model[0].source(), ModelSource::Demo);
    let flags = Overrides {
        models: vec!["y.gguf".into(), "demo".into()],
        policy_dir: Some("q".into()),
        ..Overrides::default()
    };
    let config = load(Some("[[model]]\npath = \"m/x.gguf\""), &[], &flags).unwrap();
    assert_eq!(config.live.policy.dir, PathBuf::from("q"));
    assert_eq!(config.live.model[0].source(), ModelSource::File("y.gguf".into()));
    assert_eq!(config.live.model[1].source(), ModelSource::Demo);
}

#[test]
fn a_missing_file_is_missing_input() {
    let error = Config::load(Some(std::path::Path::new("/nowhere/c.toml")), std::iter::empty(), &Overrides::default());
    assert_eq!(crate::error::ServerError::from(error.unwrap_err()).exit_code(), 66);
}

/// Keys of each kind with three good values, and the environment's name for them.
const KEYS: [(&str, &str, [&str; 3]); 8] = [
    ("listen", "CAMSHAFT_LISTEN", ["127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003"]),
    ("queue.high-watermark", "CAMSHAFT_QUEUE__HIGH_WATERMARK", ["101", "102", "103"]),
    ("queue.timeout", "CAMSHAFT_QUEUE__TIMEOUT", ["11s", "12s", "13s"]),
    ("limits.body", "CAMSHAFT_LIMITS__BODY", ["1MiB", "3MiB", "4MiB"]),
    ("limits.max-tokens", "CAMSHAFT_LIMITS__MAX_TOKENS", ["7", "8", "9"]),
    ("log.level", "CAMSHAFT_LOG__LEVEL", ["warn", "debug", "error"]),
    ("shutdown.drain", "CAMSHAFT_SHUTDOWN__DRAIN", ["1s", "2s", "3s"]),
    ("allow-anonymous", "CAMSHAFT_ALLOW_ANONYMOUS", ["true", "false", "true"]),
];

/// How a value stands in a file.
fn written(value: &str) -> String {
    let bare = value.parse::<u64>().is_ok() || value.parse::<bool>().is_ok();
    if bare { value.to_owned() } else { format!("{value:?}") }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn of_any_key_set_anywhere_the_highest_source_wins(masks in prop::collection::vec(0u8..8, KEYS.len())) {
        let (mut text, mut environment, mut flags) = (String::new(), Vec::new(), Vec::new());
        for (&(key, name, [in_file, in_environment, in_flag]), mask) in KEYS.iter().zip(&masks) {
            if mask & 1 != 0 {
                // Top-level keys come before all tables.
                let line = format!("{key} = {}\n", written(in_file));
                text = if key.contains('.') { text + &line } else { line + &text };
            }
            if mask & 2 != 0 {
                environment.push((OsString::from(name), OsString::from(in_environment)));
            }
            if mask & 4 != 0 {
                flags.push(format!("{key}={in_flag}"));
            }
        }
        let mut on_disk = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        on_disk.write_all(text.as_bytes()).unwrap();
        let overrides = Overrides { set: flags, ..Overrides::default() };
        let effective = Sources::new(Some(on_disk.path()), environment.into_iter(), overrides).unwrap();
        let effective = effective.snapshot().unwrap().keys;
        for (&(key, name, values), mask) in KEYS.iter().zip(&masks) {
            let found = effective.iter().find(|one| one.key == key).unwrap();
            let (value, source) = match mask {
                4.. => (values[2], format!("flag --set {key}")),
                2.. => (values[1], format!("environment {name}")),
                1 => (values[0], format!("file {}:", on_disk.path().display())),
                _ => { prop_assert_eq!(&found.source, &Source::Default); continue }
            };
            prop_assert_eq!(found.value.to_string(), written(value), "{}", key);
            prop_assert!(found.source.to_string().starts_with(&source), "{}: {}", key, found.source);
        }
    }
}

#[test]
fn regression_a_file_is_read_up_to_a_bound() {
    let text = |bytes: u64| format!("#{}", "x".repeat(bytes as usize - 1));
    file(&text(load::FILE_MAX_BYTES)).unwrap();
    let error = file(&text(load::FILE_MAX_BYTES + 1)).unwrap_err();
    assert!(error.contains(".toml: has 1048577 bytes, more than the 1048576 allowed"), "{error}");
}

#[test]
fn regression_a_file_that_cannot_be_read_is_not_called_missing() {
    let dir = tempfile::tempdir().unwrap();
    let around = dir.path().join("around.toml");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    let read = |path| Config::load(Some(path), std::iter::empty(), &Overrides::default()).unwrap_err().to_string();
    assert!(read(dir.path()).ends_with(": is not a regular file"));
    assert!(read(&around).contains("symbolic link"), "{}", read(&around));
    assert!(read(&dir.path().join("none.toml")).ends_with(": no such configuration file"));
}

#[test]
fn regression_a_queue_that_lets_nothing_wait_is_refused() {
    let error = file("[queue]\ntimeout = \"0s\"").unwrap_err();
    assert!(error.contains("queue.timeout must be at least 1ms, got 0s"), "{error}");
    file("[queue]\ntimeout = \"1ms\"").unwrap();
}

#[test]
fn regression_what_would_fail_or_be_silent_in_serve_is_refused() {
    for (text, key, word) in [
        ("[log]\nlevel = \"verbose\"", "log.level", "debug"),
        ("[log]\nlevel = \"info,camshaft=loud\"", "log.level", "trace"),
        ("[log]\nlevel = \"=debug\"", "log.level", "info"),
        ("[cache]\ndisk = \"1GiB\"", "cache.disk", "cache.disk-dir"),
        ("[cache]\ndisk-dir = \"cache\"", "cache.disk-dir", "how much"),
        ("[telemetry]\notlp-endpoint = \"collector:4317\"", "telemetry.otlp-endpoint", "http://"),
        ("[telemetry]\notlp-endpoint = \"https://collector:4317\"", "telemetry.otlp-endpoint", "TLS"),
        ("[telemetry]\notlp-endpoint = \"not a url\"", "telemetry.otlp-endpoint", "not a url"),
        ("[tls]\nkey = \"key.pem\"", "tls.key", "tls.cert"),
        ("[tls]\ncert = \"c\"\nkey = \"k\"\nclient-auth = \"require\"", "tls.client-auth", "tls.client-ca"),
        ("[tls]\ncert = \"c\"\nkey = \"k\"\nclient-ca = \"ca\"", "tls.client-ca", "tls.client-auth"),
        ("[tls]\nclient-ca = \"ca\"\nclient-auth = \"request\"", "tls.client-auth", "tls.cert"),
        ("[tls]\nclient-auth = \"always\"", "tls.client-auth", "require"),
    ] {
        let error = file(text).unwrap_err();
        assert!(error.contains(key) && error.contains(word), "{text}: {error}");
    }
    for good in [
        "[log]\nlevel = \"INFO,llama.cpp=debug,camshaft_policy=off\"",
        "[cache]\ndisk = \"1GiB\"\ndisk-dir = \"cache\"",
        "[cache]\ndisk = \"0\"\ndisk-dir = \"cache\"",
        "[telemetry]\notlp-endpoint = \"http://collector.example:4317\"",
    ] {
        assert!(file(good).is_ok(), "{good}: {:?}", file(good));
    }
}

#[test]
fn regression_exceptions_to_the_log_level_need_a_level() {
    for level in
        ["camshaft_policy=debug", "llama.cpp=off,camshaft_policy=debug", "info,debug", "info,", "info,.cpp=off", ""]
    {
        let error = file(&format!("[log]\nlevel = \"{level}\"")).unwrap_err();
        let named = ["log.level", "off, error, warn, info, debug, trace", &format!("got {level:?}")];
        assert!(named.iter().all(|word| error.contains(word)), "{level:?}: {error}");
    }
    for level in ["camshaft_policy=debug,warn", "off, camshaft_policy=debug", "TRACE"] {
        assert!(file(&format!("[log]\nlevel = \"{level}\"")).is_ok(), "{level:?}");
    }
}

#[test]
fn ids_of_models_have_1_to_256_characters_that_can_be_seen() {
    let with = |id: &str| file(&format!("[[model]]\nid = \"{id}\"\n"));
    for good in ["m".to_owned(), "é".repeat(256)] {
        assert!(with(&good).is_ok(), "{:?}", with(&good));
    }
    // An empty one is one that is not set.
    for bad in ["é".repeat(257), "a\\u0007b".to_owned(), "a\\nb".to_owned()] {
        let error = with(&bad).unwrap_err();
        assert!(error.contains("model.0.id must have 1 to 256 characters"), "{bad:?}: {error}");
    }
}

#[test]
fn adapters_are_named_after_their_files_which_lie_beside_the_configuration() {
    let one = |n: usize| format!("[[model.adapter]]\npath = \"a{n}.gguf\"\n");
    let many = |count: usize| format!("[[model]]\n{}", (0..count).map(one).collect::<String>());
    let most = camshaft_core::limits::ADAPTERS_OF_MODEL;
    assert!(file(&many(most)).is_ok());
    let error = file(&many(most + 1)).unwrap_err();
    assert!(error.contains("model.0.adapter must be at most 64, got 65"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("camshaft.toml");
    std::fs::write(&path, many(1)).unwrap();
    let config = Config::load(Some(&path), std::iter::empty(), &Overrides::default()).unwrap();
    let adapter = &config.live.model[0].adapter[0];
    assert_eq!((adapter.id.as_str(), adapter.scale), ("a0", 1.0));
    assert_eq!(adapter.path, dir.path().join("a0.gguf"));
}
