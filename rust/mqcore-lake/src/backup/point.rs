//! The content of a restore point, and the pieces that the next one keeps.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::LakeError;

/// Identifies the format. Another format has another number.
pub const SCHEMA: &str = "mqcore.restore-point/1";
/// Maximum size of a piece before compression. Smaller ones are merged while their file grows.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Maximum size of a piece that is read, also of other versions.
const READ_PIECE_BYTES: u64 = 64 << 20;
/// Maximum size of the JSON text of a restore point.
const JSON_BYTES_MAX: usize = 1 << 30;
/// A fast level: most bytes are message bodies, and the store costs more than the level saves.
pub(crate) const ZSTD_LEVEL: i32 = 1;

/// The files of a data directory at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestorePoint {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the broker that wrote it.
    pub version: String,
    /// Its place in the order of restore points, from 1.
    pub number: u64,
    /// The writer: one run of a broker.
    pub writer: String,
    /// Time of the moment in Unix milliseconds; never before that of the restore point before it.
    pub created_ms: u64,
    /// Number of shards.
    pub shards: usize,
    /// Number of saved messages.
    pub messages: Option<u64>,
    /// Content of the file `format`.
    pub format: String,
    /// All other files.
    pub files: Vec<PointFile>,
}

/// A file of a restore point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointFile {
    /// Name relative to the data directory, with `/`.
    pub name: String,
    /// Identity of the journal it belongs to. Files of other journals have nothing in common, whatever their name.
    pub journal: u64,
    /// Number of bytes that the pieces have together.
    pub bytes: u64,
    /// Length of the file. Everything after the pieces is zero.
    pub length: u64,
    /// Its content, in order.
    pub pieces: Vec<FilePiece>,
}

/// Consecutive bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePiece {
    /// Name of the data object.
    pub object: String,
    /// Place in the data object.
    pub at: u64,
    /// Number of compressed bytes.
    pub stored: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes, as hexadecimal digits.
    pub sha256: String,
}

impl RestorePoint {
    /// Number of bytes of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Encodes it as an object.
    pub(crate) fn encode(&self) -> Result<Bytes, LakeError> {
        let compressed = serde_json::to_vec(self)
            .map_err(std::io::Error::from)
            .and_then(|json| zstd::bulk::compress(&json, ZSTD_LEVEL));
        Ok(compressed.map_err(|error| LakeError::restore_point(self.number, error))?.into())
    }

    /// Decodes an object.
    pub(crate) fn decode(number: u64, object: &[u8]) -> Result<Self, LakeError> {
        let failed = |why: String| LakeError::RestorePoint { number, why };
        let json =
            zstd::bulk::decompress(object, JSON_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
        let schema: Schema = serde_json::from_slice(&json).map_err(|error| failed(error.to_string()))?;
        if schema.schema != SCHEMA {
            let Schema { schema, version } = schema;
            return Err(failed(format!(
                "mqcore {version} wrote it as {schema}; this version reads {SCHEMA}; use a newer mqcore"
            )));
        }
        let point: Self = serde_json::from_slice(&json).map_err(|error| failed(error.to_string()))?;
        if let Some(file) = point.files.iter().find(|file| !file.is_plausible()) {
            return Err(failed(format!("the lengths of {} contradict each other", file.name)));
        }
        Ok(point)
    }
}

impl PointFile {
    fn is_plausible(&self) -> bool {
        let mut bytes = 0_u64;
        let are_pieces = self.pieces.iter().all(|piece| {
            bytes = bytes.saturating_add(piece.bytes);
            piece.bytes <= READ_PIECE_BYTES && piece.at.checked_add(piece.stored).is_some()
        });
        are_pieces && bytes == self.bytes && self.bytes <= self.length
    }
}

/// Fields that every version of the format has.
#[derive(Deserialize)]
struct Schema {
    schema: String,
    version: String,
}

/// Returns how many pieces the next restore point keeps of a file that has grown to `bytes`.
///
/// Small pieces at the end are replaced together with what is new, if that is at least as much. A file that grows a little
/// at a time has therefore few small pieces (their number grows with the logarithm of its size), and each byte is uploaded
/// a few times at most.
pub(crate) fn kept(pieces: &[FilePiece], bytes: u64) -> usize {
    let (mut kept, mut end) = (0, 0);
    for piece in pieces {
        if end + piece.bytes > bytes {
            break;
        }
        end += piece.bytes;
        kept += 1;
    }
    if end == bytes {
        return kept;
    }
    while let Some(last) = pieces[..kept].last()
        && last.bytes < PIECE_BYTES
        && last.bytes <= bytes - end
    {
        end -= last.bytes;
        kept -= 1;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64) -> FilePiece {
        FilePiece { object: "data/1".into(), at: 0, stored: bytes, bytes, sha256: String::new() }
    }

    /// Lets a file grow as the writer does. Returns the bytes uploaded, and the number of pieces at the end.
    fn grow(steps: u64, step: u64) -> (u64, usize) {
        let (mut pieces, mut uploaded): (Vec<FilePiece>, u64) = (Vec::new(), 0);
        for bytes in (1..=steps).map(|number| number * step) {
            pieces.truncate(kept(&pieces, bytes));
            let mut left = bytes - pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            uploaded += left;
            while left > 0 {
                pieces.push(piece(left.min(PIECE_BYTES)));
                left -= left.min(PIECE_BYTES);
            }
            assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), bytes);
        }
        (uploaded, pieces.len())
    }

    #[test]
    fn a_file_that_grows_slowly_has_few_pieces_and_uploads_each_byte_a_few_times() {
        for (steps, step) in [(1_000, 100), (10_000, 6_000), (64, 1 << 20), (3, 10 << 20), (1, 1)] {
            let (uploaded, pieces) = grow(steps, step);
            let bytes = steps * step;
            let doublings = u64::from((PIECE_BYTES.min(bytes) / step).max(1).ilog2()) + 2;
            assert!(uploaded <= bytes * doublings, "{steps} x {step}: {uploaded} of {bytes}");
            let most = bytes / PIECE_BYTES + doublings;
            assert!(pieces as u64 <= most, "{steps} x {step}: {pieces} pieces");
        }
    }

    #[test]
    fn a_file_that_did_not_grow_keeps_all_pieces() {
        let pieces = [piece(100), piece(50)];
        assert_eq!(kept(&pieces, 150), 2);
    }

    #[test]
    fn a_file_that_became_shorter_keeps_the_pieces_before_its_end() {
        let pieces = [piece(PIECE_BYTES), piece(PIECE_BYTES), piece(50)];
        assert_eq!(kept(&pieces, PIECE_BYTES + 10), 1);
        assert_eq!(kept(&pieces, PIECE_BYTES - 10), 0);
    }
}
