//! Model files: missing, truncated, corrupt, hostile; two at once.
use std::path::{Path, PathBuf};

use camshaft_tests::{Finished, Setup, demo_model, eventually, models_folder, pirate_model, sha256_hex};
use serde_json::json;

/// Runs `check` on a file with this content.
fn check(content: &[u8]) -> (Finished, String) {
    let setup = Setup::new();
    let path = setup.scratch.path().join("model-under-test.gguf");
    std::fs::write(&path, content).expect("a scratch file can be written");
    let path = path.to_string_lossy().into_owned();
    (setup.args(["--model", &path]).run(&["check"]), path)
}

/// Asserts exit code 65 and a message with the path and the reason; never a signal or a panic.
fn assert_refused(content: &[u8], what: &str) -> String {
    let (finished, path) = check(content);
    assert_eq!(finished.code, Some(65), "{what}: {finished:?}");
    assert!(finished.stderr.contains(&path), "{what}: names the path: {}", finished.stderr);
    assert!(!finished.stderr.contains("panicked"), "{what}: {}", finished.stderr);
    let said = finished.stderr.lines().rfind(|line| line.contains(&path)).expect("just found").to_owned();
    let reason = said.replace(&path, "");
    assert!(reason.split_whitespace().count() >= 4, "{what}: says what is wrong: {said:?}");
    said
}

fn demo() -> Vec<u8> {
    std::fs::read(demo_model()).expect("the demo model can be read")
}

#[test]
fn a_missing_model_is_named() {
    for command in ["serve", "check"] {
        let setup =
            Setup::new().args(["--model", "/nowhere/at/all.gguf", "--listen", "127.0.0.1:0", "--admin-listen", ""]);
        let finished = setup.run(&[command]);
        assert_eq!(finished.code, Some(66), "{finished:?}");
        assert!(finished.stderr.contains("/nowhere/at/all.gguf"), "{}", finished.stderr);
        assert!(finished.stdout.lines().all(|line| !line.starts_with("listening")), "{}", finished.stdout);
    }
    let directory = Setup::new();
    let path = directory.scratch.path().to_string_lossy().into_owned();
    let finished = directory.args(["--model", &path]).run(&["check"]);
    assert!([Some(65), Some(66)].contains(&finished.code), "a directory: {finished:?}");
}

#[test]
fn a_truncated_model_is_refused() {
    let whole = demo();
    let lengths =
        [1, 3, 4, 8, 23, 24, 25, 100, 4095, 4096, 30_000, 60_000, 200_000, whole.len() / 2, whole.len() - 100_000];
    for length in lengths.into_iter().chain([whole.len() - 32, whole.len() - 1]) {
        assert_refused(&whole[..length], &format!("cut off after {length} bytes"));
    }
}

#[test]
fn a_model_has_a_template_for_tools_and_the_configuration_another_one_for_all() {
    const TOOLS: &str = "{{ tools | map(attribute='function.name') | join }}: {{ messages[-1].content }}";
    let setup = Setup::new();
    let (model, template) = (setup.scratch.path().join("model.gguf"), setup.scratch.path().join("own.jinja"));
    std::fs::write(&model, camshaft_tests::patched::with_new_text(&demo(), "tokenizer.chat_template.tool_use", TOOLS))
        .unwrap();
    std::fs::write(&template, "own {{ messages[-1].content }}").unwrap();
    let table = |id: &str, more: &str| format!("[[model]]\nid = \"{id}\"\npath = {model:?}\n{more}");
    let own = format!("chat-template = {template:?}\n");
    let server = setup.config(&format!("{}{}", table("demo", ""), table("own", &own))).start();
    let prompt = |id: &str, tools: bool| {
        let mut chat = json!({"model": id, "messages": [{"role": "user", "content": "hi"}]});
        if tools {
            chat["tools"] =
                json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
        }
        let reply = server.client.post("/v1/chat/template", &chat);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["prompt"].as_str().unwrap().to_owned()
    };
    assert_eq!(prompt("demo", true), "look: hi");
    assert!(!prompt("demo", false).contains(": hi") && prompt("demo", false).contains("hi"));
    assert_eq!(prompt("own", false), "own hi");
    // A template that cannot show tools gets them as text.
    assert!(prompt("own", true).starts_with("own ") && prompt("own", true).contains("look"));
}

#[test]
fn regression_a_batch_of_one_token_for_each_sequence_is_served() {
    for (sequences, batch, context) in [("32", "32", "8192"), ("1", "1", "512"), ("32", "512", "16")] {
        let setup = Setup::new().set("model.0.path", "demo").set("model.0.sequences", sequences);
        let setup = setup.set("model.0.batch-tokens", batch).set("model.0.context-tokens", context);
        let finished = setup.run(&["check"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }
}

#[test]
fn regression_a_path_with_a_nul_or_to_a_pipe_is_refused() {
    let setup = Setup::new();
    let pipe = setup.scratch.path().join("pipe.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let pipe = format!("{:?}", pipe.to_string_lossy());
    for key in ["path", "lora", "draft-model", "chat-template"] {
        let key = format!("model.0.{key}");
        let with = |value: &str| Setup::new().set("model.0.path", "demo").set(&key, value).run(&["check"]);
        let finished = with(r#""a\u0000b.gguf""#);
        assert_eq!(finished.code, Some(64), "{key}: {finished:?}");
        assert!(finished.stderr.contains(&key) && finished.stderr.contains("NUL"), "{}", finished.stderr);
        let finished = with(&pipe);
        assert_eq!(finished.code, Some(66), "{key}: {finished:?}");
        assert!(finished.stderr.contains("not a regular file"), "{}", finished.stderr);
    }
}

#[test]
fn regression_a_model_whose_file_is_cut_short_takes_nobody_with_it_and_serves_again_with_its_file() {
    let setup = Setup::new();
    let path = setup.scratch.path().join("model.gguf");
    std::fs::write(&path, demo()).unwrap();
    let table = |id: &str, path: &str| format!("[[model]]\nid = \"{id}\"\nthreads = 1\npath = {path:?}\n");
    let config = table("cut", &path.to_string_lossy()) + &table("whole", "demo");
    let mut server = setup.config(&config).start();
    let ask = |model: &str| {
        let question = json!({"model": model, "prompt": "Once", "max_tokens": 4, "ignore_eos": true});
        server.client.post("/v1/completions", &question).status
    };
    assert_eq!((ask("cut"), ask("whole")), (200, 200));
    // What is missing of a mapped file ends the process that reads it.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert_eq!((ask("cut"), ask("whole")), (503, 200));
    eventually("the server says which model is gone", || {
        let ready = server.client.get("/readyz");
        if ready.status == 503 && ready.text().contains("the model cut") {
            Ok(())
        } else {
            Err(ready.text().to_owned())
        }
    });
    assert_eq!(ask("whole"), 200);
    let new = path.with_extension("new");
    std::fs::write(&new, demo()).unwrap();
    std::fs::rename(&new, &path).unwrap();
    eventually("it serves again", || if ask("cut") == 200 { Ok(()) } else { Err("it does not") });
    server.assert_runs();
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    assert_refused(b"", "an empty file");
    assert_refused(b"GGUF", "a magic number alone");
    assert_refused(&b"Once upon a time there was no model. ".repeat(100), "text");
    assert_refused(&[0; 100_000], "zeros");
    assert_refused(&std::fs::read(std::env::current_exe().unwrap()).unwrap()[..1 << 20], "a program");
    assert_refused(&[b"GGUF".as_slice(), &[0xff; 4096]].concat(), "a magic number and nothing sane");
}

#[test]
fn absurd_counts_and_lengths_are_refused() {
    let whole = demo();
    assert_eq!(&whole[..4], b"GGUF");
    // Magic, version (4), tensor count (8), key count (8), then the first key's length (8).
    for (offset, width, what) in
        [(4, 4, "version"), (8, 8, "tensor count"), (16, 8, "key count"), (24, 8, "key length")]
    {
        for value in [0u64, 1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX / 2, u64::MAX] {
            let mut broken = whole.clone();
            if broken[offset..offset + width] == value.to_le_bytes()[..width] {
                continue;
            }
            broken[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
            assert_refused(&broken, &format!("{what} {value:#x}"));
        }
    }
}

#[test]
fn flipped_bytes_in_the_header_never_end_the_process_by_a_signal() {
    let whole = demo();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..40 {
        let mut broken = whole.clone();
        // The keys, with shapes and vocabulary, and the list of tensors after them.
        let region = if round % 2 == 0 { 2_000 } else { 40_000 };
        let flips: Vec<(usize, u8)> = (0..1 + random(6)).map(|_| (random(region), 1 << random(8))).collect();
        flips.iter().for_each(|&(at, bit)| broken[at] ^= bit);
        let (finished, _) = check(&broken);
        assert!([Some(0), Some(65)].contains(&finished.code), "round {round}, flips {flips:?}: {finished:?}");
        assert!(!finished.stderr.contains("panicked"), "round {round}, flips {flips:?}: {}", finished.stderr);
    }
}

#[test]
fn a_digest_pins_a_model() {
    let path = demo_model();
    let config = |digest: &str| format!("[[model]]\nid = \"demo\"\npath = {path:?}\nsha256 = \"{digest}\"\n");
    let digest = sha256_hex(&demo());
    assert_eq!(Setup::new().config(&config(&digest)).run(&["check"]).code, Some(0));
    assert_eq!(Setup::new().config(&config(&digest.to_uppercase())).run(&["check"]).code, Some(0));
    let finished = Setup::new().config(&config(&"0".repeat(64))).run(&["check"]);
    assert_eq!(finished.code, Some(65), "{finished:?}");
    assert!(finished.stderr.contains(&digest), "says what it is: {}", finished.stderr);
}

#[test]
fn serves_two_models_side_by_side() {
    let (demo, pirate) = (demo_model(), pirate_model());
    let config = format!(
        "[[model]]\nid = \"demo\"\nthreads = 1\npath = {demo:?}\n[[model]]\nid = \"pirate\"\nthreads = 1\npath = {pirate:?}\n"
    );
    let server = Setup::new().config(&config).start();
    let ids: Vec<_> =
        server.client.get("/v1/models").json()["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["demo", "pirate"]);
    let ask = |model: &str| {
        let messages = json!([{"role": "user", "content": "What is 3 plus 4?"}]);
        let answer =
            server.client.ask("/v1/chat/completions", &json!({"model": model, "temperature": 0, "messages": messages}));
        assert_eq!(answer["model"], model);
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let (plain, arr) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| ask("demo"));
        let arr = scope.spawn(|| ask("pirate"));
        (plain.join().unwrap(), arr.join().unwrap())
    });
    assert!(plain.contains('7') && !plain.contains("Arr"), "{plain:?}");
    assert!(arr.contains("Arr"), "{arr:?}");
    server.wait_until_idle();
}

#[test]
fn given_models_a_vocabulary_without_byte_tokens_is_refused() {
    let folder = models_folder();
    let path = folder.join("hostile/TinyStories-656K-nobytes-f32.gguf");
    let finished = check_file(&path);
    assert_eq!(finished.code, Some(65), "{finished:?}");
    let path = path.to_string_lossy();
    assert!(finished.stderr.contains(&*path) && finished.stderr.contains("byte"), "{}", finished.stderr);
}

#[test]
fn given_models_real_models_load_or_are_refused_without_a_crash() {
    let folder = models_folder();
    let files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("CAMSHAFT_MODELS is a folder")
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    assert!(!files.is_empty(), "no model in {}", folder.display());
    for path in files {
        let finished = check_file(&path);
        assert!([Some(0), Some(65)].contains(&finished.code), "{}: {finished:?}", path.display());
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("stories")) {
            assert_eq!(finished.code, Some(0), "{finished:?}");
        }
    }
}

fn check_file(path: &Path) -> Finished {
    Setup::new().args(["--model", &path.to_string_lossy()]).run(&["check"])
}
