//! The server over HTTP against the bare engine loop and another server, alternating within one run.
//!
//! `serve [--model PATH] [--llama-server PROGRAM] [--peer HOST:PORT] [--bare] [--settings 'KEY=VALUE, …']
//! [--beside 'KEY=VALUE, …'] [--streams 1,8,32] [--repeats 4] [--rounds 4] [--tokens 64] [--sampling openai,llama-server] [--only NAME,NAME]
//! [--out DIR] [--gate FILE]`. Camshaft runs as it is shipped unless `--settings` says otherwise. `--llama-server` starts that
//! program with its defaults and with its best flags. `--gate` fails where a ratio to the bare loop is below the file's. `--beside` starts another
//! Camshaft, with these settings, and says what both take of the machine. Repeats alternate the order of the servers, so an odd number of them is made even.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod client;
mod connections;
mod costs;
mod report;
mod servers;
mod workloads;

use std::path::PathBuf;

use client::{Sampling, Target};
use report::Report;
use servers::Server;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Options {
    model: PathBuf,
    llama_server: Option<PathBuf>,
    peer: Option<String>,
    bare: bool,
    /// Of Camshaft's model, where it does not run as shipped.
    settings: String,
    /// Of another Camshaft.
    beside: Option<String>,
    streams: Vec<u32>,
    repeats: u32,
    rounds: u32,
    tokens: u32,
    /// The first one everywhere, the others where streams start at once.
    samplings: Vec<Sampling>,
    only: Option<Vec<String>>,
    out: Option<PathBuf>,
    gate: Option<PathBuf>,
}

impl Options {
    fn wants(&self, workload: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == workload))
    }
}

fn main() -> Result<()> {
    let options = options()?;
    let own = Server::camshaft(&options, &options.settings)?;
    let vocabulary = own.vocabulary()?;
    let asked = |name: &str, address: &str| Target::new(name, address, "m", vocabulary).sampling(options.samplings[0]);
    let beside = options.beside.as_ref().map(|settings| Server::camshaft(&options, settings)).transpose()?;
    let mut targets = vec![asked(own.name, &own.address).costs_of(own.pid())];
    targets.extend(
        options.beside.iter().zip(&beside).map(|(name, server)| asked(name, &server.address).costs_of(server.pid())),
    );
    targets.extend(options.peer.as_ref().map(|peer| asked("peer", peer)));
    let embeds = targets[0].embed(&[targets[0].fresh(8)]).is_ok();
    let llama = options.llama_server.as_ref().map(|program| Server::llama(program, &options, embeds)).transpose()?;
    targets.extend(llama.iter().flatten().map(|server| asked(server.name, &server.address)));
    let mut report = Report::new(&options);
    if embeds {
        workloads::embeddings(&options, &targets, &mut report)?;
    } else {
        generations(&options, &targets, &mut report)?;
        alone(&options, own, vocabulary, &mut report)?;
    }
    report.finish()
}

/// What every server does.
fn generations(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for &streams in &options.streams {
        if options.wants("distinct") {
            workloads::distinct(options, targets, streams, report)?;
        }
        if options.wants("steady") {
            workloads::steady(options, targets, streams, report)?;
        }
    }
    if options.wants("lengths") {
        for length in [32, 512, 4096] {
            workloads::prompts(options, targets, (8, length), report)?;
        }
    }
    if options.wants("prompts") {
        for load in [(4, 1500), (16, 1500), (4, 4000), (16, 4000)] {
            workloads::prompts(options, targets, load, report)?;
        }
    }
    if options.wants("shared") {
        workloads::shared(options, targets, report)?;
    }
    if options.wants("long") {
        for length in [1000, 3000] {
            workloads::long(options, targets, length, report)?;
        }
    }
    if options.wants("chats") {
        workloads::chats(options, targets, report)?;
    }
    Ok(())
}

/// What only Camshaft does, with settings of its own.
fn alone(options: &Options, own: Server, vocabulary: u32, report: &mut Report) -> Result<()> {
    let target =
        |server: &Server, sampling| Target::new(server.name, &server.address, "m", vocabulary).sampling(sampling);
    if options.wants("speculation") {
        let drafting = Server::camshaft(options, "draft-tokens=4")?;
        let both = [&own, &drafting].map(|server| target(server, Sampling::Greedy));
        workloads::speculation(options, &both, report)?;
    }
    drop(own);
    if options.wants("pressure") {
        // Half of what 32 requests of 256 tokens need.
        let small = Server::camshaft(options, "context-tokens=4096, kv-layout=\"pooled\", kv-reserve=\"none\"")?;
        workloads::pressure(options, &target(&small, options.samplings[0]), report)?;
    }
    Ok(())
}

fn options() -> Result<Options> {
    let mut options = Options {
        model: camshaft_tests::repository().join("config/models/demo.gguf"),
        llama_server: None,
        peer: None,
        bare: false,
        settings: String::new(),
        beside: None,
        streams: vec![1, 8, 32],
        repeats: 4,
        rounds: 4,
        tokens: 64,
        samplings: vec![Sampling::OpenAi],
        only: None,
        out: None,
        gate: None,
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
            "--llama-server" => options.llama_server = Some(value.into()),
            "--settings" => options.settings = value,
            "--beside" => options.beside = Some(value),
            "--gate" => options.gate = Some(value.into()),
            "--sampling" => {
                let named =
                    |name| Sampling::parse(name).ok_or(format!("--sampling {name}: greedy, openai or llama-server"));
                options.samplings = value.split(',').map(named).collect::<std::result::Result<_, _>>()?;
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
