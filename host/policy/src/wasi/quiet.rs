//! The rest of WASI: an empty environment, no terminal, no files, no sockets, random numbers.
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::UdpSocket;
use wasmtime_wasi::p2::bindings::cli::{terminal_input, terminal_output};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily};
use wasmtime_wasi::p2::bindings::{cli, random, sync};

use super::view::Wasi;
use crate::fault::{forbidden, invalid};

/// Maximum random bytes per call.
const RANDOM_BYTES: u64 = 64 << 10;

impl cli::environment::Host for Wasi<'_> {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }
}

impl cli::exit::Host for Wasi<'_> {
    fn exit(&mut self, _: Result<(), ()>) -> wasmtime::Result<()> {
        Err(forbidden("the guest ended itself"))
    }

    fn exit_with_code(&mut self, code: u8) -> wasmtime::Result<()> {
        Err(forbidden(&format!("the guest ended itself with code {code}")))
    }
}

impl terminal_input::Host for Wasi<'_> {}

impl terminal_input::HostTerminalInput for Wasi<'_> {
    fn drop(&mut self, _: Resource<terminal_input::TerminalInput>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl terminal_output::Host for Wasi<'_> {}

impl terminal_output::HostTerminalOutput for Wasi<'_> {
    fn drop(&mut self, _: Resource<terminal_output::TerminalOutput>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl cli::terminal_stdin::Host for Wasi<'_> {
    fn get_terminal_stdin(&mut self) -> wasmtime::Result<Option<Resource<terminal_input::TerminalInput>>> {
        Ok(None)
    }
}

impl cli::terminal_stdout::Host for Wasi<'_> {
    fn get_terminal_stdout(&mut self) -> wasmtime::Result<Option<Resource<terminal_output::TerminalOutput>>> {
        Ok(None)
    }
}

impl cli::terminal_stderr::Host for Wasi<'_> {
    fn get_terminal_stderr(&mut self) -> wasmtime::Result<Option<Resource<terminal_output::TerminalOutput>>> {
        Ok(None)
    }
}

impl Wasi<'_> {
    fn random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        if len > RANDOM_BYTES {
            return Err(invalid(format!(
                "{len} random bytes were asked for; at most {RANDOM_BYTES} are given at once"
            )));
        }
        Ok(self.draws().bytes(len as usize))
    }
}

impl random::random::Host for Wasi<'_> {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.random_bytes(len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.draws().number())
    }
}

impl random::insecure::Host for Wasi<'_> {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.random_bytes(len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        Ok(self.draws().number())
    }
}

impl random::insecure_seed::Host for Wasi<'_> {
    /// For hash maps, so that strangers cannot choose keys that collide: as good in a snapshot, as long as nobody knows it.
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok((self.randomness.number(), self.randomness.number()))
    }
}

impl sync::filesystem::preopens::Host for Wasi<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        Ok(Vec::new())
    }
}

/// Refuses every UDP socket. wasmtime's own implementation would wait for a runtime first; its TCP refuses by itself.
pub(super) fn add_udp_create_to_linker<T: 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    let mut create = linker.instance("wasi:sockets/udp-create-socket@0.2.0")?;
    create.func_wrap("create-udp-socket", |_, (_,): (IpAddressFamily,)| {
        Ok((Err::<Resource<UdpSocket>, ErrorCode>(ErrorCode::AccessDenied),))
    })
}
