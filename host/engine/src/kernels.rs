//! The kernels of llama.cpp that compute: those in this program, or, with the feature `variants`, libraries in the folder `lib`
//! beside it, of which the widest one for the processor is loaded.
/// What kernels in this program are called.
const BUILT_IN: &str = "built-in";

/// Loads the kernels, if they are not in this program. To be called once, before llama.cpp starts.
///
/// # Errors
/// What is wrong with the folder.
#[cfg(feature = "variants")]
pub(crate) fn load() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("the path of this program is not known: {error}"))?;
    let dir = program.with_file_name("lib");
    let shown = dir.display();
    let path = dir.to_str().and_then(|dir| std::ffi::CString::new(dir).ok());
    let path = path.ok_or_else(|| format!("the path {shown} is not UTF-8"))?;
    // SAFETY: the path ends with a zero. Nobody else asks anything of llama.cpp yet.
    unsafe { llama_cpp_sys_2::ggml_backend_load_all_from_path(path.as_ptr()) };
    if variant().is_some() {
        Ok(())
    } else {
        Err(format!("there is no libggml-cpu-*.so for this processor in {shown}"))
    }
}

#[cfg(not(feature = "variants"))]
#[expect(clippy::unnecessary_wraps, reason = "as the other one")]
pub(crate) fn load() -> Result<(), String> {
    Ok(())
}

/// The name of the kernels in use: `built-in`, or the processor that llama.cpp's variant is named after, such as `haswell`.
pub fn kernels() -> String {
    variant().unwrap_or_else(|| BUILT_IN.to_owned())
}

fn variant() -> Option<String> {
    let mapped = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped.lines().find_map(named).map(str::to_owned)
}

/// The variant whose library a line of `/proc/self/maps` shows.
fn named(line: &str) -> Option<&str> {
    let (_, file) = line.rsplit_once('/')?;
    file.strip_prefix("libggml-cpu-")?.strip_suffix(".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_named_after_its_library() {
        let line = |path: &str| format!("7f10-7f20 r-xp 00000000 fe:00 1234    {path}");
        assert_eq!(named(&line("/opt/a b/lib/libggml-cpu-haswell.so")), Some("haswell"));
        for other in ["/opt/lib/libggml-cpu.so.0", "/opt/lib/libggml-base.so.0", "[heap]", ""] {
            assert_eq!(named(&line(other)), None, "{other}");
        }
    }
}
