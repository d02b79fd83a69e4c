//! GPUs: models on them, and what happens where they are missing, too small or lost. `cargo xtask test --vulkan` runs all of it, and
//! the tests of what is computed, with a program that was built with Vulkan on Mesa's software device; `--wgpu` runs those of tensor
//! models, with one that was built with WebGPU.
use std::path::{Path, PathBuf};
use std::process::Command;

use camshaft_tests::{Server, Setup, demo_model, eventually, repository};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
/// The demo model's layers, with the one that makes logits.
const LAYERS: u64 = 7;

fn served(settings: &str) -> Setup {
    Setup::new().config(&format!("[[model]]\nid = \"demo\"\npath = {:?}\nthreads = 1\n{settings}", demo_model()))
}

fn ask(server: &Server, prompt: &str) -> Value {
    let body = json!({"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    server.client.ask(COMPLETIONS, &body)
}

/// How many layers the log says are on devices.
fn layers(server: &Server) -> u64 {
    let log = server.settled_log();
    let line = log.lines().find(|line| line.contains("\"message\":\"sizes\"")).expect("the log tells the sizes");
    serde_json::from_str::<Value>(line).unwrap()["device_layers"].as_u64().unwrap()
}

#[test]
fn regression_without_a_device_layers_that_were_asked_for_are_computed_by_the_cpu() {
    let server = served("gpu-layers = 3\ndevices = [\"CUDA9\"]\n").env("VK_ICD_FILENAMES", "/nowhere").start();
    assert_eq!(ask(&server, "1, 2, 3,")["usage"]["completion_tokens"], 12);
    assert_eq!(layers(&server), 0);
    let log = server.settled_log();
    assert!(log.contains("gpu-layers = 3 is cut to 0 of "), "{log}");
    assert!(log.contains("there is no device CUDA9: this program was built with"), "{log}");
    // Nobody asked for any.
    let silent = served("").env("VK_ICD_FILENAMES", "/nowhere").start();
    assert!(!silent.settled_log().contains("devices"), "{}", silent.settled_log());
}

#[test]
fn without_a_device_the_command_says_so() {
    let told = Setup::new().env("VK_ICD_FILENAMES", "/nowhere").run(&["devices"]);
    assert_eq!(told.code, Some(0));
    assert!(told.stdout.starts_with("no devices: this program was built with"), "{}", told.stdout);
}

#[test]
fn settings_of_devices_that_contradict_each_other_are_refused() {
    for (settings, words) in [
        ("devices = [\"A\"]\nmain-device = \"B\"", "main-device must be one of devices ([\"A\"]), got \"B\""),
        ("main-device = \"A\"\ntensor-split = [1.0]", "tensor-split is set, but main-device (\"A\") gets all layers"),
        ("devices = [\"A\", \"B\"]\ntensor-split = [1.0]", "must have a number for each of the 2 devices, got 1"),
        ("devices = [\"A\", \"B\", \"A\"]", "devices must name each device once"),
        ("tensor-split = [0.0, 0.0]", "must have a number above 0"),
        ("tensor-split = [-1.0]", "tensor-split"),
        ("gpu-layers = 65537", "gpu-layers must be between 0 and 65536, got 65537"),
        ("flash-attention = \"off\"\nkv-type = \"q8_0\"", "which only flash attention reads"),
        ("numa = \"near\"", "numa"),
    ] {
        let refused = served(settings).run(&["check"]);
        assert_eq!(refused.code, Some(64), "{settings}: {}", refused.stderr);
        assert!(refused.stderr.contains(words), "{settings}: {}", refused.stderr);
    }
    let two = "numa = \"isolate\"\n[[model]]\nid = \"b\"\nnuma = \"distribute\"\n";
    let refused = served(two).run(&["check"]);
    assert!(refused.stderr.contains("numa must be the same for all models"), "{}", refused.stderr);
    // As many as there may be.
    let kept =
        served("gpu-layers = 65536\nflash-attention = \"off\"\nmlock = true\nnuma = \"numactl\"").run(&["check"]);
    assert_eq!(kept.code, Some(0), "{}{}", kept.stdout, kept.stderr);
}

#[test]
fn given_vulkan_the_command_lists_the_device_and_models_are_put_on_it() {
    let told = Setup::new().run(&["devices"]).stdout;
    assert!(told.contains("Vulkan0") && told.contains("MiB"), "{told}");
    let server = served("").start();
    assert_eq!(layers(&server), LAYERS);
    let checked = served("").run(&["check"]).stdout;
    assert!(checked.contains("demo: on devices") && checked.contains("7 layers: weights"), "{checked}");
    let some = served("gpu-layers = 3\n").start();
    let none = served("gpu-layers = 0\n").start();
    assert_eq!((layers(&some), layers(&none)), (3, 0));
    let main = served("main-device = \"Vulkan0\"\nkv-on-gpu = false\n").start();
    let split = served("devices = [\"Vulkan0\"]\ntensor-split = [2.5]\nflash-attention = \"off\"\n").start();
    for prompt in ["1, 2, 3,", "Once upon a time"] {
        let expected = ask(&none, prompt)["choices"][0]["text"].clone();
        for server in [&server, &some, &main, &split] {
            assert_eq!(ask(server, prompt)["choices"][0]["text"], expected);
        }
    }
}

#[test]
fn given_vulkan_a_device_that_is_too_small_gets_fewer_layers() {
    // The buffers of so large batches leave less than all layers need with their KV entries.
    let server = served("batch-tokens = 65536\nworkers = 2\n").start();
    let granted = layers(&server);
    assert!(granted < LAYERS, "{granted}");
    let said = format!("{granted} of {LAYERS} layers are on devices, which have no room for more");
    assert!(server.settled_log().contains(&said), "{}", server.settled_log());
    assert_eq!(ask(&server, "1, 2, 3,")["usage"]["completion_tokens"], 12);
}

/// Stands between a program and Vulkan.
fn library_that_loses(file: &Path) -> PathBuf {
    let library = file.with_file_name("liblost.so");
    let source = repository().join("tests/e2e/devices/lost.c");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(made.unwrap().success());
    library
}

/// A server whose device is lost when `file` is there.
fn losing(file: &Path, settings: &str) -> Setup {
    let library = library_that_loses(file);
    served(settings).env("LD_PRELOAD", library.to_str().unwrap()).env("DEVICE_LOST_IF", file.to_str().unwrap())
}

#[test]
fn given_vulkan_a_worker_for_which_a_device_has_no_room_computes_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    // Each has KV entries of 144 MiB: the first fits, as in the trial, and the other does not, which no size foretells.
    let settings = "workers = 2\nsequences = 32\ncontext-tokens = 32768\n";
    let server = losing(&dir.path().join("lost"), settings).env("DEVICE_BYTES", "250000000").start();
    assert_eq!(layers(&server), LAYERS);
    let log = server.settled_log();
    assert!(log.contains("workers of the model compute on the CPU") && log.contains("no memory"), "{log}");
    let texts: Vec<Value> = (0..4).map(|_| ask(&server, "1, 2, 3,")["choices"][0]["text"].clone()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn given_vulkan_a_device_that_fails_at_the_start_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lost");
    std::fs::write(&file, "").unwrap();
    let server = losing(&file, "").start();
    assert_eq!(layers(&server), 0);
    assert_eq!(ask(&server, "1, 2, 3,")["usage"]["completion_tokens"], 12);
    let log = server.settled_log();
    assert!(log.contains("a device does not compute the model so") && log.contains("on the CPU"), "{log}");
}

#[test]
fn given_vulkan_a_device_that_is_lost_later_is_replaced_by_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lost");
    let embeds = format!("[[model]]\nid = \"e\"\npath = {:?}\nkind = \"embed\"\nthreads = 1\n", demo_model());
    let mut server = losing(&file, &embeds).start();
    let expected = ask(&server, "1, 2, 3,")["choices"][0]["text"].clone();
    let vector = |server: &Server| server.client.post("/v1/embeddings", &json!({"model": "e", "input": "a"}));
    assert_eq!(vector(&server).status, 200);
    assert_eq!(layers(&server), LAYERS);
    std::fs::write(&file, "").unwrap();
    let body = json!({"model": "demo", "prompt": "5, 6,", "max_tokens": 4});
    let lost = server.client.post(COMPLETIONS, &body);
    assert_eq!((lost.status, lost.json()["error"]["code"].as_str()), (503, Some("worker_lost")), "{}", lost.text());
    let _ = vector(&server);
    eventually("the CPU computes", || {
        let answer = server.client.post(
            COMPLETIONS,
            &json!({"model": "demo", "prompt": "1, 2, 3,", "temperature": 0,
                                                             "max_tokens": 12, "ignore_eos": true}),
        );
        if answer.status != 200 {
            return Err(answer.text().to_owned());
        }
        assert_eq!(answer.json()["choices"][0]["text"], expected);
        Ok(())
    });
    eventually("the CPU embeds", || if vector(&server).status == 200 { Ok(()) } else { Err("it does not") });
    assert!(
        server.settled_log().contains("workers of the model compute on the CPU until the server is started again"),
        "{}",
        server.settled_log()
    );
    server.assert_runs();
}

/// The bundled classifier of digits, with what computes it as it was asked for.
fn digits(backend: &str) -> Setup {
    Setup::new().config(&format!("[[model]]\npath = \"digits\"\nbackend = \"{backend}\"\n"))
}

fn computed_by(server: &Server) -> String {
    server.client.get("/model/info").json()["backend"].as_str().unwrap().to_owned()
}

fn seven(server: &Server) -> Value {
    let text = std::fs::read_to_string(repository().join("config/digits/seven.json")).unwrap();
    let answer = server.client.ask("/predict", &serde_json::from_str(&text).unwrap());
    assert_eq!(answer["classes"][0][0]["label"], "seven", "{answer}");
    answer["outputs"].clone()
}

#[test]
fn a_tensor_model_for_which_there_is_no_gpu_is_computed_on_the_cpu_and_the_log_says_why() {
    // A program with WebGPU finds no driver, one without says how to get it.
    let server = digits("wgpu").env("VK_DRIVER_FILES", "/nowhere").env("VK_ICD_FILENAMES", "/nowhere").start();
    assert_eq!(computed_by(&server), "ndarray");
    seven(&server);
    let log = server.settled_log();
    assert!(log.contains("the model is computed on the CPU"), "{log}");
    assert!(log.contains("there is no GPU") || log.contains("without the feature `wgpu`"), "{log}");
    let auto = digits("auto").env("VK_DRIVER_FILES", "/nowhere").env("VK_ICD_FILENAMES", "/nowhere").start();
    assert_eq!(computed_by(&auto), "ndarray");
    assert!(!auto.settled_log().contains("computed on the CPU"), "{}", auto.settled_log());
}

#[test]
fn given_wgpu_a_tensor_model_is_computed_by_the_device_that_was_asked_for() {
    let server = digits("wgpu").start();
    assert!(computed_by(&server).starts_with("wgpu ("), "{}", server.settled_log());
    // A device that is made of the processor's cores has to be asked for.
    let auto = digits("auto").start();
    assert_eq!(computed_by(&auto), "ndarray");
    let numbers = |outputs: &Value| -> Vec<f64> {
        let output = outputs.as_object().unwrap().values().next().unwrap();
        output["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    for (one, other) in numbers(&seven(&server)).iter().zip(numbers(&seven(&auto))) {
        assert!((one - other).abs() <= 1e-2, "{one} {other}");
    }
}

#[test]
fn given_wgpu_a_device_that_is_lost_later_is_replaced_by_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lost");
    let mut server = losing_digits(&file).start();
    assert!(computed_by(&server).starts_with("wgpu ("), "{}", server.settled_log());
    let expected = seven(&server)["logits"]["shape"].clone();
    std::fs::write(&file, "").unwrap();
    // No request fails: the CPU computes the one that met it, too.
    for _ in 0..3 {
        assert_eq!(seven(&server)["logits"]["shape"], expected);
    }
    assert_eq!(computed_by(&server), "ndarray");
    let log = server.settled_log();
    assert_eq!(
        log.matches("tensor models are computed on the CPU until the server is started again").count(),
        1,
        "{log}"
    );
    server.assert_runs();
}

#[test]
fn given_wgpu_a_device_that_fails_at_the_start_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lost");
    std::fs::write(&file, "").unwrap();
    let server = losing_digits(&file).start();
    assert_eq!(computed_by(&server), "ndarray");
    seven(&server);
    let log = server.settled_log();
    assert!(log.contains("the model is computed on the CPU, not by WebGPU"), "{log}");
}

fn losing_digits(file: &Path) -> Setup {
    let library = library_that_loses(file);
    digits("wgpu").env("LD_PRELOAD", library.to_str().unwrap()).env("DEVICE_LOST_IF", file.to_str().unwrap())
}
