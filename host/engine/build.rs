//! Compiles `src/guard.cpp`.
fn main() {
    println!("cargo:rerun-if-changed=src/guard.cpp");
    cc::Build::new().cpp(true).std("c++17").file("src/guard.cpp").compile("camshaft_guard");
}
