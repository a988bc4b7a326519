//! Requests that a web page of another origin makes a browser send.
//!
//! A page can send simple requests to any address, which the header `Origin` shows. With a DNS name that it points at this
//! machine after it was loaded (DNS rebinding), it can also read the responses, which the header `Host` shows.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

/// Why a request must not be served; `None`: it did not come from a page of another origin.
///
/// With `local_names_only`, `Host` must be a name of this machine. The caller sets it for unencrypted requests from the
/// broker's own machine, which need no credentials before users exist; TLS verifies names by itself.
pub(super) fn refusal(headers: &HeaderMap, uri: &Uri, local_names_only: bool) -> Option<&'static str> {
    let host = match headers.get(header::HOST) {
        Some(host) => host.to_str().unwrap_or("?"),
        None => uri.authority().map_or("", |authority| authority.as_str()),
    };
    if let Some(origin) = headers.get(header::ORIGIN)
        && origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"))
            .is_none_or(|(_, authority)| authority != host)
    {
        return Some("permission denied: the request comes from a web page of another origin");
    }
    if local_names_only && !host.is_empty() && !is_local(host) {
        return Some(
            "permission denied: the header Host must be an IP address or localhost for callers on this machine; a reverse proxy must set it",
        );
    }
    None
}

/// Whether no DNS server decides which address this host has.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(host: &str, origin: Option<&str>, local_names_only: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        refusal(&headers, &Uri::from_static("/overview"), local_names_only).is_some()
    }

    #[test]
    fn names_of_this_machine_are_accepted() {
        for host in ["127.0.0.1:9090", "localhost:9090", "LOCALHOST", "[::1]:9090", "[::1]", "10.0.0.7"] {
            assert!(!refused(host, None, true), "{host}");
        }
    }

    #[test]
    fn other_names_are_refused_if_only_local_ones_are_allowed() {
        for host in
            ["evil.example", "evil.example:9090", "localhost.evil.example", "127.0.0.1.evil.example:9090"]
        {
            assert!(refused(host, None, true), "{host}");
            assert!(!refused(host, None, false), "{host}");
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        assert!(!refused("localhost:9090", Some("http://localhost:9090"), true));
        for origin in ["http://evil.example", "http://localhost:9091", "null", "https://localhost"] {
            assert!(refused("localhost:9090", Some(origin), true), "{origin}");
            assert!(refused("localhost:9090", Some(origin), false), "{origin}");
        }
    }
}
