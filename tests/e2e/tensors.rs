//! Tensor models: predictions over HTTP, next to a model that generates, and files that are refused.
use std::path::PathBuf;

use camshaft_tests::{Request, Response, Server, Setup, api_keys, plugin};
use serde_json::{Value, json};

use crate::errors::error_of;
use crate::openai::{clients, run_in};

const PREDICT: &str = "/predict";

/// Where the small models are. The package `host/tensor` says what they compute.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(format!("{name}.onnx"))
}

fn model(name: &str) -> String {
    format!("[[model]]\npath = {:?}\n", file(name))
}

fn setup(names: &[&str]) -> Setup {
    Setup::new().config(&names.iter().map(|name| model(name)).collect::<String>())
}

/// As [`setup`], and the demo model.
fn beside_demo(names: &[&str]) -> Setup {
    let models: String = names.iter().map(|name| model(name)).collect();
    Setup::new().config(&format!("{models}[[model]]\nid = \"demo\"\nthreads = 1\n"))
}

/// The error of a request that is refused as malformed.
fn bad(response: &Response) -> Value {
    let error = error_of(response);
    assert_eq!(response.status, 400, "{error}");
    error
}

#[test]
fn a_prediction_is_what_the_model_computes_however_it_is_asked_for() {
    let server = setup(&["linear"]).start();
    let rows = json!([[1, 2, 3], [0, 0, 1]]);
    let flat = json!({"shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 0, 0, 1]});
    for (path, body) in [
        (PREDICT, json!({"input": rows})),
        (PREDICT, json!({"model": "linear", "inputs": {"x": rows}})),
        (PREDICT, json!({"inputs": {"x": flat}})),
        (PREDICT, json!({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 0, 0, 1]}]})),
        ("/v1/models/linear/predict", json!({"input": rows})),
        ("/v1/models/linear/predict", json!({"model": "linear", "input": flat})),
    ] {
        let answer = server.client.ask(path, &body);
        let output = json!([[14.5, 31.5], [3.5, 5.5]]);
        assert_eq!((&answer["model"], &answer["output"]), (&json!("linear"), &output), "{path} {body}");
        let y = json!({"shape": [2, 2], "datatype": "FP32", "data": [14.5, 31.5, 3.5, 5.5]});
        assert_eq!(answer["outputs"], json!({"y": y}));
        assert!(answer["inference_ms"].as_f64().unwrap() > 0.0);
    }
    let two = setup(&["two"]).start();
    let answer = two.client.ask(PREDICT, &json!({"inputs": {"a": [[1, 2]], "b": [[3, 4]]}}));
    assert_eq!(answer["outputs"]["sum"]["data"], json!([4.0, 6.0]));
    assert_eq!(answer["outputs"]["product"]["data"], json!([3.0, 8.0]));
    assert_eq!(answer.get("output"), None, "there are two");
}

#[test]
fn a_tensor_model_describes_itself() {
    let server = beside_demo(&["linear"]).start();
    let x = json!([{"name": "x", "shape": [-1, 3], "datatype": "FP32"}]);
    let info = server.client.get("/model/info").json();
    let expected = json!({"name": "linear", "kind": "predict", "format": "onnx", "backend": "tract", "inputs": x,
        "outputs": [{"name": "y", "shape": [-1, 2], "datatype": "FP32"}], "parameters": 8, "bytes": 32});
    assert_eq!(info, expected);
    let one = server.client.get("/v1/models/linear").json();
    assert_eq!((&one["id"], &one["task"], &one["inputs"]), (&json!("linear"), &json!("predict"), &x));
    assert_eq!(server.client.get("/model/info?model=demo").status, 400);
    assert_eq!(server.client.get("/model/info?model=none").status, 404);
    let listed = server.client.get("/v1/models").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    let admin = server.admin.get("/admin/models").json();
    assert_eq!(admin["models"][0]["kind"], "predict");
    assert_eq!(admin["models"][0].get("context_tokens"), None);
    // One of each kind: neither endpoint needs a name where only one model serves it.
    assert_eq!(server.client.ask(PREDICT, &json!({"input": [[0, 0, 0]]}))["output"], json!([[0.5, -0.5]]));
}

#[test]
fn what_the_model_does_not_take_is_refused_with_input_axis_and_both_values() {
    let mut server = beside_demo(&["linear", "two"]).start();
    let check = |body: Value, param: Option<&str>, message: &str| {
        let error = bad(&server.client.post(PREDICT, &body));
        assert_eq!(error["param"].as_str(), param, "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{body}: {error}");
    };
    let linear = |input: Value| json!({"model": "linear", "input": input});
    check(linear(json!([[1, 2]])), Some("input"), "axis 1 of input x must be 3, got 2");
    check(linear(json!([1, 2, 3])), Some("input"), "input x must have 2 axes ([-1, 3], -1: any length), got 1");
    check(linear(json!([])), Some("input"), "input x must have 2 axes");
    check(linear(json!([[], []])), Some("input"), "axis 1 of input x must be 3, got 0");
    check(linear(json!([[1, 2, 3], [1]])), Some("input[1]"), "lists along its axis 1 have 3 and 1 entries");
    check(linear(json!([[1, 2, "a"]])), Some("input[0][2]"), "it holds a string");
    check(linear(json!([[1, 2, 1e39]])), Some("input"), "number 2 of input must be FP32");
    check(linear(json!([[1, 2, true]])), Some("input"), "number 2 of input must be FP32, got true");
    check(
        linear(json!({"shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]})),
        Some("input"),
        "must be FP32, got INT64",
    );
    check(json!({"model": "linear"}), Some("input"), "input is required: the model takes x");
    check(json!({"model": "two", "input": [[1, 2]]}), Some("input"), "this one takes a, b: use inputs");
    check(json!({"model": "two", "inputs": {"a": [[1, 2]]}}), Some("inputs.b"), "inputs.b is required");
    let twice = json!({"model": "linear", "input": [[1, 2, 3]], "inputs": {"x": [[1, 2, 3]]}});
    check(twice, Some("inputs.x"), "gives the input x twice");
    let unequal = json!({"model": "two", "inputs": {"a": [[1, 2]], "b": [[1, 2], [3, 4]]}});
    check(unequal, Some("inputs.b"), "axis 0 of input b must be 1, as the axis batch of another input, got 2");
    check(json!({"model": "demo", "input": [1]}), Some("model"), "the model demo computes no tensors");
    check(json!({"input": [1]}), Some("model"), "model is required where several are served: linear, two");
    let other = server.client.post("/v1/models/linear/predict", &json!({"model": "two", "input": [[1, 2, 3]]}));
    assert_eq!(bad(&other)["param"], "model");
    assert_eq!(server.client.post("/v1/models/none/predict", &json!({})).status, 404);
    assert_eq!(server.client.post("/v1/models/linear", &json!({})).status, 405);
    assert_eq!(server.client.post("/v1/models/x", &json!({})).status, 404);
    for (path, body) in [
        ("/v1/completions", json!({"model": "linear", "prompt": "x"})),
        ("/v1/chat/completions", json!({"model": "linear", "messages": [{"role": "user", "content": "x"}]})),
        ("/v1/embeddings", json!({"model": "linear", "input": "x"})),
        ("/v1/tokenize", json!({"model": "linear", "text": "x"})),
        ("/v1/detokenize", json!({"model": "linear", "tokens": [1]})),
        ("/v1/session/close", json!({"model": "linear", "session_id": "x"})),
    ] {
        assert_eq!(bad(&server.client.post(path, &body))["param"], "model", "{path}");
    }
    server.assert_runs();
}

#[test]
fn many_clients_at_once_get_their_own_outputs_from_two_workers() {
    let server = Setup::new().config(&format!("{}workers = 2\n", model("linear"))).start();
    std::thread::scope(|scope| {
        for client in 0..16 {
            let server = &server;
            scope.spawn(move || {
                for request in 0..20 {
                    let rows: Vec<Value> = (0..1 + request % 3).map(|row| json!([client, request, row])).collect();
                    let answer = server.client.ask(PREDICT, &json!({"input": rows}));
                    let of = |row: usize| {
                        let (a, b, c) = (client as f64, request as f64, row as f64);
                        json!([a + 2.0 * b + 3.0 * c + 0.5, 4.0 * a + 5.0 * b + 6.0 * c - 0.5])
                    };
                    let expected: Vec<Value> = (0..rows.len()).map(of).collect();
                    assert_eq!(answer["output"], Value::Array(expected));
                }
            });
        }
    });
    let metrics = server.metrics();
    for worker in ["0", "1"] {
        assert_eq!(metrics.get("camshaft_worker_up", &[("model", "linear"), ("worker", worker)]), Some(1.0));
    }
    let stats = server.client.get("/server/stats").json();
    assert_eq!(stats["models"]["linear"]["queue"]["waiting"], 0, "{stats}");
}

#[test]
fn regression_numbers_that_a_model_cannot_compute_are_their_own_requests_fault() {
    let server = setup(&["lookup"]).start();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..20 {
                    let id = if client == 0 { 7 } else { client % 3 };
                    let answer = server.client.post(PREDICT, &json!({"input": [id]}));
                    if client == 0 {
                        let error = bad(&answer);
                        assert!(error["message"].as_str().unwrap().contains("cannot compute this input"), "{error}");
                    } else {
                        assert_eq!(answer.json()["output"], json!([[2.0 * f64::from(id), 2.0 * f64::from(id) + 1.0]]));
                    }
                }
            });
        }
    });
    assert_eq!(server.metrics().count("camshaft_worker_restarts_total", &[]), 0.0);
}

#[test]
fn keys_quotas_and_validators_hold_for_predictions() {
    let keys = api_keys(&[("sk-one", "allowed-models = [\"two\"]"), ("sk-any", "")]);
    let traps = "[match]\nendpoints = [\"prediction\"]\nmodels = [\"two\"]\n[policy]\ndeadline = \"5s\"\n[settings]\nbehave = \"trap\"\n";
    let server = setup(&["linear", "two"])
        .component("auth", "10-api-keys", &plugin("auth-api-keys"), &keys)
        .guest("validator", "10-bad", traps)
        .start();
    let body = json!({"model": "linear", "input": [[1, 2, 3]]});
    assert_eq!(server.client.with_key("sk-wrong").post(PREDICT, &body).status, 401);
    let one = server.client.with_key("sk-one");
    for path in [PREDICT, "/v1/models/linear/predict"] {
        assert_eq!(one.post(path, &body).status, 403, "{path}");
    }
    let any = server.client.with_key("sk-any");
    assert_eq!(any.ask(PREDICT, &body)["output"], json!([[14.5, 31.5]]));
    let refused = any.post(PREDICT, &json!({"model": "two", "inputs": {"a": [[1, 2]], "b": [[1, 2]]}}));
    assert_eq!(refused.status, 500, "{}", refused.text());
    let calls = |outcome: &str| {
        server.metrics().count("camshaft_policy_calls_total", &[("hook", "validator"), ("outcome", outcome)])
    };
    assert_eq!(
        (calls("trap"), calls("accept")),
        (1.0, 0.0),
        "the validator is asked about one model's predictions alone"
    );
}

#[test]
fn regression_a_request_that_would_take_too_much_memory_is_refused_before_it_waits() {
    let server = setup(&["slow"]).start();
    let numbers = |count: usize| {
        let request = Request::new("POST", PREDICT).header("content-type", "application/json");
        request.body(format!("{{\"input\":[[{}0]]}}", "0,".repeat(count - 1)))
    };
    // 300 tensors of 4 bytes for each number, in a run of 1 GiB.
    let refused = server.client.send(&numbers(1_000_000));
    let error = bad(&refused);
    assert!(error["message"].as_str().unwrap().contains("a request may take 1073741824"), "{error}");
    let fine = server.client.send(&numbers(10_000)).json();
    assert_eq!(fine["outputs"]["s300"]["shape"], json!([1, 10_000]));
}

#[test]
fn a_deadline_holds_for_predictions() {
    let server = setup(&["slow"]).start();
    let numbers = vec![0; 100_000];
    let late = server.client.post(PREDICT, &json!({"input": [numbers], "timeout": 0.001}));
    assert_eq!(late.status, 504, "{}", late.text());
}

#[test]
fn files_and_settings_that_no_tensor_model_has_are_refused_by_name() {
    let check = |config: String, code: i32, words: &[&str]| {
        let done = Setup::new().config(&config).run(&["check"]);
        let text = format!("{}{}", done.stdout, done.stderr);
        assert_eq!(done.code, Some(code), "{config}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{config}: {word}: {text}"));
    };
    check(model("linear"), 0, &["model linear: ok (", "predict, 8 parameters"]);
    check(model("unknown"), 65, &["unknown.onnx", "operators that are not supported: NoSuchOperator"]);
    check(model("none"), 66, &["none.onnx", "No such file"]);
    check(format!("{}kind = \"embed\"\n", model("linear")), 64, &["kind", "\"predict\" for a tensor model's file"]);
    check("[[model]]\nkind = \"predict\"\n".to_owned(), 64, &["kind", "for a GGUF file"]);
    check(format!("{}sequences = 4\n", model("linear")), 64, &["sequences", "only for models that generate"]);
    check(format!("{}threads = 4\n", model("linear")), 64, &["threads", "only for models that read texts"]);
    check(format!("{}sha256 = \"{}\"\n", model("linear"), "0".repeat(64)), 65, &["has SHA-256"]);
    let dir = tempfile::tempdir().unwrap();
    let odd = |name: &str| format!("[[model]]\npath = {:?}\n", dir.path().join(name));
    std::fs::write(dir.path().join("text.onnx"), "not a model").unwrap();
    std::fs::write(dir.path().join("empty.onnx"), "").unwrap();
    let whole = std::fs::read(file("linear")).unwrap();
    std::fs::write(dir.path().join("cut.onnx"), &whole[..whole.len() - 1]).unwrap();
    std::fs::create_dir(dir.path().join("directory.onnx")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe.onnx")).status().unwrap().success());
    std::fs::File::create(dir.path().join("large.onnx")).unwrap().set_len((1 << 31) + 1).unwrap();
    check(odd("large.onnx"), 65, &["it has 2147483649 bytes, at most 2147483648"]);
    check(odd("text.onnx"), 65, &["text.onnx", "is no ONNX model"]);
    check(odd("empty.onnx"), 65, &["empty.onnx", "has no graph"]);
    check(odd("cut.onnx"), 65, &["cut.onnx", "is no ONNX model"]);
    check(odd("directory.onnx"), 66, &["directory.onnx"]);
    check(odd("pipe.onnx"), 66, &["pipe.onnx", "not a regular file"]);
}

#[test]
fn the_triton_python_client_infers_describes_and_raises_its_own_exceptions() {
    let keys = api_keys(&[("sk-good", "")]);
    let mut server = setup(&["linear", "lookup", "two", "slow"])
        .component("auth", "10-api-keys", &plugin("auth-api-keys"), &keys)
        .start();
    let address = server.client.address.to_string();
    run_in(&clients().join("triton"), "triton-venv", "triton_client.py", &[&address, "sk-good"]);
    server.assert_runs();
}

#[test]
fn requests_of_several_clients_are_computed_together_and_the_log_says_whether_a_model_allows_it() {
    let server = Setup::new().config(&format!("{}batch-size = 64\nbatch-window = \"1s\"\n", model("slow"))).start();
    let log = server.settled_log();
    assert!(log.contains("in batches"), "{log}");
    let row = |client: usize| (0..2000).map(|at| (client * at % 7) as f64).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let alone = server.client.ask(PREDICT, &json!({"input": [row(client)]}));
                for _ in 0..5 {
                    let answer = server.client.ask(PREDICT, &json!({"input": [row(client)]}));
                    let (got, first) = (&answer["outputs"]["s300"]["data"], &alone["outputs"]["s300"]["data"]);
                    let pairs = got.as_array().unwrap().iter().zip(first.as_array().unwrap());
                    for (got, first) in pairs {
                        let (got, first) = (got.as_f64().unwrap(), first.as_f64().unwrap());
                        assert!((got - first).abs() <= 1e-5, "{got} {first}");
                    }
                }
            });
        }
    });
    let (sum, count) = batches(&server);
    assert!(sum == 48.0 && count < sum, "{sum} requests in {count} batches");
}

#[test]
fn regression_a_tensor_model_that_sleeps_is_ready_and_says_what_it_takes() {
    let server = Setup::new().config(&format!(
        "[[model]]\nid = \"demo\"\nthreads = 1\n{}id = \"m\"\nload = \"on-demand\"\n",
        model("linear")
    ));
    let server = server.start();
    assert_eq!(server.client.get("/v2/models/m/ready").status, 200, "requests wait until it is there");
    assert_eq!(server.client.get("/healthz").json()["models"]["m"], "asleep");
    let described = server.client.get("/v2/models/m");
    assert_eq!((described.status, &described.json()["inputs"][0]["name"]), (200, &json!("x")), "{}", described.text());
    assert_eq!(server.client.get("/healthz").json()["models"]["m"], "ready");
}

/// Requests and batches of a server's tensor models so far.
fn batches(server: &Server) -> (f64, f64) {
    let metrics = server.metrics();
    (metrics.count("camshaft_batch_requests_sum", &[]), metrics.count("camshaft_batch_requests_count", &[]))
}

#[test]
fn batches_and_their_memory_grow_and_shrink_while_the_model_runs() {
    let server = Setup::new().config(&format!("{}batch-size = 1\nbatch-window = \"1s\"\n", model("slow"))).start();
    let limits = |body: Value| {
        let request = Request::post("/admin/models/slow/limits", &body);
        let answer = server.admin.send(&request);
        assert_eq!(answer.status, 200, "{}", answer.text());
        server.admin.get("/admin/models/slow").json()["memory_bytes"].as_u64().unwrap()
    };
    // Whether requests that come at once share batches.
    let are_shared = || {
        let before = batches(&server);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| server.client.ask(PREDICT, &json!({"input": [vec![1.0; 2000]]})));
            }
        });
        let after = batches(&server);
        assert_eq!(after.0 - before.0, 8.0);
        after.1 - before.1 < 8.0
    };
    let small = limits(json!({}));
    assert!(!are_shared(), "as configured");
    let large = limits(json!({"batch-size": 4096}));
    assert!(large > small, "{small} {large}");
    assert!(are_shared());
    assert_eq!(limits(json!({"batch-size": 1})), small);
    assert!(!are_shared());
    assert_eq!(server.admin.get("/admin/models/slow").json()["swaps"], 0);
}

/// A request to the encoder, with its mask or without.
fn text(client: usize, length: usize, with_mask: bool) -> Value {
    let ids: Vec<usize> = (0..length).map(|at| (client * 7 + at * 3) % 50).collect();
    match with_mask {
        true => json!({"inputs": {"input_ids": [ids], "attention_mask": [vec![1; length]]}}),
        false => json!({"inputs": {"input_ids": [ids]}}),
    }
}

/// Whether all numbers of two answers are the same but for rounding, and their shapes are.
fn are_same(got: &Value, expected: &Value) -> bool {
    ["states", "pooled"].iter().all(|name| {
        let (got, expected) = (&got["outputs"][name], &expected["outputs"][name]);
        let numbers =
            |of: &Value| -> Vec<f64> { of["data"].as_array().unwrap().iter().filter_map(Value::as_f64).collect() };
        let (numbers, others) = (numbers(got), numbers(expected));
        let pairs = numbers.iter().zip(&others);
        got["shape"] == expected["shape"]
            && !numbers.is_empty()
            && numbers.len() == others.len()
            && pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0))
    })
}

#[test]
fn requests_of_different_lengths_are_padded_together_and_each_gets_what_it_gets_alone() {
    let batches = "workers = 2\nbatch-size = 64\nbatch-window = \"1s\"\n";
    let server = Setup::new().config(&format!("{}{batches}", model("encoder"))).start();
    let log = server.settled_log();
    assert!(log.contains("in batches, padded along sequence"), "{log}");
    let info = server.client.get("/model/info").json();
    let optional: Vec<&Value> = info["inputs"].as_array().unwrap().iter().map(|input| &input["optional"]).collect();
    assert_eq!(optional, [&Value::Null, &json!(true)], "{info}");
    std::thread::scope(|scope| {
        for client in 0..12 {
            let server = &server;
            scope.spawn(move || {
                let length = 900 + 70 * client;
                let alone = server.client.ask(PREDICT, &text(client, length, true));
                assert_eq!(alone["outputs"]["states"]["shape"], json!([1, length, 8]));
                for round in 0..4 {
                    let answer = server.client.ask(PREDICT, &text(client, length, round % 2 == 0));
                    assert!(are_same(&answer, &alone), "of {length}");
                }
            });
        }
    });
    let metrics = server.metrics();
    let (sum, count) =
        (metrics.count("camshaft_batch_requests_sum", &[]), metrics.count("camshaft_batch_requests_count", &[]));
    assert!(sum == 60.0 && count < sum, "{sum} requests in {count} batches");
}

#[test]
fn a_mask_may_be_left_out_and_nothing_else() {
    let server = setup(&["encoder"]).start();
    let check = |asked: Value, words: &[&str]| {
        let error = bad(&server.client.post(PREDICT, &asked));
        assert!(words.iter().all(|word| error["message"].as_str().unwrap().contains(word)), "{error}");
    };
    check(json!({"inputs": {"attention_mask": [[1, 1]]}}), &["inputs.input_ids is required"]);
    check(json!({"inputs": {"input_ids": [1, 2]}}), &["input_ids must have 2 axes"]);
    check(
        json!({"inputs": {"input_ids": [[1, 2]], "attention_mask": [[1]]}}),
        &["axis 1", "attention_mask", "sequence"],
    );
    let open = json!({"inputs": [{"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [3, 4]}]});
    let answer = server.client.ask("/v2/models/encoder/infer", &open);
    assert_eq!(answer["outputs"][1]["shape"], json!([1, 8]), "{answer}");
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn model_at(path: &str) -> String {
    format!("[[model]]\npath = {:?}\n", repository().join(path))
}

#[test]
fn the_bundled_classifier_answers_with_labels() {
    let onnx = model_at("config/digits/digits-onnx.toml");
    let server = Setup::new().config(&format!("[[model]]\npath = \"digits\"\n{onnx}id = \"onnx\"\n")).start();
    let text = std::fs::read_to_string(repository().join("config/digits/seven.json")).unwrap();
    let mut asked: Value = serde_json::from_str(&text).unwrap();
    for model in ["digits", "onnx"] {
        asked["model"] = json!(model);
        let answer = server.client.ask(PREDICT, &asked);
        let classes = answer["classes"].as_array().unwrap();
        assert_eq!((classes.len(), classes[0].as_array().unwrap().len()), (1, 3), "{answer}");
        assert_eq!((&classes[0][0]["label"], &classes[0][0]["index"]), (&json!("seven"), &json!(7)));
        assert!(classes[0][0]["score"].as_f64().unwrap() > 0.9, "{answer}");
        assert_eq!(answer["outputs"]["logits"]["shape"], json!([1, 10]));
    }
    let info = server.client.get("/v1/models/digits").json();
    let facts = (&info["format"], &info["backend"], &info["parameters"]);
    assert_eq!(facts, (&json!("safetensors"), &json!("ndarray"), &json!(5386)));
    assert_eq!(info["inputs"], json!([{"name": "image", "shape": [-1, 28, 28], "datatype": "UINT8"}]));
    asked["input"][0][0][0] = json!(256);
    assert!(bad(&server.client.post(PREDICT, &asked))["message"].as_str().unwrap().contains("UINT8"));
}

#[test]
fn weights_without_a_manifest_or_with_a_wrong_one_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (digits, at) = (repository().join("config/digits"), |name: &str| dir.path().join(name));
    std::fs::copy(digits.join("digits.safetensors"), at("digits.safetensors")).unwrap();
    let check = |name: &str, more: &str, code: i32, words: &[&str]| {
        let done = Setup::new().config(&format!("[[model]]\npath = {:?}\n{more}", at(name))).run(&["check"]);
        let text = format!("{}{}", done.stdout, done.stderr);
        assert_eq!(done.code, Some(code), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
    };
    check("digits.safetensors", "", 65, &["neither digits.toml nor model.toml", "digits.safetensors"]);
    let manifest = std::fs::read_to_string(digits.join("digits.toml")).unwrap();
    std::fs::write(at("digits.toml"), &manifest).unwrap();
    check("digits.safetensors", "backend = \"cpu\"\n", 0, &["model digits: ok (", "predict, 5386 parameters"]);
    check("digits.toml", &format!("sha256 = \"{}\"\n", "0".repeat(64)), 65, &["has SHA-256"]);
    std::fs::write(at("model.toml"), manifest.replace("out-features = 10", "out-features = 11")).unwrap();
    check("model.toml", "", 65, &["layer fc", "weight", "[11, 400]", "[10, 400]"]);
    std::fs::write(at("model.toml"), manifest.replace("out-channels = 8", "out-channels = 9")).unwrap();
    check("model.toml", "", 65, &["layer conv1", "weight", "[9, 1, 5, 5]", "[8, 1, 5, 5]"]);
    std::fs::write(at("model.toml"), manifest.replace("digits.safetensors", "none.pt")).unwrap();
    check("model.toml", "", 66, &["none.pt", "No such file"]);
    std::fs::write(at("model.toml"), manifest.replace("kernel = 5", "kernal = 5")).unwrap();
    check("model.toml", "", 65, &["layer conv1", "kernal", "kernel"]);
    check("none.toml", "", 66, &["none.toml", "No such file"]);
    assert!(std::process::Command::new("mkfifo").arg(at("pipe.toml")).status().unwrap().success());
    check("pipe.toml", "", 66, &["pipe.toml", "not a regular file"]);
    let demo = Setup::new().config("[[model]]\nbackend = \"wgpu\"\n").run(&["check"]);
    assert_eq!(demo.code, Some(64), "{}", demo.stderr);
}
