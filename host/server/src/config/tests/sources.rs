//! Where values come from: flags, variables, lines of files.
use super::*;

#[test]
fn regression_what_is_wrong_names_its_variable_flag_or_line() {
    let variable = [("CAMSHAFT_QUEUE__HIGH_WATERMARK", "none")];
    let error = load(None, &variable, &Overrides::default()).unwrap_err();
    assert!(error.contains("(environment CAMSHAFT_QUEUE__HIGH_WATERMARK)"), "{error}");
    let error = load(None, &[("CAMSHAFT_LISTENN", "x")], &Overrides::default()).unwrap_err();
    assert!(error.contains("CAMSHAFT_LISTENN") && error.contains("`listen`"), "{error}");
    let error = load(None, &[("CAMSHAFT_QUEUE_HIGH_WATERMARK", "9")], &Overrides::default()).unwrap_err();
    assert!(error.contains("`queue.high-watermark`") && error.contains("CAMSHAFT_QUEUE__HIGH_WATERMARK"), "{error}");
    let error = load(None, &[], &set(&["queue.high-watermark=0"])).unwrap_err();
    assert!(error.contains("(flag --set queue.high-watermark)"), "{error}");
    let flags = Overrides { listen: Some("nowhere".to_owned()), ..Overrides::default() };
    assert!(load(None, &[], &flags).unwrap_err().contains("(flag --listen)"));
    for (text, line) in [
        ("[queue]\n\nhigh-watermark = 0", 3),
        ("[queue]\ntimeout = \"soon\"", 2),
        ("[[model]]\n[[model]]\nid = \"b\"\nkv-type = \"q2\"", 4),
        ("[queue]\nhigh-watermark = 9\nlow-watermark = 9", 3),
        ("[queue]\n\nhigh-watermrk = 9", 3),
        ("listen = \"nowhere\"", 1),
        ("listen = \"127.0.0.1:1\"\nlisten = 2", 2),
    ] {
        let error = file(text).unwrap_err();
        assert!(error.contains(&format!(".toml:{line}")), "{text}: {error}");
    }
    let two = file("[queue]\nhigh-watermark = 0\n[limits]\nmax-tokens = 0").unwrap_err();
    assert!(two.contains("queue.high-watermark") && two.contains("limits.max-tokens"), "{two}");
}

#[test]
fn regression_keys_of_a_model_reach_the_models_that_flags_name() {
    let flags = Overrides {
        models: vec!["a.gguf".to_owned(), "b.gguf".to_owned()],
        ..set(&["model.1.embeddings=true", "model.0.id=7"])
    };
    let config = load(Some("[[model]]\npath = \"c.gguf\"\nsequences = 3"), &[], &flags).unwrap();
    let [a, b] = &config.live.model[..] else { panic!("two models") };
    assert_eq!((a.id.as_str(), a.kind, a.sequences), ("7", KindKey::Auto, Auto::Auto));
    assert_eq!((b.id.as_str(), b.kind), ("b", KindKey::Embed));
    let keys = keys(&[], flags);
    assert!(has(&keys, "model.1.path", "\"b.gguf\"", "flag --model"), "{keys:?}");
    assert!(has(&keys, "model.1.embeddings", "true", "flag --set model.1.embeddings"), "{keys:?}");
    assert!(has(&keys, "model.1.id", "\"b\"", "default"), "{keys:?}");
    assert!(has(&keys, "model.0.sequences", "\"auto\"", "default"), "{keys:?}");
}

#[test]
fn regression_models_can_be_given_by_environment() {
    let environment = [
        ("CAMSHAFT_MODEL__0__PATH", "a.gguf"),
        ("CAMSHAFT_MODEL__1__ID", "small"),
        ("CAMSHAFT_MODEL__1__PATH", "b.gguf"),
        ("CAMSHAFT_MODEL__1__CONTEXT_TOKENS", "512"),
    ];
    let config = load(None, &environment, &Overrides::default()).unwrap();
    let [a, b] = &config.live.model[..] else { panic!("two models") };
    assert_eq!((a.id.as_str(), a.context_tokens), ("a", Auto::Auto));
    assert_eq!(
        (b.id.as_str(), b.context_tokens, b.source()),
        ("small", Auto::Set(512), ModelSource::File("b.gguf".into()))
    );
    let keys = keys(&environment, Overrides::default());
    let source = "environment CAMSHAFT_MODEL__1__CONTEXT_TOKENS";
    assert!(has(&keys, "model.1.context-tokens", "512", source), "{keys:?}");
    // Over a file's models, too; and one more.
    let text = "[[model]]\npath = \"c.gguf\"\nworkers = 2\n";
    let config = load(Some(text), &environment, &Overrides::default()).unwrap();
    assert_eq!((config.live.model[0].workers, config.live.model.len()), (2, 2));
    for (name, value, word) in [
        ("CAMSHAFT_MODEL__2__PATH", "d.gguf", "the next is model.1"),
        ("CAMSHAFT_MODEL__1__SEQUENCES", "4", "no path"),
        ("CAMSHAFT_MODEL__X__PATH", "d.gguf", "CAMSHAFT_MODEL__X__PATH"),
        ("CAMSHAFT_MODEL__0__PATH__X", "d.gguf", "single value"),
    ] {
        let error = load(None, &[(name, value)], &Overrides::default()).unwrap_err();
        assert!(error.contains(word) && error.contains(name), "{error}");
    }
}

#[test]
fn a_key_of_text_takes_any_text() {
    let config = load(None, &[("CAMSHAFT_MODEL__0__ID", "7")], &set(&["log.format=\"json\""])).unwrap();
    assert_eq!((config.live.model[0].id.as_str(), config.fixed.log.format), ("7", LogFormat::Json));
    let error = load(None, &[("CAMSHAFT_QUEUE__TIMEOUT", "")], &Overrides::default()).unwrap_err();
    assert!(error.contains("time span"), "{error}");
}

#[test]
fn regression_a_flag_and_a_setting_of_the_same_thing_are_refused() {
    let given = |set_keys: &[&str]| Overrides {
        models: vec!["a.gguf".to_owned()],
        listen: Some("127.0.0.1:1".to_owned()),
        admin_listen: Some("127.0.0.1:2".to_owned()),
        policy_dir: Some("/p".into()),
        allow_anonymous: true,
        ..set(set_keys)
    };
    for (twice, flag) in [
        ("listen=127.0.0.1:3", "--listen"),
        ("admin.listen=127.0.0.1:3", "--admin-listen"),
        ("admin={listen=\"127.0.0.1:3\"}", "--admin-listen"),
        ("policy.dir=/p", "--policy-dir"),
        ("policy={poll=\"1s\",dir=\"/q\"}", "--policy-dir"),
        ("allow-anonymous=false", "--allow-anonymous"),
        ("model=[{path=\"b.gguf\"}]", "--model"),
        ("model.0={path=\"b.gguf\"}", "--model"),
    ] {
        let error = load(None, &[], &given(&[twice])).unwrap_err();
        let (key, _) = twice.split_once('=').unwrap();
        assert_eq!(error, format!("{flag} and --set {key} say the same thing: give one of them"));
        load(None, &[], &set(&[twice])).unwrap();
    }
    load(None, &[], &given(&["model.0.path=b.gguf"])).unwrap_err();
    let apart = ["policy={poll=\"1s\"}", "admin.token-file=/t", "model.0={id=\"first\"}", "model.1.path=b.gguf"];
    let config = load(None, &[], &given(&apart)).unwrap();
    assert_eq!(config.live.policy.dir, PathBuf::from("/p"));
    assert_eq!(config.live.model.len(), 2);
}
