//! The content of a certificate: subject, names, fingerprint and validity.

use std::fmt::Write as _;

use ring::digest;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::der::asn1::OctetString;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// A parsed certificate that has not been verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Common name of the subject; empty if there is none.
    pub subject: String,
    /// Alternative names with a prefix for their type: `dns:host`, `email:a@b`, `uri:spiffe://x/y`, `ip:192.0.2.7`.
    pub names: Vec<String>,
    /// SHA-256 of the certificate, as 64 lower-case hexadecimal digits.
    pub fingerprint: String,
    /// First second of validity, in Unix time.
    pub not_before: u64,
    /// Last second of validity, in Unix time.
    pub not_after: u64,
}

/// The bytes are not a valid certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid X.509 certificate: {0}")]
pub struct InvalidCertificate(String);

impl Certificate {
    /// Parses a certificate in DER format.
    ///
    /// # Errors
    ///
    /// [`InvalidCertificate`] with the reason.
    pub fn read(der: &[u8]) -> Result<Self, InvalidCertificate> {
        // The lenient profile: verification happens elsewhere, and old certificates have unusual serial numbers.
        let parsed =
            CertificateInner::<Raw>::from_der(der).map_err(|error| InvalidCertificate(error.to_string()))?;
        let content = parsed.tbs_certificate();
        let names = match content.get_extension::<SubjectAltName>() {
            Ok(Some((_, names))) => names.0.iter().filter_map(spelled).collect(),
            Ok(None) => Vec::new(),
            Err(error) => return Err(InvalidCertificate(error.to_string())),
        };
        let subject = content.subject().common_name().ok().flatten();
        let validity = content.validity();
        Ok(Self {
            subject: subject.map(|name| name.value().into_owned()).unwrap_or_default(),
            names,
            fingerprint: hexadecimal(digest::digest(&digest::SHA256, der).as_ref()),
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Seconds until expiry at `now`, in Unix time; negative after expiry.
    pub fn expires_in(&self, now: u64) -> i64 {
        seconds_between(now, self.not_after)
    }
}

/// Returns the seconds from one time to another.
pub fn seconds_between(from: u64, to: u64) -> i64 {
    let cut = |moment: u64| i64::try_from(moment).unwrap_or(i64::MAX);
    cut(to) - cut(from)
}

/// Formats an alternative name with its type; `None` for types that are not supported.
fn spelled(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(host) => Some(format!("dns:{}", host.as_str())),
        GeneralName::Rfc822Name(mail) => Some(format!("email:{}", mail.as_str())),
        GeneralName::UniformResourceIdentifier(uri) => Some(format!("uri:{}", uri.as_str())),
        GeneralName::IpAddress(bytes) => address(bytes).map(|address| format!("ip:{address}")),
        _ => None,
    }
}

fn address(bytes: &OctetString) -> Option<core::net::IpAddr> {
    let bytes = bytes.as_bytes();
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(Into::into),
        _ => <[u8; 16]>::try_from(bytes).ok().map(Into::into),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    #[test]
    fn subject_names_fingerprint_and_validity_are_read() {
        let mut params =
            CertificateParams::new(["worker.example".to_owned(), "192.0.2.7".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "wörker");
        params.subject_alt_names.push(SanType::Rfc822Name("ann@example.org".try_into().unwrap()));
        params.subject_alt_names.push(SanType::URI("spiffe://shop/worker".try_into().unwrap()));
        params.not_before = date_time_ymd(2001, 9, 9);
        params.not_after = date_time_ymd(2033, 5, 18);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let read = Certificate::read(certificate.der()).unwrap();
        assert_eq!(read.subject, "wörker");
        let names =
            ["dns:worker.example", "ip:192.0.2.7", "email:ann@example.org", "uri:spiffe://shop/worker"];
        assert_eq!(read.names, names);
        assert_eq!(read.fingerprint.len(), 64);
        assert_eq!(read.not_before, 1_000_000_000 - 6400);
        assert_eq!(read.expires_in(read.not_after - 5), 5);
        assert_eq!(read.expires_in(read.not_after + 5), -5);
    }

    #[test]
    fn malformed_certificates_are_rejected_without_a_panic() {
        let key = KeyPair::generate().unwrap();
        let sound = CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        let der = sound.der();
        for cut in 0..der.len() {
            assert!(Certificate::read(&der[..cut]).is_err(), "{cut} bytes of a certificate");
            let mut flipped = der.to_vec();
            flipped[cut] ^= 0x55;
            // Some bytes may have any value; none may cause a panic.
            let _ = Certificate::read(&flipped);
        }
    }
}
