//! TLS configuration of a listener: its certificate, and whether clients need one.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::Ticketer;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use crate::certificate::Certificate;
use crate::error::TlsConfigError;
use crate::{VERSIONS, files, provider};

/// TLS settings of a listener. Files are in PEM format.
///
/// ```no_run
/// use mqcore_tls::listener::{ClientCertificates, ListenerTls};
///
/// let tls = ListenerTls {
///     cert: "/etc/mqcore/server.pem".into(),
///     key: Some("/etc/mqcore/server.key".into()),
///     client_ca: None,
///     client_cert: ClientCertificates::default(),
/// };
/// let loaded = tls.load(&[])?;
/// println!("{} expires at {}", loaded.certificate.subject, loaded.not_after);
/// # Ok::<(), mqcore_tls::error::TlsConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTls {
    /// File with the listener's certificate, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// File with the private key. Default: the same file.
    pub key: Option<PathBuf>,
    /// File with the authorities of client certificates. Default: none, so clients are not asked for a certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether a client certificate is required. No effect without `client_ca`.
    pub client_cert: ClientCertificates,
}

/// Whether clients must have a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// Clients without a certificate are rejected. The default.
    #[default]
    Required,
    /// Clients may omit the certificate, but a certificate must be valid.
    Optional,
}

impl ClientCertificates {
    /// Parses `required` or `optional`.
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "required" => Some(Self::Required),
            "optional" => Some(Self::Optional),
            _ => None,
        }
    }

    /// Returns the text that [`ClientCertificates::from_text`] parses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
        }
    }
}

/// Loaded TLS settings of a listener.
#[derive(Debug, Clone)]
pub struct LoadedListenerTls {
    /// Configuration for handshakes.
    pub config: Arc<ServerConfig>,
    /// The listener's certificate.
    pub certificate: Certificate,
    /// Last second at which the whole chain is valid, in Unix time.
    pub not_after: u64,
    /// Problems that do not prevent operation but should be fixed.
    pub warnings: Vec<TlsWarning>,
}

/// A problem that does not prevent operation but should be fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsWarning {
    /// The key file is readable by all users of the machine.
    KeyOpenToOthers(PathBuf),
}

impl fmt::Display for TlsWarning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyOpenToOthers(path) => {
                let path = path.display();
                write!(
                    formatter,
                    "the key {path} is readable by all users of this machine; run chmod 600 {path}"
                )
            }
        }
    }
}

impl ListenerTls {
    /// Loads the files. `protocols` are names for ALPN in order of preference, normally none.
    ///
    /// # Errors
    ///
    /// [`TlsConfigError`] names the file and the problem.
    pub fn load(&self, protocols: &[&[u8]]) -> Result<LoadedListenerTls, TlsConfigError> {
        let chain = files::certificates("certificate", &self.cert)?;
        let (certificate, not_after) = self.describe(&chain)?;
        let key_path = self.key.as_ref().unwrap_or(&self.cert);
        let key = files::key(key_path)?;
        let provider = provider();
        // `with_single_cert` below repeats this check. It is done here to distinguish an unusable key from one of another
        // certificate.
        let unusable =
            |error: Error| TlsConfigError::UnusableKey { path: key_path.clone(), why: error.to_string() };
        let signing = provider.key_provider.load_private_key(key.clone_key()).map_err(unusable)?;
        match CertifiedKey::new(chain.clone(), signing).keys_match() {
            // Unknown: some kinds of keys do not support the comparison.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(_) => {
                return Err(TlsConfigError::Mismatch {
                    certificate: self.cert.clone(),
                    key: key_path.clone(),
                });
            }
        }
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&VERSIONS)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let authorities = Arc::new(files::authorities("client authorities", path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider);
                let verifier = match self.client_cert {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                };
                let broken = |why: &dyn fmt::Display| TlsConfigError::Broken {
                    what: "client authorities",
                    path: path.clone(),
                    why: why.to_string(),
                };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| broken(&error))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key)?;
        // Clients keep the encrypted session tickets, so the listener stores no sessions. A new ticketer makes tickets issued
        // under the previous files invalid.
        config.ticketer = Ticketer::new()?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let warnings = if files::is_open_to_others(key_path) {
            vec![TlsWarning::KeyOpenToOthers(key_path.clone())]
        } else {
            Vec::new()
        };
        Ok(LoadedListenerTls { config: Arc::new(config), certificate, not_after, warnings })
    }

    /// Returns the first certificate, and the earliest expiry time in the chain.
    fn describe(
        &self,
        chain: &[rustls_pki_types::CertificateDer<'_>],
    ) -> Result<(Certificate, u64), TlsConfigError> {
        let mut own = None;
        let mut not_after = u64::MAX;
        for der in chain {
            let certificate = Certificate::read(der).map_err(|error| TlsConfigError::Broken {
                what: "certificate",
                path: self.cert.clone(),
                why: error.to_string(),
            })?;
            not_after = not_after.min(certificate.not_after);
            own.get_or_insert(certificate);
        }
        let missing = || TlsConfigError::NoCertificate { what: "certificate", path: self.cert.clone() };
        Ok((own.ok_or_else(missing)?, not_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_certificates_are_read_as_they_are_written_and_nothing_else_is_one() {
        for each in [ClientCertificates::Required, ClientCertificates::Optional] {
            assert_eq!(ClientCertificates::from_text(each.as_str()), Some(each));
        }
        for text in ["", "perhaps", "Required"] {
            assert_eq!(ClientCertificates::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn warning_of_an_open_key_says_which_file_and_what_to_do() {
        let warning = TlsWarning::KeyOpenToOthers("/etc/mq/key.pem".into()).to_string();
        assert!(warning.ends_with("run chmod 600 /etc/mq/key.pem"), "{warning}");
    }
}
