//! The state of a table in a catalog.

use bytes::Bytes;
use iceberg::spec::TableMetadata;

use crate::error::LakeError;

/// The newest metadata of a table.
#[derive(Debug, Clone)]
pub(crate) struct Versioned {
    /// Number of the metadata file, if its name contains one. Each commit increments it.
    pub(crate) version: u64,
    /// URL of the metadata file.
    pub(crate) location: String,
    pub(crate) metadata: TableMetadata,
}

impl Versioned {
    pub(super) fn decoded(version: u64, location: String, json: &[u8]) -> Result<Self, LakeError> {
        match serde_json::from_slice(json) {
            Ok(metadata) => Ok(Self { version, location, metadata }),
            Err(error) => Err(LakeError::Table { location, why: error.to_string() }),
        }
    }

    pub(super) fn encoded(&self) -> Result<Bytes, LakeError> {
        let failed = |error: serde_json::Error| LakeError::Table {
            location: self.location.clone(),
            why: error.to_string(),
        };
        serde_json::to_vec(&self.metadata).map(Bytes::from).map_err(failed)
    }
}
