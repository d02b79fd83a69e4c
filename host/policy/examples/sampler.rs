//! Per-token cost of sampler components against the native chain: the standard one, which is a plan, and one that is called.
#![allow(clippy::print_stdout)]
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::ids::{RequestId, TenantId, Token};
use camshaft_core::policy::{Policies, SamplerHook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{Row, SamplingParams, StandardChain};
use camshaft_core::vocabulary::Vocabulary;
use camshaft_policy::{PolicyConfig, PolicyHost};

const TOKENS: usize = 4000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::var("CAMSHAFT_TARGET").unwrap_or_else(|_| "target".to_owned());
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("sampler"))?;
    let component = format!("{target}/plugins/sampler-standard.wasm");
    std::fs::copy(&component, dir.path().join("sampler/10-standard.wasm"))
        .map_err(|error| format!("{component}: {error}"))?;
    let component = format!("{target}/plugins/sampler-avoid-words.wasm");
    std::fs::copy(&component, dir.path().join("sampler/20-called.wasm"))
        .map_err(|error| format!("{component}: {error}"))?;
    std::fs::write(dir.path().join("sampler/20-called.toml"), "[settings]\nwords = [\"no such word\"]")?;
    let config = PolicyConfig {
        dir: Some(dir.path().to_owned()),
        allow_empty: true,
        compiler: None,
        poll: Duration::from_secs(60),
        cache_dir: None,
        allow_anonymous: false,
        grants: camshaft_policy::Grants::default(),
    };
    let host = PolicyHost::start(config, &prometheus::Registry::new())?;
    println!("| vocabulary | parameters | native, us | a plan adds, us | a call adds, us |\n|---|---|---|---|---|");
    let penalties = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, ..SamplingParams::llama_cpp() };
    for size in [1024, 32_000, 128_256] {
        for (name, params) in [
            ("greedy", SamplingParams::greedy()),
            ("llama.cpp's", SamplingParams::llama_cpp()),
            ("llama.cpp's and penalties", penalties.clone()),
        ] {
            let request = |sampler: &str| SamplingRequest {
                request: RequestId(1),
                model: "bench".to_owned(),
                tenant: TenantId::from("bench"),
                endpoint: camshaft_core::policy::Endpoint::Completion,
                params: params.clone(),
                choice: 0,
                prompt_tokens: 32,
                max_tokens: 1000,
                samplers: Some(vec![sampler.to_owned()]),
                context: Default::default(),
                vocabulary: Arc::new(Vocabulary::new((0..size).map(|i: u32| i.to_le_bytes()), vec![Token(0)])),
            };
            let chain = host.current().sampler_chain();
            let mut planned = host.open(chain, &request("standard"))?;
            // It only bans, so the native chain follows it.
            let mut called = host.open(chain, &request("called"))?;
            let mut native = StandardChain::new(params);
            // Alternating, so that both meet the same machine.
            let mut medians = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..5 {
                medians[0].push(run(&mut native, size as usize)?);
                medians[1].push(run(planned.as_mut(), size as usize)?);
                medians[2].push(run(called.as_mut(), size as usize)?);
            }
            let [native, planned, called] = medians.map(|mut m| {
                m.sort_by(f64::total_cmp);
                m[m.len() / 2]
            });
            let (plan, call) = (planned - native, called - native);
            println!("| {size} | {name} | {native:.2} | {plan:.2} | {call:.2} |");
        }
    }
    host.stop();
    Ok(())
}

/// Median time of one `sample` call and draw, in microseconds, without loading the row.
fn run(sampler: &mut dyn TokenSampler, size: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let prompt: Vec<Token> = (0..32).map(Token).collect();
    let mut row = Row::new(&prompt, 1);
    let logits: Vec<f32> = (0..size).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 50.0).collect();
    let mut times = Vec::with_capacity(TOKENS);
    for _ in 0..TOKENS {
        row.load(&logits)?;
        let begun = Instant::now();
        let drawn = sampler.sample(&mut row)?;
        let token = drawn.or_else(|| row.draw()).ok_or("nothing to draw")?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        row.accept(token, b"x");
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
