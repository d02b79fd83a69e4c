//! Start and shutdown: signals while streams run, clients that leave, readers that stop reading.
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use camshaft_tests::{Client, Open, Request, Server, Setup, Stream, binary, demo_model, eventually};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::compile::{bomb, compiling_into};
use crate::errors::error_of;

const COMPLETIONS: &str = "/v1/completions";
/// A long generation.
const LONG: u32 = 600;

fn long(stream: bool) -> Value {
    json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": LONG, "ignore_eos": true, "stream": stream})
}

/// Streams that have started and are far from their end.
fn streams(server: &Server, count: usize) -> Vec<Stream> {
    let mut streams: Vec<Stream> = (0..count).map(|_| server.client.stream(COMPLETIONS, &long(true))).collect();
    for stream in &mut streams {
        assert!(stream.next().is_some(), "the stream has begun");
    }
    streams
}

fn short() -> Value {
    json!({"model": "demo", "prompt": "a", "max_tokens": 1})
}

/// Waits until a signal has had its effect.
fn drains_soon(server: &Server) {
    eventually("readiness ends", || {
        let status = server.client.get("/readyz").status;
        if status == 503 { Ok(()) } else { Err(status) }
    });
}

/// Asserts that new work is refused by an answer, not by a closed port.
fn refuses_by_an_answer(server: &Server) {
    let refused = server.client.post(COMPLETIONS, &short());
    assert_eq!((refused.status, error_of(&refused)["code"].as_str()), (503, Some("draining")), "{}", refused.text());
    assert!(refused.header("retry-after").is_some() && refused.header("connection") == Some("close"));
    assert_eq!(server.client.get("/healthz").status, 200);
    assert_eq!(server.client.get("/metrics").status, 200);
    assert_eq!(server.admin.get("/metrics").status, 200);
}

#[test]
fn regression_a_server_that_drains_answers_until_its_streams_are_done() {
    // On a busy machine the streams may take longer than the default drain time.
    let mut server = Setup::new().set("shutdown.drain", "\"1h\"").start();
    assert_eq!(server.client.post(COMPLETIONS, &short()).status, 200);
    let mut kept = server.client.connect();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let answer = Open::read(kept).unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, None));
    let mut body = answer.body;
    body.read_to_end(&mut Vec::new()).unwrap();
    let mut kept = body.into_socket().expect("the connection is kept");
    let streams = streams(&server, 4);
    server.signal(Signal::TERM);
    drains_soon(&server);
    refuses_by_an_answer(&server);
    // An earlier connection gets an answer, too.
    kept.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let answer = Open::read(kept).unwrap();
    assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    server.assert_runs();
    for stream in streams {
        let collected = stream.finish();
        assert!(collected.is_good(), "a stream was cut: {:?}", collected.events.last());
        assert_eq!(collected.finish_reason(0), Some("length"));
    }
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn an_idle_server_ends_at_sigterm_and_at_sigint() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Setup::new().start();
        server.signal(signal);
        assert_eq!(server.wait(), Some(0), "{signal:?}");
    }
}

#[test]
fn regression_signals_that_whoever_starts_it_ignores_or_blocks_reach_the_server() {
    let inherited = ["env", "--ignore-signal=CHLD", "--block-signal=TERM,INT,HUP,CHLD"];
    for signal in [Signal::TERM, Signal::INT] {
        // What is compiled already would need no child.
        let setup = Setup::new().started_by(&inherited);
        let cache = setup.scratch.path().join("compiled").to_string_lossy().into_owned();
        let setup = setup.env("XDG_CACHE_HOME", &cache).plugin("validator", "10-limits", "validator-limits", "");
        let mut server = setup.start();
        assert_eq!(server.policy("validator", "limits").expect("it is listed")["state"], "active", "{}", server.log());
        server.signal(signal);
        assert_eq!(server.wait(), Some(0), "{signal:?}");
    }
}

#[test]
fn regression_the_grace_keeps_the_listeners_open_for_a_load_balancer() {
    let mut server = Setup::new().set("shutdown.grace", "\"1h\"").start();
    server.signal(Signal::TERM);
    drains_soon(&server);
    refuses_by_an_answer(&server);
    server.assert_runs();
    // SIGINT comes from a terminal, without a load balancer to wait for.
    let mut other = Setup::new().set("shutdown.grace", "\"1h\"").start();
    other.signal(Signal::INT);
    assert_eq!(other.wait(), Some(0));
    server.assert_runs();
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let mut short = Setup::new().set("shutdown.grace", "\"100ms\"").start();
    short.signal(Signal::TERM);
    assert_eq!(short.wait(), Some(0), "the grace passes");
}

#[test]
fn an_operators_drain_can_be_taken_back() {
    let server = Setup::new().start();
    assert_eq!(server.admin.post("/admin/drain", &json!({})).status, 200);
    assert_eq!(server.client.get("/readyz").status, 503);
    refuses_by_an_answer(&server);
    assert_eq!(server.admin.post("/admin/resume", &json!({})).status, 200);
    assert_eq!(server.client.get("/readyz").status, 200);
    assert_eq!(server.client.post(COMPLETIONS, &short()).status, 200);
}

#[test]
fn regression_what_is_on_its_way_to_the_disk_is_written_at_exit() {
    let setup = Setup::new();
    let dir = setup.scratch.path().join("kept");
    let keep = dir.to_string_lossy().into_owned();
    let setup = setup.set("cache.disk-dir", &format!("{keep:?}")).set("cache.disk", "\"1GiB\"");
    let mut server = setup.start();
    let prompt = "What was said before is kept for those who ask again. ".repeat(10);
    let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 1});
    assert_eq!(server.client.post(COMPLETIONS, &body).status, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let stats = Setup::new().run(&["cache", "verify", "--dir", &keep]);
    assert_eq!(stats.code, Some(0), "{}", stats.stdout);
    assert!(!stats.stdout.contains(" 0 tokens"), "{}", stats.stdout);
    assert!(stats.stdout.contains(" tokens"), "{}", stats.stdout);
}

#[test]
fn regression_with_an_open_umask_what_the_server_keeps_is_still_private() {
    let setup = Setup::new().started_by(&["/bin/sh", "-c", "umask 0; exec \"$0\" \"$@\""]);
    let kept = setup.scratch.path().join("kept");
    let (cache, keep) = (kept.join("compiled").to_string_lossy().into_owned(), kept.join("prefixes"));
    let setup = setup.env("XDG_CACHE_HOME", &cache).plugin("validator", "10-limits", "validator-limits", "");
    let setup = setup.set("cache.disk-dir", &format!("{keep:?}")).set("cache.disk", "\"1GiB\"");
    let mut server = setup.start();
    let prompt = "What was said before is kept for those who ask again. ".repeat(10);
    let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 1});
    assert_eq!(server.client.post(COMPLETIONS, &body).status, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let (mut folders, mut files) = (vec![kept], 0);
    while let Some(path) = folders.pop() {
        let meta = path.metadata().expect("it is there");
        let wanted = if meta.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(meta.mode() & 0o777, wanted, "{}", path.display());
        match path.read_dir() {
            Ok(entries) => folders.extend(entries.map(|entry| entry.expect("it can be listed").path())),
            Err(_) => files += 1,
        }
    }
    assert!(files >= 4, "a key, a lock, a data file, compiled code: {files}");
}

#[test]
fn regression_a_second_sigterm_stops_at_once() {
    // A guest spins on the worker's thread. The grace period alone keeps a server that gets one signal for an hour.
    let settings = "[policy]\ndeadline = \"10s\"\n[settings]\nbehave = \"spin\"\n";
    let setup = Setup::new().guest("sampler", "10-hold", settings).set("shutdown.drain", "\"1h\"");
    let mut server = setup.set("shutdown.grace", "\"1h\"").start();
    let held = server.client.begin(&Request::post(COMPLETIONS, &long(true)));
    eventually("the stream runs", || {
        let running = server.metrics().get("camshaft_requests_running", &[]);
        if running == Some(1.0) { Ok(()) } else { Err(running) }
    });
    server.signal(Signal::TERM);
    drains_soon(&server);
    server.assert_runs();
    server.signal(Signal::TERM);
    // The process ends in the signal handler and waits for no thread, not even the one that runs the guest.
    assert_eq!(server.wait(), Some(0));
    drop(held);
}

#[test]
fn regression_standard_error_that_nobody_reads_blocks_no_request_and_no_signal() {
    let mut server = Setup::new().set("log.level", "trace").start_unread();
    let hello = json!({"model": "demo", "prompt": "a", "max_tokens": 1});
    // More lines than the pipe and the queue hold together.
    eventually("lines are dropped", || {
        for _ in 0..50 {
            assert_eq!(server.client.get(&format!("/{}", "x".repeat(8000))).status, 404);
        }
        server.metrics().get("camshaft_log_lines_dropped_total", &[]).filter(|lines| *lines > 0.0).ok_or(())
    });
    assert_eq!(server.client.post("/v1/completions", &hello).status, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn streams_that_outlast_the_drain_time_end_with_an_error() {
    let mut server = Setup::new().set("shutdown.drain", "\"50ms\"").start();
    let streams = streams(&server, 4);
    server.signal(Signal::TERM);
    let mut cut = 0;
    for stream in streams {
        let collected = stream.finish();
        assert!(!collected.broken, "the body has a proper end");
        let error = collected.error().is_some_and(|error| error["type"] == "server_error");
        assert!(collected.done != error, "done or an error, and never both: {:?}", collected.events.last());
        cut += usize::from(error);
    }
    assert!(cut > 0, "all streams were done in 50 ms");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn streams_of_a_worker_that_does_not_come_back_end_with_an_error_too() {
    // The sampler holds the worker from the first token on, far longer than the drain time.
    let settings = "[policy]\ndeadline = \"10s\"\n[settings]\nbehave = \"spin\"\n";
    let mut server = Setup::new().guest("sampler", "10-hold", settings).set("shutdown.drain", "\"50ms\"").start();
    // A prompt of more than one step, so that the stream begins before the sampler is called.
    let content = "word ".repeat(400);
    let chat = json!({"model": "demo", "stream": true, "messages": [{"role": "user", "content": content}]});
    let mut stream = server.client.stream("/v1/chat/completions", &chat);
    assert!(stream.next().is_some(), "the stream has begun");
    server.signal(Signal::TERM);
    let collected = stream.finish();
    assert!(!collected.broken && !collected.done, "the body has a proper end: {:?}", collected.events.last());
    assert!(collected.error().is_some_and(|error| error["code"] == "draining"), "{:?}", collected.events.last());
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_client_that_leaves_mid_stream_frees_its_resources() {
    let server = Setup::new().start();
    let mut streams = streams(&server, 3);
    streams.truncate(1);
    let gone = eventually("the two are gone", || {
        let gone = server.metrics().count("camshaft_requests_total", &[("status", "499")]);
        if gone == 2.0 { Ok(gone) } else { Err(gone) }
    });
    assert_eq!(gone, 2.0);
    assert!(streams.remove(0).finish().is_good(), "the third is not disturbed");
    server.wait_until_idle();
}

#[test]
fn a_client_that_leaves_before_the_first_token_frees_its_resources() {
    let server = Setup::new().start();
    let free = |server: &camshaft_tests::Server| server.metrics().get("camshaft_kv_tokens", &[("state", "free")]);
    // A worker reports for the first time when the server may be ready already.
    let all = eventually("the worker has reported", || free(&server).filter(|free| *free > 0.0).ok_or(()));
    let word = "word ".repeat(900);
    let prompt = json!({"model": "demo", "prompt": &word[..2000], "max_tokens": LONG, "ignore_eos": true});
    for round in 0..20 {
        let mut body = prompt.clone();
        body["stream"] = json!(round % 2 == 0);
        body["n"] = json!(1 + round % 3);
        drop(server.client.begin(&Request::post(COMPLETIONS, &body)));
    }
    // Half a request is not a request.
    drop(server.client.begin(
        &Request::new("POST", COMPLETIONS).header("content-type", "application/json").header("content-length", "9"),
    ));
    // One client stays, because the server may never notice clients that leave at once.
    assert!(server.answer("What is 3 plus 4?").contains('7'));
    server.wait_until_idle();
    eventually("all of the KV cache is free", || {
        let free = free(&server);
        if free == Some(all) { Ok(()) } else { Err(free) }
    });
}

#[test]
fn drops_an_answer_whose_client_leaves_without_reading() {
    let server = Setup::new().start();
    for (round, stream) in (1..).zip([false, true]) {
        let socket = server.client.begin(&Request::post(COMPLETIONS, &long(stream)));
        eventually("it runs", || {
            let running = server.metrics().get("camshaft_requests_running", &[]);
            if running == Some(1.0) { Ok(()) } else { Err(running) }
        });
        drop(socket);
        server.wait_until_idle();
        let metrics = server.metrics();
        let gone = metrics.get("camshaft_requests_total", &[("endpoint", COMPLETIONS), ("status", "499")]);
        assert_eq!(gone, Some(f64::from(round)), "stream: {stream}");
        let whole = f64::from(LONG * round);
        let made = metrics.count("camshaft_generated_tokens_total", &[]);
        assert!(made < whole, "it was not given up: {made} tokens of {whole} were made");
    }
}

#[test]
fn a_paused_reader_delays_nobody_and_misses_nothing() {
    const CHOICES: u64 = 16;
    const TOKENS: u64 = 700;
    let server = Setup::new().start();
    // Alternatives make the events larger than the socket buffers.
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "n": CHOICES,
        "max_tokens": TOKENS, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}});
    let mut slow = server.client.stream("/v1/chat/completions", &body);
    assert!(slow.next().is_some());
    eventually("its sequences are paused", || {
        let pauses = server.metrics().count("camshaft_pauses_total", &[]);
        if pauses > 0.0 { Ok(()) } else { Err(pauses) }
    });
    let other = json!({"model": "demo", "prompt": "1, 2,", "max_tokens": 8});
    for _ in 0..5 {
        assert_eq!(server.client.post(COMPLETIONS, &other).status, 200);
    }
    let collected = slow.finish();
    assert!(collected.is_good(), "{:?}", collected.events.last());
    let usage = collected.values().last().expect("events")["usage"].clone();
    assert_eq!(usage["completion_tokens"], CHOICES * TOKENS);
    for index in 0..CHOICES {
        let of_choice = collected.choices().filter(|choice| choice["index"] == index);
        let tokens: Vec<&Value> =
            of_choice.filter_map(|choice| choice["logprobs"]["content"].as_array()).flatten().collect();
        assert_eq!(tokens.len() as u64, TOKENS, "tokens of choice {index}");
        let bytes = tokens.iter().flat_map(|token| token["bytes"].as_array().expect("bytes"));
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().expect("a byte") as u8).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), collected.text(index), "choice {index}");
    }
}

#[test]
fn shows_a_progress_bar_of_loading_on_a_terminal_only() {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let mut check = Command::new(binary());
    check.args(["check", "--policy-dir", "none", "--model"]).arg(demo_model()).env_clear().env("TERM", "xterm");
    check.env("CAMSHAFT_POLICY__ALLOW_EMPTY", "true");
    let mut child = check.stdout(Stdio::null()).stderr(terminal).spawn().unwrap();
    // The command also holds the other side of the terminal.
    drop(check);
    let mut drawn = Vec::new();
    // A closed terminal reads as an error.
    let _ = File::from(ours).read_to_end(&mut drawn);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let drawn = String::from_utf8_lossy(&drawn);
    assert!(drawn.contains("model demo: loading  [") && drawn.contains(" %"), "{drawn:?}");
    assert!(!drawn.trim_end().ends_with('%'), "it is gone at the end: {drawn:?}");

    let path = demo_model().to_string_lossy().into_owned();
    let piped = Setup::new().run(&["check", "--policy-dir", "none", "--model", &path]);
    assert_eq!((piped.code, piped.stderr.contains('%')), (Some(0), false), "{}", piped.stderr);
}

#[test]
fn regression_a_service_manager_that_does_not_read_holds_up_neither_start_nor_end() {
    let setup = Setup::new();
    let path = setup.scratch.path().join("notify");
    let _manager = UnixDatagram::bind(&path).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    // As much as its queue takes; some systems take a lot.
    let full = (0..100_000).any(|_| filler.send_to(b"STATUS=full", &path).is_err());
    assert!(full, "a queue has an end");
    let mut server = setup.env("NOTIFY_SOCKET", &path.to_string_lossy()).start();
    let hello = serde_json::json!({"model": "demo", "prompt": "a", "max_tokens": 1});
    assert_eq!(server.client.post("/v1/completions", &hello).status, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn threads_wait_briefly_for_each_other_unless_somebody_chose_how() {
    for (chosen, expected) in [
        (None, &["GOMP_SPINCOUNT=10000", "OMP_WAIT_POLICY=active"][..]),
        (Some(("GOMP_SPINCOUNT", "7")), &["GOMP_SPINCOUNT=7", "OMP_WAIT_POLICY=active"]),
        (Some(("OMP_WAIT_POLICY", "passive")), &["OMP_WAIT_POLICY=passive"]),
    ] {
        let setup = chosen.iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value));
        let server = setup.start();
        assert!(!server.answer("Hello!").is_empty());
        let [process] = server.processes(&["worker"])[..] else { panic!("one process computes") };
        let read = |pid: i32, file: &str| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
            text.split_terminator('\0').map(str::to_owned).collect::<Vec<_>>()
        };
        let variables = read(process, "environ");
        let is_of_threads = |line: &&String| line.starts_with("GOMP_") || line.starts_with("OMP_");
        let mut waits: Vec<String> = variables.iter().filter(is_of_threads).cloned().collect();
        waits.sort();
        assert_eq!(waits, expected);
        // Else its allocator takes a GiB of addresses, and bounded processes would be allowed that for nothing.
        assert!(variables.contains(&"MIMALLOC_ARENA_RESERVE=32M".to_owned()));
        let of = |file: &str| read(server.pid().as_raw_nonzero().get(), file);
        assert_eq!(of("comm"), ["camshaft\n"], "it is found by its name");
        let command = of("cmdline");
        assert!(command[0].ends_with("camshaft") && command[1] == "serve" && command.len() > 2, "{command:?}");
    }
}

/// Where each thread that computes for the model may run.
fn places_of_workers(server: &Server) -> Vec<String> {
    let [process] = server.processes(&["worker"])[..] else { panic!("one process computes") };
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let read =
        |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
    let workers = tasks.map(Result::unwrap).filter(|task| read(task, "comm").starts_with("worker-"));
    let places = workers.map(|task| {
        let status = read(&task, "status");
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    });
    places.collect()
}

/// Whether this machine is as plain as most: it has this many processors, each is a core, and the system tells no difference.
fn keeps_by_topology(processors: usize) -> bool {
    let read = |number: usize, file: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{number}/{file}")).unwrap_or_default()
    };
    let is_core = |number: &usize| read(*number, "topology/thread_siblings_list").trim() == number.to_string();
    let alike = |file: &str| (0..processors).all(|number| read(number, file) == read(0, file));
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let is_whole = processors > 1 && all.trim() == format!("0-{}", processors - 1);
    is_whole
        && (0..processors).filter(is_core).count() == processors
        && alike("cpu_capacity")
        && alike("cpufreq/cpuinfo_max_freq")
}

/// With as many threads as cores, which is the default, each has its own; otherwise, or where somebody says so, they run anywhere.
#[test]
fn threads_that_compute_have_cores_of_their_own_where_there_are_as_many() {
    let anywhere = {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    };
    let distinct = |places: &[String]| places.iter().collect::<std::collections::BTreeSet<_>>().len();
    let with = |threads: &str| Setup::new().config(&format!("[[model]]\nthreads = {threads}"));
    let server = with("\"auto\"").start();
    assert!(!server.answer("Hello!").is_empty());
    let kept = places_of_workers(&server);
    // One core, a quota of time below the cores, or cores that are not alike: each of these keeps none.
    let keeps = server.log().contains("each thread that computes has a core of its own");
    assert!(!kept.is_empty() && kept.iter().all(|place| (*place == anywhere) != keeps), "{kept:?}");
    assert!(!keeps || kept.len() > 1 && distinct(&kept) == kept.len(), "{kept:?}");
    let usual = std::thread::available_parallelism().unwrap().get();
    if keeps_by_topology(usual) {
        assert!(keeps && kept.len() == usual, "{kept:?}");
    }
    for setup in [
        with("\"auto\"").env("OMP_PROC_BIND", "false"),
        // More threads than there are cores.
        with(&(kept.len() + 1).to_string()),
    ] {
        let server = setup.start();
        assert!(!server.answer("Hello!").is_empty());
        let places = places_of_workers(&server);
        assert!(!places.is_empty() && places.iter().all(|place| *place == anywhere), "{places:?} not {anywhere}");
    }
}

#[test]
fn a_server_that_loads_is_alive_and_says_how_far_it_is() {
    let cache = tempfile::tempdir().unwrap();
    let mut setup = Setup::new().env("XDG_CACHE_HOME", &cache.path().to_string_lossy());
    setup.policies.put("sampler", "20-bomb.wasm", bomb(1_000_000));
    let dir = setup.policies.root().to_string_lossy().into_owned();
    // Nobody else takes them so soon.
    let [public, admin] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    for (flag, value) in
        [("--listen", public.to_string()), ("--admin-listen", admin.to_string()), ("--policy-dir", dir)]
    {
        setup = setup.args([flag, &value]);
    }
    let starting = std::thread::spawn(move || setup.start_as_is("serve"));
    let child = eventually("a policy is compiled", || compiling_into(cache.path()).ok_or(()));
    kill_process(child, Signal::STOP).unwrap();
    let mut kept = Client::new(public).connect();
    for client in [public, admin].map(Client::new) {
        for alive in ["/healthz", "/health"] {
            let response = client.get(alive);
            let said = response.json();
            assert_eq!((response.status, &said["status"], &said["models"]), (200, &json!("ok"), &json!({})), "{alive}");
            assert!(response.header("x-request-id").is_some());
        }
        for other in ["/readyz", "/ready", "/metrics", "/v1/models", "/admin/policies", "/nowhere"] {
            let response = client.get(other);
            assert_eq!((response.status, response.header("retry-after")), (503, Some("5")), "{other}");
            let error = error_of(&response);
            assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("not_ready")), "{other}");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.starts_with("the server is loading: ") && message.contains("policies (begun)"),
                "{message}"
            );
        }
        assert_eq!(client.post(COMPLETIONS, &long(false)).status, 503);
    }
    // The compiler's parent is the server.
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.as_raw_nonzero())).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok()).unwrap();
    kill_process(Pid::from_raw(parent).unwrap(), Signal::HUP).unwrap();
    kill_process(child, Signal::KILL).unwrap();
    let server = starting.join().unwrap();
    assert_eq!(server.client.get("/readyz").status, 200);
    eventually("what was asked for meanwhile is done", || {
        let log = server.log();
        if log.contains("configuration read again") { Ok(()) } else { Err(log) }
    });
    // A connection from before is served like any other.
    kept.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut head = [0; 15];
    kept.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
}

#[test]
fn regression_a_process_with_few_addresses_serves_with_policies() {
    // 512 GiB: instances of guests reserved more than 2 TiB once.
    let few = ["/bin/sh", "-c", "ulimit -v 536870912; exec \"$0\" \"$@\""];
    let settings = camshaft_tests::api_keys(&[("the-only-key", "")]);
    let setup = Setup::new().plugin("auth", "10-keys", "auth-api-keys", &settings).started_by(&few);
    let server = setup.plugin("scheduler", "10-fcfs", "scheduler-fcfs", "").start();
    for (hook, name) in [("auth", "keys"), ("scheduler", "fcfs")] {
        server.wait_for_policy((hook, name), |policy| policy["state"] == "active");
    }
    let statuses = ["the-only-key", "another-key"].map(|key| server.client.with_key(key).get("/v1/models").status);
    assert_eq!(statuses, [200, 401]);
}
