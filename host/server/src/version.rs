//! What this binary is made of.

/// For `--version`: the release, its commit, the engines in it, and what they use of this machine.
pub(crate) fn long() -> String {
    // Loads the kernels, which have a name from then on.
    let info = camshaft_engine::system_info();
    format!(
        "{}\ncommit: {}\nllama.cpp: {}\nwasmtime: {}\nkernels: {}\nproducts: {}\ncpu: {}",
        env!("CARGO_PKG_VERSION"),
        env!("CAMSHAFT_COMMIT"),
        camshaft_engine::LLAMA_CPP,
        env!("CAMSHAFT_WASMTIME"),
        camshaft_engine::kernels(),
        camshaft_engine::products(),
        features(&info)
    )
}

/// The names of what is switched on, of a line such as `CPU : SSE3 = 1 | AVX = 1 | AMX_INT8 = 0 |`.
fn features(line: &str) -> String {
    let on = line.split(['|', ':']).filter_map(|part| part.trim().strip_suffix("= 1"));
    on.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_where_they_are_in_use() {
        assert_eq!(features("CPU : SSE3 = 1 | AVX2 = 1 | AMX_INT8 = 0 | OPENMP = 1 |"), "SSE3 AVX2 OPENMP");
        assert_eq!(features(""), "");
    }

    #[test]
    fn regression_the_version_names_commit_and_engines() {
        let text = long();
        for part in
            ["commit: ", "llama.cpp: llama-cpp-sys-2 0", "wasmtime: 48.", "kernels: ", "products: q8_0: ", "cpu: "]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
