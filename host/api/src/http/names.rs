//! The names of hosts in requests. They tell callers of this machine from web pages of others: a page can make its own
//! name point to a listener here (DNS rebinding), but it cannot send another name, nor hide its origin.
use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderValue, header};

use crate::http::head::split_port;

/// The host that a request is for, without its port; `None` if it names none.
pub(crate) fn of_request(request: &Request) -> Option<&str> {
    let sent = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    request.uri().authority().map(|authority| authority.as_str()).or(sent).map(without_port)
}

/// The host of an origin (`https://a.example:8443`), without its port; empty if it has none.
pub(crate) fn of_origin(origin: &HeaderValue) -> &str {
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    named.map_or("", |(_, host)| without_port(host))
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
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn without_port(authority: &str) -> &str {
    split_port(authority).map_or("", |(host, _)| host.trim_end_matches('.'))
}
