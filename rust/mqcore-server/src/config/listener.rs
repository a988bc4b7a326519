//! Addresses of listeners: what their URLs say.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use mqcore_session::any::ListenerTerms;
use mqcore_tls::listener::{ClientCertificates, ListenerTls};

use crate::config::address::{ListenAddress, ListenerUrl};
use crate::config::error::ConfigError;

pub use mqcore_session::any::Protocol;

/// One listener: one address, one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its protocol, with the protocol's settings.
    pub terms: ListenerTerms,
    /// Its address.
    pub address: ListenAddress,
    /// Whether it uses TLS.
    pub encryption: Encryption,
}

/// Whether a listener uses TLS, and with which files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Encryption {
    /// No TLS. The default.
    #[default]
    None,
    /// TLS with the files of [`Config::tls`](crate::config::Config::tls).
    Shared,
    /// TLS with files of its own.
    Own(ListenerTls),
}

impl FromStr for ListenerConfig {
    type Err = ConfigError;

    /// Parses `tmqp://127.0.0.1:2622`; without a port, the protocol's default port. `tmqps://`, the protocol's name
    /// with an `s`, uses TLS: the options `?cert=FILE&key=FILE&client_ca=FILE&client_cert=required` are the fields of
    /// [`ListenerTls`]; without `cert` the files of [`Config::tls`](crate::config::Config::tls) are used. `tmqp+unix:///run/mqcore.sock` is a
    /// Unix socket.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let (name, carrier) = parsed.scheme.split_once('+').unwrap_or((parsed.scheme, ""));
        let unknown = || ConfigError::UnknownScheme { scheme: parsed.scheme.into() };
        let (protocol, encrypted) = scheme(name).ok_or_else(unknown)?;
        let terms = ListenerTerms::read(protocol, &mut parsed.options);
        let terms = terms.map_err(|bad| parsed.bad_option(bad))?;
        let port = terms.default_port();
        let address = match carrier {
            "" => ListenAddress::Tcp(parsed.host_and_port(port)?),
            "unix" if cfg!(unix) && !encrypted => parsed.unix_socket()?,
            "unix" if encrypted => return Err(parsed.bad("a Unix socket needs no TLS; leave out the 's'")),
            _ => return Err(unknown()),
        };
        let encryption = if encrypted { encryption(&mut parsed)? } else { Encryption::None };
        parsed.finish()?;
        Ok(Self { terms, address, encryption })
    }
}

/// The protocol of a scheme, and whether an `s` after its name requests TLS.
fn scheme(name: &str) -> Option<(Protocol, bool)> {
    if let Some(protocol) = Protocol::from_scheme(name) {
        return Some((protocol, false));
    }
    Some((Protocol::from_scheme(name.strip_suffix(['s', 'S'])?)?, true))
}

impl ListenerConfig {
    /// The protocol of this listener.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        self.terms.protocol()
    }

    /// All listeners that a URL describes. Most URLs describe one; a protocol may add listeners on further ports to a
    /// TCP URL. `emqp://host:port` without a role describes the five sockets of EventMQ: workers connect to the port
    /// in the URL, or 47290; clients, administrators, publishers and subscribers connect 1, 3, 8 and 9 above it, or
    /// to the ports of `?frontend=PORT&admin=PORT&publish=PORT&subscribe=PORT`. With port 0, each listener picks its
    /// own.
    ///
    /// # Errors
    /// [`ConfigError`], as for the URL of one listener.
    pub fn all_of(url: &str) -> Result<Vec<Self>, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let Some((protocol, _)) = scheme(parsed.scheme) else { return Ok(vec![url.parse()?]) };
        let companions = ListenerTerms::companions(protocol, &mut parsed.options);
        let companions = companions.map_err(|bad| parsed.bad_option(bad))?;
        if companions.is_empty() {
            return Ok(vec![url.parse()?]);
        }
        let address = parsed.host_and_port(protocol.default_port())?;
        let (host, port) = address.rsplit_once(':').ok_or_else(|| parsed.bad("the port is missing"))?;
        let port: u16 = port.parse().map_err(|_| parsed.bad("the port is not a number from 0 to 65535"))?;
        let first: Self = parsed.without_ports(&format!("{host}:{port}")).parse()?;
        let mut all = vec![first.clone()];
        for companion in companions {
            let port = match companion.port {
                Some(given) => given,
                None if port == 0 => 0,
                None => port
                    .checked_add(companion.offset)
                    .ok_or_else(|| parsed.bad("the ports above it would go beyond 65535"))?,
            };
            let address = ListenAddress::Tcp(format!("{host}:{port}"));
            all.push(Self { address, terms: companion.terms, ..first.clone() });
        }
        Ok(all)
    }
}

/// The TLS options of a listener's URL.
fn encryption(url: &mut ListenerUrl<'_>) -> Result<Encryption, ConfigError> {
    let cert = url.take("cert").map(PathBuf::from);
    let key = url.take("key").map(PathBuf::from);
    let client_ca = url.take("client_ca").map(PathBuf::from);
    let client_cert = url.take("client_cert");
    let Some(cert) = cert else {
        if key.is_some() || client_ca.is_some() || client_cert.is_some() {
            return Err(url.bad("key, client_ca and client_cert belong to a cert, which is missing"));
        }
        return Ok(Encryption::Shared);
    };
    if client_cert.is_some() && client_ca.is_none() {
        return Err(url.bad("client_cert needs a client_ca, the authorities of the clients"));
    }
    let client_cert = match client_cert.as_deref() {
        None => ClientCertificates::default(),
        Some(word) => ClientCertificates::from_text(word)
            .ok_or_else(|| url.bad("client_cert is 'required' or 'optional'"))?,
    };
    Ok(Encryption::Own(ListenerTls { cert, key, client_ca, client_cert }))
}

/// The listener of the admin side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address and port; port 0 picks a free port.
    pub address: SocketAddr,
    /// Whether it uses TLS.
    pub encryption: Encryption,
}

impl From<SocketAddr> for AdminConfig {
    /// Without TLS.
    fn from(address: SocketAddr) -> Self {
        Self { address, encryption: Encryption::None }
    }
}

impl FromStr for AdminConfig {
    type Err = ConfigError;

    /// Parses `http://127.0.0.1:2627`, or `https://` with the options of an encrypted listener.
    fn from_str(url: &str) -> Result<Self, ConfigError> {
        let mut parsed = ListenerUrl::parse(url)?;
        let encrypted = parsed.scheme.eq_ignore_ascii_case("https");
        if !encrypted && !parsed.scheme.eq_ignore_ascii_case("http") {
            return Err(ConfigError::UnknownScheme { scheme: parsed.scheme.into() });
        }
        let address = parsed.host_and_port(2627)?.replace("localhost:", "127.0.0.1:");
        let address = address
            .parse()
            .map_err(|_| parsed.bad("expected an IP address and a port, such as 127.0.0.1:2627"))?;
        let encryption = if encrypted { encryption(&mut parsed)? } else { Encryption::None };
        parsed.finish()?;
        Ok(Self { address, encryption })
    }
}

#[cfg(test)]
mod tests {
    use mqcore_session::listener::ListenerOptions;
    use mqcore_session::protocol::LimitUse;

    use super::*;

    fn parsed(url: &str) -> Result<String, ConfigError> {
        url.parse::<ListenerConfig>().map(|listener| match listener.address {
            ListenAddress::Tcp(address) => address,
            ListenAddress::Unix { path, .. } => path.display().to_string(),
        })
    }

    #[test]
    fn a_url_gives_protocol_and_address() {
        let listener: ListenerConfig = "tmqp://127.0.0.1:0".parse().unwrap();
        let address = ListenAddress::Tcp("127.0.0.1:0".into());
        let encryption = Encryption::None;
        let terms = ListenerTerms::read(listener.protocol(), &mut ListenerOptions::new()).unwrap();
        assert_eq!(listener.protocol().as_str(), "tmqp");
        let wanted = ListenerConfig { terms, address, encryption };
        assert_eq!(listener, wanted);
        assert_eq!(parsed("TMQP://localhost:99/").unwrap(), "localhost:99");
        assert_eq!(parsed("tmqp://[::1]:7").unwrap(), "[::1]:7");
    }

    #[test]
    fn a_url_of_eventmq_stands_for_five_sockets_unless_it_names_one() {
        let ports = |url: &str| {
            let all = ListenerConfig::all_of(url)?;
            let ports = all.into_iter().map(|listener| match listener.address {
                ListenAddress::Tcp(address) => {
                    let query = listener.terms.client_query();
                    format!("{} {address}", query.strip_prefix("?role=").unwrap_or_default())
                }
                ListenAddress::Unix { path, .. } => path.display().to_string(),
            });
            Ok::<_, ConfigError>(ports.collect::<Vec<_>>())
        };
        let original =
            ["backend h:47290", "frontend h:47291", "admin h:47293", "publish h:47298", "subscribe h:47299"];
        assert_eq!(ports("emqp://h").unwrap(), original);
        assert_eq!(ports("emqp://h:0?admin=7").unwrap()[..3], ["backend h:0", "frontend h:0", "admin h:7"]);
        assert_eq!(ports("emqp://h?role=frontend").unwrap(), ["frontend h:47291"]);
        assert_eq!(ports("emqp://[::1]:9?role=subscribe").unwrap(), ["subscribe [::1]:9"]);
        assert_eq!(ports("emqp+unix:///run/e.sock").unwrap(), ["/run/e.sock"]);
        assert_eq!(ports("tmqp://h:1").unwrap().len(), 1);
        for wrong in [
            "emqp://h?role=worker",
            "emqp://h?frontend=x",
            "emqp://h?frontend=70000",
            "emqp://h:65530",
            "emqp://h?role=frontend&frontend=1",
            "emqp://h?what=1",
        ] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_protocol_has_options_of_its_own() {
        let read = |url: &str| url.parse::<ListenerConfig>();
        let throttr = read("throttr://127.0.0.1?value=uint64&protocol=7.3&metrics=off").unwrap();
        assert_eq!(throttr.address, ListenAddress::Tcp("127.0.0.1:9000".into()));
        assert_eq!(throttr.terms.limits(), Some(LimitUse { persist: false, metrics: false }));
        assert_eq!(parsed("mqks://127.0.0.1").unwrap(), "127.0.0.1:25000");
        assert_eq!(parsed("mm2://127.0.0.1").unwrap(), "127.0.0.1:2623");
        assert!(read("mm2s://h?cert=c&window_max=50&idle_timeout=1.5").is_ok());
        for wrong in ["throttr://h?value=uint128", "mqks://h?line_bytes_max=1k", "mm2://h?window_max=0"] {
            assert!(matches!(parsed(wrong), Err(ConfigError::BadAddress { .. })), "{wrong}");
        }
        for wrong in [
            "throttr://h?values=uint8",
            "tmqp://h?value=uint8",
            "tmqp://h?line_bytes_max=4096",
            "mqks://h?window_max=5",
        ] {
            assert!(matches!(parsed(wrong), Err(ConfigError::UnknownOption { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_missing_port_is_the_protocols_own() {
        assert_eq!(parsed("tmqp://localhost").unwrap(), "localhost:2622");
        assert_eq!(parsed("tmqp://[::1]").unwrap(), "[::1]:2622");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        assert!(matches!(parsed("127.0.0.1:2622"), Err(ConfigError::NoScheme { .. })));
        for url in ["amqp://127.0.0.1:2622", "tmqp+pipe://x", "amqp+unix:///x"] {
            assert!(matches!(parsed(url), Err(ConfigError::UnknownScheme { .. })), "{url}");
        }
        assert!(matches!(parsed("tmqp://h:1?a=b"), Err(ConfigError::UnknownOption { .. })));
        for url in ["tmqp://", "tmqp://:1", "tmqp://h:70000", "tmqp://h:x", "tmqp://h:1/path", "tmqp://::1:5"]
        {
            assert!(matches!(parsed(url), Err(ConfigError::BadAddress { .. })), "{url}");
        }
    }

    #[test]
    fn an_s_behind_the_protocol_asks_for_tls_with_files_of_its_own_or_shared() {
        let read = |url: &str| url.parse::<ListenerConfig>().map(|listener| listener.encryption);
        assert_eq!(read("tmqps://127.0.0.1:1"), Ok(Encryption::Shared));
        let mut files = ListenerTls {
            cert: "/etc/a b.pem".into(),
            key: None,
            client_ca: None,
            client_cert: ClientCertificates::Required,
        };
        assert_eq!(read("TMQPS://h:1?cert=/etc/a%20b.pem"), Ok(Encryption::Own(files.clone())));
        files.key = Some("k".into());
        files.client_ca = Some("ca".into());
        files.client_cert = ClientCertificates::Optional;
        let url = "tmqps://h:1?client_cert=optional&cert=/etc/a%20b.pem&key=k&client_ca=ca";
        assert_eq!(read(url), Ok(Encryption::Own(files)));
        for wrong in [
            "tmqps://h:1?key=k",
            "tmqps://h:1?cert=c&client_cert=required",
            "tmqps://h:1?cert=c&client_ca=a&client_cert=maybe",
            "tmqps+unix:///a",
        ] {
            assert!(matches!(read(wrong), Err(ConfigError::BadAddress { .. })), "{wrong}");
        }
        assert!(matches!(read("tmqp://h:1?cert=c"), Err(ConfigError::UnknownOption { .. })));
    }

    #[test]
    fn the_admin_url_is_http_or_https_and_an_address() {
        let read = |url: &str| url.parse::<AdminConfig>();
        let plain = |address: &str| AdminConfig::from(address.parse::<SocketAddr>().unwrap());
        assert_eq!(read("http://127.0.0.1:0").unwrap(), plain("127.0.0.1:0"));
        assert_eq!(read("http://localhost").unwrap(), plain("127.0.0.1:2627"));
        let encrypted = AdminConfig { encryption: Encryption::Shared, ..plain("127.0.0.1:1") };
        assert_eq!(read("https://127.0.0.1:1").unwrap(), encrypted);
        assert!(read("http://example.invalid:1").is_err());
        assert!(read("http://127.0.0.1:1?cert=c").is_err());
        assert!(read("tmqp://127.0.0.1:1").is_err());
    }
}
