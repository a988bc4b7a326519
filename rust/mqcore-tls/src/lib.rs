//! TLS configuration: loads certificates, keys and trusted authorities from files, and explains failed handshakes.
//!
//! | module | content |
//! |---|---|
//! | [`listener`] | settings of a listener: its certificate, and client certificates |
//! | [`client`] | settings of a client: trusted authorities, and its certificate |
//! | [`certificate`] | content of a certificate |
//! | [`refusal`] | why a listener rejected a handshake |
//! | [`failure`] | why a client's handshake failed |
//! | [`error`] | errors in the files |
//!
//! TLS 1.3 and 1.2 are supported. The crate opens no sockets, and reads no clock except during certificate verification.

pub mod certificate;
pub mod client;
pub mod error;
pub mod failure;
pub mod listener;
pub mod refusal;

mod files;

use std::sync::Arc;

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;

/// Supported TLS versions, newest first.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// The cryptography provider. It is explicit because another library may set the process-wide default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
