//! What a listener proves, and whom it asks to prove something.

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

/// The files of a listener, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerTls {
    /// Its certificate, and behind it those that lead to an authority.
    pub cert: PathBuf,
    /// The private key. Default: in the same file.
    pub key: Option<PathBuf>,
    /// The authorities whose certificates clients may show. Default none: clients are not asked for any.
    pub client_ca: Option<PathBuf>,
    /// Whether clients have to. Without effect if there is no `client_ca`.
    pub client_cert: ClientCertificates,
}

/// Whether clients have to show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// Without one they are refused. The default.
    #[default]
    Required,
    /// They are asked for one; what they show has to be sound.
    Optional,
}

impl ClientCertificates {
    /// Reads `required` or `optional`.
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "required" => Some(Self::Required),
            "optional" => Some(Self::Optional),
            _ => None,
        }
    }

    /// The word that [`ClientCertificates::from_text`] reads.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
        }
    }
}

/// What was read from the files.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// For handshakes.
    pub config: Arc<ServerConfig>,
    /// The listener's own certificate.
    pub certificate: Certificate,
    /// The last second at which the whole chain is valid, Unix time.
    pub not_after: u64,
    /// What works and should not stay so.
    pub cautions: Vec<Caution>,
}

/// Something that works and should not stay so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caution {
    /// Everybody on the machine may read the key.
    KeyOpenToOthers(PathBuf),
}

impl fmt::Display for Caution {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyOpenToOthers(path) => {
                let path = path.display();
                write!(formatter, "everybody on this machine may read the key {path}; chmod 600 {path}")
            }
        }
    }
}

impl ListenerTls {
    /// Reads the files. `protocols` are names for ALPN, the best first: none as a rule.
    ///
    /// # Errors
    ///
    /// [`TlsConfigError`] names the file and what is wrong with it.
    pub fn load(&self, protocols: &[&[u8]]) -> Result<Loaded, TlsConfigError> {
        let chain = files::certificates("certificate", &self.cert)?;
        let (certificate, not_after) = self.describe(&chain)?;
        let key_path = self.key.as_ref().unwrap_or(&self.cert);
        let key = files::key(key_path)?;
        let provider = provider();
        // Once more what `with_single_cert` does below, to tell a useless key from one of another certificate.
        let unusable =
            |error: Error| TlsConfigError::UnusableKey { path: key_path.clone(), why: error.to_string() };
        let signing = provider.key_provider.load_private_key(key.clone_key()).map_err(unusable)?;
        match CertifiedKey::new(chain.clone(), signing).keys_match() {
            // Unknown: some keys cannot tell.
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
        // What lets a client take up an earlier session travels with the client, sealed: nothing is kept here, and
        // nothing that was agreed under other files is taken up under these.
        config.ticketer = Ticketer::new()?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let cautions = if files::is_open_to_others(key_path) {
            vec![Caution::KeyOpenToOthers(key_path.clone())]
        } else {
            Vec::new()
        };
        Ok(Loaded { config: Arc::new(config), certificate, not_after, cautions })
    }

    /// The first certificate, and the moment at which the first of all expires.
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
