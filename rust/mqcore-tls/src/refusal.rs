//! Why a listener ended a handshake: a closed set for counters, and words for the log.

use std::borrow::Cow;
use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// How many of the peer's first bytes tell what it speaks: up to the version in a hello.
pub const FIRST_BYTES: usize = 11;

/// How many of them are shown.
const SHOWN_BYTES: usize = 8;

/// Why a handshake was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The peer speaks something else.
    NotTls,
    /// It offers nothing newer than TLS 1.1.
    OldVersion,
    /// The two have no cipher, group or signature in common.
    NothingInCommon,
    /// It sent what TLS does not allow.
    Malformed,
    /// It has no certificate, and has to.
    NoCertificate,
    /// Its certificate is of an authority that this listener does not know.
    UnknownAuthority,
    /// Its certificate has expired.
    ExpiredCertificate,
    /// Its certificate is unsound in another way.
    BadCertificate,
    /// It does not want to speak with this listener: it does not trust our certificate, for example.
    Declined,
    /// It took too long.
    Timeout,
    /// It went away.
    Closed,
    /// Too many were under way, and it was the oldest.
    Limit,
}

impl Refusal {
    /// All of them, in the order of their numbers.
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

    /// Its name in metrics and in the log.
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

    /// Why the handshake ended with `error`, whose peer began with `first`: the reason, and the whole of it in words.
    pub fn of(error: &io::Error, first: &[u8]) -> (Self, Cow<'static, str>) {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(error) => of_protocol(error, first),
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                (Self::Closed, "it went away in the middle of the handshake".into())
            }
            None => (Self::Closed, format!("the connection broke: {error}").into()),
        }
    }
}

fn of_protocol(error: &Error, first: &[u8]) -> (Refusal, Cow<'static, str>) {
    match error {
        // The first bytes tell more than the library's complaint about them.
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) if !begins_like_tls(first) => {
            if begins_like_ssl2(first) {
                return (
                    Refusal::OldVersion,
                    "it begins with a hello of SSL 2; TLS 1.2 or newer is needed".into(),
                );
            }
            let begin = first[..first.len().min(SHOWN_BYTES)].escape_ascii();
            (Refusal::NotTls, format!("it does not speak TLS: it begins with \"{begin}\"").into())
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => old_version(),
        // What else an old hello lacks is found before its version is looked at.
        Error::PeerIncompatible(_) if is_old_hello(first) => old_version(),
        Error::PeerIncompatible(why) => {
            (Refusal::NothingInCommon, format!("there is no common ground: {why:?}").into())
        }
        Error::NoCertificatesPresented => (
            Refusal::NoCertificate,
            "it shows no certificate, and this listener requires one (client_cert=required)".into(),
        ),
        Error::InvalidCertificate(why) => of_certificate(why),
        Error::AlertReceived(alert) => (Refusal::Declined, declined(*alert)),
        other => (Refusal::Malformed, other.to_string().into()),
    }
}

fn old_version() -> (Refusal, Cow<'static, str>) {
    (Refusal::OldVersion, "it offers nothing newer than TLS 1.1; TLS 1.2 or newer is needed".into())
}

fn of_certificate(why: &CertificateError) -> (Refusal, Cow<'static, str>) {
    match why {
        CertificateError::UnknownIssuer => (
            Refusal::UnknownAuthority,
            "its certificate was issued by none of the authorities in client_ca".into(),
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            (Refusal::ExpiredCertificate, "its certificate has expired".into())
        }
        other => (Refusal::BadCertificate, format!("its certificate is not taken: {other}").into()),
    }
}

fn declined(alert: AlertDescription) -> Cow<'static, str> {
    match alert {
        AlertDescription::UnknownCA => {
            "it does not trust our certificate: it knows no authority that issued it".into()
        }
        AlertDescription::CertificateExpired => "it says that our certificate has expired".into(),
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it does not take our certificate; is it for the name by which we are called?".into()
        }
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.2 or newer".into(),
        other => format!("it ended the handshake: {other:?}").into(),
    }
}

fn begins_like_tls(first: &[u8]) -> bool {
    matches!(first, [0x14..=0x18, 3, ..] | [0x14..=0x18])
}

/// The hello of SSL 2, in which clients of the last century also offered newer versions.
fn begins_like_ssl2(first: &[u8]) -> bool {
    matches!(first, [0x80..=0xff, _, 1, ..])
}

/// A ClientHello whose own version, which newer ones leave at TLS 1.2, is older.
fn is_old_hello(first: &[u8]) -> bool {
    matches!(first, [0x16, 3, _, _, _, 1, _, _, _, 3, 0..=2])
}
