//! `camshaft health`: asks a running server how it is. For health checks of containers and services, where no other client
//! may be installed.
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::config::{Config, Listen};
use crate::error::ServerError;

/// For each thing that the server has to do.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of an answer's first line.
const LINE_BYTES: u64 = 256;

/// Asks the server that runs with this configuration: whether it answers, or with `ready` whether it serves. `names_public`:
/// whoever asks has named the public listener, and no other one.
///
/// # Errors
/// It does not, or has no listener that can be asked: the public one is encrypted, and there is no other one.
pub(crate) fn ask(config: &Config, ready: bool, names_public: bool) -> Result<(), ServerError> {
    let (listen, key) = match (&config.fixed.admin.listen, config.fixed.tls.files()) {
        (admin, _) if !admin.is_empty() && !names_public => (admin, "admin.listen"),
        (_, None) => (&config.fixed.listen, "listen"),
        (admin, Some(_)) => {
            let why = "without the admin listener nobody can be asked: the public one is encrypted";
            return Err(ServerError::value(&config.origins, "admin.listen", admin, why));
        }
    };
    let bad = |error| ServerError::value(&config.origins, key, listen, error);
    let address = reachable(listen.resolve().map_err(bad)?);
    let path = if ready { "/readyz" } else { "/healthz" };
    match status(address, listen, path, PATIENCE) {
        Ok(line) if line.split(' ').nth(1) == Some("200") => Ok(()),
        Ok(line) => Err(ServerError::Unwell { address, path, why: format!("answered {line:?}") }),
        Err(error) => Err(ServerError::Unwell { address, path, why: error.to_string() }),
    }
}

/// Where a server that listens on all addresses of this machine is found.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback: IpAddr = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address
}

/// The first line of the answer.
fn status(address: SocketAddr, listen: &Listen, path: &str, patience: Duration) -> io::Result<String> {
    let late = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} s", patience.as_secs_f64()))
        }
        _ => error,
    };
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_read_timeout(Some(patience))?;
    let host = listen.host_name().map_or_else(|| address.to_string(), |_| listen.to_string());
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES)).read_until(b'\r', &mut line).map_err(late)?;
    Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What is found out about a server that says this, and then nothing more.
    fn asked(says: &'static str) -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1000];
                let count = stream.read(&mut request).unwrap();
                stream.write_all(says.as_bytes()).unwrap();
                // Open until the client leaves.
                let _ = stream.read(&mut [0; 1]);
                String::from_utf8_lossy(&request[..count]).into_owned()
            });
            let listen = Listen::loopback(address.port());
            let status = status(address, &listen, "/healthz", Duration::from_millis(200));
            let request = server.join().unwrap();
            assert!(request.starts_with("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
            status
        })
    }

    #[test]
    fn the_first_line_tells_and_nobody_is_waited_for_without_end() {
        assert_eq!(asked("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").unwrap(), "HTTP/1.1 200 OK");
        assert_eq!(asked("HTTP/1.1 503 Service Unavailable\r\n").unwrap(), "HTTP/1.1 503 Service Unavailable");
        assert_eq!(asked("HTTP/1.1 20").unwrap_err().to_string(), "no answer in 0.2 s");
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(status(nobody, &Listen::loopback(nobody.port()), "/healthz", PATIENCE).is_err());
    }

    #[test]
    fn a_server_on_all_addresses_is_found_on_this_machine() {
        let check = |listen: &str, found: &str| assert_eq!(reachable(listen.parse().unwrap()).to_string(), found);
        check("0.0.0.0:80", "127.0.0.1:80");
        check("[::]:80", "[::1]:80");
        check("192.0.2.1:80", "192.0.2.1:80");
    }
}
