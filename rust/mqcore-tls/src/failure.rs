//! Why a client's handshake failed: a closed set for programs, and words for people.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Why the peers did not come to terms on TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What sort it is of.
    pub reason: FailureReason,
    /// What happened and what to do, to be read behind the name of the server.
    pub words: String,
}

/// What sort of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The server's certificate is of an authority that the client does not trust.
    UnknownAuthority,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is for another name.
    WrongName,
    /// The server's certificate is unsound in another way.
    BadCertificate,
    /// The server wants a certificate, and the client showed none.
    CertificateRequired,
    /// The server does not take the client's certificate.
    CertificateRefused,
    /// The peer speaks something else.
    NotTls,
    /// The peer speaks TLS, and the client does not.
    TlsWanted,
    /// The two have no version of TLS, or nothing else that is needed, in common.
    NothingInCommon,
    /// The peer closed the connection during the handshake.
    Closed,
    /// Anything else.
    Other,
}

impl FailureReason {
    /// One word for programs.
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

    /// Whether a certificate is what it failed on, the server's or the client's.
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

impl Failure {
    /// Why a handshake ended with `error`.
    pub fn of_handshake(error: &io::Error) -> Self {
        match Self::of_conversation(error) {
            Some(failure) => failure,
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::new(
                FailureReason::Closed,
                "it closed the connection during the TLS handshake; does that port speak TLS?",
            ),
            None => Self::new(FailureReason::Closed, format!("the TLS handshake broke off: {error}")),
        }
    }

    /// Why a connection ended with `error` after the handshake, if TLS is the reason. A server that judges a client's
    /// certificate tells the result so late.
    pub fn of_conversation(error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        Some(match error {
            Error::InvalidCertificate(why) => of_certificate(why),
            Error::AlertReceived(alert) => of_alert(*alert),
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
            ) => Self::new(
                FailureReason::NotTls,
                "that port does not speak TLS; write the address without the 's'",
            ),
            Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
                Self::new(FailureReason::NothingInCommon, "it speaks nothing newer than TLS 1.1")
            }
            Error::PeerIncompatible(why) => Self::new(
                FailureReason::NothingInCommon,
                format!("there is no common ground for TLS: {why:?}"),
            ),
            other => Self::new(FailureReason::Other, format!("TLS failed: {other}")),
        })
    }

    fn new(reason: FailureReason, words: impl Into<String>) -> Self {
        Self { reason, words: words.into() }
    }
}

fn of_certificate(why: &CertificateError) -> Failure {
    match why {
        CertificateError::UnknownIssuer => Failure::new(
            FailureReason::UnknownAuthority,
            "its certificate was issued by no authority that this client trusts; name the right one with 'ca', unless \
             somebody else answers in its place",
        ),
        CertificateError::Expired => Failure::new(FailureReason::Expired, "its certificate has expired"),
        CertificateError::ExpiredContext { time, not_after } => {
            let since = ago(time.as_secs().saturating_sub(not_after.as_secs()));
            Failure::new(FailureReason::Expired, format!("its certificate expired {since} ago"))
        }
        CertificateError::NotValidYet => Failure::new(
            FailureReason::NotYetValid,
            "its certificate is not valid yet; are the clocks right?",
        ),
        CertificateError::NotValidYetContext { time, not_before } => {
            let until = ago(not_before.as_secs().saturating_sub(time.as_secs()));
            let words =
                format!("its certificate is not valid before {until} from now; are the clocks right?");
            Failure::new(FailureReason::NotYetValid, words)
        }
        CertificateError::NotValidForName => {
            Failure::new(FailureReason::WrongName, "its certificate is for another name")
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented = if presented.is_empty() { "no name at all".into() } else { presented.join(", ") };
            let expected = expected.to_str();
            let words = format!(
                "its certificate is not for {expected} but for {presented}; connect by that name, or give the right \
                 one as 'server_name'"
            );
            Failure::new(FailureReason::WrongName, words)
        }
        other => {
            Failure::new(FailureReason::BadCertificate, format!("its certificate is not taken: {other}"))
        }
    }
}

fn of_alert(alert: AlertDescription) -> Failure {
    let refused = |why: &str| {
        Failure::new(
            FailureReason::CertificateRefused,
            format!("it refused this client's certificate: {why}"),
        )
    };
    match alert {
        AlertDescription::CertificateRequired => Failure::new(
            FailureReason::CertificateRequired,
            "it wants a certificate of this client, and none was given; name one with 'cert' and 'key'",
        ),
        AlertDescription::UnknownCA => refused("it does not know the authority that issued it"),
        AlertDescription::CertificateExpired => refused("it has expired"),
        AlertDescription::CertificateRevoked => refused("it was revoked"),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => refused("it does not say why"),
        AlertDescription::ProtocolVersion
        | AlertDescription::HandshakeFailure
        | AlertDescription::InsufficientSecurity => Failure::new(
            FailureReason::NothingInCommon,
            format!("there is no common ground for TLS: {alert:?}"),
        ),
        AlertDescription::UnrecognisedName => {
            Failure::new(FailureReason::WrongName, "it does not know the name by which it was called")
        }
        other => Failure::new(FailureReason::Other, format!("it ended TLS: {other:?}")),
    }
}

/// A span of time as somebody would say it.
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
    fn spans_are_said_in_the_unit_that_people_use() {
        let said = [5, 120, 7200, 172_800].map(ago);
        assert_eq!(said, ["5 seconds", "2 minutes", "2 hours", "2 days"]);
    }

    #[test]
    fn only_failures_about_certificates_are_called_so() {
        assert!(FailureReason::CertificateRequired.is_about_certificates());
        assert!(!FailureReason::NotTls.is_about_certificates());
        assert!(!FailureReason::Closed.is_about_certificates());
    }
}
