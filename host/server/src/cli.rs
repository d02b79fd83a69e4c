//! The command line: flags to configuration, errors to exit codes.
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use camshaft_core::policy::Hook;
use camshaft_core::shown::on_lines;
use camshaft_policy::{Addresses, COMPILE_BOUNDS, ProcessBounds};
use clap::builder::UnknownArgumentValueParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, Models, Overrides, Sources};
use crate::devices::Devices;
use crate::error::ServerError;
use crate::model_command::PullArgs;
use crate::weights::Engines;
use crate::{
    cache_command, check, health, logging, manual, model_command, own_program, plugin_check, reader, serve, show,
    signals, version, worker_process,
};

/// What the system calls this process.
const NAME: &std::ffi::CStr = c"camshaft";

/// LLM inference server whose policy is replaceable while it runs.
#[derive(Debug, Parser)]
#[command(name = "camshaft", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load models and policies, and serve requests.
    Serve(ConfigArgs),
    /// Check configuration, models and policies without serving.
    Check(ConfigArgs),
    /// Ask a running server whether it is alive (exit code 0) or not (69), by the addresses of its configuration: the admin
    /// listener, or `--listen` if that alone is given.
    Health {
        /// Whether it serves requests: not while it loads or drains.
        #[arg(long)]
        ready: bool,
        #[command(flatten)]
        args: ConfigArgs,
    },
    /// List the GPUs that layers of models can be given to.
    Devices,
    /// Compile a policy component from standard input into a cache directory. `serve` runs this in a separate process with
    /// bounds on memory and time, because a component can be made to take both.
    #[command(hide = true)]
    CompilePolicy {
        cache_dir: PathBuf,
        #[arg(value_parser = hook)]
        hook: Hook,
        #[arg(value_parser = addresses)]
        addresses: Addresses,
        memory_bytes: u64,
        cpu_seconds: u64,
    },
    /// Show the configuration, or its schema.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Inspect, verify or remove the prefix cache on disk.
    Cache {
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Pull models into the cache of models; list, verify or remove what is there.
    Model {
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Print the completions of a shell, e.g. `camshaft completions bash > /etc/bash_completion.d/camshaft`.
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, e.g. `camshaft man > camshaft.1`.
    Man,
    /// Inspect policy components.
    Plugin {
        #[command(subcommand)]
        command: PluginCommand,
    },
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Show what each file is: hook, API version, imports, size, settings schema.
    Check {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the configuration file, or with --effective every key in force and where its value came from.
    Print {
        #[arg(long)]
        effective: bool,
        #[command(flatten)]
        args: ConfigArgs,
    },
    /// Print the JSON schema of the configuration file, for editors.
    Schema,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Read everything and report damage (exit code 65).
    Verify(CacheArgs),
    /// Show how much the cache holds.
    Stats(CacheArgs),
    /// Remove everything in the cache.
    Clear(CacheArgs),
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Download a model, or find that what is cached is current.
    Pull {
        /// hf:ORG/REPO/FILE[@REV], https://... with --sha256, ollama:NAME[:TAG], HOST/NAMESPACE/NAME:TAG, or a path
        source: String,
        /// The digest that the file must have. Of a split model: the digest of its parts' digests.
        #[arg(long, value_name = "HEX")]
        sha256: Option<String>,
        /// What to call it in the cache.
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// Ask other machines over http, too.
        #[arg(long)]
        allow_http: bool,
        #[command(flatten)]
        models: ModelsArgs,
    },
    /// Show what is cached.
    List {
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        models: ModelsArgs,
    },
    /// Read models again, all if none is named, and report damage (exit code 65).
    Verify {
        names: Vec<String>,
        #[command(flatten)]
        models: ModelsArgs,
    },
    /// Remove models that nobody uses, by name or source.
    #[command(visible_alias = "rm")]
    Remove {
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        models: ModelsArgs,
    },
}

/// Which cache: the flag's, or that of `[models]` in the configuration.
#[derive(Debug, Args)]
struct ModelsArgs {
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ModelsArgs {
    fn models(self) -> Result<Models, ServerError> {
        let config = Config::load(self.config.as_deref(), std::env::vars_os(), &Overrides::default())?;
        let mut models = config.fixed.models;
        models.cache_dir = self.cache_dir.or(models.cache_dir);
        Ok(models)
    }
}

/// Which directory: the flag's, or `cache.disk-dir` of the configuration.
#[derive(Debug, Args)]
struct CacheArgs {
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl CacheArgs {
    fn dir(self) -> Result<PathBuf, ServerError> {
        if let Some(dir) = self.dir {
            return Ok(dir);
        }
        let config = Config::load(self.config.as_deref(), std::env::vars_os(), &Overrides::default())?;
        config.fixed.cache.tier().map(|disk| disk.dir).ok_or(ServerError::NoDiskCache)
    }
}

/// Where settings come from: flags beat environment variables (CAMSHAFT_QUEUE__HIGH_WATERMARK=64), which beat the file.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

impl ConfigArgs {
    /// Whether the flags name the public listener and no admin listener.
    fn names_public_listener(&self) -> bool {
        self.overrides.listen.is_some() && self.overrides.admin_listen.is_none()
    }

    fn sources(self) -> Result<Sources, ServerError> {
        Ok(Sources::new(self.config.as_deref(), std::env::vars_os(), self.overrides)?)
    }
}

/// The command line, with the version that is worked out when it runs.
fn command() -> clap::Command {
    let served = |command: clap::Command| command.args(flags_of_others());
    Cli::command().long_version(version::long()).mut_subcommand("serve", served).mut_subcommand("check", served)
}

/// What is called otherwise here than in other servers: refused with the name that it has.
const OF_OTHERS: [(&str, &str); 10] = [
    ("port", "--listen 127.0.0.1:PORT"),
    ("host", "--listen ADDRESS:PORT"),
    ("ctx-size", "--set model.0.context-tokens=N"),
    ("max-model-len", "--set model.0.context-tokens=N"),
    ("parallel", "--set model.0.sequences=N"),
    ("max-num-seqs", "--set model.0.sequences=N"),
    ("threads", "--set model.0.threads=N"),
    ("n-gpu-layers", "--set model.0.gpu-layers=N"),
    ("served-model-name", "--set model.0.id=NAME"),
    ("api-key", "a key in the settings of the auth policy, policy.d/auth/10-api-keys.toml"),
];

fn flags_of_others() -> impl Iterator<Item = clap::Arg> {
    OF_OTHERS.into_iter().map(|(flag, ours)| {
        let parser = UnknownArgumentValueParser::suggest(format!("here it is {ours}"));
        clap::Arg::new(format!("of-others-{flag}")).long(flag).hide(true).value_parser(parser)
    })
}

/// Does what the argument of this process says, where it is a role in which this program is started again, for a process of its own. To be
/// called at the beginning of `main`, by programs that start helpers.
pub(crate) fn run_role() -> Option<ExitCode> {
    own_program::take_roles();
    let role = std::env::args_os().nth(1)?;
    if role == worker_process::ROLE {
        return Some(worker_process::run());
    }
    (role == reader::ROLE).then(|| match reader::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Its standard error is the server's.
            let _ = writeln!(io::stderr(), "camshaft: the process that reads: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    if let Some(code) = run_role() {
        return code;
    }
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, everything else is misuse.
            let code = if error.use_stderr() { 64 } else { 0 };
            // What was given is anybody's, and clap hands it to a terminal as it is.
            let _ = match error.use_stderr() {
                true => io::stderr().write_all(on_lines(&error.render().to_string()).as_bytes()),
                false => error.print(),
            };
            return ExitCode::from(code);
        }
    };
    // The process is found by its name: what was started by way of a link would have that one's.
    let _ = rustix::thread::set_name(NAME);
    let serves = matches!(cli.command, Command::Serve(_));
    let done = signals::receive_all().and_then(|()| execute(cli.command));
    let code = match done {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            error.exit_code()
        }
    };
    if serves {
        // llama.cpp may still compute on a thread that was left behind: its statics must not be destroyed meanwhile.
        signal_hook::low_level::exit(i32::from(code));
    }
    ExitCode::from(code)
}

/// Does what was asked for. Returns the exit code.
fn execute(asked: Command) -> Result<u8, ServerError> {
    let done = match asked {
        Command::Serve(args) => args.sources().and_then(|sources| serve::run(sources, Engines::Llama)),
        Command::Config { command } => match command {
            ConfigCommand::Print { effective, args } => {
                args.sources().and_then(|sources| show::configuration(&sources, effective))
            }
            ConfigCommand::Schema => show::schema(),
        },
        Command::Check(args) => args.sources().and_then(|sources| {
            let config = sources.load()?;
            let log = logging::start(&config, None)?;
            let checked = check::configuration(&config, sources.ignored());
            log.flush();
            checked
        }),
        Command::Health { ready, args } => {
            let names_public = args.names_public_listener();
            args.sources().and_then(|sources| health::ask(&sources.load()?, ready, names_public))
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "camshaft", &mut script);
            check::print(&String::from_utf8_lossy(&script))
        }
        Command::Man => {
            let page = manual::page(command());
            page.map_err(|error| ServerError::internal("write the manual page", error))
                .and_then(|page| check::print(&String::from_utf8_lossy(&page)))
        }
        Command::CompilePolicy { cache_dir, hook, addresses, memory_bytes, cpu_seconds } => {
            let cpu = Duration::from_secs(cpu_seconds);
            let bounds = ProcessBounds { memory_bytes, cpu, ..COMPILE_BOUNDS };
            return Ok(camshaft_policy::compile_here(&cache_dir, hook, addresses, bounds));
        }
        Command::Devices => Devices::look().and_then(|devices| check::print(&devices.table())),
        Command::Cache { command } => match command {
            CacheCommand::Verify(args) => args.dir().and_then(|dir| cache_command::report(&dir, true)),
            CacheCommand::Stats(args) => args.dir().and_then(|dir| cache_command::report(&dir, false)),
            CacheCommand::Clear(args) => args.dir().and_then(|dir| cache_command::clear(&dir)),
        },
        Command::Model { command } => model(command),
        Command::Plugin { command: PluginCommand::Check { files } } => plugin_check::plugins(&files),
    };
    done.map(|()| 0)
}

fn model(command: ModelCommand) -> Result<(), ServerError> {
    match command {
        ModelCommand::Pull { source, sha256, name, allow_http, models } => {
            let mut models = models.models()?;
            models.allow_http |= allow_http;
            model_command::pull(&models, PullArgs { source, sha256, name })
        }
        ModelCommand::List { json, models } => model_command::list(&models.models()?, json),
        ModelCommand::Verify { names, models } => model_command::verify(&models.models()?, &names),
        ModelCommand::Remove { names, models } => model_command::remove(&models.models()?, &names),
    }
}

/// Of what is reported.
const REPORT_CHARACTERS: usize = 16 << 10;

/// Writes the reason to standard error, with every cause.
fn report(error: &ServerError) {
    let mut line = format!("camshaft: {error}");
    if let ServerError::Internal { source, .. } = error {
        line = format!("camshaft: {error:#}");
        for cause in source.chain().skip(1) {
            line.push_str(&format!(": {cause}"));
        }
    }
    let mut line = on_lines(&line);
    // Whoever wrote a megabyte where a word belongs knows which.
    if let Some((end, _)) = line.char_indices().nth(REPORT_CHARACTERS) {
        line.truncate(end);
        line.push('…');
    }
    let (done, written) = std::sync::mpsc::sync_channel(1);
    let write = move || {
        let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        let _ = done.send(());
    };
    // A reader who does not read must not keep the process.
    match std::thread::Builder::new().spawn(write.clone()) {
        Ok(_) => drop(written.recv_timeout(Duration::from_secs(2))),
        // There are no threads, which may be the reason itself.
        Err(_) => write(),
    }
}

fn hook(name: &str) -> Result<Hook, String> {
    let hook = Hook::ALL.into_iter().find(|hook| hook.as_str() == name);
    hook.ok_or_else(|| format!("expected one of {}", Hook::ALL.map(Hook::as_str).join(", ")))
}

fn addresses(name: &str) -> Result<Addresses, String> {
    let addresses = Addresses::ALL.into_iter().find(|addresses| addresses.as_str() == name);
    addresses.ok_or_else(|| format!("expected one of {}", Addresses::ALL.map(Addresses::as_str).join(", ")))
}
