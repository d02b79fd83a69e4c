//! Files that appear, change and disappear in the policy directory of an idle server.
use std::io::Write;
use std::time::Duration;

use camshaft_tests::{Server, Setup, eventually, guest, plugin};
use serde_json::{Value, json};

const QUESTION: &str = "What is the capital of France?";

/// A server with the standard sampler, which makes answers greedy if a request asks for it.
fn serve() -> Setup {
    Setup::new().plugin("sampler", "10-standard", "sampler-standard", "")
}

/// Settings of `sampler-avoid-words`.
fn avoid(word: &str) -> String {
    format!("[settings]\nwords = [\"{word}\"]\n")
}

fn is_avoided(server: &Server, word: &str) -> bool {
    !server.answer(QUESTION).to_lowercase().contains(word)
}

/// A component with every occurrence of a name replaced by another name of the same length.
fn renamed(component: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = component.to_vec();
    let mut found = 0;
    for at in 0..bytes.len().saturating_sub(from.len()) {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{from} does not occur");
    bytes
}

/// Hook, file stem, component, settings file (none if empty), words of the reason.
type BadFile = (&'static str, &'static str, Vec<u8>, String, &'static [&'static str]);

#[test]
fn rejects_every_bad_file_with_a_sentence_that_says_why() {
    let good = plugin("sampler-avoid-words");
    let mut server = serve().plugin("sampler", "20-avoid", "sampler-avoid-words", &avoid("paris")).start();
    let answer = server.answer(QUESTION);
    let behave = |how: &str| format!("[settings]\nbehave = \"{how}\"\n");
    let pin = format!("[policy]\nsha256 = \"{}\"\n{}", "0".repeat(64), avoid("x"));
    let cases: Vec<BadFile> = vec![
        ("sampler", "30-cut", good[..good.len() - 1].to_vec(), avoid("x"), &["truncated"]),
        ("sampler", "30-short", good[..9].to_vec(), avoid("x"), &["truncated"]),
        ("sampler", "30-empty", Vec::new(), avoid("x"), &["empty"]),
        ("sampler", "30-text", b"#!/bin/sh".to_vec(), avoid("x"), &["not a WebAssembly component"]),
        ("sampler", "30-core", b"\0asm\x01\0\0\0".to_vec(), avoid("x"), &["core module"]),
        ("auth", "30-hook", good.clone(), avoid("x"), &["sampler", "auth"]),
        ("scheduler", "30-hook", plugin("validator-limits"), String::new(), &["validator", "scheduler"]),
        (
            "sampler",
            "30-version",
            renamed(&good, "camshaft:sampler/policy@0.2.0", "camshaft:sampler/policy@0.9.0"),
            avoid("x"),
            &["0.9.0", "0.2.0"],
        ),
        (
            "sampler",
            "30-import",
            renamed(&good, "wasi:cli/environment@", "wasi:job/environment@"),
            avoid("x"),
            &["wasi:job/environment", "not granted"],
        ),
        ("sampler", "30-traps", guest("misbehave-sampler"), behave("trap-at-start"), &["traps at start"]),
        ("auth", "30-traps", guest("misbehave-auth"), behave("trap-at-start"), &["traps at start"]),
        ("sampler", "30-spins", guest("misbehave-sampler"), behave("spin-at-start"), &["spins"]),
        (
            "validator",
            "30-refuses",
            guest("misbehave-validator"),
            behave("refuse-settings"),
            &["refuses its settings", "as asked"],
        ),
        ("sampler", "30-needs", good.clone(), String::new(), &["refuses its settings", "words", "no 30-needs.toml"]),
        (
            "sampler",
            "30-words",
            good.clone(),
            "[settings]\nwords = []\n".to_owned(),
            &["refuses its settings", "words"],
        ),
        ("sampler", "30-setting", good.clone(), format!("{}word = 1\n", avoid("x")), &["refuses its settings", "word"]),
        (
            "sampler",
            "30-key",
            good.clone(),
            format!("[policy]\ndedline = \"5ms\"\n{}", avoid("x")),
            &["dedline", "deadline"],
        ),
        (
            "sampler",
            "30-bound",
            good.clone(),
            format!("[policy]\nmemory = \"65MiB\"\n{}", avoid("x")),
            &["memory", "64MiB"],
        ),
        ("sampler", "30-toml", good.clone(), "[settings\n".to_owned(), &["TOML"]),
        ("sampler", "30-pin", good.clone(), pin, &["SHA-256"]),
        ("sampler", "30-avoid", good.clone(), avoid("x"), &["avoid"]),
    ];
    for (hook, file, component, settings, words) in cases {
        let rejections =
            || server.metrics().count("camshaft_policy_swaps_total", &[("hook", hook), ("result", "rejected")]);
        let count = rejections();
        server.policies.install(hook, file, &component, &settings);
        let entry = eventually(&format!("{hook}/{file} is rejected"), || {
            let page = server.policy_page();
            let entries = page["policies"].as_array().expect("entries").iter();
            let mut of_file = entries.filter(|entry| {
                entry["hook"] == hook && entry["file"].as_str().is_some_and(|path| path.contains(file))
            });
            match of_file.find(|entry| entry["state"] == "rejected") {
                Some(entry) => Ok(entry.clone()),
                None => Err(page.clone()),
            }
        });
        let error = entry["error"].as_str().unwrap_or_default();
        for word in words {
            assert!(error.contains(word), "{hook}/{file}: {word:?} in {entry}");
        }
        assert!(entry["serving"].is_null() && entry["generation"].is_null(), "{entry}");
        assert_eq!(rejections(), count + 1.0, "{hook}/{file} is counted once");
        // Another thread reads the log, so wait for the line.
        eventually(&format!("{hook}/{file} is in the log"), || {
            let found = server.log().lines().any(|line| line.contains(file) && line.contains(words[0]));
            if found { Ok(()) } else { Err(()) }
        });
        assert_eq!(server.answer(QUESTION), answer, "after {hook}/{file}");
        server.policies.remove(hook, &format!("{file}.wasm"));
        if !settings.is_empty() {
            server.policies.remove(hook, &format!("{file}.toml"));
        }
    }
    eventually("only the good files are left", || {
        let page = server.policy_page();
        if page["policies"].as_array().is_some_and(|entries| entries.len() == 2) { Ok(()) } else { Err(page) }
    });
    server.assert_runs();
}

#[test]
fn a_bad_replacement_leaves_the_old_file_serving_and_deleting_it_restores_the_default() {
    let good = plugin("sampler-avoid-words");
    let server = serve().start();
    let before = server.answer(QUESTION);
    assert!(before.contains("Paris"), "{before:?}");
    server.policies.install("sampler", "20-avoid", &good, &avoid("paris"));
    let first = server.wait_until_active("sampler", "avoid", &good);
    assert!(is_avoided(&server, "paris"));

    server.policies.put("sampler", "20-avoid.wasm", &good[..1000]);
    let entry = server.wait_for_policy(("sampler", "avoid"), |entry| entry["state"] == "rejected");
    assert_eq!((&entry["serving"], &entry["generation"]), (&first["serving"], &first["generation"]));
    assert!(is_avoided(&server, "paris"));
    server.policies.put("sampler", "20-avoid.toml", avoid("xyz"));
    server.policies.put("sampler", "20-avoid.wasm", &good);
    server.wait_until_active("sampler", "avoid", &good);
    eventually("the new settings hold", || if is_avoided(&server, "paris") { Err("paris") } else { Ok(()) });
    assert_eq!(server.answer(QUESTION), before, "the new settings change nothing in this answer");

    // A removed settings file counts as empty settings, which this policy rejects.
    server.policies.put("sampler", "20-avoid.toml", avoid("paris"));
    eventually("the first settings hold again", || if is_avoided(&server, "paris") { Ok(()) } else { Err("paris") });
    server.policies.remove("sampler", "20-avoid.toml");
    server.wait_for_policy(("sampler", "avoid"), |entry| entry["state"] == "rejected" && entry["serving"].is_string());
    assert!(is_avoided(&server, "paris"));

    server.policies.remove("sampler", "20-avoid.wasm");
    server.wait_for_policy(("sampler", "avoid"), Value::is_null);
    assert_eq!(server.answer(QUESTION), before);
    assert!(
        server.metrics().count("camshaft_policy_swaps_total", &[("hook", "sampler"), ("result", "removed")]) >= 1.0
    );
    assert_eq!(server.metrics().get("camshaft_policy_generation", &[("hook", "sampler"), ("plugin", "avoid")]), None);
}

#[test]
fn a_file_that_is_written_slowly_serves_once_it_is_whole() {
    let good = plugin("sampler-avoid-words");
    let server = serve().start();
    let before = server.answer(QUESTION);
    server.policies.put("sampler", "20-avoid.toml", avoid("paris"));
    let mut file = std::fs::File::create(server.policies.path("sampler", "20-avoid.wasm")).expect("a scratch file");
    let pieces: Vec<&[u8]> = good.chunks(good.len().div_ceil(60)).collect();
    let (last, first) = pieces.split_last().expect("pieces");
    for (index, piece) in first.iter().enumerate() {
        file.write_all(piece).expect("a scratch file");
        // The writer is slow, and pauses once for so long that half the file may be examined.
        std::thread::sleep(Duration::from_millis(if index == 30 { 1500 } else { 15 }));
        if index % 10 == 0 {
            assert_eq!(server.answer(QUESTION), before, "half a file serves");
        }
    }
    let entry = server.policy("sampler", "avoid");
    assert!(entry.is_none_or(|entry| entry["serving"].is_null()), "half a file serves");
    file.write_all(last).expect("a scratch file");
    drop(file);
    server.wait_until_active("sampler", "avoid", &good);
    assert!(is_avoided(&server, "paris"));
}

#[test]
fn a_burst_of_changes_ends_with_the_last_one() {
    let good = plugin("sampler-avoid-words");
    let server = serve().plugin("sampler", "20-avoid", "sampler-avoid-words", &avoid("x0")).start();
    for round in 0..200 {
        match round % 3 {
            0 => server.policies.edit("sampler", "20-avoid.toml", &avoid(&format!("x{round}"))),
            1 => server.policies.put("sampler", "20-avoid.wasm", &good[..round + 10]),
            _ => server.policies.put("sampler", "20-avoid.wasm", &good),
        }
    }
    server.policies.put("sampler", "20-avoid.toml", avoid("paris"));
    server.policies.put("sampler", "20-avoid.wasm", &good);
    server.wait_until_active("sampler", "avoid", &good);
    eventually("the last settings hold", || if is_avoided(&server, "paris") { Ok(()) } else { Err("paris") });
}

#[test]
fn ignores_the_files_that_editors_and_mounts_leave_beside_policies() {
    let good = plugin("sampler-avoid-words");
    let server = serve().start();
    for file in [
        ".20-avoid.wasm.swp",
        "20-avoid.wasm~",
        "20-avoid.wasm.part",
        "#20-avoid.wasm#",
        ".wasm",
        "4913",
        "20-avoid.txt",
    ] {
        server.policies.put("sampler", file, &good);
    }
    std::fs::create_dir(server.policies.path("sampler", "20-folder.wasm")).expect("a scratch folder");
    // A later change that the watcher must notice.
    let after = plugin("scheduler-fcfs");
    server.policies.put("scheduler", "10-fcfs.wasm", &after);
    server.wait_until_active("scheduler", "fcfs", &after);
    let page = server.policy_page();
    let serving =
        page["policies"].as_array().expect("entries").iter().filter(|entry| !entry["serving"].is_null()).count();
    assert_eq!(serving, 2, "{page}");
    assert!(server.answer(QUESTION).contains("Paris"));
}

#[test]
fn a_mount_that_swaps_a_link_swaps_the_policies() {
    // Like a mounted Kubernetes ConfigMap: files are links into `..data`, which is itself a link that is replaced.
    let good = plugin("sampler-avoid-words");
    let server = serve().start();
    let dir = server.policies.root().join("sampler");
    let version = |name: &str, word: &str| {
        std::fs::create_dir(dir.join(name)).expect("a scratch folder");
        std::fs::write(dir.join(name).join("20-avoid.wasm"), &good).expect("a scratch file");
        std::fs::write(dir.join(name).join("20-avoid.toml"), avoid(word)).expect("a scratch file");
        std::os::unix::fs::symlink(name, dir.join("..data_tmp")).expect("a link");
        std::fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("a link");
    };
    version("..v1", "paris");
    for file in ["20-avoid.toml", "20-avoid.wasm"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), dir.join(file)).expect("a link");
    }
    server.wait_until_active("sampler", "avoid", &good);
    assert!(is_avoided(&server, "paris"));
    version("..v2", "xyz");
    std::fs::remove_dir_all(dir.join("..v1")).expect("a scratch folder");
    eventually("the new settings hold", || if is_avoided(&server, "paris") { Err("paris") } else { Ok(()) });
}

#[test]
fn a_policy_can_be_switched_off_and_chosen_by_name() {
    let server = serve()
        .plugin("sampler", "20-no-paris", "sampler-avoid-words", &avoid("paris"))
        .plugin("sampler", "30-no-france", "sampler-avoid-words", &avoid("france"))
        .start();
    let ask = |samplers: Value| {
        let body = json!({"model": "demo", "temperature": 0, "max_tokens": 40, "samplers": samplers,
            "messages": [{"role": "user", "content": QUESTION}]});
        let answer = server.client.ask("/v1/chat/completions", &body);
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_lowercase();
        (text.contains("france"), text.contains("paris"))
    };
    assert_eq!(ask(Value::Null), (false, false), "all chain");
    assert_eq!(ask(json!(["standard"])), (true, true));
    assert_eq!(ask(json!(["standard", "no-paris"])), (true, false));
    assert!(!ask(json!(["standard", "no-france"])).0);
    server.policies.put("sampler", "30-no-france.toml", format!("[policy]\nmode = \"off\"\n{}", avoid("france")));
    server.wait_for_policy(("sampler", "no-france"), |entry| entry["state"] == "off");
    assert_eq!(ask(Value::Null), (true, false));
    let body = json!({"model": "demo", "samplers": ["no-france"], "messages": [{"role": "user", "content": QUESTION}]});
    assert_eq!(server.client.post("/v1/chat/completions", &body).status, 400, "a sampler that is off cannot be chosen");
}

#[test]
fn the_validator_policy_refuses_in_its_own_words() {
    let settings = "[settings]\nmax-tokens = 8\nmax-n = 2\n";
    let server = Setup::new().plugin("validator", "10-limits", "validator-limits", settings).start();
    let ask = |more: Value| {
        let mut body = json!({"model": "demo", "prompt": "1, 2,", "max_tokens": 8});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.client.post("/v1/completions", &body)
    };
    assert_eq!(ask(json!({})).status, 200);
    for (more, param) in [(json!({"max_tokens": 9}), "max_tokens"), (json!({"n": 3}), "n")] {
        let response = ask(more);
        assert!((400..500).contains(&response.status), "{}", response.text());
        let error = crate::errors::error_of(&response);
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(param)));
    }
    assert_eq!(server.metrics().get("camshaft_rejections_total", &[("reason", "policy")]), Some(2.0));
}
