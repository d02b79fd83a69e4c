//! WASI 0.2 without any grants: enough to run ordinary `wasm32-wasip2` components, without blocking calls.
//!
//! The host calls guests synchronously, even on threads of an asynchronous runtime, and epochs do not interrupt host
//! calls. So every call that could block is implemented here, and traps or returns at once.
mod io;
mod quiet;
mod view;

use wasmtime::component::Linker;
use wasmtime_wasi::filesystem::WasiFilesystem;
use wasmtime_wasi::p2::bindings::{cli, clocks, random, sockets, sync};
use wasmtime_wasi::sockets::WasiSockets;

pub(crate) use self::view::{LastWords, Wasi, WasiView};

/// The interfaces that [`add_to_linker`] links, without package prefix and version.
pub(crate) const INTERFACES: [&str; 27] = [
    "io/error",
    "io/poll",
    "io/streams",
    "cli/environment",
    "cli/exit",
    "cli/stdin",
    "cli/stdout",
    "cli/stderr",
    "cli/terminal-input",
    "cli/terminal-output",
    "cli/terminal-stdin",
    "cli/terminal-stdout",
    "cli/terminal-stderr",
    "clocks/wall-clock",
    "clocks/monotonic-clock",
    "random/random",
    "random/insecure",
    "random/insecure-seed",
    "filesystem/preopens",
    "filesystem/types",
    "sockets/network",
    "sockets/instance-network",
    "sockets/ip-name-lookup",
    "sockets/tcp",
    "sockets/udp",
    "sockets/tcp-create-socket",
    "sockets/udp-create-socket",
];

/// Links every WASI 0.2 interface that the command world has.
pub(crate) fn add_to_linker<T: WasiView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    type Own = Wasi<'static>;
    let (own, files, net) = (T::wasi, T::filesystem, T::sockets);
    let l = linker;
    io::add_error_to_linker(l)?;
    sync::io::poll::add_to_linker::<_, Own>(l, own)?;
    sync::io::streams::add_to_linker::<_, Own>(l, own)?;
    cli::environment::add_to_linker::<_, Own>(l, own)?;
    cli::exit::add_to_linker::<_, Own>(l, own)?;
    cli::stdin::add_to_linker::<_, Own>(l, own)?;
    cli::stdout::add_to_linker::<_, Own>(l, own)?;
    cli::stderr::add_to_linker::<_, Own>(l, own)?;
    cli::terminal_input::add_to_linker::<_, Own>(l, own)?;
    cli::terminal_output::add_to_linker::<_, Own>(l, own)?;
    cli::terminal_stdin::add_to_linker::<_, Own>(l, own)?;
    cli::terminal_stdout::add_to_linker::<_, Own>(l, own)?;
    cli::terminal_stderr::add_to_linker::<_, Own>(l, own)?;
    clocks::wall_clock::add_to_linker::<_, Own>(l, own)?;
    clocks::monotonic_clock::add_to_linker::<_, Own>(l, own)?;
    random::random::add_to_linker::<_, Own>(l, own)?;
    random::insecure::add_to_linker::<_, Own>(l, own)?;
    random::insecure_seed::add_to_linker::<_, Own>(l, own)?;
    // A guest never gets a directory or a socket, so it can only call what needs neither.
    sync::filesystem::preopens::add_to_linker::<_, Own>(l, own)?;
    sync::filesystem::types::add_to_linker::<_, WasiFilesystem>(l, files)?;
    sockets::network::add_to_linker::<_, WasiSockets>(l, &sockets::network::LinkOptions::default(), net)?;
    sockets::instance_network::add_to_linker::<_, WasiSockets>(l, net)?;
    sockets::ip_name_lookup::add_to_linker::<_, WasiSockets>(l, net)?;
    sync::sockets::tcp::add_to_linker::<_, WasiSockets>(l, net)?;
    sync::sockets::udp::add_to_linker::<_, WasiSockets>(l, net)?;
    sockets::tcp_create_socket::add_to_linker::<_, WasiSockets>(l, net)?;
    quiet::add_udp_create_to_linker(l)
}
