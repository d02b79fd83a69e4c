//! `cargo xtask dist`: a directory that runs on any processor of this architecture, with the same libc.
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Done, Failure, cargo, copy_if_changed, portable_target, root, run as run_command, say};
use crate::{build, emulate, packaged, progress, setup};

/// The most that the directory may weigh, in bytes.
const MOST: u64 = 80_000_000;
/// What the program asks for: its kernels are loaded by it.
const LIBRARIES: [&str; 3] = ["libllama.so.", "libggml.so.", "libggml-base.so."];
/// What the compiler brings: machines without a compiler may lack it.
const RUNTIME: [&str; 3] = ["libgomp.so.1", "libstdc++.so.6", "libgcc_s.so.1"];
/// Kernels that are left out, because they can die with an illegal instruction on processors that claim to have AMX.
const LEFT_OUT: &str = "sapphirerapids";
/// What `.cargo/local.toml` sets for the processor of this machine.
const OF_THIS_MACHINE: [&str; 4] = ["GGML_AVX512", "GGML_AVX512_VBMI", "GGML_AVX512_VNNI", "GGML_AVX512_BF16"];

pub(crate) fn run(arguments: &[String]) -> Done {
    let then: fn() -> Done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => || Ok(()),
        ["--emulated"] => emulate::run,
        ["--packaged"] => packaged::run,
        _ => return Err(Failure(format!("dist takes --emulated, --packaged or nothing: {arguments:?}"))),
    };
    setup::run()?;
    let (binary, llama) = portable()?;
    build::plugins()?;
    let dist = root().join("dist");
    copy_stripped(&binary, &dist.join("camshaft"))?;
    symbols(&binary, &dist.join("camshaft"), &dist.join("camshaft.debug"))?;
    libraries(&llama, &dist.join("lib"))?;
    copy_if_changed(&root().join("config/camshaft.toml"), &dist.join("config.toml"))?;
    copy_if_changed(&root().join("LICENSE"), &dist.join("LICENSE"))?;
    build::lay_out(&dist.join("policy.d"))?;
    starts(&dist.join("camshaft"))?;
    let size = size(&dist)?;
    say(&format!("made {}: {} MB", dist.display(), size / 1_000_000));
    if size > MOST {
        return Err(Failure(format!("{} is larger than {} MB", dist.display(), MOST / 1_000_000)));
    }
    say(&format!("try: {0}/camshaft serve --config {0}/config.toml", dist.display()));
    then()
}

/// Builds for the oldest processor, with llama.cpp's kernels for all others as libraries. Returns the program, and where llama.cpp
/// was installed.
fn portable() -> Result<(PathBuf, PathBuf), Failure> {
    say("building for any processor (with kernels for a dozen of them: several minutes)");
    let mut command = cargo(&["build", "--release", "-p", "camshaft", "--features", "burn,variants"]);
    command.args(["--message-format", "json-render-diagnostics", "--target-dir"]).arg(portable_target());
    // Rust's default is the oldest processor. The variable takes precedence over `.cargo/local.toml`, also without content.
    command.env("RUSTFLAGS", "").envs(OF_THIS_MACHINE.map(|name| (name, "OFF")));
    let said = progress::build(&mut command)?;
    let llama = said.lines().find_map(|line| installed(line, "llama-cpp-sys-2"));
    let llama = llama.ok_or_else(|| Failure("cargo does not say where llama.cpp was installed".to_owned()))?;
    Ok((portable_target().join("release/camshaft"), llama))
}

/// The output directory of a package's build script, if this message of cargo is about it.
fn installed(message: &str, package: &str) -> Option<PathBuf> {
    let is_about = message.contains("\"build-script-executed\"") && message.contains(&format!("{package}@"));
    let (_, path) = message.split_once("\"out_dir\":\"").filter(|_| is_about)?;
    Some(PathBuf::from(path.split('"').next()?))
}

/// Copies what the program loads: llama.cpp, its kernels, and what the compiler brings.
fn libraries(out: &Path, dir: &Path) -> Done {
    // The program would load what an earlier build left there.
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    std::fs::create_dir_all(dir)?;
    let mut count = 0;
    // Some distributions install libraries in lib64.
    let folders = ["backends", "lib", "lib64"].map(|folder| out.join(folder));
    let found =
        folders.iter().filter(|folder| folder.is_dir()).map(|folder| files(folder)).collect::<Result<Vec<_>, _>>()?;
    for from in found.concat() {
        let name = name(&from);
        let is_variant = name.starts_with("libggml-cpu-") && name.ends_with(".so") && !name.contains(LEFT_OUT);
        // The name that programs ask for has one number.
        let version = LIBRARIES.iter().find_map(|library| name.strip_prefix(library));
        let is_library = version.is_some_and(|version| version.parse::<u32>().is_ok());
        if is_variant || is_library {
            copy_stripped(&from, &dir.join(name))?;
            count += u32::from(is_variant);
        }
    }
    if count == 0 {
        return Err(Failure(format!("no kernels in {}", out.display())));
    }
    for library in RUNTIME {
        let output = Command::new("c++").arg(format!("-print-file-name={library}")).output()?;
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        // The compiler repeats the name of what it does not have.
        if !path.is_absolute() {
            return Err(Failure(format!("the compiler has no {library}")));
        }
        copy_stripped(&path, &dir.join(library))?;
    }
    Ok(())
}

/// Fails unless the program starts and finds its libraries and kernels without anything from here.
fn starts(program: &Path) -> Done {
    let output = Command::new(program).arg("--version").env_clear().output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let kernels = said.lines().find_map(|line| line.strip_prefix("kernels: ")).unwrap_or("none");
    if !output.status.success() || ["none", "built-in"].contains(&kernels) {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(Failure(format!("{}: {}, kernels: {kernels}. {error}", program.display(), output.status)));
    }
    say(&format!("{} runs here with the kernels {kernels}", program.display()));
    Ok(())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(dir).map_err(|error| Failure(format!("{}: {error}", dir.display())))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, Failure>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Copies a program or library without its symbols.
fn copy_stripped(from: &Path, to: &Path) -> Done {
    let part = portable_target().join(name(to));
    run_command(Command::new("objcopy").arg("--strip-all").args([from, part.as_path()]))?;
    copy_if_changed(&part, to)?;
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o755))?;
    std::fs::remove_file(&part)?;
    Ok(())
}

/// Symbols that name no function: tables of exceptions, and constants. They are two fifths of all.
const NAMELESS: [&str; 2] = ["GCC_except_table*", "anon.*"];

/// Puts the names of the program's functions beside it, where debuggers and backtraces look. Numbers of lines would weigh more
/// than the program.
fn symbols(from: &Path, program: &Path, to: &Path) -> Done {
    let part = portable_target().join(name(to));
    let without: Vec<String> = NAMELESS.iter().map(|names| format!("--strip-symbol={names}")).collect();
    run_command(
        Command::new("objcopy").args(["--strip-debug", "--wildcard"]).args(without).args([from, part.as_path()]),
    )?;
    run_command(Command::new("objcopy").arg("--only-keep-debug").args([part.as_path(), to]))?;
    std::fs::remove_file(&part)?;
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o644))?;
    let link = format!("--add-gnu-debuglink={}", to.display());
    run_command(Command::new("objcopy").arg(link).arg(program))
}

/// Bytes of all files below a directory.
fn size(dir: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    for path in files(dir)? {
        sum += if path.is_dir() { size(&path)? } else { std::fs::metadata(&path)?.len() };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_a_build_script_wrote() {
        let line = |id: &str| {
            format!(
                r#"{{"reason":"build-script-executed","package_id":"registry+x#{id}","out_dir":"/t/build/a-1/out"}}"#
            )
        };
        assert_eq!(installed(&line("a-sys@0.1.0"), "a-sys"), Some(PathBuf::from("/t/build/a-1/out")));
        assert_eq!(installed(&line("b-sys@0.1.0"), "a-sys"), None);
        assert_eq!(installed("{}", "a-sys"), None);
    }
}
