//! Why a client's TLS handshake failed: a reason for programs, and a message for people.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// A failed TLS handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeFailure {
    /// Reason.
    pub reason: FailureReason,
    /// Message with the next step, to be written after the name of the server.
    pub words: String,
}

/// The reason of a failed TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// An authority that the client does not trust issued the server's certificate.
    UnknownAuthority,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate contains another name.
    WrongName,
    /// The server's certificate is invalid for another reason.
    BadCertificate,
    /// The server requires a client certificate, and the client sent none.
    CertificateRequired,
    /// The server rejected the client's certificate.
    CertificateRefused,
    /// The peer does not speak TLS.
    NotTls,
    /// The peer requires TLS, and the client does not use it.
    TlsWanted,
    /// Client and server have no TLS version, cipher or other required parameter in common.
    NothingInCommon,
    /// The peer closed the connection during the handshake.
    Closed,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// Name used in the API and in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownAuthority => "unknown-authority",
            Self::Expired => "expired",
            Self::NotYetValid => "not-yet-valid",
            Self::WrongName => "wrong-name",
            Self::BadCertificate => "bad-certificate",
            Self::CertificateRequired => "certificate-required",
            Self::CertificateRefused => "certificate-refused",
            Self::NotTls => "not-tls",
            Self::TlsWanted => "tls-wanted",
            Self::NothingInCommon => "nothing-in-common",
            Self::Closed => "closed",
            Self::Other => "other",
        }
    }

    /// Whether the reason concerns a certificate of the server or of the client.
    pub const fn is_about_certificates(self) -> bool {
        matches!(
            self,
            Self::UnknownAuthority
                | Self::Expired
                | Self::NotYetValid
                | Self::WrongName
                | Self::BadCertificate
                | Self::CertificateRequired
                | Self::CertificateRefused
        )
    }
}

impl HandshakeFailure {
    /// Classifies the error that ended a handshake.
    pub fn of_handshake(error: &io::Error) -> Self {
        match Self::of_conversation(error) {
            Some(failure) => failure,
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::new(
                FailureReason::Closed,
                "the server closed the connection during the TLS handshake; check that the port speaks TLS",
            ),
            None => Self::new(FailureReason::Closed, format!("TLS handshake aborted: {error}")),
        }
    }

    /// Classifies the error that ended an established connection, if TLS is the reason. With TLS 1.3, a server rejects a client
    /// certificate only after the client has completed the handshake.
    pub fn of_conversation(error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        Some(match error {
            Error::InvalidCertificate(why) => of_certificate(why),
            Error::AlertReceived(alert) => of_alert(*alert),
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            ) => Self::new(
                FailureReason::NotTls,
                "the port does not speak TLS; remove the 's' from the scheme of the address",
            ),
            Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
                Self::new(FailureReason::NothingInCommon, "the server supports nothing newer than TLS 1.1")
            }
            Error::PeerIncompatible(why) => {
                Self::new(FailureReason::NothingInCommon, format!("no TLS parameters in common: {why:?}"))
            }
            other => Self::new(FailureReason::Other, format!("TLS failed: {other}")),
        })
    }

    fn new(reason: FailureReason, words: impl Into<String>) -> Self {
        Self { reason, words: words.into() }
    }
}

fn of_certificate(why: &CertificateError) -> HandshakeFailure {
    match why {
        CertificateError::UnknownIssuer => HandshakeFailure::new(
            FailureReason::UnknownAuthority,
            "its certificate was issued by an authority that this client does not trust; specify the authority with 'ca', or \
             check that no other host answers at this address",
        ),
        CertificateError::Expired => {
            HandshakeFailure::new(FailureReason::Expired, "its certificate has expired")
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let since = ago(time.as_secs().saturating_sub(not_after.as_secs()));
            HandshakeFailure::new(FailureReason::Expired, format!("its certificate expired {since} ago"))
        }
        CertificateError::NotValidYet => HandshakeFailure::new(
            FailureReason::NotYetValid,
            "its certificate is not valid yet; check the clocks",
        ),
        CertificateError::NotValidYetContext { time, not_before } => {
            let until = ago(not_before.as_secs().saturating_sub(time.as_secs()));
            let words = format!("its certificate becomes valid in {until}; check the clocks");
            HandshakeFailure::new(FailureReason::NotYetValid, words)
        }
        CertificateError::NotValidForName => {
            HandshakeFailure::new(FailureReason::WrongName, "its certificate contains another name")
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented = if presented.is_empty() { "no name".into() } else { presented.join(", ") };
            let expected = expected.to_str();
            let words = format!(
                "its certificate is valid for {presented}, not for {expected}; connect by that name, or set \
                 'server_name'"
            );
            HandshakeFailure::new(FailureReason::WrongName, words)
        }
        other => HandshakeFailure::new(
            FailureReason::BadCertificate,
            format!("invalid server certificate: {other}"),
        ),
    }
}

fn of_alert(alert: AlertDescription) -> HandshakeFailure {
    let refused = |why: &str| {
        HandshakeFailure::new(
            FailureReason::CertificateRefused,
            format!("the server rejected the client certificate: {why}"),
        )
    };
    match alert {
        AlertDescription::CertificateRequired => HandshakeFailure::new(
            FailureReason::CertificateRequired,
            "the server requires a client certificate; specify one with 'cert' and 'key'",
        ),
        AlertDescription::UnknownCA => refused("issued by an authority that the server does not trust"),
        AlertDescription::CertificateExpired => refused("expired"),
        AlertDescription::CertificateRevoked => refused("revoked"),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => refused("no reason given"),
        AlertDescription::ProtocolVersion
        | AlertDescription::HandshakeFailure
        | AlertDescription::InsufficientSecurity => HandshakeFailure::new(
            FailureReason::NothingInCommon,
            format!("no TLS parameters in common: {alert:?}"),
        ),
        AlertDescription::UnrecognisedName => {
            HandshakeFailure::new(FailureReason::WrongName, "the server does not know the requested name")
        }
        other => HandshakeFailure::new(FailureReason::Other, format!("the server ended TLS: {other:?}")),
    }
}

/// Formats a duration in a suitable unit.
fn ago(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} seconds"),
        120..=7199 => format!("{} minutes", seconds / 60),
        7200..=172_799 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_in_a_suitable_unit() {
        let said = [5, 120, 7200, 172_800].map(ago);
        assert_eq!(said, ["5 seconds", "2 minutes", "2 hours", "2 days"]);
    }

    #[test]
    fn tls_error_of_a_conversation_is_classified() {
        for (error, reason) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), FailureReason::UnknownAuthority),
            (Error::AlertReceived(AlertDescription::CertificateRequired), FailureReason::CertificateRequired),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), FailureReason::NotTls),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                FailureReason::NothingInCommon,
            ),
            (Error::DecryptError, FailureReason::Other),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            let failure = HandshakeFailure::of_conversation(&error).expect("TLS is the reason");
            assert_eq!(failure.reason, reason);
            assert_eq!(HandshakeFailure::of_handshake(&error), failure);
        }
    }

    #[test]
    fn handshake_that_ends_without_a_tls_error_is_closed_and_says_how() {
        for (kind, words) in [
            (io::ErrorKind::UnexpectedEof, "check that the port speaks TLS"),
            (io::ErrorKind::ConnectionReset, "TLS handshake aborted: connection reset"),
        ] {
            let failure = HandshakeFailure::of_handshake(&kind.into());
            assert_eq!(failure.reason, FailureReason::Closed);
            assert!(failure.words.ends_with(words), "{failure:?}");
            assert_eq!(HandshakeFailure::of_conversation(&kind.into()), None);
        }
    }

    #[test]
    fn only_certificate_reasons_are_about_certificates() {
        assert!(FailureReason::CertificateRequired.is_about_certificates());
        assert!(!FailureReason::NotTls.is_about_certificates());
        assert!(!FailureReason::Closed.is_about_certificates());
    }
}
