//! Predictions in both forms, over a model in process that doubles its numbers.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use camshaft_api::backend::{Backend, Model, Naming, PredictBackend, PredictInfo};
use camshaft_api::{
    Api, ApiLimits, ApiOptions, FixedModels, LocalQuotas, ModelHealth, PublicAccess, QueueBounds, Readiness, Work,
    jobs, public_router,
};
use camshaft_core::jobs::BatchLimits;
use camshaft_core::message::WorkerError;
use camshaft_core::policy::{AuthOutcome, Principal, ValidateOutcome};
use camshaft_core::pool::Watermarks;
use camshaft_core::tensor::{
    Axis, Class, Computing, Datatype, NoAnswer, Number, Predicted, Rows, Signature, Tensor, TensorSpec,
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fixture::{LIMITS, NoControl, request};
use crate::policies::{Fixed, Rules, refusal};

const INFER: &str = "/v2/models/org/double/infer";
const LENGTH: &str = "inference-header-content-length";
const WIDE: usize = 100;

/// Takes `x`, any number of rows of three FP32 numbers, and gives `y`, twice `x`, and `z`, which is [`WIDE`] times as wide. Of each row it says one class.
#[derive(Debug)]
struct Doubles {
    /// What it says that the classes of a row take in an answer.
    row_class_bytes: usize,
}

impl Computing for Doubles {
    fn run_bytes(&self, _: &[&[usize]]) -> Result<Option<u64>, NoAnswer> {
        Ok(Some(0))
    }

    fn output_shapes(&self, shapes: &[&[usize]]) -> Result<Option<Vec<Vec<usize>>>, NoAnswer> {
        Ok(Some(vec![shapes[0].to_vec(), vec![shapes[0][0], 3 * WIDE]]))
    }

    fn class_bytes(&self, rows: u32) -> usize {
        self.row_class_bytes * rows as usize
    }
}

fn compute(rows: &Rows) -> Result<Predicted, WorkerError> {
    let x = &rows.tensors[0];
    if x.numbers().any(|number| number == Number::Single(-1.0)) {
        return Err(WorkerError::Refused("the model cannot compute this input: -1 is out of range".to_owned()));
    }
    let doubled = |number: Number| (2.0 * number.to_f64()) as f32;
    let tensor = |shape: &[usize], times: usize| {
        let bytes = x.numbers().flat_map(|number| doubled(number).to_le_bytes().repeat(times)).collect();
        Tensor::new(Datatype::Fp32, shape.to_vec(), bytes).unwrap()
    };
    let tensors = vec![tensor(x.shape(), 1), tensor(&[x.shape()[0], 3 * WIDE], WIDE)];
    let class = |row: u32| vec![Class { label: "doubled".into(), index: row, score: 0.5 }];
    let classes = Some((0..rows.rows).map(class).collect());
    Ok(Predicted { tensors, classes, took: Duration::from_micros(1500) })
}

struct Server {
    api: Arc<Api>,
    router: Router,
    computed: Arc<AtomicUsize>,
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

fn model(computed: &Arc<AtomicUsize>, row_class_bytes: usize) -> Model {
    let spec = |name: &str, width| TensorSpec {
        name: name.to_owned(),
        datatype: Datatype::Fp32,
        shape: vec![Axis::Any("rows".to_owned()), Axis::Fixed(width)],
    };
    let watermarks = Watermarks { high: 8, low: 4 };
    let batch = BatchLimits { size: 1, inputs: 1, window: Duration::ZERO };
    let (jobs, work): (_, Work<Rows, Predicted>) = jobs(move || QueueBounds { watermarks, batch });
    let computed = computed.clone();
    std::thread::spawn(move || {
        while work.woken().recv().is_ok() {
            while work.with(|queue| queue.has_inputs()) {
                for input in work.take(work.now()) {
                    computed.fetch_add(1, Ordering::Relaxed);
                    work.with(|queue| queue.computed(std::slice::from_ref(&input)));
                    match compute(&input.input) {
                        Ok(output) => input.owner.put(input.index, output),
                        Err(error) => input.owner.fail(error),
                    }
                }
            }
        }
    });
    let info = PredictInfo {
        name: "double".to_owned(),
        format: "onnx".into(),
        backend: "tract".into(),
        parameters: 0,
        weight_bytes: 0,
        sha256: None,
    };
    let signature = Signature {
        inputs: vec![spec("x", 3)],
        outputs: vec![spec("y", 3), spec("z", 3 * WIDE)],
        rows: true,
        mask: None,
    };
    let predict = PredictBackend { jobs, info, signature, computing: Arc::new(Doubles { row_class_bytes }) };
    let health = ModelHealth::default();
    health.worker().ready();
    let naming = Naming::of("org/double");
    Model { id: naming.id(), naming, health, created: 1, backend: Backend::Predict(predict) }
}

impl Server {
    fn new(rules: Rules) -> Self {
        Self::with_classes(rules, 0)
    }

    fn with_classes(rules: Rules, row_class_bytes: usize) -> Self {
        let readiness = Arc::new(Readiness::new());
        readiness.set_ready();
        let computed = Arc::new(AtomicUsize::new(0));
        let api = Api::new(ApiOptions {
            life: Arc::new(FixedModels),
            models: vec![model(&computed, row_class_bytes)],
            policies: Arc::new(Fixed(Arc::new(rules))),
            registry: prometheus::Registry::new(),
            limits: ApiLimits { body_bytes: 8 << 20, ..LIMITS },
            quotas: Arc::new(LocalQuotas::default()),
            control: Arc::new(NoControl(Default::default)),
            vllm_aliases: false,
            operators: Vec::new(),
            kernels: String::new(),
            readiness,
        });
        let api = api.unwrap();
        Self { router: public_router(api.clone(), PublicAccess::default()), api, computed }
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes().to_vec();
        Reply { status: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(request("POST", path, &body.to_string())).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(request("GET", path, "")).await
    }

    /// JSON with bytes behind it. `length`: what the header says instead of the JSON's.
    async fn binary(&self, json: &Value, tail: &[u8], length: Option<&str>) -> Reply {
        let json = json.to_string();
        let length = length.map_or_else(|| json.len().to_string(), str::to_owned);
        let mut request = request("POST", INFER, "");
        request.headers_mut().insert("content-type", "application/octet-stream".parse().unwrap());
        request.headers_mut().insert(LENGTH, length.parse().unwrap());
        *request.body_mut() = Body::from([json.as_bytes(), tail].concat());
        self.send(request).await
    }

    fn computed(&self) -> usize {
        self.computed.load(Ordering::Relaxed)
    }
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// The text of the protocol's error, after checking its status and that it has nothing else.
    fn open_error(&self, status: u16) -> String {
        let json = self.json();
        assert_eq!((self.status, json.as_object().unwrap().len()), (status, 2), "{json}");
        assert_eq!(json["request_id"].as_str(), self.headers["x-request-id"].to_str().ok());
        json["error"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

fn x(data: &Value) -> Value {
    json!({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": data}]})
}

fn x_behind(bytes: usize) -> Value {
    let parameters = json!({"binary_data_size": bytes});
    json!({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": parameters}]})
}

fn bytes(numbers: [f32; 3]) -> Vec<u8> {
    numbers.map(f32::to_le_bytes).concat()
}

fn only_y(mut body: Value, binary: bool) -> Value {
    body["outputs"] = json!([{"name": "y", "parameters": {"binary_data": binary}}]);
    body
}

#[tokio::test]
async fn an_inference_is_asked_and_answered_in_json_and_in_bytes() {
    let server = Server::new(Rules::default());
    let y = json!({"name": "y", "shape": [1, 3], "datatype": "FP32", "data": [2.0, 4.0, 6.0]});
    for path in [INFER, "/v2/models/org/double/versions/1/infer", "/v2/models/org%2Fdouble/infer"] {
        let mut body = only_y(x(&json!([[1, 2, 3]])), false);
        body["id"] = "call \u{1}".into();
        let reply = server.post(path, body).await;
        let expected = json!({"model_name": "org/double", "model_version": "1", "id": "call \u{1}", "outputs": [y]});
        assert_eq!((reply.status, reply.json()), (200, expected), "{path}");
        assert_eq!((reply.header(LENGTH), reply.header("content-type")), (None, Some("application/json")));
    }
    let all = server.post(INFER, x(&json!([1, 2, 3]))).await.json();
    assert_eq!(all["outputs"].as_array().unwrap().len(), 2);
    let reply = server.binary(&only_y(x_behind(12), true), &bytes([1.0, 2.0, f32::NAN]), None).await;
    let length: usize = reply.header(LENGTH).unwrap().parse().unwrap();
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
    let (head, tail) = reply.bytes.split_at(length);
    let head: Value = serde_json::from_slice(head).unwrap();
    assert_eq!(head["outputs"][0]["parameters"], json!({"binary_data_size": 12}));
    assert_eq!(
        (&tail[..8], f32::from_le_bytes(tail[8..].try_into().unwrap()).is_nan()),
        (&bytes([2.0, 4.0, 0.0])[..8], true)
    );
    let mut all = x(&json!([1, 2, 3]));
    all["parameters"] = json!({"binary_data_output": true});
    let reply = server.post(INFER, all).await;
    assert_eq!(reply.bytes.len() - reply.header(LENGTH).unwrap().parse::<usize>().unwrap(), 12 + 12 * WIDE);
}

#[tokio::test]
async fn servers_and_models_describe_themselves() {
    let server = Server::new(Rules::default());
    let json = server.get("/v2").await.json();
    assert_eq!((&json["name"], &json["extensions"]), (&json!("camshaft"), &json!(["binary_tensor_data"])));
    assert_eq!(server.get("/v2/health/live").await.json(), json!({"live": true}));
    assert_eq!(server.get("/v2/health/ready").await.json(), json!({"ready": true}));
    let expected = json!({"name": "org/double", "versions": ["1"], "platform": "tract_onnx",
        "inputs": [{"name": "x", "shape": [-1, 3], "datatype": "FP32"}],
        "outputs": [{"name": "y", "shape": [-1, 3], "datatype": "FP32"}, {"name": "z", "shape": [-1, 300], "datatype": "FP32"}]});
    for path in ["/v2/models/org/double", "/v2/models/org/double/versions/1"] {
        assert_eq!(server.get(path).await.json(), expected, "{path}");
        assert_eq!(server.get(&format!("{path}/ready")).await.json(), json!({"name": "org/double", "ready": true}));
    }
    let index = server.send(request("POST", "/v2/repository/index", "")).await.json();
    assert_eq!(index, json!([{"name": "org/double", "version": "1", "state": "READY", "reason": ""}]));
}

#[tokio::test]
async fn every_error_has_the_protocols_shape_and_our_status() {
    let server = Server::new(Rules::default());
    let check = |reply: Reply, status: u16, why: &str| {
        let error = reply.open_error(status);
        assert!(error.contains(why), "{error}");
    };
    check(server.get("/v2/models/none").await, 404, "the model none does not exist; there are: org/double");
    check(server.get("/v2/models/none/ready").await, 404, "the model none does not exist");
    check(server.post("/v2/models/none/infer", json!({})).await, 404, "the model none does not exist");
    check(server.get("/v2/models/org/double/versions/2").await, 404, "has the version 1, and no version 2");
    check(server.post("/v2/models/org/double/versions/01/infer", json!({})).await, 404, "no version 01");
    check(server.get("/v2/nothing").await, 404, "unknown request URL");
    let reply = server.get(INFER).await;
    assert_eq!(reply.header("allow"), Some("POST"));
    check(reply, 405, "; use POST");
    check(server.post("/v2/models/org/double", json!({})).await, 405, "; use GET");
    check(server.post("/v2/health/live", json!({})).await, 405, "POST is not allowed on /v2/health/live");
    check(server.send(request("POST", INFER, "{")).await, 400, "not valid JSON");
    check(server.send(request("POST", INFER, "{} {}")).await, 400, "not valid JSON");
    check(server.post(INFER, json!([])).await, 400, "must be a JSON object");
    check(server.post(INFER, json!({})).await, 400, "inputs is required");
    let other = json!({"inputs": [{"name": "w", "shape": [1], "datatype": "FP32", "data": [1]}]});
    check(server.post(INFER, other).await, 400, "inputs[0]: the model has no input w; it takes x");
    let twice = json!({"inputs": [x(&json!([1, 2, 3]))["inputs"][0], x(&json!([1, 2, 3]))["inputs"][0]]});
    check(server.post(INFER, twice).await, 400, "inputs[1] gives the input x twice");
    let narrow = json!({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]});
    check(server.post(INFER, narrow).await, 400, "axis 1 of input x must be 3, got 2");
    let whole = json!({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT32", "data": [1, 2, 3]}]});
    check(server.post(INFER, whole).await, 400, "input x must be FP32, got INT32");
    let mut output = x(&json!([1, 2, 3]));
    output["outputs"] = json!([{"name": "w"}]);
    check(server.post(INFER, output).await, 400, "outputs[0].name: the model has no output w; it gives y, z");
    check(server.post(INFER, x(&json!([-1, 2, 3]))).await, 400, "-1 is out of range");
    let mut typed = request("POST", INFER, "{}");
    typed.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    check(server.send(typed).await, 415, "application/json or application/octet-stream");
    let mut picky = request("POST", INFER, "{}");
    picky.headers_mut().insert("accept-encoding", "identity;q=0, gzip;q=0".parse().unwrap());
    check(server.send(picky).await, 406, "accepts neither");
    server.api.readiness.set_draining();
    check(server.get("/v2/health/ready").await, 503, "draining");
    check(server.post(INFER, x(&json!([1, 2, 3]))).await, 503, "draining");
    assert_eq!(server.get("/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn where_the_json_ends_is_said_by_one_number_within_the_body() {
    let server = Server::new(Rules::default());
    let (body, tail) = (x_behind(12), bytes([1.0, 2.0, 3.0]));
    let whole = body.to_string().len() + tail.len();
    for wrong in
        [&format!("{}", whole + 1), "-1", "+1", "", " ", "0x10", "9223372036854775808", "18446744073709551616", "1.0"]
    {
        let error = server.binary(&body, &tail, Some(wrong)).await.open_error(400);
        assert!(error.starts_with("inference-header-content-length must be the bytes of the JSON"), "{wrong}: {error}");
    }
    assert!(
        server.binary(&body, &tail, Some(&(whole).to_string())).await.open_error(400).contains("is not UTF-8"),
        "the bytes are none"
    );
    assert!(
        server.binary(&body, &tail, Some(&(whole - 11).to_string())).await.open_error(400).contains("JSON"),
        "something follows it"
    );
    assert!(server.binary(&body, &tail, Some(&(0).to_string())).await.open_error(400).contains("not valid JSON"));
    let mut request = request("POST", INFER, &body.to_string());
    for length in ["1", "1"] {
        request.headers_mut().append(LENGTH, length.parse().unwrap());
    }
    assert!(server.send(request).await.open_error(400).contains("got two"));
    assert_eq!(server.computed(), 0);
}

#[tokio::test]
async fn a_body_without_a_type_is_taken_from_clients_that_are_no_web_pages() {
    let server = Server::new(Rules::default());
    let untyped = |origin: Option<&str>| {
        let mut request = request("POST", INFER, &x(&json!([1, 2, 3])).to_string());
        request.headers_mut().remove("content-type");
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        request
    };
    assert_eq!(server.send(untyped(None)).await.status, 200);
    server.send(untyped(Some("http://localhost"))).await.open_error(415);
    let mut predict = untyped(None);
    *predict.uri_mut() = "/predict".parse().unwrap();
    assert_eq!(server.send(predict).await.status, 415);
}

#[tokio::test]
async fn policies_and_quotas_hold_for_inferences_as_for_predictions() {
    let refused = Server::new(Rules::default().auth(|_| AuthOutcome::Refuse(refusal(401, "invalid_api_key"))));
    let reply = refused.post(INFER, x(&json!([1, 2, 3]))).await;
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    reply.open_error(401);
    let (routes, bodies) = (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (seen_routes, seen_bodies) = (routes.clone(), bodies.clone());
    let limited = move |request: &camshaft_core::policy::AuthRequest| {
        seen_routes.lock().unwrap().push(request.route.clone());
        let mut principal = Principal::anonymous();
        principal.quotas.tokens_per_minute = Some(5);
        AuthOutcome::Allow(principal)
    };
    let rules = Rules::default().auth(limited).validator(move |request| {
        seen_bodies.lock().unwrap().push(serde_json::from_str::<Value>(&request.body).unwrap());
        ValidateOutcome::Accept
    });
    let server = Server::new(rules);
    let reply = server.binary(&only_y(x_behind(12), true), &bytes([1.0, 2.0, 3.0]), None).await;
    assert_eq!(reply.status, 200);
    let seen = json!({"inputs": [{"shape": [1, 3], "datatype": "FP32", "name": "x"}],
        "outputs": [{"name": "y", "parameters": {"binary_data": true}}], "model": "org/double"});
    assert_eq!(*bodies.lock().unwrap(), [seen]);
    server.get("/v2/models/org/double").await;
    server.get("/v2").await;
    assert_eq!(*routes.lock().unwrap(), ["/predict", "/v1/models/{*id}", "/v1/models"]);
    let six = json!({"inputs": [{"name": "x", "shape": [6, 3], "datatype": "FP32", "data": vec![0; 18]}]});
    let error = server.post(INFER, six.clone()).await.open_error(429);
    assert_eq!(error, "the inputs count as 6 tokens, one for each row, and your whole quota is 5 per minute");
    let error = server.post("/predict", json!({"input": vec![[0, 0, 0]; 6]})).await.json();
    assert_eq!(
        error["error"]["message"],
        "the inputs count as 6 tokens, one for each row, and your whole quota is 5 per minute"
    );
    for row in 0..4 {
        assert_eq!(server.post("/predict", json!({"input": [[0, 0, 0]]})).await.status, 200, "{row}");
    }
    let error = server.post(INFER, x(&json!([1, 2, 3]))).await.open_error(429);
    assert_eq!(error, "your quota of 5 tokens per minute does not hold this request now");
}

#[tokio::test]
async fn regression_an_answer_without_room_is_refused_before_it_is_computed() {
    let server = Server::new(Rules::default());
    let rows = |count: usize| json!({"input": vec![[1, 2, 3]; count]});
    assert_eq!(server.post("/predict", rows(10)).await.status, 200);
    assert_eq!(server.computed(), 1);
    server.api.set_limits(ApiLimits { bodies_bytes: 512 << 10, ..server.api.limits() });
    // 303 numbers of an answer for each row, of 116 bytes and more.
    let refused = server.post("/predict", rows(10)).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (413, &json!("request_too_large")));
    let wide = json!({"inputs": [{"name": "x", "shape": [10, 3], "datatype": "FP32", "data": vec![0; 30]}]});
    server.post(INFER, wide.clone()).await.open_error(413);
    assert_eq!(server.computed(), 1, "neither was computed");
    // What is not asked for, and bytes, take less.
    assert_eq!(server.post(INFER, only_y(wide.clone(), false)).await.status, 200);
    let mut bytes = wide;
    bytes["parameters"] = json!({"binary_data_output": true});
    assert_eq!(server.post(INFER, bytes).await.status, 200);
    assert_eq!(server.computed(), 3);
}

#[tokio::test]
async fn classes_are_in_our_own_form_alone_and_count_in_the_memory_of_an_answer() {
    let own = json!({"input": [[1, 2, 3], [1, 2, 3]]});
    let server = Server::new(Rules::default());
    let class = |row: u32| json!([{"label": "doubled", "index": row, "score": 0.5}]);
    assert_eq!(server.post("/predict", own.clone()).await.json()["classes"], json!([class(0), class(1)]));
    let open = server.post(INFER, x(&json!([1, 2, 3]))).await;
    assert!(open.json().get("classes").is_none() && !open.bytes.windows(7).any(|word| word == b"doubled"));
    let large = Server::with_classes(Rules::default(), 8 << 20);
    // One request may take half of it: one row has room, two have none.
    large.api.set_limits(ApiLimits { bodies_bytes: 24 << 20, ..large.api.limits() });
    assert_eq!(large.post("/predict", own).await.status, 413);
    assert_eq!(large.computed(), 0);
    assert_eq!(large.post("/predict", json!({"input": [[1, 2, 3]]})).await.status, 200);
}

#[tokio::test]
async fn a_body_of_bytes_counts_whole_in_the_memory_for_all() {
    let server = Server::new(Rules::default());
    let rows = 300_000 / 12;
    let mut body = x_behind(rows * 12);
    body["inputs"][0]["shape"] = json!([rows, 3]);
    let body = only_y(body, true);
    assert_eq!(server.binary(&body, &vec![0; rows * 12], None).await.status, 200);
    server.api.set_limits(ApiLimits { bodies_bytes: 1 << 20, ..server.api.limits() });
    server.binary(&body, &vec![0; rows * 12], None).await.open_error(413);
    server.api.set_limits(ApiLimits { body_bytes: 300_000, ..server.api.limits() });
    assert!(server.binary(&body, &vec![0; rows * 12], None).await.open_error(413).contains("300000 bytes"));
}

#[tokio::test]
async fn a_path_of_predictions_says_what_it_takes() {
    let server = Server::new(Rules::default());
    let reply = server.get("/v1/models/org/double/predict").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "GET is not allowed on /v1/models/org/double/predict; use POST");
    let reply = server.post("/v1/models/org/double", json!({})).await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("GET")));
    for reply in [server.post("/v1/models/x", json!({})).await, server.get("/v1/models/x/predict").await] {
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    }
}

#[tokio::test]
async fn who_writes_the_inputs_into_input_is_told_where_they_belong() {
    let server = Server::new(Rules::default());
    let message = |reply: Reply| reply.json()["error"]["message"].as_str().unwrap().to_owned();
    let mixed = message(server.post("/predict", json!({"input": {"x": [[1, 2, 3]]}})).await);
    assert!(mixed.starts_with("input.data is required; tensors by their names are in inputs"), "{mixed}");
    let refused = message(server.post("/predict", json!({"input": [[-1, 2, 3]]})).await);
    assert_eq!(refused, "the model cannot compute this input: -1 is out of range");
}
