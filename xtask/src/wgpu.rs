//! `cargo xtask test --wgpu`: builds with WebGPU, and tests tensor models on Mesa's device, which computes on the CPU.
use crate::command::{self, Done, Failure, cargo, copy_if_changed, say, target};
use crate::setup::{self, Need, packages};
use crate::vulkan::lavapipe;
use crate::{build, progress};

const NEEDS: [Need; 1] = [Need {
    what: "Vulkan's loader, and Mesa's drivers",
    present: || lavapipe().is_some(),
    packages: &["libvulkan1", "mesa-vulkan-drivers"],
}];

/// Builds and tests. Other tests need no device, and are not run.
pub(crate) fn test() -> Done {
    setup::run_for_tests()?;
    packages(&NEEDS)?;
    let driver = lavapipe().ok_or_else(|| Failure("there is no lavapipe among Vulkan's drivers".to_owned()))?;
    say("building with WebGPU (its kernels take some minutes)");
    progress::build(&mut cargo(&["build", "--release", "--workspace", "--bins", "--features", "camshaft/wgpu"]))?;
    // The next build without WebGPU replaces it where it is.
    let binary = target().join("wgpu/camshaft");
    copy_if_changed(&target().join("release/camshaft"), &binary)?;
    build::plugins()?;
    let models = std::env::var_os("CAMSHAFT_MODELS");
    if models.is_none() {
        say("CAMSHAFT_MODELS is not set: the test of trained networks counts as skipped");
    }
    // One after the other: the device is made of the same cores.
    let run = |arguments: &[&str], filter: &str| {
        let mut command = cargo(&["test", "--release"]);
        command.args(arguments).args(["--", "--test-threads", "1", filter]);
        if models.is_none() {
            command.args(["--skip", "given_models"]);
        }
        // With this driver alone.
        command::run(command.env("VK_DRIVER_FILES", &driver).env("CAMSHAFT_BIN", &binary))
    };
    say("testing on Mesa's software device");
    run(&["-p", "camshaft-tensor", "--features", "onnx,wgpu", "--test", "wgpu"], "given_wgpu")?;
    run(&["-p", "camshaft-tests", "--test", "e2e"], "given_wgpu")
}
