//! Errors in configured certificates and keys. Each message names the file and the next step.

use std::io;
use std::path::PathBuf;

/// Why files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The file cannot be read.
    #[error("cannot read the {what} {}: {source}", path.display())]
    Unreadable {
        /// Expected content: `certificate`, `key`, `client authorities` or `authorities`.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file contains no certificate.
    #[error("no certificate in the {what} {}: expected PEM with -----BEGIN CERTIFICATE-----", path.display())]
    NoCertificate {
        /// Expected content.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// The file contains no private key.
    #[error("no private key in {}: expected PEM with -----BEGIN PRIVATE KEY-----", path.display())]
    NoKey {
        /// Path of the file.
        path: PathBuf,
    },
    /// The private key is encrypted.
    #[error(
        "the key {} is encrypted with a password, which the broker cannot ask for; decrypt it with \
         'openssl pkey' and protect the file instead",
        path.display()
    )]
    EncryptedKey {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is malformed.
    #[error("the {what} {} is malformed: {why}", path.display())]
    Broken {
        /// Expected content.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The type of key is not supported.
    #[error("unsupported key {}: {why}; use RSA of at least 2048 bits, P-256, P-384 or Ed25519", path.display())]
    UnusableKey {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The key does not belong to the certificate.
    #[error(
        "the key {} does not belong to the first certificate in {}; a chain must begin with the certificate of the key",
        key.display(),
        certificate.display()
    )]
    Mismatch {
        /// File with the certificate.
        certificate: PathBuf,
        /// File with the key.
        key: PathBuf,
    },
    /// A certificate without a key, or a key without a certificate.
    #[error("a client certificate needs both a certificate and a key: '{missing}' is missing")]
    Incomplete {
        /// Missing option: `cert` or `key`.
        missing: &'static str,
    },
    /// The system has no trusted authorities.
    #[error("the system has no trusted authorities ({why}); specify a file with 'ca'")]
    NoSystemAuthorities {
        /// Reason.
        why: String,
    },
    /// The server name is invalid.
    #[error("{name:?} cannot be the name in a certificate; specify a host name or an IP address")]
    BadServerName {
        /// Name as given.
        name: String,
    },
    /// The TLS library rejected the configuration.
    #[error("invalid TLS configuration: {0}")]
    Refused(#[from] rustls::Error),
}
