//! `cargo xtask test --vulkan`: builds the server with Vulkan, and tests it on Mesa's device, which computes on the CPU.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Done, Failure, cargo, copy_if_changed, say, succeeds, target};
use crate::setup::{self, Need, packages};
use crate::{build, progress};

/// Mesa's drivers: the one that computes on the CPU is called lavapipe.
const DRIVERS: &str = "/usr/share/vulkan/icd.d";
/// The oldest `VK_HEADER_VERSION` that llama.cpp builds with.
const LEAST_HEADERS: u32 = 272;
/// A release of Debian whose headers are new enough.
const NEWER: &str = "trixie";

const NEEDS: [Need; 4] = [
    Need { what: "glslc (compiles shaders)", present: || succeeds("glslc", &["--version"]), packages: &["glslc"] },
    Need {
        what: "Vulkan's loader and headers",
        present: || headers(&include()).is_some(),
        packages: &["libvulkan-dev"],
    },
    Need {
        what: "headers of SPIR-V",
        present: || Path::new("/usr/include/spirv/unified1/spirv.hpp").exists(),
        packages: &["spirv-headers"],
    },
    Need { what: "Mesa's Vulkan drivers", present: || lavapipe().is_some(), packages: &["mesa-vulkan-drivers"] },
];
/// Tests that run on the device: those of what is computed and kept, and those of devices.
const FILTER: &str = "package(camshaft-tests) & binary(e2e) & not test(given_models) & (test(/given_vulkan|^devices::/)
    | test(/^cache::(a_prefix|prefixes|a_session)/) | test(/^embeddings::a_batch_gives/) | test(/^speculation::prompt/))";

/// Builds and tests. Other tests need no device, and are not run.
pub(crate) fn test() -> Done {
    setup::run_for_tests()?;
    packages(&NEEDS)?;
    let newer = newer_headers()?;
    say("building with Vulkan (its shaders take some minutes)");
    let mut command = cargo(&["build", "--release", "--workspace", "--bins", "--features", "camshaft/vulkan"]);
    if let Some(include) = &newer {
        command.env("CPLUS_INCLUDE_PATH", include);
    }
    progress::build(&mut command)?;
    // The next build without Vulkan replaces it where it is.
    let binary = target().join("vulkan/camshaft");
    copy_if_changed(&target().join("release/camshaft"), &binary)?;
    build::plugins()?;
    let driver = lavapipe().ok_or_else(|| Failure(format!("there is no lavapipe in {DRIVERS}")))?;
    say("testing on Mesa's software device");
    if !succeeds("cargo", &["nextest", "--version"]) {
        return Err(Failure("cargo-nextest is missing: cargo install --locked cargo-nextest".to_owned()));
    }
    let mut command = cargo(&["nextest", "run", "--release", "--workspace", "--no-fail-fast", "-j", "1", "-E", FILTER]);
    // One after the other: the device is made of the same cores, and compiles for each server anew. llama.cpp uses devices that
    // are no GPUs only where they are named.
    command.env("CAMSHAFT_BIN", binary).env("VK_ICD_FILENAMES", driver).env("GGML_VK_VISIBLE_DEVICES", "0");
    command::run(&mut command)
}

/// The file that names the driver.
pub(crate) fn lavapipe() -> Option<PathBuf> {
    let names = std::fs::read_dir(DRIVERS).ok()?.flatten().map(|entry| entry.path());
    names.into_iter().find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd")))
}

/// Where the headers are.
fn include() -> PathBuf {
    std::env::var_os("VULKAN_SDK").map_or_else(|| "/usr/include".into(), |sdk| PathBuf::from(sdk).join("include"))
}

/// `VK_HEADER_VERSION` of the headers there.
fn headers(include: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(include.join("vulkan/vulkan_core.h")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("#define VK_HEADER_VERSION ")?.trim().parse().ok())
}

/// Headers from a newer release of Debian, if the system's are too old. They are only unpacked, not installed.
fn newer_headers() -> Result<Option<PathBuf>, Failure> {
    let found = headers(&include()).unwrap_or_default();
    if found >= LEAST_HEADERS {
        return Ok(None);
    }
    let place = target().join("vulkan/headers");
    let include = place.join("usr/include");
    if headers(&include).is_some_and(|found| found >= LEAST_HEADERS) {
        return Ok(Some(include));
    }
    say(&format!(
        "Vulkan's headers are of version {found}, llama.cpp needs {LEAST_HEADERS}: taking those of Debian {NEWER}"
    ));
    let sources = place.join("sources.list");
    std::fs::create_dir_all(place.join("lists/partial"))?;
    std::fs::write(&sources, format!("deb {} {NEWER} main\n", mirror()?))?;
    let apt = |arguments: &[&str]| {
        let option = |name: &str, path: &Path| format!("{name}={}", path.display());
        let mut command = Command::new("apt-get");
        command.arg("-o").arg(option("Dir::Etc::sourcelist", &sources)).args(["-o", "Dir::Etc::sourceparts=-"]);
        command.arg("-o").arg(option("Dir::State::lists", &place.join("lists"))).args(arguments).current_dir(&place);
        command
    };
    command::run(&mut apt(&["update", "-qq"]))?;
    command::run(&mut apt(&["download", "-qq", "libvulkan-dev"]))?;
    let packages = std::fs::read_dir(&place)?.flatten().map(|entry| entry.path());
    let package = packages.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "deb"));
    let package = package.ok_or_else(|| Failure("apt-get downloaded nothing".to_owned()))?;
    command::run(Command::new("dpkg").arg("-x").arg(package).arg(&place))?;
    match headers(&include) {
        Some(found) if found >= LEAST_HEADERS => Ok(Some(include)),
        found => Err(Failure(format!("Vulkan's headers of Debian {NEWER} are of version {found:?}"))),
    }
}

/// From where the system takes its packages.
fn mirror() -> Result<String, Failure> {
    let output = Command::new("apt-cache").args(["policy", "libvulkan-dev"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let address = said.lines().find_map(|line| line.split_whitespace().find(|word| word.starts_with("http")));
    address.map(str::to_owned).ok_or_else(|| {
        Failure(format!(
            "Vulkan's headers are too old: install {LEAST_HEADERS} or newer, and set VULKAN_SDK to where they are"
        ))
    })
}
