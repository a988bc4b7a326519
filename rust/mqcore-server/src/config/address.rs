//! Listener URLs and bound addresses.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use mqcore_session::any::Protocol;
use mqcore_session::listener::{BadOption, ListenerOptions};

use crate::config::error::ConfigError;

/// The address to which a listener binds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `host:port`; port 0 picks a free port.
    Tcp(String),
    /// A Unix socket. Peers that the file system admits are trusted like peers on loopback.
    Unix {
        /// The socket's file. A file left by a server that has stopped is replaced.
        path: PathBuf,
        /// Its permissions, as `chmod` takes them. Default [`UNIX_MODE`].
        mode: u32,
    },
}

/// The default permissions of a Unix socket: its owner only.
pub const UNIX_MODE: u32 = 0o600;

impl From<String> for ListenAddress {
    fn from(address: String) -> Self {
        Self::Tcp(address)
    }
}

/// The address to which a listener is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoundAddress {
    /// With the port that was picked.
    Tcp(SocketAddr),
    /// The socket's file.
    Unix(Arc<PathBuf>),
}

impl BoundAddress {
    /// Address and port; `None` for a Unix socket.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for BoundAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix(path) => path.display().fmt(formatter),
        }
    }
}

/// A listener that is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// The protocol of the listener.
    pub protocol: Protocol,
    /// Its address.
    pub address: BoundAddress,
    /// Whether it uses TLS.
    pub encrypted: bool,
    /// The query of the URL with which clients connect, with its `?`; mostly empty.
    pub query: String,
}

impl Listening {
    /// The URL with which clients connect: `tmqp://127.0.0.1:2622`, `tmqps://127.0.0.1:2632`,
    /// `tmqp+unix:///run/mqcore.sock`, `emqp://127.0.0.1:47291?role=frontend`.
    pub fn url(&self) -> String {
        let carrier = match self.address {
            BoundAddress::Tcp(_) if self.encrypted => "s",
            BoundAddress::Tcp(_) => "",
            BoundAddress::Unix(_) => "+unix",
        };
        format!("{}{carrier}://{}{}", self.protocol.as_str(), self.address, self.query)
    }
}

/// The address of the admin side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminAddress {
    /// With the port that was picked.
    pub address: SocketAddr,
    /// Whether it uses TLS.
    pub encrypted: bool,
}

impl AdminAddress {
    /// `http://127.0.0.1:2627`, or with `https`.
    pub fn url(&self) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}

/// A parsed URL. Options are taken out by name; [`ListenerUrl::finish`] rejects options that are left over.
#[derive(Debug)]
pub(crate) struct ListenerUrl<'a> {
    url: &'a str,
    pub(crate) scheme: &'a str,
    /// The part between `://` and the options.
    rest: &'a str,
    pub(crate) options: ListenerOptions,
}

impl<'a> ListenerUrl<'a> {
    pub(crate) fn parse(url: &'a str) -> Result<Self, ConfigError> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| ConfigError::NoScheme { url: url.into() })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parsed = Self { url, scheme, rest, options: ListenerOptions::new() };
        if url.contains('#') {
            return Err(parsed.bad("a '#' has no meaning here; in a path write %23"));
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(parsed.bad("options are written ?name=value&other=value"));
            };
            let value = parsed.decoded(value)?;
            if !parsed.options.add(name, value) {
                return Err(parsed.bad("an option is given twice"));
            }
        }
        Ok(parsed)
    }

    pub(crate) fn bad(&self, why: &'static str) -> ConfigError {
        ConfigError::BadAddress { url: self.url.into(), why }
    }

    pub(crate) fn bad_option(&self, BadOption(why): BadOption) -> ConfigError {
        self.bad(why)
    }

    /// The same URL with another address, and only with the options that have not been taken.
    pub(crate) fn without_ports(&self, address: &str) -> String {
        let query = self.url.split_once('?').map_or("", |(_, query)| query);
        let kept = query.split('&').filter(|pair| {
            let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
            self.options.has(name)
        });
        format!("{}://{address}?{}", self.scheme, kept.collect::<Vec<_>>().join("&"))
    }

    /// The value of an option, percent-decoded.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<String> {
        self.options.take(name)
    }

    /// Called when all known options are taken.
    pub(crate) fn finish(self) -> Result<(), ConfigError> {
        let Some((option, known)) = self.options.unknown() else { return Ok(()) };
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Err(ConfigError::UnknownOption { url: self.url.into(), option: option.into(), known })
    }

    /// The `host:port` of the URL. Binding shows whether the host exists.
    pub(crate) fn host_and_port(&self, default_port: u16) -> Result<String, ConfigError> {
        let address = self.rest.strip_suffix('/').unwrap_or(self.rest);
        if address.contains('/') {
            return Err(self.bad("a listener has no path"));
        }
        // In `[::1]:2622` the port follows the bracket.
        let host_end = match address.rfind(']') {
            Some(bracket) => bracket + 1,
            None => address.find(':').unwrap_or(address.len()),
        };
        let (host, port) = address.split_at(host_end);
        if host.is_empty() {
            return Err(self.bad("the host is missing; 127.0.0.1 is this machine"));
        }
        match port.strip_prefix(':') {
            Some(port) => {
                port.parse::<u16>().map_err(|_| self.bad("the port is not a number from 0 to 65535"))?;
                Ok(address.into())
            }
            None if port.is_empty() => Ok(format!("{host}:{default_port}")),
            None => Err(self.bad("the port is missing")),
        }
    }

    /// The path of a Unix socket, and its permissions if the URL names them.
    pub(crate) fn unix_socket(&mut self) -> Result<ListenAddress, ConfigError> {
        if !self.rest.starts_with('/') || self.rest.ends_with('/') {
            return Err(self.bad("a Unix socket is an absolute path, such as tmqp+unix:///run/mqcore.sock"));
        }
        let path = PathBuf::from(self.decoded(self.rest)?);
        let mode = match self.take("mode") {
            None => UNIX_MODE,
            Some(digits) => match u32::from_str_radix(&digits, 8) {
                Ok(mode) if mode <= 0o777 => mode,
                _ => return Err(self.bad("mode is three octal digits, such as mode=660")),
            },
        };
        Ok(ListenAddress::Unix { path, mode })
    }

    /// Decodes percent escapes.
    fn decoded(&self, text: &str) -> Result<String, ConfigError> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
            match (digit(), digit()) {
                (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
                _ => return Err(self.bad("behind a '%' there are two hexadecimal digits")),
            }
        }
        String::from_utf8(bytes).map_err(|_| self.bad("its percent escapes are no UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_by_name_and_unknown_ones_are_rejected() {
        let mut url = ListenerUrl::parse("tmqp://h:1?path=%2Fa%20b%25&other=x").unwrap();
        assert_eq!(url.take("path").as_deref(), Some("/a b%"));
        assert_eq!(url.take("missing"), None);
        assert_eq!(url.host_and_port(2).unwrap(), "h:1");
        let refused = url.finish().unwrap_err().to_string();
        assert!(refused.contains("\"other\"") && refused.contains("path, missing"), "{refused}");
    }

    #[test]
    fn options_that_cannot_be_read_are_refused() {
        for url in ["h://a?b", "h://a?b=1&b=2", "h://a?b=%2", "h://a?b=%zz", "h://a?b=%ff", "h://a#b"] {
            assert!(matches!(ListenerUrl::parse(url), Err(ConfigError::BadAddress { .. })), "{url}");
        }
    }

    #[test]
    fn a_unix_socket_has_a_path_and_may_have_a_mode() {
        let read = |url| ListenerUrl::parse(url).unwrap().unix_socket();
        let unix = |path: &str, mode| ListenAddress::Unix { path: path.into(), mode };
        assert_eq!(read("tmqp+unix:///run/a.sock").unwrap(), unix("/run/a.sock", 0o600));
        assert_eq!(read("tmqp+unix:///a%20b?mode=660").unwrap(), unix("/a b", 0o660));
        for wrong in
            ["x+unix://a.sock", "x+unix://", "x+unix:///dir/", "x+unix:///a?mode=9", "x+unix:///a?mode=7777"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
