//! Certificates, keys and trust: from the files that somebody named to what a handshake needs, and from a handshake
//! that failed to the reason in words.
//!
//! | module | what lives there |
//! |---|---|
//! | [`listener`] | what a listener proves, and whom it asks to prove something |
//! | [`client`] | whom a client trusts, and what it proves |
//! | [`certificate`] | what a certificate says |
//! | [`refusal`] | why a listener ended a handshake |
//! | [`failure`] | why a client's handshake failed |
//! | [`error`] | what is wrong with the files |
//!
//! TLS 1.3 and 1.2, nothing older. No socket is opened here and no clock is read, but for the one inside the
//! verification of certificates.

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

/// What is spoken, the newest first.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// The cryptography: named here, because a default of the process would be whatever another library chose.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
