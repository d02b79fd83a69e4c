//! `cargo xtask dist`: a directory that runs on any machine with the same libc.
use std::path::Path;

use crate::command::{Done, copy_if_changed, root, say};
use crate::{build, setup};

pub(crate) fn run() -> Done {
    setup::run()?;
    let binary = build::host()?;
    build::plugins()?;
    let dist = root().join("dist");
    copy_executable(&binary, &dist.join("camshaft"))?;
    copy_if_changed(&root().join("config/models/demo.gguf"), &dist.join("models/demo.gguf"))?;
    copy_if_changed(&root().join("config/camshaft.toml"), &dist.join("config.toml"))?;
    copy_if_changed(&root().join("LICENSE"), &dist.join("LICENSE"))?;
    build::lay_out(&dist.join("policy.d"))?;
    say(&format!("made {}; try: {0}/camshaft serve --config {0}/config.toml", dist.display()));
    Ok(())
}

fn copy_executable(from: &Path, to: &Path) -> Done {
    copy_if_changed(from, to)?;
    std::fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}
