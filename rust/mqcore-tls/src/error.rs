//! What is wrong with the certificates and keys that somebody named. Each text says which file, and what to do.

use std::io;
use std::path::PathBuf;

/// Why files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The system does not give the file.
    #[error("cannot read the {what} {}: {source}", path.display())]
    Unreadable {
        /// What it should have been: `certificate`, `key`, `client authorities`, `authorities`.
        what: &'static str,
        /// Where it should have been.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file has no certificate in it.
    #[error("there is no certificate in the {what} {}: expected PEM, -----BEGIN CERTIFICATE-----", path.display())]
    NoCertificate {
        /// What it should have been.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The file has no private key in it.
    #[error("there is no private key in {}: expected PEM, -----BEGIN PRIVATE KEY-----", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The private key is locked.
    #[error(
        "the key {} is encrypted with a password, and nobody could be asked for it; decrypt it with \
         'openssl pkey' and protect the file instead",
        path.display()
    )]
    EncryptedKey {
        /// The file.
        path: PathBuf,
    },
    /// The PEM is broken.
    #[error("the {what} {} is broken: {why}", path.display())]
    Broken {
        /// What it should have been.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key is of a sort that is not supported.
    #[error("the key {} cannot be used: {why}; RSA of 2048 bits or more, P-256, P-384 and Ed25519 can", path.display())]
    UnusableKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Key and certificate are not of one pair.
    #[error(
        "the key {} does not belong to the first certificate in {}; a chain begins with the certificate of the key",
        key.display(),
        certificate.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// A client has a certificate without a key, or the other way round.
    #[error("a certificate and its key belong together: {missing} is missing")]
    Incomplete {
        /// `cert` or `key`.
        missing: &'static str,
    },
    /// The system has no list of authorities.
    #[error("this system has no list of trusted authorities ({why}); name a file with 'ca'")]
    NoSystemAuthorities {
        /// What was found instead.
        why: String,
    },
    /// A server name that is none.
    #[error("{name:?} is no name that a certificate could be for; give a host name or an address")]
    BadServerName {
        /// What was given.
        name: String,
    },
    /// The library refuses the combination.
    #[error("TLS cannot be set up so: {0}")]
    Refused(#[from] rustls::Error),
}
