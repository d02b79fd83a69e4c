//! Installs what a fresh machine lacks: Debian packages, the wasm target, build flags for its CPU.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Done, Failure, root, say, succeeds, target};

const WASM_TARGET: &str = "wasm32-wasip2";

/// A program or library that the build needs, and the Debian packages that provide it.
pub(crate) struct Need {
    pub(crate) what: &'static str,
    pub(crate) present: fn() -> bool,
    pub(crate) packages: &'static [&'static str],
}

const NEEDS: [Need; 3] = [
    Need { what: "a C++ compiler", present: || succeeds("c++", &["--version"]), packages: &["g++", "make"] },
    Need { what: "cmake (builds llama.cpp)", present: || succeeds("cmake", &["--version"]), packages: &["cmake"] },
    Need {
        what: "libclang (generates llama.cpp's bindings)",
        present: has_libclang,
        packages: &["clang", "libclang-dev"],
    },
];

/// Needed only by the tests.
const TEST_NEEDS: [Need; 1] = [Need {
    what: "python3 with venv (runs the OpenAI client)",
    present: || succeeds("python3", &["-c", "import venv, ensurepip"]),
    packages: &["python3", "python3-venv"],
}];

/// Installs what the build needs. Returns quickly when nothing is missing.
pub(crate) fn run() -> Done {
    packages(&NEEDS)?;
    wasm_target()?;
    build_flags()?;
    moved_build()
}

/// Installs what the build and the tests need.
pub(crate) fn run_for_tests() -> Done {
    run()?;
    packages(&TEST_NEEDS)
}

/// Whether libclang is there, with the compiler headers (`stddef.h`) that it needs to read llama.cpp's headers.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let is_libclang = |name: &str| name.starts_with("libclang") && name.contains(".so") && !name.contains("cpp");
    let has_library = |dir: &Path| entries(dir).iter().any(|path| file_name(path).is_some_and(is_libclang));
    let has_headers =
        |dir: &Path| entries(&dir.join("clang")).iter().any(|path| path.join("include/stddef.h").exists());
    let llvm = entries(Path::new("/usr/lib"))
        .into_iter()
        .filter(|path| file_name(path).is_some_and(|n| n.starts_with("llvm-")));
    let folders: Vec<PathBuf> =
        llvm.map(|path| path.join("lib")).chain(["/usr/lib64", "/usr/lib"].map(PathBuf::from)).collect();
    folders.iter().any(|dir| has_library(dir)) && folders.iter().any(|dir| has_headers(dir))
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(|name| name.to_str())
}

/// Installs those packages of which something is missing.
pub(crate) fn packages(needs: &[Need]) -> Done {
    let missing: Vec<&Need> = needs.iter().filter(|need| !(need.present)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    for need in &missing {
        say(&format!("setup: missing {}", need.what));
    }
    let debian = succeeds("apt-get", &["--version"]);
    let root_user = std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    let list = packages.join(" ");
    if !debian {
        return Err(Failure(format!(
            "install these (Debian names) with your system's package manager, then try again: {list}"
        )));
    }
    if !root_user {
        return Err(Failure(format!(
            "run this, then try again:\n    sudo apt-get update && sudo apt-get install -y {list}"
        )));
    }
    say(&format!("setup: apt-get install {list}"));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
        command
    };
    command::run(&mut apt(&["update", "-qq"]))?;
    command::run(apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(&packages))?;
    match needs.iter().find(|need| !(need.present)()) {
        None => Ok(()),
        Some(need) => Err(Failure(format!("{} is still missing after installing {list}", need.what))),
    }
}

fn wasm_target() -> Done {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", WASM_TARGET]).output();
    let dir = output.map_err(|error| Failure(format!("cannot run rustc: {error}")))?;
    let dir = String::from_utf8_lossy(&dir.stdout).trim().to_owned();
    if !dir.is_empty() && Path::new(&dir).is_dir() {
        return Ok(());
    }
    say(&format!("setup: rustup target add {WASM_TARGET}"));
    command::run(Command::new("rustup").args(["target", "add", WASM_TARGET]))
        .map_err(|failure| Failure(format!("{failure}\ninstall the Rust target {WASM_TARGET} (with rustup, or your distribution's package of its standard library)")))
}

/// Writes `.cargo/local.toml` with the widest instruction set that this CPU runs safely.
///
/// With `target-cpu=native` llama.cpp would choose AMX kernels, which can die with SIGILL. So the base is x86-64-v3,
/// and each AVX-512 extension of the CPU is enabled by name.
fn build_flags() -> Done {
    let path = root().join(".cargo/local.toml");
    if path.exists() {
        return Ok(());
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let text = flags_for(&cpuinfo, std::env::consts::ARCH);
    say("setup: writing .cargo/local.toml (build flags for this CPU)");
    std::fs::write(&path, text)?;
    Ok(())
}

/// Deletes CMake's files if the target directory was moved or copied, or serves another checkout: they contain the old paths, and
/// CMake fails on them instead of configuring again.
fn moved_build() -> Done {
    let builds = ["release/build", "portable/release/build"].map(|folder| entries(&target().join(folder)));
    for build in builds.into_iter().flatten() {
        let build = build.join("out/build");
        let Ok(cache) = std::fs::read_to_string(build.join("CMakeCache.txt")) else { continue };
        if !made_in(&cache, &build, root()) {
            say(&format!("setup: {} was moved here; llama.cpp will be built again", build.display()));
            std::fs::remove_dir_all(&build)?;
        }
    }
    Ok(())
}

/// Whether a `CMakeCache.txt` was written for this folder, from this checkout.
fn made_in(cache: &str, dir: &Path, root: &Path) -> bool {
    let value =
        |key: &str| cache.lines().find_map(|line| line.strip_prefix(key)?.split_once('=').map(|(_, value)| value));
    value("CMAKE_CACHEFILE_DIR:").is_none_or(|place| Path::new(place) == dir)
        && value("CMAKE_PROJECT_INCLUDE:").is_none_or(|file| Path::new(file) == root.join("host/engine/llama.cmake"))
}

fn flags_for(cpuinfo: &str, arch: &str) -> String {
    let flags: Vec<&str> =
        cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default().split_whitespace().collect();
    let has = |flag: &str| flags.contains(&flag);
    let mut text = String::from("# Written by `cargo xtask`; delete it to detect the CPU again.\n");
    let v3 = ["avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"].into_iter().all(has);
    if arch != "x86_64" || !v3 {
        return text;
    }
    text.push_str("[target.x86_64-unknown-linux-gnu]\nrustflags = [\"-C\", \"target-cpu=x86-64-v3\"]\n");
    if ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"].into_iter().all(has) {
        text.push_str("\n[env]\nGGML_AVX512 = \"ON\"\n");
        for (flag, variable) in [
            ("avx512vbmi", "GGML_AVX512_VBMI"),
            ("avx512_vnni", "GGML_AVX512_VNNI"),
            ("avx512_bf16", "GGML_AVX512_BF16"),
        ] {
            if has(flag) {
                text.push_str(&format!("{variable} = \"ON\"\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{flags_for, made_in};

    const V3: &str = "avx2 bmi1 bmi2 f16c fma abm movbe";

    #[test]
    fn chooses_the_widest_safe_instruction_set_and_never_amx() {
        let flags = |list: &str| flags_for(&format!("processor : 0\nflags : {list}\n"), "x86_64");
        assert!(!flags("sse2").contains("target-cpu"));
        assert!(flags(V3).contains("x86-64-v3") && !flags(V3).contains("AVX512"));
        let wide = flags(&format!("{V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni amx_int8"));
        assert!(wide.contains("GGML_AVX512 = \"ON\"") && wide.contains("GGML_AVX512_VNNI"));
        assert!(!wide.contains("BF16") && !wide.to_lowercase().contains("amx") && !wide.contains("native"));
        assert!(!flags_for("flags : avx2", "aarch64").contains("target-cpu"));
    }

    #[test]
    fn tells_a_moved_build() {
        let cache = "# comment\nCMAKE_CACHEFILE_DIR:INTERNAL=/a/out/build\nOTHER:BOOL=ON\n";
        let made = |cache: &str, dir, root| made_in(cache, Path::new(dir), Path::new(root));
        assert!(made(cache, "/a/out/build", "/c") && !made(cache, "/b/out/build", "/c"));
        let with_include = format!("{cache}CMAKE_PROJECT_INCLUDE:UNINITIALIZED=/c/host/engine/llama.cmake\n");
        assert!(made(&with_include, "/a/out/build", "/c") && !made(&with_include, "/a/out/build", "/d"));
    }
}
