//! TLS configuration of a client: trusted authorities and the client's own certificate.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::error::TlsConfigError;
use crate::{VERSIONS, files, provider};

/// TLS settings of a client. Files are in PEM format. The default trusts the system's authorities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTls {
    /// File with the trusted authorities. Default: the system's.
    pub ca: Option<PathBuf>,
    /// File with the client's certificate, followed by its intermediate certificates. Default: none.
    pub cert: Option<PathBuf>,
    /// File with the private key of `cert`. Default: the same file.
    pub key: Option<PathBuf>,
    /// Name that the server's certificate must contain. Default: the host of the address.
    pub server_name: Option<String>,
    /// Accepts any server certificate. Traffic is encrypted, but the client cannot detect an impostor. Default: false.
    pub dangerously_accept_any_certificate: bool,
}

/// Loaded TLS settings of a client. Clones share them, including the cache of TLS sessions.
#[derive(Debug, Clone)]
pub struct LoadedClientTls {
    /// Configuration for handshakes.
    pub config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// Loads the files. One call suffices for all connections of a client.
    ///
    /// # Errors
    ///
    /// [`TlsConfigError`] names the file and the problem.
    pub fn load(&self) -> Result<LoadedClientTls, TlsConfigError> {
        let provider = provider();
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&VERSIONS)?;
        let builder = if self.dangerously_accept_any_certificate {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        } else {
            let authorities = match &self.ca {
                Some(path) => files::authorities("authorities", path)?,
                None => system_authorities()?,
            };
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider);
            let refused = |why: &dyn std::fmt::Display| Error::General(why.to_string());
            builder.with_webpki_verifier(verifier.build().map_err(|error| refused(&error))?)
        };
        let config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (None, Some(_)) => return Err(TlsConfigError::Incomplete { missing: "cert" }),
            (Some(cert), key) => {
                let key_path = key.as_ref().unwrap_or(cert);
                let chain = files::certificates("certificate", cert)?;
                let key = files::key(key_path)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| match error {
                    Error::InconsistentKeys(_) => {
                        TlsConfigError::Mismatch { certificate: cert.clone(), key: key_path.clone() }
                    }
                    other => TlsConfigError::UnusableKey { path: key_path.clone(), why: other.to_string() },
                })?
            }
        };
        let server_name = self.server_name.as_deref().map(parse_server_name).transpose()?;
        Ok(LoadedClientTls { config: Arc::new(config), server_name })
    }
}

impl LoadedClientTls {
    /// Returns the name that the certificate of the server at `host` must contain.
    ///
    /// # Errors
    ///
    /// [`TlsConfigError::BadServerName`] if `host` cannot be such a name and no other name was configured.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, TlsConfigError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => parse_server_name(host),
        }
    }
}

fn parse_server_name(name: &str) -> Result<ServerName<'static>, TlsConfigError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsConfigError::BadServerName { name: name.into() })
}

fn system_authorities() -> Result<RootCertStore, TlsConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (added, _unusable) = store.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map_or_else(|| "the list is empty".to_owned(), ToString::to_string);
        return Err(TlsConfigError::NoSystemAuthorities { why });
    }
    Ok(store)
}

/// Accepts every certificate, and only verifies that the server has its private key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
