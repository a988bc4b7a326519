//! The address of a Throttr listener, with the settings that both sides must share because the wire does not announce
//! them.

use mqcore_wire::throttr::{Dialect, Family, Width};

use crate::address::{BrokerAddress, Protocol, SocketKind, shown, tls_options};
use crate::error::ClientError;

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottrAddress {
    broker: BrokerAddress,
    /// The width of its values and its edition.
    pub dialect: Dialect,
    /// Whether it collects metrics. Without them, edition 7.1 answers INFO differently.
    pub metrics: bool,
}

impl ThrottrAddress {
    /// Reads `throttr://host[:port]`, `throttrs://` (TLS) and `throttr+unix:///path`, with the options of a listener's
    /// URL: `value` (`uint16`), `protocol` (`7.1`), `metrics` (`on`); and `ca`, `cert`, `key`, `server_name` for TLS.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for another scheme, a missing host, or an unknown option or value.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = |why: &str| ClientError::invalid("address", format!("{:?}: {why}", shown(text)));
        let (scheme, rest) = text.split_once("://").unwrap_or(("throttr", text));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut dialect = Dialect::default();
        let mut metrics = true;
        let mut others = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("value", name)) => {
                    let width = Width::from_name(name);
                    dialect.width =
                        width.ok_or_else(|| wrong("value must be uint8, uint16, uint32 or uint64"))?;
                }
                Some(("protocol", name)) => {
                    let family = Family::from_name(name);
                    dialect.family = family.ok_or_else(|| wrong("protocol must be 7.1 or 7.3"))?;
                }
                Some(("metrics", name @ ("on" | "off"))) => metrics = name == "on",
                Some(("metrics", _)) => return Err(wrong("metrics must be on or off")),
                // A listener's option without effect on clients, accepted so that clients can use the same URL.
                Some(("overflow", _)) => {}
                _ => others.push(option),
            }
        }
        let carrier = match scheme {
            "throttr" => SocketKind::Tcp,
            "throttrs" => SocketKind::Tls(tls_options(&others.join("&")).map_err(|why| wrong(&why))?),
            "throttr+unix" if cfg!(unix) => SocketKind::Unix,
            _ => return Err(wrong(&format!("{scheme:?} is not a known scheme; use throttr://host:port"))),
        };
        if let (Some(option), false) = (others.first(), matches!(carrier, SocketKind::Tls(_))) {
            return Err(wrong(&format!(
                "unknown option {option:?}; use value, protocol or metrics, and with throttrs:// those of TLS"
            )));
        }
        let broker = BrokerAddress::located(Protocol::Throttr, carrier, rest).map_err(|why| wrong(&why))?;
        Ok(Self { broker, dialect, metrics })
    }

    /// The broker's address.
    #[must_use]
    pub fn broker(&self) -> &BrokerAddress {
        &self.broker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_the_wire_does_not() {
        let address = ThrottrAddress::parse("throttr://h?value=uint64&protocol=7.3&metrics=off").unwrap();
        assert_eq!(address.dialect, Dialect { width: Width::U64, family: Family::V73 });
        assert!(!address.metrics);
        assert_eq!(address.broker().to_string(), "throttr://h:9000");
        let secure = ThrottrAddress::parse("throttrs://h:1?ca=a.pem&value=uint8").unwrap();
        assert_eq!(secure.broker().to_string(), "throttrs://h:1");
        assert_eq!(ThrottrAddress::parse("h:2").unwrap().dialect, Dialect::default());
        for wrong in [
            "tmqp://h",
            "throttr://",
            "throttr://h?value=uint9",
            "throttr://h?ca=x",
            "throttr://h?protocol=7",
        ] {
            assert!(ThrottrAddress::parse(wrong).is_err(), "{wrong:?}");
        }
        let error = ThrottrAddress::parse("throttr://SECRET@h:1").unwrap_err().to_string();
        assert!(error.contains("has no credentials") && !error.contains("SECRET"), "{error}");
    }
}
