//! The names of hosts in requests. They tell callers of this machine from web pages of others: a page can make its own
//! name point to a listener here (DNS rebinding), but it cannot send another name, nor hide its origin.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::{HeaderValue, header};

use crate::http::head::{is_authority, split_port};

/// The host that a request is for, without its port; `None` if it names none.
pub(crate) fn of_request(request: &Request) -> Option<&str> {
    let sent = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    request.uri().authority().map(|authority| authority.as_str()).or(sent).map(without_port)
}

/// The host of a web page's origin (`https://a.example:8443`), without its port; empty if it has none. What a browser does
/// not send has none, either: a user before the host, a path after it, another scheme.
pub(crate) fn of_origin(origin: &HeaderValue) -> &str {
    let is_web = |scheme: &str| ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    named.filter(|(scheme, host)| is_web(scheme) && is_authority(host)).map_or("", |(_, host)| without_port(host))
}

/// Whether a listener whose configured host name is `own` may be addressed so: as `localhost`, as an IP address, or by that
/// name.
pub(crate) fn is_own(host: &str, own: Option<&str>) -> bool {
    address(host).is_some() || is_named(host, own)
}

/// Whether this is a name or an address of this machine and of no other.
pub(crate) fn is_local(host: &str, own: Option<&str>) -> bool {
    address(host).is_some_and(|ip| ip.to_canonical().is_loopback()) || is_named(host, own)
}

fn is_named(host: &str, own: Option<&str>) -> bool {
    host.eq_ignore_ascii_case("localhost") || own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn without_port(authority: &str) -> &str {
    split_port(authority).map_or("", |(host, _)| host.strip_suffix('.').unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const OWN: Option<&str> = Some("node-1");

    #[test]
    fn regression_no_spelling_of_an_origin_makes_another_host_local() {
        for local in [
            "http://localhost",
            "https://localhost",
            "HTTP://LOCALHOST:3000",
            "http://localhost.:80",
            "http://localhost:",
            "http://127.0.0.1",
            "http://127.1.2.3:65535",
            "http://[::1]",
            "https://[::1]:8443",
            "http://[::ffff:127.0.0.1]:1",
            "https://node-1:8080",
        ] {
            assert!(is_local(of_origin(&HeaderValue::from_static(local)), OWN), "{local}");
        }
        for other in [
            "http://localhost:80@evil.example",
            "http://localhost@evil.example",
            "http://user:localhost@localhost",
            "http://127.0.0.1:1@evil.example:80",
            "http://[::1]@evil.example",
            "http://[::1].evil.example",
            "http://[127.0.0.1]",
            "http://localhost:65536",
            "http://localhost:80:80",
            "http://localhost..",
            "http://localhost/",
            "http://localhost/evil.example",
            "http://localhost?evil.example",
            "http://localhost#evil.example",
            "http://localhost\\.evil.example",
            "http://localhost evil.example",
            "http://localhost,http://evil.example",
            "http://evil.example://localhost",
            "http://::1",
            "http://127.1",
            "http://2130706433",
            "http://%6cocalhost",
            "http://",
            "://localhost",
            "//localhost",
            "localhost",
            "localhost:80",
            "null",
            "",
            "file://localhost",
            "ftp://localhost",
            "ws://localhost",
            "chrome-extension://localhost",
            "javascript://localhost",
            "http+unix://localhost",
            " http://localhost",
            "http://evil.example",
            "http://192.0.2.7",
            "http://node-2",
        ] {
            assert!(!is_local(of_origin(&HeaderValue::from_bytes(other.as_bytes()).unwrap()), OWN), "{other}");
        }
        assert_eq!(of_origin(&HeaderValue::from_bytes(b"http://local\xffhost").unwrap()), "");
    }

    #[test]
    fn regression_no_spelling_of_a_host_makes_another_one_this_listeners_own() {
        let own = |host: &str| {
            let request = Request::builder().header("host", host).body(Body::empty()).unwrap();
            of_request(&request).is_some_and(|host| is_own(host, OWN))
        };
        for good in ["localhost", "LocalHost:80", "localhost.", "127.0.0.1:1", "10.0.0.1", "[::1]:80", "[2001:db8::1]"]
        {
            assert!(own(good), "{good}");
        }
        for bad in [
            "localhost:80@evil.example",
            "localhost@evil.example",
            "localhost/evil.example",
            "localhost..",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[127.0.0.1]",
            "[localhost]",
            "[::1",
            "[::1].evil.example",
            "::1",
            "0x7f.1",
            "node-2",
            "",
        ] {
            // Either it is refused before, or it is somebody else's.
            assert!(!is_authority(bad) || !own(bad), "{bad}");
        }
    }
}
