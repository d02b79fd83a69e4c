//! Predictions over HTTP beside onnxruntime behind aiohttp, alternating within one run.
//!
//! `predict [--model PATH]... [--clients 1,8,32] [--repeats 6] [--seconds 3] [--warm-up 1]`. Without `--model`: the bundled
//! classifier of digits and, where `CAMSHAFT_MODELS` names the folder of models, two of its ONNX files. All servers get the same
//! requests for the same file; one that fails ends the benchmark.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod load;
mod servers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use load::{Load, Run};
use servers::Server;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DIGITS: &str = "config/digits/digits.onnx";
/// In the folder of models: of 26 kB, and of 1.5 MB.
const MORE: [&str; 2] = ["onnx/mnist-8.onnx", "burn/mnist.onnx"];
const SERVERS: usize = 3;
/// How far two servers' numbers may be apart.
const TOLERANCE: f64 = 1e-4;

struct Options {
    models: Vec<PathBuf>,
    clients: Vec<usize>,
    repeats: usize,
    span: Duration,
    warm_up: Duration,
}

fn main() -> Result<()> {
    let options = options()?;
    let cores = std::thread::available_parallelism()?;
    println!("{} rounds of {:?} after {:?}, {cores} cores\n", options.repeats, options.span, options.warm_up);
    println!(
        "| model | clients | server | requests/s | p50, ms | p95, ms | p99, ms | camshaft's requests/s, / it | camshaft's p99, / it |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    options.models.iter().try_for_each(|model| measure(model, &options))
}

fn measure(model: &Path, options: &Options) -> Result<()> {
    let mut servers = vec![Server::camshaft(model)?];
    servers.extend(Server::peers(model)?);
    let load = Load::of(&servers[0].address)?;
    agree(&servers, &load)?;
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    for &clients in &options.clients {
        let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
        for repeat in 0..options.repeats {
            for place in 0..servers.len() {
                let at = (repeat + place) % servers.len();
                let run = load.drive(&servers[at].address, clients, options.warm_up, options.span);
                runs[at].push(run.map_err(|error| format!("{}: {error}", servers[at].name))?);
            }
        }
        for (server, of) in servers.iter().zip(&runs) {
            let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| median(of.iter().map(|run| run.percentile(share))));
            let rate = median(of.iter().map(|run| run.rate));
            // Of neighbouring runs: a machine that is slower for a while is slower for both.
            let ratio =
                |figure: fn(&Run) -> f64| median(runs[0].iter().zip(of).map(|(own, of)| figure(own) / figure(of)));
            let (faster, later) = (ratio(|run| run.rate), ratio(|run| run.percentile(0.99)));
            println!(
                "| {name} | {clients} | {} | {rate:.0} | {p50:.2} | {p95:.2} | {p99:.2} | {faster:.2} | {later:.2} |",
                server.name
            );
        }
    }
    Ok(())
}

/// All servers give the same numbers.
fn agree(servers: &[Server], load: &Load) -> Result<()> {
    let answers: Vec<_> = servers.iter().map(|server| load.answers(&server.address)).collect::<Result<_>>()?;
    let Some((own, others)) = answers.split_first() else { return Ok(()) };
    for (server, answers) in servers.iter().skip(1).zip(others) {
        for (ours, theirs) in own.iter().zip(answers) {
            let apart =
                ours.iter().zip(theirs).find(|(a, b)| (*a - *b).abs() > TOLERANCE * a.abs().max(b.abs()).max(1.0));
            if ours.is_empty() || ours.len() != theirs.len() || apart.is_some() {
                let name = server.name;
                return Err(format!("camshaft and {name} differ: {ours:?} and {theirs:?}").into());
            }
        }
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    f64::midpoint(at(values.len() / 2), at(values.len().saturating_sub(1) / 2))
}

fn options() -> Result<Options> {
    let (span, warm_up) = (Duration::from_secs(3), Duration::from_secs(1));
    let mut options = Options { models: Vec::new(), clients: vec![1, 8, 32], repeats: 6, span, warm_up };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} wants a value"))?;
        match name.as_str() {
            "--model" => options.models.push(value.into()),
            "--clients" => options.clients = value.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?,
            "--repeats" => options.repeats = value.parse::<usize>()?.clamp(1, 1000),
            "--seconds" => options.span = Duration::try_from_secs_f64(value.parse()?)?,
            "--warm-up" => options.warm_up = Duration::try_from_secs_f64(value.parse()?)?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    // Each server is the first one as often as any other.
    options.repeats = options.repeats.next_multiple_of(SERVERS);
    if options.models.is_empty() {
        options.models.push(camshaft_tests::repository().join(DIGITS));
        match std::env::var_os("CAMSHAFT_MODELS") {
            Some(folder) => options.models.extend(MORE.map(|model| Path::new(&folder).join(model))),
            None => println!("CAMSHAFT_MODELS is not set: the bundled model alone is measured"),
        }
    }
    Ok(options)
}
