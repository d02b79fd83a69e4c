//! A server without a model, for `cargo xtask bench front`: `fake [KEY=VALUE]...` takes settings as `camshaft serve --set` does.
use camshaft::config::{Overrides, Sources};

fn main() -> anyhow::Result<std::process::ExitCode> {
    if let Some(code) = camshaft::run_role() {
        return Ok(code);
    }
    let overrides = Overrides { set: std::env::args().skip(1).collect(), ..Overrides::default() };
    camshaft::serve_fake_models(Sources::new(None, std::env::vars_os(), overrides)?)?;
    Ok(std::process::ExitCode::SUCCESS)
}
