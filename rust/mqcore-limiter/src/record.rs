//! The binary format of a persisted entry. All numbers are little-endian.
//!
//! ```text
//! kind 1, unit 1, bits 1, length of the key 1, sequence 8, deadline 8, key, content
//!    content   00 counter: quota 8
//!              01 buffer: its bytes
//!              02 sliding window: start 8, period 8, limit 8, current 8, previous 8
//!              03 bucket: at 8, period 8, limit 8, missing 16
//! ```

use crate::change::{PersistentContent, PersistentEntry};
use crate::time::Nanos;

/// Size of the part before the key in bytes.
const HEAD_BYTES: usize = 20;

const COUNTER: u8 = 0;
const BUFFER: u8 = 1;
const SLIDING: u8 = 2;
const BUCKET: u8 = 3;

/// Why bytes are not a valid entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryDecodeError {
    /// The length does not match the content.
    #[error("a stored counter or buffer has an invalid length of {bytes} bytes")]
    Length {
        /// Length in bytes.
        bytes: usize,
    },
    /// The kind is unknown: a newer version wrote the entry, or it is damaged.
    #[error("a stored counter or buffer has the kind {kind}, which this version does not support")]
    Kind {
        /// Kind byte.
        kind: u8,
    },
}

/// Appends the encoded entry to `bytes`.
pub fn encode(kept: &PersistentEntry, bytes: &mut Vec<u8>) {
    let (kind, bits) = match &kept.content {
        PersistentContent::Counter { bits, .. } => (COUNTER, *bits),
        PersistentContent::Buffer(_) => (BUFFER, 0),
        PersistentContent::Sliding { .. } => (SLIDING, 0),
        PersistentContent::Bucket { .. } => (BUCKET, 0),
    };
    // Keys have at most 255 bytes.
    bytes.extend_from_slice(&[kind, kept.unit, bits, kept.key.len() as u8]);
    bytes.extend_from_slice(&kept.sequence.to_le_bytes());
    bytes.extend_from_slice(&kept.deadline.0.to_le_bytes());
    bytes.extend_from_slice(&kept.key);
    let mut numbers = |numbers: &[u64]| {
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    };
    match &kept.content {
        PersistentContent::Counter { quota, .. } => numbers(&[*quota]),
        PersistentContent::Buffer(value) => bytes.extend_from_slice(value),
        PersistentContent::Sliding { start, period, limit, current, previous } => {
            numbers(&[start.0, *period, *limit, *current, *previous]);
        }
        PersistentContent::Bucket { at, period, limit, missing } => {
            numbers(&[at.0, *period, *limit, *missing as u64, (*missing >> 64) as u64]);
        }
    }
}

/// Returns the sequence of an entry without decoding the rest.
///
/// # Errors
/// [`EntryDecodeError::Length`] if the bytes are too short.
pub fn sequence(bytes: &[u8]) -> Result<u64, EntryDecodeError> {
    number(bytes, 4).ok_or(EntryDecodeError::Length { bytes: bytes.len() })
}

/// Decodes an entry.
///
/// # Errors
/// [`EntryDecodeError`] if the bytes are not exactly one entry as written by [`encode`].
pub fn decode(bytes: &[u8]) -> Result<PersistentEntry, EntryDecodeError> {
    let wrong = EntryDecodeError::Length { bytes: bytes.len() };
    let [kind, unit, bits, key_bytes, ..] = *bytes else { return Err(wrong) };
    let (sequence, deadline) = (number(bytes, 4).ok_or(wrong)?, number(bytes, 12).ok_or(wrong)?);
    let rest = bytes.get(HEAD_BYTES..).ok_or(wrong)?;
    let (key, content) = rest.split_at_checked(usize::from(key_bytes)).ok_or(wrong)?;
    let of = |index: usize, count: usize| {
        if content.len() == 8 * count { number(content, 8 * index).ok_or(wrong) } else { Err(wrong) }
    };
    let content = match kind {
        COUNTER => PersistentContent::Counter { quota: of(0, 1)?, bits },
        BUFFER => PersistentContent::Buffer(content.into()),
        SLIDING => PersistentContent::Sliding {
            start: Nanos(of(0, 5)?),
            period: of(1, 5)?,
            limit: of(2, 5)?,
            current: of(3, 5)?,
            previous: of(4, 5)?,
        },
        BUCKET => PersistentContent::Bucket {
            at: Nanos(of(0, 5)?),
            period: of(1, 5)?,
            limit: of(2, 5)?,
            missing: u128::from(of(3, 5)?) | u128::from(of(4, 5)?) << 64,
        },
        kind => return Err(EntryDecodeError::Kind { kind }),
    };
    Ok(PersistentEntry { sequence, key: key.into(), unit, deadline: Nanos(deadline), content })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contents() -> impl Strategy<Value = PersistentContent> {
        let numbers = any::<[u64; 5]>();
        prop_oneof![
            (any::<u64>(), any::<u8>()).prop_map(|(quota, bits)| PersistentContent::Counter { quota, bits }),
            proptest::collection::vec(any::<u8>(), 0..40)
                .prop_map(|value| PersistentContent::Buffer(value.into())),
            numbers.prop_map(|[start, period, limit, current, previous]| PersistentContent::Sliding {
                start: Nanos(start),
                period,
                limit,
                current,
                previous
            }),
            (any::<[u64; 3]>(), any::<u128>()).prop_map(|([at, period, limit], missing)| {
                PersistentContent::Bucket { at: Nanos(at), period, limit, missing }
            }),
        ]
    }

    proptest! {
        #[test]
        fn entries_survive_a_round_trip_and_truncated_ones_are_rejected(
            key in proptest::collection::vec(any::<u8>(), 0..=255),
            (numbers, unit) in (any::<[u64; 2]>(), any::<u8>()),
            content in contents(),
        ) {
            let kept = PersistentEntry { sequence: numbers[0], key: key.into(), unit, deadline: Nanos(numbers[1]), content };
            let mut bytes = Vec::new();
            encode(&kept, &mut bytes);
            prop_assert_eq!(sequence(&bytes), Ok(kept.sequence));
            let is_buffer = matches!(kept.content, PersistentContent::Buffer(_));
            prop_assert_eq!(decode(&bytes), Ok(kept));
            for end in 0..bytes.len() {
                // A truncated buffer is a shorter buffer. The journal's checksum detects that.
                prop_assert!(is_buffer || decode(&bytes[..end]).is_err());
            }
            bytes[0] = 9;
            prop_assert_eq!(decode(&bytes), Err(EntryDecodeError::Kind { kind: 9 }));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn remaining_time_is_preserved_on_a_clock_that_was_set_back() {
        let content = PersistentContent::Bucket { at: Nanos(70), period: 5, limit: 6, missing: 7 };
        let kept =
            PersistentEntry { sequence: 1, key: b"k"[..].into(), unit: 1, deadline: Nanos(100), content };
        let earlier = kept.clone().earlier(60);
        assert_eq!(earlier.deadline, Nanos(40));
        assert!(matches!(earlier.content, PersistentContent::Bucket { at: Nanos(10), .. }));
        let never = PersistentEntry { deadline: Nanos::NEVER, ..kept };
        assert_eq!(never.earlier(60).deadline, Nanos::NEVER);
    }
}
