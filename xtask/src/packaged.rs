//! `cargo xtask dist --packaged`: runs `dist/` as the image of `config/container`, and as the unit of `config/systemd`.
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::command::{Done, Failure, root, run as run_command, say, succeeds, target};
use crate::setup::{Need, packages};

const NEEDS: [Need; 3] = [
    Need { what: "podman (runs containers)", present: || succeeds("podman", &["--version"]), packages: &["podman"] },
    // crun refuses machines that have control groups of both versions.
    Need { what: "runc (starts containers)", present: || succeeds("runc", &["--version"]), packages: &["runc"] },
    Need {
        what: "debootstrap (makes the base image)",
        present: || succeeds("debootstrap", &["--version"]),
        packages: &["debootstrap"],
    },
];
/// The release that the base image has. Its C library must not be older than the one that `dist/` was built with.
const RELEASE: &str = "bookworm";
/// What it has beside the smallest system: the unit runs under systemd, and is reloaded by `kill`.
const INCLUDED: &str = "systemd,systemd-sysv,dbus,procps";
const BASE: &str = "localhost/camshaft-base";
const IMAGE: &str = "localhost/camshaft-packaged";
/// What docs/operations.md and the container file run the image with.
const CONFINED: [&str; 6] = [
    "--read-only",
    "--tmpfs=/tmp:mode=1777",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--network=none",
    "-d",
];
/// podman's own bounds may be above what this machine allows.
const BOUNDS: [&str; 2] = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"];
/// The user of the image.
const USER: &str = "65532";
/// How long a container may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most that `systemd-analyze security` may find exposed, in tenths: 0 is the best, 100 the worst.
const EXPOSURE: &str = "20";
const ASKED: &str = r#"{"model":"demo","messages":[{"role":"user","content":"hello"}],"max_tokens":8}"#;

/// Needs `dist/` to be there.
pub(crate) fn run() -> Done {
    packages(&NEEDS)?;
    let place = target().join("packaged");
    std::fs::create_dir_all(&place)?;
    let podman = Podman { place: std::path::absolute(place)? };
    podman.base()?;
    podman.image()?;
    podman.unit()
}

/// Containers and images of this command alone: podman's own are in another place.
struct Podman {
    place: PathBuf,
}

/// A container that is removed in the end, whatever happens.
struct Container<'a> {
    podman: &'a Podman,
    name: &'static str,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // One that is gone needs no removing.
        let _ = self.podman.command(&["rm", "-f", "-t", "2", self.name]).output();
    }
}

impl Podman {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(["--runtime=runc", "--storage-driver=vfs", "--root"]).arg(self.place.join("images"));
        command.arg("--runroot").arg(self.place.join("run")).args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs it, and fails with what it said.
    fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        let output =
            self.command(arguments).output().map_err(|error| Failure(format!("cannot run podman: {error}")))?;
        if output.status.success() {
            return Ok(said(&output.stdout));
        }
        Err(failed(arguments, &output))
    }

    /// An image of a small Debian, made of the packages that this machine installs.
    fn base(&self) -> Done {
        if self.command(&["image", "exists", BASE]).status()?.success() {
            return Ok(());
        }
        let (files, archive) = (self.place.join("base"), self.place.join("base.tar"));
        if files.exists() {
            std::fs::remove_dir_all(&files)?;
        }
        say(&format!("making a base image of Debian {RELEASE}"));
        let include = format!("--include={INCLUDED}");
        let mut bootstrap = Command::new("debootstrap");
        bootstrap.args(["--variant=minbase", &include, RELEASE]).arg(&files).stdout(Stdio::null());
        run_command(&mut bootstrap)?;
        run_command(Command::new("tar").arg("-C").arg(&files).arg("-cf").arg(&archive).arg("."))?;
        self.run(&["import", &archive.to_string_lossy(), BASE])?;
        std::fs::remove_file(&archive)?;
        Ok(std::fs::remove_dir_all(&files)?)
    }

    /// Starts a container.
    fn start(&self, name: &'static str, arguments: &[&str]) -> Result<Container<'_>, Failure> {
        let container = Container { podman: self, name };
        self.run(&[&["run", "--replace", "--name", name], &BOUNDS[..], arguments].concat())?;
        Ok(container)
    }

    /// Builds the image as the container file says, and runs it as that and the documentation say.
    fn image(&self) -> Done {
        let (file, dist) = (root().join("config/container/Containerfile"), root().join("dist"));
        let (file, dist, base) = (file.to_string_lossy(), dist.to_string_lossy(), format!("BASE={BASE}"));
        self.run(&[
            "build",
            "--format=docker",
            "--isolation=chroot",
            "--build-arg",
            &base,
            "-f",
            &file,
            "-t",
            IMAGE,
            &dist,
        ])?;
        let server = self.start("camshaft-image", &[&CONFINED[..], &[IMAGE]].concat())?;
        // The image's own check.
        wait("the health check of the image fails", || self.run(&["healthcheck", "run", server.name]))?;
        wait("the server in the image is not ready", || {
            server.exec(&["/opt/camshaft/camshaft", "health", "--ready", "--listen", "127.0.0.1:8080"])
        })?;
        server.answers()?;
        let user = server.exec(&["id", "-u"])?;
        if user.trim() != USER {
            return Err(Failure(format!("the image runs as user {}, not {USER}", user.trim())));
        }
        if server.exec(&["touch", "/opt/camshaft/written"]).is_ok() {
            return Err(Failure("the root of the image can be written to".to_owned()));
        }
        self.run(&["stop", "-t", "30", server.name])?;
        let code = self.run(&["inspect", "--format", "{{.State.ExitCode}}", server.name])?;
        if code.trim() != "0" {
            return Err(Failure(format!("the server in the image ended with {}", code.trim())));
        }
        say("image: healthy, answered, read-only, no root, ended with 0");
        Ok(())
    }

    /// Installs the unit as its documentation says, in a container whose first process is systemd, and runs it.
    fn unit(&self) -> Done {
        let arguments = ["-d", "--privileged", "--systemd=always", "--network=none", BASE, "/sbin/init"];
        let machine = self.start("camshaft-unit", &arguments)?;
        wait("systemd does not start", || machine.exec(&["systemctl", "show-environment"]))?;
        machine.exec(&["mkdir", "-p", "/etc/camshaft"])?;
        let (dist, unit) = (root().join("dist"), root().join("config/systemd/camshaft.service"));
        machine.copy(&dist.join("."), "/opt/camshaft")?;
        machine.copy(&dist.join("config.toml"), "/etc/camshaft/camshaft.toml")?;
        machine.copy(&dist.join("policy.d"), "/etc/camshaft/policy.d")?;
        machine.copy(&unit, "/etc/systemd/system/camshaft.service")?;
        machine.exec(&["useradd", "--system", "camshaft"])?;
        machine.exec(&["systemd-analyze", "verify", "/etc/systemd/system/camshaft.service"])?;
        let threshold = format!("--threshold={EXPOSURE}");
        machine.exec(&[
            "systemd-analyze",
            "security",
            "--offline=true",
            &threshold,
            "/etc/systemd/system/camshaft.service",
        ])?;
        machine.exec(&["systemctl", "daemon-reload"])?;
        // Returns when the server has told systemd that it is ready.
        machine.exec(&["systemctl", "start", "camshaft"])?;
        machine.answers()?;
        machine.exec(&["systemctl", "reload", "camshaft"])?;
        machine.answers()?;
        machine.exec(&["systemctl", "stop", "camshaft"])?;
        let ended = machine.exec(&["systemctl", "show", "-p", "Result,NRestarts,ExecMainStatus", "camshaft"])?;
        for fact in ["Result=success", "NRestarts=0", "ExecMainStatus=0"] {
            if !ended.lines().any(|line| line == fact) {
                return Err(Failure(format!("the unit ended with {ended:?}, expected {fact}")));
            }
        }
        say("unit: verified, started, answered, reloaded, stopped");
        Ok(())
    }
}

impl Container<'_> {
    fn exec(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.podman.run(&[&["exec", self.name][..], arguments].concat())
    }

    fn copy(&self, from: &Path, to: &str) -> Done {
        // As a path, the `.` at its end would go.
        let from = if from.is_dir() { format!("{}/.", from.display()) } else { from.display().to_string() };
        self.podman.run(&["cp", &from, &format!("{}:{to}", self.name)]).map(drop)
    }

    /// Asks for a few tokens from inside: nothing outside reaches its network.
    fn answers(&self) -> Done {
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n\
             Connection: close\\r\\nContent-Length: {}\\r\\n\\r\\n",
            ASKED.len()
        );
        let script =
            format!("exec 3<>/dev/tcp/127.0.0.1/8080; printf '{request}' >&3; printf '%s' '{ASKED}' >&3; cat <&3");
        let answer = self.exec(&["bash", "-c", &script])?;
        let is_whole = answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":8");
        if is_whole { Ok(()) } else { Err(Failure(format!("{} answered: {answer}", self.name))) }
    }
}

/// Tries until it succeeds; fails with the last reason.
fn wait(what: &str, mut attempt: impl FnMut() -> Result<String, Failure>) -> Done {
    let started = Instant::now();
    loop {
        match attempt() {
            Ok(_) => return Ok(()),
            Err(Failure(why)) if started.elapsed() > PATIENCE => return Err(Failure(format!("{what}: {why}"))),
            Err(_) => std::thread::sleep(Duration::from_millis(500)),
        }
    }
}

fn failed(arguments: &[&str], output: &Output) -> Failure {
    Failure(format!(
        "podman {}: {}: {}{}",
        arguments.join(" "),
        output.status,
        said(&output.stdout),
        said(&output.stderr)
    ))
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
