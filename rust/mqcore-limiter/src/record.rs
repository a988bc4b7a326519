//! An entry as bytes: what persistence writes down of it. All numbers are little endian.
//!
//! ```text
//! kind 1, unit 1, bits 1, length of the key 1, sequence 8, deadline 8, key, content
//!    content   00 counter: quota 8
//!              01 buffer: its bytes
//!              02 sliding window: start 8, period 8, limit 8, current 8, previous 8
//!              03 bucket: at 8, period 8, limit 8, missing 16
//! ```

use crate::change::{Content, Kept};
use crate::time::Nanos;

/// Bytes in front of the key.
const HEAD_BYTES: usize = 20;

const COUNTER: u8 = 0;
const BUFFER: u8 = 1;
const SLIDING: u8 = 2;
const BUCKET: u8 = 3;

/// Bytes that are no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There are fewer or more of them than the entry has.
    #[error("a kept counter or buffer has {bytes} bytes, which cannot be")]
    Length {
        /// How many there are.
        bytes: usize,
    },
    /// A later version wrote it, or nobody.
    #[error("a kept entry is of kind {kind}, which this version does not know")]
    Kind {
        /// The first byte.
        kind: u8,
    },
}

/// Appends the bytes of an entry.
pub fn encode(kept: &Kept, bytes: &mut Vec<u8>) {
    let (kind, bits) = match &kept.content {
        Content::Counter { bits, .. } => (COUNTER, *bits),
        Content::Buffer(_) => (BUFFER, 0),
        Content::Sliding { .. } => (SLIDING, 0),
        Content::Bucket { .. } => (BUCKET, 0),
    };
    // Keys have 255 bytes at most.
    bytes.extend_from_slice(&[kind, kept.unit, bits, kept.key.len() as u8]);
    bytes.extend_from_slice(&kept.sequence.to_le_bytes());
    bytes.extend_from_slice(&kept.deadline.0.to_le_bytes());
    bytes.extend_from_slice(&kept.key);
    let mut numbers = |numbers: &[u64]| {
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    };
    match &kept.content {
        Content::Counter { quota, .. } => numbers(&[*quota]),
        Content::Buffer(value) => bytes.extend_from_slice(value),
        Content::Sliding { start, period, limit, current, previous } => {
            numbers(&[start.0, *period, *limit, *current, *previous]);
        }
        Content::Bucket { at, period, limit, missing } => {
            numbers(&[at.0, *period, *limit, *missing as u64, (*missing >> 64) as u64]);
        }
    }
}

/// The number of an entry, without reading the rest.
///
/// # Errors
/// [`RecordError::Length`].
pub fn sequence(bytes: &[u8]) -> Result<u64, RecordError> {
    number(bytes, 4).ok_or(RecordError::Length { bytes: bytes.len() })
}

/// Reads what [`encode`] wrote, all of it.
///
/// # Errors
/// [`RecordError`] for anything else.
pub fn decode(bytes: &[u8]) -> Result<Kept, RecordError> {
    let wrong = RecordError::Length { bytes: bytes.len() };
    let [kind, unit, bits, key_bytes, ..] = *bytes else { return Err(wrong) };
    let (sequence, deadline) = (number(bytes, 4).ok_or(wrong)?, number(bytes, 12).ok_or(wrong)?);
    let rest = bytes.get(HEAD_BYTES..).ok_or(wrong)?;
    let (key, content) = rest.split_at_checked(usize::from(key_bytes)).ok_or(wrong)?;
    let of = |index: usize, count: usize| {
        if content.len() == 8 * count { number(content, 8 * index).ok_or(wrong) } else { Err(wrong) }
    };
    let content = match kind {
        COUNTER => Content::Counter { quota: of(0, 1)?, bits },
        BUFFER => Content::Buffer(content.into()),
        SLIDING => Content::Sliding {
            start: Nanos(of(0, 5)?),
            period: of(1, 5)?,
            limit: of(2, 5)?,
            current: of(3, 5)?,
            previous: of(4, 5)?,
        },
        BUCKET => Content::Bucket {
            at: Nanos(of(0, 5)?),
            period: of(1, 5)?,
            limit: of(2, 5)?,
            missing: u128::from(of(3, 5)?) | u128::from(of(4, 5)?) << 64,
        },
        kind => return Err(RecordError::Kind { kind }),
    };
    Ok(Kept { sequence, key: key.into(), unit, deadline: Nanos(deadline), content })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contents() -> impl Strategy<Value = Content> {
        let numbers = any::<[u64; 5]>();
        prop_oneof![
            (any::<u64>(), any::<u8>()).prop_map(|(quota, bits)| Content::Counter { quota, bits }),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(|value| Content::Buffer(value.into())),
            numbers.prop_map(|[start, period, limit, current, previous]| Content::Sliding {
                start: Nanos(start),
                period,
                limit,
                current,
                previous
            }),
            (any::<[u64; 3]>(), any::<u128>()).prop_map(|([at, period, limit], missing)| Content::Bucket {
                at: Nanos(at),
                period,
                limit,
                missing
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_entry_comes_back_as_it_was_and_no_part_of_it_is_one(
            key in proptest::collection::vec(any::<u8>(), 0..=255),
            (numbers, unit) in (any::<[u64; 2]>(), any::<u8>()),
            content in contents(),
        ) {
            let kept = Kept { sequence: numbers[0], key: key.into(), unit, deadline: Nanos(numbers[1]), content };
            let mut bytes = Vec::new();
            encode(&kept, &mut bytes);
            prop_assert_eq!(sequence(&bytes), Ok(kept.sequence));
            let is_buffer = matches!(kept.content, Content::Buffer(_));
            prop_assert_eq!(decode(&bytes), Ok(kept));
            for end in 0..bytes.len() {
                // A buffer that was cut is a shorter buffer: the journal's checksum tells them apart.
                prop_assert!(is_buffer || decode(&bytes[..end]).is_err());
            }
            bytes[0] = 9;
            prop_assert_eq!(decode(&bytes), Err(RecordError::Kind { kind: 9 }));
        }

        #[test]
        fn bytes_that_nobody_wrote_are_an_error_and_not_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn on_a_clock_that_was_set_back_what_is_left_stays_as_long() {
        let content = Content::Bucket { at: Nanos(70), period: 5, limit: 6, missing: 7 };
        let kept = Kept { sequence: 1, key: b"k"[..].into(), unit: 1, deadline: Nanos(100), content };
        let earlier = kept.clone().earlier(60);
        assert_eq!(earlier.deadline, Nanos(40));
        assert!(matches!(earlier.content, Content::Bucket { at: Nanos(10), .. }));
        let never = Kept { deadline: Nanos::NEVER, ..kept };
        assert_eq!(never.earlier(60).deadline, Nanos::NEVER);
    }
}
