//! Why a server did not start.

use std::io;
use std::net::SocketAddr;

use mqcore_tls::error::TlsConfigError;

use mqcore_lake::error::LakeError;

use crate::authority::store::StoreError;
use crate::config::error::ConfigError;
use crate::storage::data_dir::DataDirError;

/// Why a server did not start. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener on a non-loopback address while no login is required.
    #[error(
        "cannot listen on {address}: it is not a loopback address, and clients need no login; create a user (mqcore user add) \
         or a token (mqcore token create), listen on 127.0.0.1, or set allow_remote if every host in the network is trusted"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// Users and tokens cannot be read, or the audit log cannot be written.
    #[error("cannot load users and tokens: {0}")]
    Authority(#[from] StoreError),
    /// Certificates and keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Data(#[from] DataDirError),
    /// The system cannot start a thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The error of the system.
        source: io::Error,
    },
    /// The URL of the archive or of the backup, or one of its options, is invalid.
    #[error(transparent)]
    ObjectStore {
        /// Reason.
        source: LakeError,
    },
    /// An address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl StartError {
    /// Whether a setting is invalid, so that a start with the same settings fails again.
    #[must_use]
    pub fn is_invalid_setting(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::NotLoopback { .. }
                | Self::Tls(_)
                | Self::Authority(_)
                | Self::ObjectStore { source: LakeError::Url { .. } }
        )
    }
}
