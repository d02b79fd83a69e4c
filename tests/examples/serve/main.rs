//! The server over HTTP against the bare engine loop and another server, alternating within one run.
//!
//! `serve [--model PATH] [--peer HOST:PORT] [--bare] [--streams 1,8,32] [--repeats 4] [--rounds 4] [--tokens 64]
//! [--threads 2] [--kv-tokens 40960] [--kv-layout per-sequence] [--sampling openai|llama-server|greedy]
//! [--only NAME,NAME] [--out DIR]`. The peer must serve the same model with the same number of threads and at least 32
//! sequences. Repeats alternate the order of the servers, so an odd number of them is made even.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod client;
mod connections;
mod report;
mod servers;
mod workloads;

use std::path::PathBuf;

use client::{Sampling, Target};
use report::Report;
use servers::Own;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Options {
    model: PathBuf,
    peer: Option<String>,
    bare: bool,
    streams: Vec<u32>,
    repeats: u32,
    rounds: u32,
    tokens: u32,
    threads: u32,
    kv_tokens: u32,
    kv_layout: String,
    sampling: Sampling,
    only: Option<Vec<String>>,
    out: Option<PathBuf>,
}

impl Options {
    fn wants(&self, workload: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == workload))
    }
}

fn main() -> Result<()> {
    let options = options()?;
    let (kv_tokens, kv_layout) = (options.kv_tokens, &options.kv_layout);
    let own = Own::start(&options, &format!(", context-tokens={kv_tokens}, kv-layout={kv_layout:?}"))?;
    let vocabulary = own.vocabulary()?;
    let asked = |name: &str, address: &str| Target::new(name, address, "m", vocabulary).sampling(options.sampling);
    let mut targets = vec![asked("camshaft", &own.address)];
    targets.extend(options.peer.as_ref().map(|peer| asked("peer", peer)));
    let mut report = Report::new(&options);
    if options.wants("distinct") {
        for &streams in &options.streams {
            workloads::distinct(&options, &targets, streams, &mut report)?;
        }
    }
    if options.wants("shared") {
        workloads::shared(&options, &targets, &mut report)?;
    }
    if options.wants("long") {
        workloads::long(&options, &targets, &mut report)?;
    }
    if options.wants("chats") {
        workloads::chats(&options, &targets, &mut report)?;
    }
    if options.wants("embeddings") {
        workloads::embeddings(&options, &targets, &mut report)?;
    }
    if options.wants("speculation") {
        let settings = format!(", context-tokens={kv_tokens}, kv-layout={kv_layout:?}, draft-tokens=4");
        let server = Own::start(&options, &settings)?;
        let greedy = |address: &str| Target::new("camshaft", address, "m", vocabulary).sampling(Sampling::Greedy);
        workloads::speculation(&options, &[greedy(&own.address), greedy(&server.address)], &mut report)?;
    }
    drop(own);
    if options.wants("pressure") {
        // Half of what 32 requests of 256 tokens need.
        let small = Own::start(&options, ", context-tokens=4096, kv-reserve=\"none\"")?;
        let target = asked("camshaft", &small.address);
        workloads::pressure(&options, &target, &mut report)?;
    }
    report.finish()
}

fn options() -> Result<Options> {
    let mut options = Options {
        model: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../config/models/demo.gguf")),
        peer: None,
        bare: false,
        streams: vec![1, 8, 32],
        repeats: 4,
        rounds: 4,
        tokens: 64,
        threads: 2,
        kv_tokens: 32 * 1280,
        kv_layout: "per-sequence".to_owned(),
        sampling: Sampling::OpenAi,
        only: None,
        out: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--bare" {
            options.bare = true;
            continue;
        }
        let value = arguments.next().ok_or(format!("{name} wants a value"))?;
        match name.as_str() {
            "--model" => options.model = value.into(),
            "--peer" => options.peer = Some(value.trim_start_matches("http://").trim_end_matches('/').to_owned()),
            "--streams" => options.streams = value.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?,
            "--repeats" => options.repeats = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            "--tokens" => options.tokens = value.parse()?,
            "--threads" => options.threads = value.parse()?,
            "--kv-tokens" => options.kv_tokens = value.parse()?,
            "--kv-layout" => options.kv_layout = value,
            "--sampling" => {
                options.sampling =
                    Sampling::parse(&value).ok_or(format!("--sampling {value}: greedy, openai or llama-server"))?;
            }
            "--only" => options.only = Some(value.split(',').map(str::to_owned).collect()),
            "--out" => options.out = Some(value.into()),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    // The median of an odd number would take the side of one order.
    options.repeats = options.repeats.next_multiple_of(2);
    Ok(options)
}
