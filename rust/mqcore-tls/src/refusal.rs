//! Why a listener rejected a TLS handshake: a reason for metrics, and a message for the log.

use std::borrow::Cow;
use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Number of a peer's first bytes that identify its protocol: up to the version in a ClientHello.
pub const FIRST_BYTES: usize = 11;

/// Number of these bytes that are logged.
const SHOWN_BYTES: usize = 8;

/// The reason for which a listener rejected a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HandshakeRejection {
    /// The peer does not speak TLS.
    NotTls,
    /// The peer supports nothing newer than TLS 1.1.
    OldVersion,
    /// Peer and listener have no cipher, group or signature algorithm in common.
    NothingInCommon,
    /// The peer violated the TLS protocol.
    Malformed,
    /// The peer sent no certificate, although one is required.
    NoCertificate,
    /// An authority that the listener does not trust issued the peer's certificate.
    UnknownAuthority,
    /// The peer's certificate has expired.
    ExpiredCertificate,
    /// The peer's certificate is invalid for another reason.
    BadCertificate,
    /// The peer ended the handshake, for example because it does not trust the listener's certificate.
    Declined,
    /// The handshake took too long.
    Timeout,
    /// The peer closed the connection.
    Closed,
    /// Too many handshakes were in progress, and this was the oldest.
    Limit,
}

impl HandshakeRejection {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 12] = [
        Self::NotTls,
        Self::OldVersion,
        Self::NothingInCommon,
        Self::Malformed,
        Self::NoCertificate,
        Self::UnknownAuthority,
        Self::ExpiredCertificate,
        Self::BadCertificate,
        Self::Declined,
        Self::Timeout,
        Self::Closed,
        Self::Limit,
    ];

    /// Name used in metrics and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotTls => "not-tls",
            Self::OldVersion => "old-version",
            Self::NothingInCommon => "nothing-in-common",
            Self::Malformed => "malformed",
            Self::NoCertificate => "no-certificate",
            Self::UnknownAuthority => "unknown-authority",
            Self::ExpiredCertificate => "expired-certificate",
            Self::BadCertificate => "bad-certificate",
            Self::Declined => "declined",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Limit => "limit",
        }
    }

    /// Classifies the error that ended a handshake. `first` are the peer's first bytes. Returns the reason and a log message.
    pub fn of(error: &io::Error, first: &[u8]) -> (Self, Cow<'static, str>) {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => of_protocol(error, first),
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                (Self::Closed, "the peer closed the connection during the handshake".into())
            }
            None => (Self::Closed, format!("connection error: {error}").into()),
        }
    }
}

fn of_protocol(error: &Error, first: &[u8]) -> (HandshakeRejection, Cow<'static, str>) {
    match error {
        // The first bytes say more than the library's error.
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) if !begins_like_tls(first) => {
            if begins_like_ssl2(first) {
                return (
                    HandshakeRejection::OldVersion,
                    "the peer sent a hello of SSL 2; TLS 1.2 or newer is required".into(),
                );
            }
            let begin = first[..first.len().min(SHOWN_BYTES)].escape_ascii();
            (
                HandshakeRejection::NotTls,
                format!("the peer does not speak TLS: its first bytes are \"{begin}\"").into(),
            )
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => old_version(),
        // rustls may report another deficiency of an old hello before it checks the version.
        Error::PeerIncompatible(_) if is_old_hello(first) => old_version(),
        Error::PeerIncompatible(why) => {
            (HandshakeRejection::NothingInCommon, format!("no TLS parameters in common: {why:?}").into())
        }
        Error::NoCertificatesPresented => (
            HandshakeRejection::NoCertificate,
            "the peer sent no certificate, and this listener requires one (client_cert=required)".into(),
        ),
        Error::InvalidCertificate(why) => of_certificate(why),
        Error::AlertReceived(alert) => (HandshakeRejection::Declined, declined(*alert)),
        other => (HandshakeRejection::Malformed, other.to_string().into()),
    }
}

fn old_version() -> (HandshakeRejection, Cow<'static, str>) {
    (
        HandshakeRejection::OldVersion,
        "the peer supports nothing newer than TLS 1.1; TLS 1.2 or newer is required".into(),
    )
}

fn of_certificate(why: &CertificateError) -> (HandshakeRejection, Cow<'static, str>) {
    match why {
        CertificateError::UnknownIssuer => (
            HandshakeRejection::UnknownAuthority,
            "the peer's certificate was not issued by an authority in client_ca".into(),
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            (HandshakeRejection::ExpiredCertificate, "the peer's certificate has expired".into())
        }
        other => (HandshakeRejection::BadCertificate, format!("invalid peer certificate: {other}").into()),
    }
}

fn declined(alert: AlertDescription) -> Cow<'static, str> {
    match alert {
        AlertDescription::UnknownCA => {
            "the peer does not trust the authority that issued the listener's certificate".into()
        }
        AlertDescription::CertificateExpired => {
            "the peer reports that the listener's certificate has expired".into()
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "the peer rejected the listener's certificate; check that it contains the name clients connect to"
                .into()
        }
        AlertDescription::ProtocolVersion => "the peer does not speak TLS 1.2 or newer".into(),
        other => format!("the peer ended the handshake: {other:?}").into(),
    }
}

fn begins_like_tls(first: &[u8]) -> bool {
    matches!(first, [0x14..=0x18, 3, ..] | [0x14..=0x18])
}

/// Recognizes the hello of SSL 2, in which old clients also offered newer versions.
fn begins_like_ssl2(first: &[u8]) -> bool {
    matches!(first, [0x80..=0xff, _, 1, ..])
}

/// Recognizes a ClientHello whose legacy version field is older than TLS 1.2.
fn is_old_hello(first: &[u8]) -> bool {
    matches!(first, [0x16, 3, _, _, _, 1, _, _, _, 3, 0..=2])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD_HELLO: [u8; FIRST_BYTES] = [0x16, 3, 1, 0, 80, 1, 0, 0, 76, 3, 1];
    const HELLO: [u8; FIRST_BYTES] = [0x16, 3, 1, 0, 80, 1, 0, 0, 76, 3, 3];

    fn of_tls(error: Error, first: &[u8]) -> (HandshakeRejection, String) {
        let (reason, message) =
            HandshakeRejection::of(&io::Error::new(io::ErrorKind::InvalidData, error), first);
        (reason, message.into())
    }

    #[test]
    fn connection_that_ends_without_a_tls_error_is_closed_and_its_error_is_shown() {
        for (kind, message) in [
            (io::ErrorKind::UnexpectedEof, "the peer closed the connection during the handshake"),
            (io::ErrorKind::ConnectionReset, "connection error: connection reset"),
        ] {
            let (reason, shown) = HandshakeRejection::of(&kind.into(), &HELLO);
            assert_eq!((reason, &*shown), (HandshakeRejection::Closed, message));
        }
    }

    #[test]
    fn first_bytes_distinguish_other_protocols_and_old_versions_from_malformed_tls() {
        let invalid = || Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let (reason, message) = of_tls(invalid(), b"GET / HTTP/");
        assert_eq!(reason, HandshakeRejection::NotTls);
        assert!(message.ends_with(r#"its first bytes are "GET / HT""#), "{message}");
        let (reason, message) = of_tls(invalid(), &[0x80, 0x2b, 1, 0, 2]);
        assert_eq!(reason, HandshakeRejection::OldVersion);
        assert!(message.contains("SSL 2"), "{message}");
        assert_eq!(of_tls(invalid(), &HELLO).0, HandshakeRejection::Malformed);

        let incompatible = || Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon);
        let (reason, message) = of_tls(incompatible(), &OLD_HELLO);
        assert_eq!(reason, HandshakeRejection::OldVersion);
        assert!(message.contains("nothing newer than TLS 1.1"), "{message}");
        let (reason, message) = of_tls(incompatible(), &HELLO);
        assert_eq!(reason, HandshakeRejection::NothingInCommon);
        assert!(message.contains("NoCipherSuitesInCommon"), "{message}");
        let not_offered = Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered);
        assert_eq!(of_tls(not_offered, &HELLO).0, HandshakeRejection::OldVersion);
    }

    #[test]
    fn each_reason_has_a_name_of_its_own_for_metrics() {
        let mut names: Vec<_> = HandshakeRejection::ALL.iter().map(|reason| reason.as_str()).collect();
        for name in &names {
            assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), HandshakeRejection::ALL.len());
    }

    #[test]
    fn alert_of_the_peer_is_explained() {
        for (alert, message) in [
            (AlertDescription::UnknownCA, "does not trust the authority"),
            (AlertDescription::CertificateExpired, "the listener's certificate has expired"),
            (AlertDescription::BadCertificate, "check that it contains the name"),
            (AlertDescription::CertificateUnknown, "check that it contains the name"),
            (AlertDescription::ProtocolVersion, "TLS 1.2 or newer"),
            (AlertDescription::DecodeError, "DecodeError"),
        ] {
            let (reason, shown) = of_tls(Error::AlertReceived(alert), &HELLO);
            assert_eq!(reason, HandshakeRejection::Declined);
            assert!(shown.contains(message), "{alert:?}: {shown}");
        }
    }

    #[test]
    fn rejected_client_certificate_is_explained() {
        for (why, reason, message) in [
            (CertificateError::UnknownIssuer, HandshakeRejection::UnknownAuthority, "authority in client_ca"),
            (CertificateError::Expired, HandshakeRejection::ExpiredCertificate, "has expired"),
            (CertificateError::BadSignature, HandshakeRejection::BadCertificate, "invalid peer certificate"),
        ] {
            let (found, shown) = of_tls(Error::InvalidCertificate(why), &HELLO);
            assert_eq!(found, reason);
            assert!(shown.contains(message), "{shown}");
        }
        let (reason, message) = of_tls(Error::NoCertificatesPresented, &HELLO);
        assert_eq!(reason, HandshakeRejection::NoCertificate);
        assert!(message.contains("client_cert=required"), "{message}");
    }
}
