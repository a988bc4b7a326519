//! Where a Throttr listener is, and what both sides have to agree on, since nothing on the wire says it.

use mqcore_wire::throttr::{Dialect, Family, Width};

use crate::address::{BrokerAddress, Carrier, Protocol, tls_options};
use crate::error::ClientError;

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottrAddress {
    broker: BrokerAddress,
    /// The width of its values, and its edition.
    pub dialect: Dialect,
    /// Whether it counts. Only edition 7.1 answers INFO otherwise if not.
    pub metrics: bool,
}

impl ThrottrAddress {
    /// Reads `throttr://host[:port]`, `throttrs://` (TLS) and `throttr+unix:///path`, with the options of a listener's
    /// URL: `value` (`uint16`), `protocol` (`7.1`), `metrics` (`on`); and `ca`, `cert`, `key`, `server_name` for TLS.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for another scheme, a missing host, or an unknown option or value.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = |why: &str| ClientError::invalid("address", format!("{text:?}: {why}"));
        let (scheme, rest) = text.split_once("://").unwrap_or(("throttr", text));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut dialect = Dialect::default();
        let mut metrics = true;
        let mut others = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("value", name)) => {
                    let width = Width::from_name(name);
                    dialect.width = width.ok_or_else(|| wrong("value is uint8, uint16, uint32 or uint64"))?;
                }
                Some(("protocol", name)) => {
                    let family = Family::from_name(name);
                    dialect.family = family.ok_or_else(|| wrong("protocol is 7.1 or 7.3"))?;
                }
                Some(("metrics", name @ ("on" | "off"))) => metrics = name == "on",
                Some(("metrics", _)) => return Err(wrong("metrics is on or off")),
                // What INCREASE does at the edge is the listener's affair; its URL is good for a client all the same.
                Some(("overflow", _)) => {}
                _ => others.push(option),
            }
        }
        let carrier = match scheme {
            "throttr" => Carrier::Tcp,
            "throttrs" => Carrier::Tls(tls_options(&others.join("&")).map_err(|why| wrong(&why))?),
            "throttr+unix" if cfg!(unix) => Carrier::Unix,
            _ => return Err(wrong(&format!("{scheme:?} is not spoken here; write throttr://host:port"))),
        };
        if let (Some(option), false) = (others.first(), matches!(carrier, Carrier::Tls(_))) {
            return Err(wrong(&format!(
                "there is no option {option:?}; there are value, protocol and metrics, and those of TLS behind throttrs://"
            )));
        }
        let broker = BrokerAddress::located(Protocol::Throttr, carrier, rest).map_err(|why| wrong(&why))?;
        Ok(Self { broker, dialect, metrics })
    }

    /// Where it is.
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
    }
}
