//! Paths of build outputs that the tests run.
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The checkout's root, as whoever runs the test says: a target directory may come from another checkout, whose path is
/// compiled in.
pub fn repository() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let tests = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        Path::new(&tests).parent().expect("the tests lie in a folder of the checkout").to_owned()
    });
    &ROOT
}

/// Cargo's target directory: the running test is `<target>/release/deps/e2e-…`.
pub fn target() -> PathBuf {
    let test = std::env::current_exe().expect("the running test has a path");
    test.ancestors().nth(3).expect("a test runs from <target>/<profile>/deps").to_owned()
}

/// The server's binary: `CAMSHAFT_BIN`, or the one built beside this test.
pub fn binary() -> PathBuf {
    let beside = || {
        let test = std::env::current_exe().expect("the running test has a path");
        test.ancestors().nth(2).expect("a test runs from <target>/<profile>/deps").join("camshaft")
    };
    present(std::env::var_os("CAMSHAFT_BIN").map_or_else(beside, PathBuf::from), "the server's binary")
}

/// A standard plugin's component.
pub fn plugin(package: &str) -> Vec<u8> {
    read(&target().join("plugins").join(format!("{package}.wasm")), "a standard plugin")
}

/// A bad guest's component.
pub fn guest(package: &str) -> Vec<u8> {
    read(&target().join("guests").join(format!("{package}.wasm")), "a bad guest")
}

/// The bundled model as a file.
pub fn demo_model() -> PathBuf {
    present(repository().join("config/models/demo.gguf"), "the demo model")
}

/// The second demo model, which answers differently.
pub fn pirate_model() -> PathBuf {
    present(repository().join("config/models/demo-pirate.gguf"), "the second demo model")
}

/// Real models outside the repository, for tests whose names begin with `given_models`: `cargo xtask test` leaves them out,
/// and the runner counts them as skipped, if `CAMSHAFT_MODELS` is not set.
pub fn models_folder() -> PathBuf {
    PathBuf::from(
        std::env::var_os("CAMSHAFT_MODELS").unwrap_or_else(|| panic!("CAMSHAFT_MODELS names the folder of the models")),
    )
}

fn read(path: &Path, what: &str) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{what}: {}: {error}; run `cargo xtask test`", path.display()))
}

fn present(path: PathBuf, what: &str) -> PathBuf {
    assert!(path.is_file(), "{what} is missing: {}; run `cargo xtask test`", path.display());
    path
}
